"""One run: a cluster of three nodes and etcd, clients at work, faults, and in the end what the checker says of it.

start ─► load ─► faults under load ─► heal ─► writable, drained, in sync ─► kill -9 of all ─► read every disk ─► check
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from chaos.disks import note_disks, partitions_of
from chaos.faults import (
    ALONE,
    EXCLUSIVE,
    FAULTS,
    LONG,
    OF_NETWORK,
    OF_SLOW_DISK,
    TTL_S,
    Stage,
    all_at_home,
    free_disk,
)
from chaos.load import Load
from chaos.mounts import SMALL_BYTES, SlowDisk, slow_disk, small_disk
from chaos.network import Network, network
from chaos.waiting import PATIENCE_S, all_in_sync, until
from cluster_processes import Cluster, cluster
from history.checker import check
from history.deliveries import answers_of, deliveries_of
from history.entries import Recorder, of, recording
from history.progress import progress_of
from history.violation import Violation
from penstock.client.client import Client
from penstock.client.requests import FindOffsets
from penstock.errors import PenstockError
from penstock.net.connecting import connect_async

NODES = ("a", "b", "c")
# It joins and leaves.
SPARE = "d"
# A machine that has much else to do is late, too.
_LATE_US = 30_000_000
# A run with less proves nothing.
SENDS_MIN, ACKS_MIN = 200, 100
_LETTERS_MAX = 10_000
# From this seed on, many faults in a longer time, and more kinds of load.
STORMS = 1_000
STORM_S = 20.0
# Of a storm, on average.
_FAULTS_A_SECOND = 0.25
_EXCLUSIVE_SHARE = 0.25
# A disk that can be filled in a storm holds the data of the whole storm.
_STORM_DISK_BYTES = 4 * SMALL_BYTES


class Plan(NamedTuple):
    seed: int
    faults: tuple[str, ...]
    # They begin within this time.
    within_s: float = 1.5
    # The load lasts at least this long.
    seconds: float = 0.0

    @property
    def is_storm(self) -> bool:
        return self.seed >= STORMS

    @classmethod
    def of(cls, seed: int, left_out: Collection[str] = (), seconds: float = STORM_S) -> Plan:
        """Without the kinds that this machine can't make. A storm lasts `seconds`."""
        kinds = [kind for kind in FAULTS if kind not in left_out]
        if seed >= STORMS:
            return cls._storm(seed, kinds, seconds)
        return cls(seed, cls._short([kind for kind in kinds if kind not in LONG], seed))

    @classmethod
    def _storm(cls, seed: int, kinds: list[str], seconds: float) -> Plan:
        """Each kind in its turn, among others of any kind. At most one that excludes all others meanwhile."""
        rng = Random(f"plan {seed}")
        faults = [kinds[seed % len(kinds)]]
        others = [kind for kind in kinds if kind not in EXCLUSIVE]
        faults += rng.choices(others, k=max(3, round(seconds * _FAULTS_A_SECOND * rng.uniform(0.75, 1.25))))
        exclusive = [kind for kind in kinds if kind in EXCLUSIVE and kind not in faults]
        if exclusive and rng.random() < _EXCLUSIVE_SHARE:
            faults.append(rng.choice(exclusive))
        return cls(seed, tuple(faults), within_s=0.9 * seconds, seconds=seconds)

    @staticmethod
    def _short(kinds: list[str], seed: int) -> tuple[str, ...]:
        """Successive seeds have all kinds: one that goes alone, or two others and sometimes a third."""
        alone = [kind for kind in kinds if kind in ALONE]
        others = [kind for kind in kinds if kind not in ALONE]
        pairs = (len(others) + 1) // 2
        turn, at = divmod(seed, len(alone) + pairs)
        if turn % 2:
            # Those that go alone take longest: not again at once.
            at = len(alone) + pairs - 1 - at
        if at < len(alone):
            return (alone[at],)
        Random(f"order {turn}").shuffle(others)
        first = 2 * (at - len(alone))
        faults = others[first : first + 2]
        rng = Random(f"plan {seed}")
        if len(faults) < 2 or rng.random() < 1 / 3:
            faults.append(rng.choice([kind for kind in others if kind not in faults]))
        return tuple(faults)


class Outcome(NamedTuple):
    """`faults` counts those that happened. Times are since the faults were over: until every partition was writable,
    and until the last group went on in the last of its partitions."""

    plan: Plan
    violations: list[Violation]
    counts: dict[str, int]
    faults: Counter[str]
    writable_s: float
    progress_s: float

    def __str__(self) -> str:
        healed = f"writable after {self.writable_s:.1f} s, progress after {self.progress_s:.1f} s"
        return f"seed {self.plan.seed} ({', '.join(self.plan.faults)}): {self.counts}, {healed}"


def run_seed(
    seed: int,
    directory: Path,
    *,
    left_out: Collection[str] = (),
    faults: Sequence[str] | None = None,
    seconds: float = STORM_S,
) -> Outcome:
    """`faults` replace those of the seed. A storm has faults and load for `seconds`."""
    plan = Plan.of(seed, left_out, seconds)
    if faults:
        plan = plan._replace(faults=tuple(faults))
    with ExitStack() as stack:
        made: Network | None = None
        if not set(OF_NETWORK) <= set(left_out):
            made = stack.enter_context(network([*NODES, SPARE, "etcd"]))
        small, slow = Random(f"disk {seed}").sample(NODES, 2)
        slowed: SlowDisk | None = None
        if "fill_disk" in plan.faults:
            stack.enter_context(small_disk(directory / small, _STORM_DISK_BYTES if plan.is_storm else SMALL_BYTES))
        if set(OF_SLOW_DISK) & set(plan.faults):
            slowed = stack.enter_context(slow_disk(directory / slow))
        has_clocks = "step_clock" in plan.faults
        running = stack.enter_context(
            cluster(directory, NODES, hosts=made, session_ttl=f"{TTL_S}s", has_clocks=has_clocks, spares=[SPARE])
        )
        recorder = stack.enter_context(recording(directory / "history.jsonl"))
        asyncio.run(_Run(plan, running, made, slowed, recorder).run())
    entries = recorder.entries
    counts = {
        what: sum(1 for entry in entries if (entry["op"], entry["type"]) == (op, type))
        for what, op, type in (
            ("sent", "send", "ok"),
            ("refused", "send", "fail"),
            ("unknown", "send", "info"),
            ("acked", "ack", "ok"),
            ("looks", "look", "ok"),
        )
    }
    counts["letters"] = sum(len(entry["letters"]) for entry in entries if "letters" in entry) // len(NODES)
    writable = [entry["took_us"] / 1e6 for entry in of(entries, "settled") if entry["what"] == "writable"]
    progress = [(each.at - each.since) / 1e6 for each in progress_of(entries) if each.at is not None]
    return Outcome(
        plan,
        check(entries, late_us=_LATE_US, sends_min=SENDS_MIN, acks_min=ACKS_MIN),
        counts,
        Counter(entry["fault"] for entry in of(entries, "fault", "ok")),
        max(writable, default=math.nan),
        max(progress, default=math.nan),
    )


class _Run:
    def __init__(
        self, plan: Plan, cluster: Cluster, network: Network | None, slow: SlowDisk | None, recorder: Recorder
    ) -> None:
        self._plan = plan
        self._cluster = cluster
        self._network = network
        self._slow = slow
        self._recorder = recorder

    async def run(self) -> None:
        async with await connect_async(self._cluster.address) as client:
            addresses = {name: node.address for name, node in self._cluster.nodes.items()}
            is_storm = self._plan.is_storm
            load = Load(self._cluster.address, addresses, self._recorder, self._plan.seed, is_wide=is_storm)
            for topic, partitions in load.partitions.items():
                await client.create_topic(topic, partitions=partitions)
            await all_in_sync(client, NODES)
            stage = Stage(
                self._cluster,
                self._network,
                client,
                self._recorder,
                load.partitions,
                slow=self._slow,
                is_storm=is_storm,
            )
            await load.start()
            watching = asyncio.create_task(_watch(stage))
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await load.reached(sent=100, acked=50)
                lasting = asyncio.sleep(self._plan.seconds)
                await asyncio.gather(lasting, *[self._fault(stage, *each) for each in enumerate(self._plan.faults)])
                await self._heal(stage)
                await self._settled(stage, load, client)
            finally:
                if self._slow is not None:
                    # A process that waits for a frozen disk could not be ended.
                    self._slow.heal()
                watching.cancel()
                await load.stop()
            await self._note_disks(client)

    async def _fault(self, stage: Stage, number: int, kind: str) -> None:
        rng = Random(f"{kind} {number} {self._plan.seed}")
        # So that they do not all begin together.
        await asyncio.sleep(rng.uniform(0, self._plan.within_s))
        async with stage.exclusively() if kind in EXCLUSIVE else stage.beside_others():
            await FAULTS[kind](stage, rng)

    async def _heal(self, stage: Stage) -> None:
        if self._network is not None:
            self._network.mend_all()
        if self._slow is not None:
            self._slow.heal()
        for node in self._cluster.nodes.values():
            if os.path.ismount(node.data):
                free_disk(node)
            node.resume()
        for name in list(self._cluster.nodes):
            async with stage.turns[name]:
                await stage.revive(name)
        self._recorder.note("run", "heal", "ok")

    async def _settled(self, stage: Stage, load: Load, client: Client) -> None:
        began = time.monotonic()

        def note(what: str) -> None:
            took_us = int((time.monotonic() - began) * 1e6)
            self._recorder.note("run", "settled", "ok", what=what, took_us=took_us)

        # The checker reports the steps that are missing.
        with suppress(TimeoutError, AssertionError):
            places = [(topic, each) for topic, count in load.partitions.items() for each in range(count)]
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*[self._write(client, *place) for place in places])
                note("writable")
            async with asyncio.timeout(PATIENCE_S):
                await load.reached(sent=SENDS_MIN, acked=ACKS_MIN)
                await load.stop_producing()
                await load.drain()
                note("drained")
            await all_at_home(stage)
            await all_in_sync(client, NODES)
            note("in sync")

    async def _write(self, client: Client, topic: str, partition: int) -> None:
        """A client that publishes to it now succeeds."""
        for attempt in itertools.count():
            value = f"after.{topic}.{partition}-{attempt}"
            self._recorder.note("run", "send", "invoke", value=value, topic=topic, key=None)
            try:
                stored = await client.publish(topic, value.encode(), partition=partition)
            except PenstockError as error:
                self._recorder.note("run", "send", "info", value=value, error=f"{error.code}: {error.message}")
                continue
            self._recorder.note("run", "send", "ok", value=value, partition=stored.partition, offset=stored.offset)
            return

    async def _has_all_letters(self, client: Client) -> bool:
        """Of messages that no consumer has acknowledged. A letter is written after the last attempt is answered;
        without it, the checker says which one is missing."""
        entries = self._recorder.entries
        acked = {(answer.group, answer.place) for answer in answers_of(entries) if answer.op == "ack"}
        dead = {(each.group, each.place) for each in deliveries_of(entries)} - acked
        for topic in {topic for _, (topic, _, _) in dead}:
            letters = await client.dead_letters.list(topic, limit=_LETTERS_MAX)
            found = {(letter.group, letter.original) for letter in letters}
            if any((group, ":".join(map(str, place))) not in found for group, place in dead if place[0] == topic):
                return False
        return True

    async def _note_disks(self, client: Client) -> None:
        """Without this the checker has nothing to go by: a cluster that can't even tell is a failure of its own."""
        with suppress(TimeoutError):
            await until(partial(self._has_all_letters, client))
        partitions = partitions_of(self._cluster)
        committed = {}
        for topic in sorted({topic for topic, _ in partitions.values()}):
            async with asyncio.timeout(PATIENCE_S):
                committed[topic] = await client._transport.call(FindOffsets(topic, "latest"))
        await all_in_sync(client, NODES)
        for node in self._cluster.nodes.values():
            node.kill()
        note_disks(self._cluster, self._recorder, partitions, committed)


async def _watch(stage: Stage) -> None:
    """Restart each node that has ended by itself, as an operator's machine would."""
    while True:
        for name in list(stage.cluster.nodes):
            if stage.is_there(name) and not stage.turns[name].locked() and not stage.node(name).is_alive:
                async with stage.turns[name]:
                    if stage.is_there(name):
                        await stage.revive(name)
        await asyncio.sleep(0.2)
