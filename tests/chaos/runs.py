"""One run: a cluster of three nodes and etcd, clients at work, faults, and in the end what the checker says of it.

start ─► load ─► faults under load ─► heal ─► writable, drained, in sync ─► kill -9 of all ─► read every disk ─► check
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from chaos.disks import note_disks, partitions_of
from chaos.faults import ALONE, FAULTS, OF_NETWORK, TTL_S, Stage, free_disk, no_small_disk, small_disk
from chaos.load import PARTITIONS, TOPIC, Load
from chaos.network import Network, network
from chaos.waiting import PATIENCE_S, all_in_sync, until
from cluster_processes import Cluster, cluster
from history.checker import check
from history.deliveries import answers_of, deliveries_of
from history.entries import Recorder, recording
from history.violation import Violation
from penstock.client.client import Client
from penstock.client.requests import FindOffsets
from penstock.net.connecting import connect_async

NODES = ("a", "b", "c")
# A machine that has much else to do is late, too.
_LATE_US = 30_000_000
# A run with less is none.
SENDS_MIN, ACKS_MIN = 200, 100
_LETTERS_MAX = 10_000
# From this seed on, many faults in a longer time.
STORMS = 1_000


class Plan(NamedTuple):
    seed: int
    faults: tuple[str, ...]
    # They begin within this time.
    within_s: float = 1.5

    @classmethod
    def of(cls, seed: int, left_out: Collection[str] = ()) -> Plan:
        """Each kind in its turn, and one or two others beside it; none of those that this machine can't make."""
        rng = Random(f"plan {seed}")
        kinds = [kind for kind in FAULTS if kind not in left_out]
        others = [kind for kind in kinds if kind not in ALONE]
        if seed >= STORMS:
            return cls(seed, tuple(rng.choices(others, k=rng.randint(4, 8))), within_s=12)
        first = kinds[seed % len(kinds)]
        if first in ALONE:
            return cls(seed, (first,))
        return cls(seed, (first, *rng.sample([kind for kind in others if kind != first], rng.choice((1, 1, 2)))))


class Outcome(NamedTuple):
    plan: Plan
    violations: list[Violation]
    counts: dict[str, int]

    def __str__(self) -> str:
        return f"seed {self.plan.seed} ({', '.join(self.plan.faults)}): {self.counts}"


def run_seed(
    seed: int,
    directory: Path,
    *,
    left_out: Collection[str] = (),
    faults: Sequence[str] | None = None,
) -> Outcome:
    """`faults` are others than those of the seed."""
    plan = Plan.of(seed, left_out)
    if faults:
        plan = plan._replace(faults=tuple(faults))
    with ExitStack() as stack:
        made: Network | None = None
        if not set(OF_NETWORK) <= set(left_out):
            made = stack.enter_context(network([*NODES, "etcd"]))
        if "fill_disk" in plan.faults:
            small = directory / Random(f"disk {seed}").choice(NODES)
            small_disk(small)
            stack.callback(no_small_disk, small)
        has_clocks = "step_clock" in plan.faults
        running = stack.enter_context(
            cluster(directory, NODES, hosts=made, session_ttl=f"{TTL_S}s", has_clocks=has_clocks)
        )
        recorder = stack.enter_context(recording(directory / "history.jsonl"))
        asyncio.run(_Run(plan, running, made, recorder).run())
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
    return Outcome(plan, check(entries, late_us=_LATE_US, sends_min=SENDS_MIN, acks_min=ACKS_MIN), counts)


class _Run:
    def __init__(self, plan: Plan, cluster: Cluster, network: Network | None, recorder: Recorder) -> None:
        self._plan = plan
        self._cluster = cluster
        self._network = network
        self._recorder = recorder

    async def run(self) -> None:
        async with await connect_async(self._cluster.address) as client:
            await client.create_topic(TOPIC, partitions=PARTITIONS)
            await all_in_sync(client, len(NODES))
            stage = Stage(self._cluster, self._network, client, self._recorder)
            addresses = {name: node.address for name, node in self._cluster.nodes.items()}
            load = Load(self._cluster.address, addresses, self._recorder, self._plan.seed)
            await load.start()
            watching = asyncio.create_task(_watch(stage))
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await load.reached(sent=100, acked=50)
                await asyncio.gather(*[self._fault(stage, *each) for each in enumerate(self._plan.faults)])
                await self._heal(stage)
                await self._settled(stage, load, client)
            finally:
                watching.cancel()
                await load.stop()
            await self._note_disks(client)

    async def _fault(self, stage: Stage, number: int, kind: str) -> None:
        rng = Random(f"{kind} {number} {self._plan.seed}")
        # So that they do not all begin together.
        await asyncio.sleep(rng.uniform(0, self._plan.within_s))
        await FAULTS[kind](stage, rng)

    async def _heal(self, stage: Stage) -> None:
        if self._network is not None:
            self._network.mend_all()
        for name, node in self._cluster.nodes.items():
            if os.path.ismount(node.data):
                free_disk(node)
            node.resume()
            if not node.is_alive:
                await stage.start(name)
        self._recorder.note("run", "heal", "ok")

    async def _settled(self, stage: Stage, load: Load, client: Client) -> None:
        began = time.monotonic()

        def note(what: str) -> None:
            took_us = int((time.monotonic() - began) * 1e6)
            self._recorder.note("run", "settled", "ok", what=what, took_us=took_us)

        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*[self._write(client, number) for number in range(PARTITIONS)])
                note("writable")
                await load.reached(sent=SENDS_MIN, acked=ACKS_MIN)
                await load.stop_producing()
                await load.drain()
                note("drained")
                await all_in_sync(client, len(NODES))
                note("in sync")

    async def _write(self, client: Client, partition: int) -> None:
        """Somebody who comes now can publish to it."""
        value = f"after{partition}-0"
        self._recorder.note("run", "send", "invoke", value=value, topic=TOPIC, key=None)
        stored = await client.publish(TOPIC, value.encode(), partition=partition)
        self._recorder.note("run", "send", "ok", value=value, partition=stored.partition, offset=stored.offset)

    async def _has_all_letters(self, client: Client) -> bool:
        """Of messages that nobody has acknowledged. A letter is written after the last attempt is answered; without it,
        the checker says which one is missing."""
        acked = {answer.place for answer in answers_of(self._recorder.entries) if answer.op == "ack"}
        dead = {
            ":".join(map(str, each.place)) for each in deliveries_of(self._recorder.entries) if each.place not in acked
        }
        letters = await client.dead_letters.list(TOPIC, limit=_LETTERS_MAX)
        return dead <= {letter.original for letter in letters}

    async def _note_disks(self, client: Client) -> None:
        """Without this the checker has nothing to go by: a cluster that can't even tell is a failure of its own."""
        with suppress(TimeoutError):
            await until(partial(self._has_all_letters, client))
        partitions = partitions_of(self._cluster)
        committed = {}
        for topic in sorted({topic for topic, _ in partitions.values()}):
            async with asyncio.timeout(PATIENCE_S):
                committed[topic] = await client._transport.call(FindOffsets(topic, "latest"))
        await all_in_sync(client, len(NODES))
        for node in self._cluster.nodes.values():
            node.kill()
        note_disks(self._cluster, self._recorder, partitions, committed)


async def _watch(stage: Stage) -> None:
    """Starts what has ended by itself, as an operator's machine would."""
    while True:
        for name in stage.cluster.nodes:
            if not stage.turns[name].locked() and stage.node(name).died() is not None:
                stage.note_death(name)
                async with stage.turns[name]:
                    await stage.start(name)
        await asyncio.sleep(0.2)
