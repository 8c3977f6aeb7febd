"""What can go wrong in a cluster. Each fault says in the history when it begins, and how it is known to have happened;
it lasts as long as it is told to, and then it is over, but for what the cluster itself has to mend.

Sleeps are how long a fault lasts.
"""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

from chaos.load import GROUP, PARTITIONS, TOPIC
from chaos.network import Network, why_not
from chaos.waiting import PATIENCE_S, all_in_sync, until
from cluster_processes import Cluster, Node, find_faketime
from history.entries import Recorder
from penstock.client.client import Client
from penstock.client.cluster_requests import DrainNode, ElectLeaders, Reassign, UndrainNode
from penstock.client.placement import DescribeCluster, FindCoordinator, FindPlacement
from penstock.client.requests import Request
from penstock.errors import PenstockError

TTL_S = 3
# A node with its data on a disk of this size can be filled.
SMALL_DISK_BYTES = 48 << 20
_FILLER = "filler"
CLOCK_STEP_S_MAX = 40.0
# Why a node may not start: etcd is not there, or goes while it is asked, or the session of one with another disk is not
# over yet.
_NO_START = "[etcd_unavailable]", "[outcome_unknown]", "[already_exists]"


class Stage:
    """Where faults happen."""

    def __init__(self, cluster: Cluster, network: Network | None, client: Client, recorder: Recorder) -> None:
        self.cluster = cluster
        self.network = network
        self.client = client
        self.recorder = recorder
        # Two faults do not meddle with one process at a time.
        self.turns = {process.name: asyncio.Lock() for process in cluster.processes}
        # Those whose end is no surprise: their disk is full.
        self.forgiven: set[str] = set()
        self._faults = 0

    async def leader(self, rng: Random) -> str:
        """Of a partition that somebody leads."""
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
    names = [*sorted(stage.cluster.nodes), *(["etcd"] if rng.random() < 0.5 else [])]
    async with AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(stage.turns[name])
        happened = stage.begins("kill_all", " ".join(names))
        codes = await asyncio.gather(*[asyncio.to_thread(stage.cluster.process(name).kill) for name in names])
        happened(codes == [-9] * len(codes))
        await asyncio.sleep(rng.uniform(0.0, TTL_S))
        if "etcd" in names:
            await stage.start("etcd")
            names.remove("etcd")
        await asyncio.gather(*[stage.start(name) for name in names])


async def _paused(stage: Stage, name: str, kind: str, for_s: float) -> None:
    async with stage.turns[name]:
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
    await all_in_sync(stage.client, len(stage.cluster.nodes))
    etcd, names = stage.cluster.etcd, sorted(stage.cluster.nodes)
    async with stage.turns["etcd"]:
        happened = stage.begins("restore_etcd", "etcd")
        await asyncio.to_thread(etcd.kill)
        await asyncio.to_thread(etcd.back_up)
        await stage.start("etcd")
    for _ in range(rng.randint(1, 3)):
        await rng.choice((kill_leader, kill_follower, move_partitions))(stage, rng)
    async with AsyncExitStack() as stack:
        for name in ("etcd", *names):
            await stack.enter_async_context(stage.turns[name])
        await asyncio.to_thread(etcd.kill)
        await asyncio.to_thread(etcd.restore)
        await stage.start("etcd")

        async def have_ended() -> bool:
            return not any(stage.node(name).is_alive for name in names)

        await until(have_ended)
        happened(all(stage.node(name).died() and stage.node(name).says("[etcd_replaced]") for name in names))
        await asyncio.gather(*[stage.start(name) for name in names])
    await _all_everywhere(stage)


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


def small_disk(directory: Path) -> None:
    directory.mkdir()
    size = f"size={SMALL_DISK_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(directory)], check=True, capture_output=True)


def why_no_small_disk() -> str | None:
    """What keeps this machine from having one, if anything does."""
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent, "probe")
        try:
            small_disk(directory)
            no_small_disk(directory)
        except FileNotFoundError:
            return "there is no command mount"
        except subprocess.CalledProcessError as error:
            return f"no disk can be mounted: {error.stderr.decode(errors='replace').strip()}"
    return None


def no_small_disk(directory: Path) -> None:
    subprocess.run(["umount", "-l", str(directory)], check=True, capture_output=True)


async def fill_disk(stage: Stage, rng: Random) -> None:
    """Of the node that has a small one."""
    name = next(name for name, node in sorted(stage.cluster.nodes.items()) if os.path.ismount(node.data))
    async with stage.turns[name]:
        happened = stage.begins("fill_disk", name)
        stage.forgiven.add(name)
        happened(await asyncio.to_thread(_fill, stage.node(name).data / _FILLER))
        await asyncio.sleep(rng.uniform(0.5, 1.5) * TTL_S)
        free_disk(stage.node(name))
        if not stage.node(name).is_alive:
            if stage.node(name).died() is not None:
                stage.note_death(name)
            await stage.start(name)
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


async def wipe_disk(stage: Stage, rng: Random) -> None:
    """A node comes back under its name, with an empty disk."""
    name = await stage.leader(rng) if rng.random() < 0.5 else stage.any(rng)
    async with stage.turns[name]:
        happened = stage.begins("wipe_disk", name)
        killed = await asyncio.to_thread(stage.node(name).kill)
        stage.node(name).wipe()
        happened(killed == -9 and not any(stage.node(name).data.iterdir()))
        await asyncio.sleep(rng.uniform(0.0, 1.5) * TTL_S)
        await stage.start(name)


# --- what is planned -----------------------------------------------------------------------------------------


async def rolling_restart(stage: Stage, rng: Random) -> None:
    """As it is done by hand: the next one when all is in sync again."""
    codes = []
    happened = stage.begins("rolling_restart", " ".join(stage.cluster.nodes))
    for name in sorted(stage.cluster.nodes):
        async with stage.turns[name]:
            code = await asyncio.to_thread(stage.node(name).stop)
            codes.append(code)
            if code != 0:
                stage.recorder.note(name, "death", "ok", code=code, is_expected=False)
            await stage.start(name)
            await all_in_sync(stage.client, len(stage.cluster.nodes))
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
    nodes, done = sorted(stage.cluster.nodes), 0
    for _ in range(rng.randint(8, 16)):
        requests: list[Request[Any]] = []
        for partition in rng.sample(range(PARTITIONS), rng.randint(1, PARTITIONS)):
            target = tuple(rng.sample(nodes, rng.choice((2, 3))))
            requests += [Reassign(TOPIC, partition, target), ElectLeaders(TOPIC, partition, rng.choice(target))]
        done += await _ask(stage, *requests)
        await asyncio.sleep(rng.uniform(0.0, 0.4))
    happened(done > 0)
    await _all_everywhere(stage)


async def _all_everywhere(stage: Stage) -> None:
    """Moves that are under way are replaced by these."""
    nodes = tuple(sorted(stage.cluster.nodes))

    async def asked() -> bool:
        return await _ask(stage, *(Reassign(TOPIC, partition, nodes) for partition in range(PARTITIONS))) == PARTITIONS

    await until(asked)


async def drain_node(stage: Stage, rng: Random) -> None:
    """A node hands over what it leads, and takes it back later. It keeps its copies: no other node could have them."""
    name = await stage.leader(rng)
    happened = stage.begins("drain_node", name)
    happened(bool(await _ask(stage, DrainNode(name))))
    await asyncio.sleep(rng.uniform(0.3, 1.5))

    async def undone() -> bool:
        return await _ask(stage, UndrainNode(name)) == 1

    await until(undone)


# --- clocks --------------------------------------------------------------------------------------------------


async def step_clock(stage: Stage, rng: Random) -> None:
    """The wall clock of a leader is set forward and back, by less and by more than a lease lasts."""
    name = await stage.leader(rng)
    happened = stage.begins("step_clock", name)
    steps, stepped = rng.randint(1, 3), False
    # Another fault may have killed each node that was chosen: then there is one step more.
    while steps > 0 or not stepped:
        stage.node(name).step_clock(rng.choice((-1, 1)) * rng.choice((1.0, CLOCK_STEP_S_MAX)))
        await asyncio.sleep(rng.uniform(1.0, 1.5) * TTL_S)
        stepped |= stage.node(name).has_clock
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
        wipe_disk,
        rolling_restart,
        move_partitions,
        drain_node,
        step_clock,
    )
}
OF_NETWORK = ("cut_leader", "cut_etcd", "cut_off", "cut_one_way")
# Whole clusters: nothing else goes on beside these.
ALONE = ("kill_all", "rolling_restart", "fill_disk", "restore_etcd")


def impossible() -> dict[str, str]:
    """Faults that this machine can't make, and why."""
    found = {}
    if (why := why_not()) is not None:
        found.update(dict.fromkeys(OF_NETWORK, why))
    if (why := why_no_small_disk()) is not None:
        found["fill_disk"] = why
    if find_faketime() is None:
        found["step_clock"] = "the library of faketime is not installed"
    return found
