"""What can go wrong in a cluster. Each fault records in the history when it begins, and the evidence that it happened.
It ends itself, and leaves only what the cluster has to mend.

Faults may overlap: each locks the process that it interferes with (`Stage.turns`). A few need more than that, or
exclude others (`Stage.exclusively`, `Stage.wiping`, `Stage.spare`).

Sleeps are how long a fault lasts.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from chaos.load import GROUP, PARTITIONS, TOPIC
from chaos.mounts import SlowDisk, why_no_slow_disk, why_no_small_disk
from chaos.network import Network, why_not
from chaos.waiting import PATIENCE_S, all_in_sync, placed, until
from cluster_processes import Cluster, Node, find_faketime
from history.entries import Recorder
from penstock.client.client import Client
from penstock.client.cluster_requests import (
    DrainNode,
    ElectLeaders,
    Reassign,
    Rebalance,
    SurveyCluster,
    UndrainNode,
)
from penstock.client.placement import DescribeCluster, FindCoordinator, FindPlacement
from penstock.client.requests import Request
from penstock.errors import PenstockError

TTL_S = 3
# A rolling restart among other faults waits this long for a node to catch up, and goes on.
_HASTE_S = 15.0
_PARTITIONS_MAX = 8
# An unhindered sync takes a few milliseconds, on a busy machine a few dozen.
_SLOW_SYNC_S = 0.1
_FILLER = "filler"
CLOCK_STEP_S_MAX = 40.0
# Why a node may not start: etcd is not there, or goes while it is asked, or the session of one with another disk is not
# over yet.
_NO_START = "[etcd_unavailable]", "[outcome_unknown]", "[already_exists]"


class Stage:
    """Where faults happen."""

    def __init__(
        self,
        cluster: Cluster,
        network: Network | None,
        client: Client,
        recorder: Recorder,
        partitions: dict[str, int],
        *,
        slow: SlowDisk | None = None,
        is_storm: bool = False,
    ) -> None:
        """`partitions` counts those of each topic; faults add some."""
        self.cluster = cluster
        self.network = network
        self.client = client
        self.recorder = recorder
        self.partitions = partitions
        self.slow = slow
        self.is_storm = is_storm
        # The nodes that stay: all partitions are to be on these in the end.
        self.home = tuple(sorted(cluster.nodes))
        # No new replicas on these: they are about to leave.
        self.leaving: set[str] = set()
        # Two faults never interfere with one process at the same time.
        self.turns = {process.name: asyncio.Lock() for process in cluster.processes}
        # A second wiped disk, before the first node has caught up, would take the last copies.
        self.wiping = asyncio.Lock()
        # Of the node that joins and leaves.
        self.spare = asyncio.Lock()
        # A full disk ends these nodes, as it should.
        self.forgiven: set[str] = set()
        self._faults = 0
        self._shared = 0
        self._is_exclusive = False
        self._waiting = 0
        self._ended = asyncio.Condition()

    @asynccontextmanager
    async def beside_others(self) -> AsyncIterator[None]:
        async with self._ended:
            await self._ended.wait_for(lambda: not (self._is_exclusive or self._waiting))
            self._shared += 1
        try:
            yield
        finally:
            async with self._ended:
                self._shared -= 1
                self._ended.notify_all()

    @asynccontextmanager
    async def exclusively(self) -> AsyncIterator[None]:
        """Once the faults that are under way have ended; others begin later."""
        async with self._ended:
            self._waiting += 1
            try:
                await self._ended.wait_for(lambda: not (self._is_exclusive or self._shared))
            finally:
                self._waiting -= 1
                self._ended.notify_all()
            self._is_exclusive = True
        try:
            yield
        finally:
            async with self._ended:
                self._is_exclusive = False
                self._ended.notify_all()

    async def leader(self, rng: Random) -> str:
        """Of a partition that has a leader."""
        for _ in range(20):
            try:
                placement = await self.client._transport.call(FindPlacement((TOPIC,)))
            except PenstockError:
                continue
            leaders = [one.leader for topic in placement.topics for one in topic.partitions if one.leader]
            if leaders:
                return leaders[rng.randrange(PARTITIONS) % len(leaders)]
        return self.any(rng)

    async def controller(self, rng: Random) -> str:
        try:
            return (await self.client._transport.call(DescribeCluster())).controller or self.any(rng)
        except PenstockError:
            return self.any(rng)

    async def coordinator(self, rng: Random) -> str:
        try:
            return (await self.client._transport.call(FindCoordinator(GROUP))).node or self.any(rng)
        except PenstockError:
            return self.any(rng)

    def any(self, rng: Random) -> str:
        return rng.choice(sorted(self.cluster.nodes))

    def others(self, name: str) -> list[str]:
        return [other for other in sorted(self.cluster.nodes) if other != name]

    def node(self, name: str) -> Node:
        return self.cluster.nodes[name]

    def is_there(self, name: str) -> bool:
        """False for a node that has left while a fault waited for its turn."""
        return name == "etcd" or name in self.cluster.nodes

    async def revive(self, name: str) -> None:
        """If it has ended by itself since."""
        if not self.cluster.process(name).is_alive:
            if self.cluster.process(name).died() is not None:
                self.note_death(name)
            await self.start(name)

    def begins(self, kind: str, of: str) -> Callable[[object], None]:
        """What is to be called with the evidence that it happened."""
        self._faults += 1
        name = f"fault {self._faults}"
        self.recorder.note(name, "fault", "invoke", fault=kind, of=of)

        def happened(evidence: object) -> None:
            self.recorder.note(name, "fault", "ok", fault=kind, of=of, evidence=evidence)

        return happened

    async def start(self, name: str) -> None:
        """Once it is ready; and as often as it takes, if it can't be for reasons that we made."""
        process = self.cluster.process(name)
        process.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await asyncio.to_thread(process.is_ready.wait, 0.1):
                    if process.died() is not None:
                        self.note_death(name)
                        process.start()
        except TimeoutError:
            raise AssertionError(f"{name} does not start:\n{process.log.read_text()[-3_000:]}") from None

    def note_death(self, name: str) -> None:
        process = self.cluster.process(name)
        is_expected = name in self.forgiven or (not process.is_ready.is_set() and process.says(*_NO_START))
        self.recorder.note(name, "death", "ok", code=process.deaths[-1], is_expected=is_expected)


Fault = Callable[[Stage, Random], Awaitable[None]]


# --- processes that die or hang ------------------------------------------------------------------------------


async def _killed(stage: Stage, name: str, kind: str, down_s: float) -> None:
    async with stage.turns[name]:
        if not stage.is_there(name):
            return
        await stage.revive(name)
        happened = stage.begins(kind, name)
        happened(await asyncio.to_thread(stage.node(name).kill) == -9)
        await asyncio.sleep(down_s)
        await stage.start(name)


async def kill_leader(stage: Stage, rng: Random) -> None:
    await _killed(stage, await stage.leader(rng), "kill_leader", rng.uniform(0.1, 1.5 * TTL_S))


async def kill_follower(stage: Stage, rng: Random) -> None:
    name = rng.choice(stage.others(await stage.leader(rng)))
    await _killed(stage, name, "kill_follower", rng.uniform(0.1, 1.5 * TTL_S))


async def kill_coordinator(stage: Stage, rng: Random) -> None:
    await _killed(stage, await stage.coordinator(rng), "kill_coordinator", rng.uniform(0.1, 1.5 * TTL_S))


async def kill_controller(stage: Stage, rng: Random) -> None:
    await _killed(stage, await stage.controller(rng), "kill_controller", rng.uniform(0.1, 1.5 * TTL_S))


async def kill_all(stage: Stage, rng: Random) -> None:
    """At once, as when the power fails; etcd with them, sometimes."""
    with_etcd = rng.random() < 0.5
    async with _all_turns(stage, with_etcd=with_etcd):
        names = [*sorted(stage.cluster.nodes), *(["etcd"] if with_etcd else [])]
        for name in reversed(names):
            await stage.revive(name)
        happened = stage.begins("kill_all", " ".join(names))
        codes = await asyncio.gather(*[asyncio.to_thread(stage.cluster.process(name).kill) for name in names])
        happened(codes == [-9] * len(codes))
        await asyncio.sleep(rng.uniform(0.0, TTL_S))
        if "etcd" in names:
            await stage.start("etcd")
            names.remove("etcd")
        await asyncio.gather(*[stage.start(name) for name in names])


@asynccontextmanager
async def _all_turns(stage: Stage, *, with_etcd: bool) -> AsyncIterator[None]:
    """In one order: two faults that want them all would wait for each other otherwise."""
    async with AsyncExitStack() as stack:
        for name in sorted(stage.turns):
            if name != "etcd" or with_etcd:
                await stack.enter_async_context(stage.turns[name])
        yield


async def _paused(stage: Stage, name: str, kind: str, for_s: float) -> None:
    async with stage.turns[name]:
        if not stage.is_there(name):
            return
        await stage.revive(name)
        process = stage.cluster.process(name)
        happened = stage.begins(kind, name)
        process.hold()
        happened(await asyncio.to_thread(_is_stopped, process.pid))
        await asyncio.sleep(for_s)
        process.resume()


def _is_stopped(pid: int) -> bool:
    """It takes a moment, on a busy machine a longer one."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return True
        os.sched_yield()
    return False


async def pause_leader(stage: Stage, rng: Random) -> None:
    """For less than a session lasts: nobody else may notice, or somebody just did."""
    await _paused(stage, await stage.leader(rng), "pause_leader", rng.uniform(0.3, 1.0) * TTL_S)


async def pause_leader_long(stage: Stage, rng: Random) -> None:
    """For longer: it wakes up as a leader of the past."""
    await _paused(stage, await stage.leader(rng), "pause_leader_long", rng.uniform(1.1, 1.8) * TTL_S)


async def pause_coordinator_long(stage: Stage, rng: Random) -> None:
    await _paused(stage, await stage.coordinator(rng), "pause_coordinator_long", rng.uniform(1.1, 1.6) * TTL_S)


# --- etcd ----------------------------------------------------------------------------------------------------


async def kill_etcd(stage: Stage, rng: Random) -> None:
    async with stage.turns["etcd"]:
        happened = stage.begins("kill_etcd", "etcd")
        happened(await asyncio.to_thread(stage.cluster.etcd.kill) == -9)
        await asyncio.sleep(rng.uniform(0.2, 2.0) * TTL_S)
        await stage.start("etcd")


async def pause_etcd(stage: Stage, rng: Random) -> None:
    await _paused(stage, "etcd", "pause_etcd", rng.uniform(0.5, 1.6) * TTL_S)


async def restore_etcd(stage: Stage, rng: Random) -> None:
    """From a backup that knows neither later leaders nor moves. Nodes notice, and end; an operator starts them again.

    The backup has all topics: a topic that it does not know is lost but for its copies on disk."""

    async def has_dead_letters() -> bool:
        try:
            return bool(await stage.client.dead_letters.list(TOPIC, limit=1))
        except PenstockError:
            return False

    await until(has_dead_letters)
    await all_in_sync(stage.client, stage.home)
    etcd, names = stage.cluster.etcd, sorted(stage.cluster.nodes)
    async with stage.turns["etcd"]:
        happened = stage.begins("restore_etcd", "etcd")
        await asyncio.to_thread(etcd.kill)
        await asyncio.to_thread(etcd.back_up)
        await stage.start("etcd")
    for _ in range(rng.randint(1, 3)):
        await rng.choice((kill_leader, kill_follower, move_partitions))(stage, rng)
    async with _all_turns(stage, with_etcd=True):
        await asyncio.to_thread(etcd.kill)
        await asyncio.to_thread(etcd.restore)
        await stage.start("etcd")

        async def have_ended() -> bool:
            return not any(stage.node(name).is_alive for name in names)

        await until(have_ended)
        happened(all(stage.node(name).died() and stage.node(name).says("[etcd_replaced]") for name in names))
        await asyncio.gather(*[stage.start(name) for name in names])
    await all_at_home(stage)


# --- the network ---------------------------------------------------------------------------------------------


async def _cut(stage: Stage, kind: str, name: str, pairs: list[tuple[str, str]], for_s: float) -> None:
    network = stage.network
    assert network is not None
    happened = stage.begins(kind, " ".join(f"{source}>{target}" for source, target in pairs))
    for pair in pairs:
        await asyncio.to_thread(network.cut, *pair)
    source, target = pairs[0]
    port = stage.cluster.etcd.port if target == "etcd" else stage.node(target).port
    happened(await asyncio.to_thread(network.dropped, source, target, port))
    await asyncio.sleep(for_s)
    for pair in pairs:
        await asyncio.to_thread(network.mend, *pair)


def _both_ways(name: str, others: list[str]) -> list[tuple[str, str]]:
    return [pair for other in others for pair in ((name, other), (other, name))]


async def cut_leader(stage: Stage, rng: Random) -> None:
    """From those who follow it; etcd hears of it as before."""
    name = await stage.leader(rng)
    await _cut(stage, "cut_leader", name, _both_ways(name, stage.others(name)), rng.uniform(0.5, 2.0) * TTL_S)


async def cut_etcd(stage: Stage, rng: Random) -> None:
    """A leader from etcd; those who follow it hear of it as before."""
    name = await stage.leader(rng)
    await _cut(stage, "cut_etcd", name, _both_ways(name, ["etcd"]), rng.uniform(0.8, 2.0) * TTL_S)


async def cut_off(stage: Stage, rng: Random) -> None:
    """A leader from everybody but clients."""
    name = await stage.leader(rng)
    pairs = _both_ways(name, [*stage.others(name), "etcd"])
    await _cut(stage, "cut_off", name, pairs, rng.uniform(0.8, 2.0) * TTL_S)


async def cut_one_way(stage: Stage, rng: Random) -> None:
    """What one sends is lost; what it is sent arrives. Between two nodes, or a node and etcd."""
    name = await stage.leader(rng)
    pair = one_way(name, stage.others(name), rng)
    await _cut(stage, "cut_one_way", name, [pair], rng.uniform(0.8, 2.0) * TTL_S)


def one_way(name: str, others: list[str], rng: Random) -> tuple[str, str]:
    """From whom nothing arrives, and at whom."""
    other = rng.choice([*others, "etcd"])
    return (name, other) if rng.random() < 0.5 else (other, name)


# --- disks ---------------------------------------------------------------------------------------------------


async def fill_disk(stage: Stage, rng: Random) -> None:
    """Of the node that has a small one."""
    name = next(name for name, node in sorted(stage.cluster.nodes.items()) if os.path.ismount(node.data))
    async with stage.turns[name]:
        happened = stage.begins("fill_disk", name)
        stage.forgiven.add(name)
        happened(await asyncio.to_thread(_fill, stage.node(name).data / _FILLER))
        await asyncio.sleep(rng.uniform(0.5, 1.5) * TTL_S)
        free_disk(stage.node(name))
        await stage.revive(name)
        stage.forgiven.discard(name)


def _fill(path: Path) -> bool:
    with path.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2
    return True


def free_disk(node: Node) -> None:
    (node.data / _FILLER).unlink(missing_ok=True)


async def slow_disk(stage: Stage, rng: Random) -> None:
    """The kernel lets a few writes a second through: each sync takes a large part of a second, or several."""
    disk = stage.slow
    assert disk is not None
    async with disk.turn:
        happened = stage.begins("slow_disk", disk.node)
        disk.limit(rng.choice((4, 10, 30)))
        ends, slowest_s = time.monotonic() + rng.uniform(0.8, 2.5) * TTL_S, 0.0
        # The first writes may pass unhindered.
        while time.monotonic() < ends or slowest_s < _SLOW_SYNC_S:
            slowest_s = max(slowest_s, await asyncio.to_thread(disk.sync_s))
            await asyncio.sleep(0.2)
        disk.limit(0)
        happened(round(slowest_s, 3))


async def hang_disk(stage: Stage, rng: Random) -> None:
    """What a node writes waits, for less or more than a session lasts; then all of it is written."""
    disk = stage.slow
    assert disk is not None
    # No signal ends a process that waits for its disk: other faults must not try.
    async with disk.turn, stage.turns[disk.node]:
        happened = stage.begins("hang_disk", disk.node)
        happened(await asyncio.to_thread(disk.freeze))
        await asyncio.sleep(rng.uniform(0.3, 2.0) * TTL_S)
        await asyncio.to_thread(disk.thaw)


async def wipe_disk(stage: Stage, rng: Random) -> None:
    """A node comes back under its name, with an empty disk."""
    async with stage.wiping:
        if stage.is_storm:
            await all_in_sync(stage.client)
        name = await stage.leader(rng) if rng.random() < 0.5 else stage.any(rng)
        async with stage.turns[name]:
            if not stage.is_there(name):
                return
            await stage.revive(name)
            happened = stage.begins("wipe_disk", name)
            killed = await asyncio.to_thread(stage.node(name).kill)
            stage.node(name).wipe()
            happened(killed == -9 and not any(stage.node(name).data.iterdir()))
            await asyncio.sleep(rng.uniform(0.0, 1.5) * TTL_S)
            await stage.start(name)
        if stage.is_storm:
            await all_in_sync(stage.client)


# --- what is planned -----------------------------------------------------------------------------------------


async def rolling_restart(stage: Stage, rng: Random) -> None:
    """As an operator does it: the next node when all is in sync again, or, among other faults, when that takes long."""
    codes = []
    happened = stage.begins("rolling_restart", " ".join(stage.home))
    for name in stage.home:
        async with stage.turns[name]:
            await stage.revive(name)
            code = await asyncio.to_thread(stage.node(name).stop)
            codes.append(code)
            if code != 0:
                stage.recorder.note(name, "death", "ok", code=code, is_expected=False)
            await stage.start(name)
        try:
            await all_in_sync(stage.client, patience_s=_HASTE_S if stage.is_storm else PATIENCE_S)
        except AssertionError:
            if not stage.is_storm:
                raise
    happened(codes == [0] * len(codes))


async def _ask(stage: Stage, *requests: Request[Any]) -> int:
    """Send all at once, as one client would. Returns how many were carried out: the others met a leader that was on
    its way elsewhere."""
    outcomes = await asyncio.gather(*[stage.client._transport.call(each) for each in requests], return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, PenstockError):
            raise outcome
    return sum(not isinstance(outcome, BaseException) for outcome in outcomes)


async def move_partitions(stage: Stage, rng: Random) -> None:
    """Reassign partitions and elect other leaders at the same time, repeatedly. All nodes have copies at the end."""
    happened = stage.begins("move_partitions", TOPIC)
    done = 0
    for _ in range(rng.randint(8, 16)):
        requests: list[Request[Any]] = []
        nodes = sorted(stage.cluster.nodes.keys() - stage.leaving)
        places = [(topic, each) for topic, count in stage.partitions.items() for each in range(count)]
        for topic, partition in rng.sample(places, rng.randint(1, PARTITIONS)):
            target = tuple(rng.sample(nodes, rng.choice((2, 3))))
            requests += [Reassign(topic, partition, target), ElectLeaders(topic, partition, rng.choice(target))]
        done += await _ask(stage, *requests)
        await asyncio.sleep(rng.uniform(0.0, 0.4))
    happened(done > 0)
    await all_at_home(stage)


async def all_at_home(stage: Stage) -> None:
    """Reassign all partitions to the nodes that stay; dead letters follow their topics. Moves that are under way are
    replaced by these."""

    async def asked() -> bool:
        topics = await placed(stage.client)
        if topics is None or not topics.keys() >= stage.partitions.keys():
            return False
        requests = [Reassign(topic, part.number, stage.home) for topic in stage.partitions for part in topics[topic]]
        return await _ask(stage, *requests) == len(requests)

    await until(asked)


async def _undrain(stage: Stage, name: str) -> None:
    async def undone() -> bool:
        await _ask(stage, UndrainNode(name))
        try:
            report = await stage.client._transport.call(SurveyCluster())
        except PenstockError:
            return False
        return not any(node.id == name and node.is_draining for node in report.nodes)

    await until(undone)


async def drain_node(stage: Stage, rng: Random) -> None:
    """A node hands over what it leads, and takes it back later. It keeps its copies: no other node could have them."""
    name = await stage.leader(rng)
    if name in stage.leaving:
        return
    happened = stage.begins("drain_node", name)

    async def drained() -> bool:
        return await _ask(stage, DrainNode(name)) == 1

    await until(drained)
    happened(True)
    await asyncio.sleep(rng.uniform(0.3, 1.5))
    await _undrain(stage, name)


# --- growth --------------------------------------------------------------------------------------------------


async def _emptied(stage: Stage, name: str) -> None:
    """Drain it, and move its replicas away. Other faults move some back: ask until it has none."""

    async def has_none() -> bool:
        await _ask(stage, DrainNode(name, moves=True))
        for _ in range(20):
            topics = await placed(stage.client)
            if topics and all(name not in part.replicas for parts in topics.values() for part in parts):
                return True
            await asyncio.sleep(0.1)
        return False

    await until(has_none)


@asynccontextmanager
async def _one_more_node(stage: Stage) -> AsyncIterator[str]:
    """A node joins, and leaves in the end: its replicas are moved away, it ends, and its disk is emptied."""
    async with stage.spare:
        name = next(iter(stage.cluster.spares))
        async with stage.turns[name]:
            stage.cluster.join(name)
            await stage.start(name)
        yield name
        stage.leaving.add(name)
        await _emptied(stage, name)
        async with stage.turns[name]:
            await stage.revive(name)
            code = await asyncio.to_thread(stage.node(name).stop)
            if code != 0:
                stage.recorder.note(name, "death", "ok", code=code, is_expected=False)
            stage.cluster.leave(name)
        await _undrain(stage, name)
        stage.leaving.discard(name)
        await all_at_home(stage)


async def grow_cluster(stage: Stage, rng: Random) -> None:
    """A fourth node joins, takes over replicas and leads some; later it leaves again."""
    async with _one_more_node(stage) as name:
        happened = stage.begins("grow_cluster", name)

        async def leads() -> bool:
            await _ask(stage, Rebalance(is_dry=False))
            partition = rng.randrange(stage.partitions[TOPIC])
            target = (name, *rng.sample(stage.home, 2))
            await _ask(stage, Reassign(TOPIC, partition, target), ElectLeaders(TOPIC, partition, name))
            await asyncio.sleep(1)
            topics = await placed(stage.client)
            return bool(topics) and any(part.leader == name for parts in topics.values() for part in parts)

        await until(leads)
        happened(True)
        await asyncio.sleep(rng.uniform(0.5, 3.0) * TTL_S)


async def drain_with_moves(stage: Stage, rng: Random) -> None:
    """All replicas of a node are moved to others, one more among them, and back."""
    async with _one_more_node(stage):
        name = rng.choice(stage.home)
        happened = stage.begins("drain_with_moves", name)
        await _emptied(stage, name)
        happened(True)
        await asyncio.sleep(rng.uniform(0.3, 1.5))
        await _undrain(stage, name)


async def add_partitions(stage: Stage, rng: Random) -> None:
    """Topics grow under load: messages, groups and copies follow."""
    topic = rng.choice(sorted(stage.partitions)) if stage.is_storm else TOPIC
    happened = stage.begins("add_partitions", topic)
    wanted = min(stage.partitions[topic] + rng.randint(1, 2), _PARTITIONS_MAX)

    async def grown() -> bool:
        try:
            await stage.client.change_topic(topic, partitions=wanted)
        except PenstockError:
            pass  # Perhaps an earlier attempt was carried out.
        return len((await placed(stage.client) or {}).get(topic, ())) >= wanted

    await until(grown)
    stage.partitions[topic] = max(stage.partitions[topic], wanted)
    happened(wanted)


# --- clocks --------------------------------------------------------------------------------------------------


async def step_clock(stage: Stage, rng: Random) -> None:
    """The wall clock of a leader is set forward and back, by less and by more than a lease lasts."""
    name = await stage.leader(rng)
    happened = stage.begins("step_clock", name)
    steps, stepped = rng.randint(1, 3), False
    # Another fault may have killed each node that was chosen: then there is one step more.
    while steps > 0 or not stepped:
        if stage.is_there(name):
            stage.node(name).step_clock(rng.choice((-1, 1)) * rng.choice((1.0, CLOCK_STEP_S_MAX)))
        await asyncio.sleep(rng.uniform(1.0, 1.5) * TTL_S)
        stepped |= stage.is_there(name) and stage.node(name).has_clock
        steps -= 1
        if rng.random() < 0.5 or not stepped:
            name = await stage.leader(rng)
    happened(stepped)
    for node in stage.cluster.nodes.values():
        node.step_clock(0)


FAULTS: dict[str, Fault] = {
    each.__name__: each
    for each in (
        kill_leader,
        kill_follower,
        kill_coordinator,
        kill_controller,
        kill_all,
        pause_leader,
        pause_leader_long,
        pause_coordinator_long,
        kill_etcd,
        pause_etcd,
        restore_etcd,
        cut_leader,
        cut_etcd,
        cut_off,
        cut_one_way,
        fill_disk,
        slow_disk,
        hang_disk,
        wipe_disk,
        rolling_restart,
        move_partitions,
        drain_node,
        step_clock,
        add_partitions,
        grow_cluster,
        drain_with_moves,
    )
}
OF_NETWORK = ("cut_leader", "cut_etcd", "cut_off", "cut_one_way")
OF_SLOW_DISK = ("slow_disk", "hang_disk")
# In short runs, nothing else goes on beside these.
ALONE = ("kill_all", "rolling_restart", "fill_disk", "restore_etcd")
# Storms only: a node joins and leaves, which takes a while.
LONG = ("grow_cluster", "drain_with_moves")
# Also in storms, all other faults wait until this one is over. The backup would lack what they add, or would take away
# the last of the copies that they leave.
EXCLUSIVE = ("restore_etcd",)


def impossible() -> dict[str, str]:
    """Faults that this machine can't make, and why."""
    found = {}
    if (why := why_not()) is not None:
        found.update(dict.fromkeys(OF_NETWORK, why))
    if (why := why_no_small_disk()) is not None:
        found["fill_disk"] = why
    if (why := why_no_slow_disk()) is not None:
        found.update(dict.fromkeys(OF_SLOW_DISK, why))
    if find_faketime() is None:
        found["step_clock"] = "the library of faketime is not installed"
    return found
