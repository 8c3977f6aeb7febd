"""For how long does nobody take messages, when a leader dies, and when another is to lead?

Three nodes of a cluster and etcd on this machine; a topic of six partitions with three replicas each, two led by every
node. One client process publishes to each partition 25 messages a second, one after the other, and each is counted from
when it was due until it was acknowledged (`acks=all`):

    killed          kill -9 of a node: until all partitions that it led have acknowledged again. They have to wait until
                    its session in etcd has run out (6 s). Those that others lead: p99 in the time that this may take
                    (8 s), beside that of as long before. Each node twice. What the disk takes by itself is shown
                    beside it: where it stalls, everybody does.
    elected         `penstock cluster elect` of another leader: the longest time without an acknowledgement
    stopped         SIGTERM of a node, as in a rolling restart: the same, of all partitions
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import NamedTuple

import harness
import penstock
from cluster_load import Load, load
from cluster_serving import NODES, PATIENCE_S, Cluster, ask, cluster, has_etcd
from harness import Figure, Run, info
from pacing import info_of_syncs, syncing
from penstock.client.client import Client
from penstock.client.cluster_requests import ElectLeaders
from penstock.client.placement import Placed
from serving import PARTITIONS

TOPIC = "bench"
TTL_S, TTL_S_QUICK = 6, 3
MORE_S = 2
MOVE_BAR_MS = 500
BESIDE_BAR = 2
_LOOK_S, _LOOKS = 0.02, 100


class Killed(NamedTuple):
    again_s: float
    before_p99: float
    beside_p99: float
    # The same, only until the new leaders have acknowledged something.
    until_then_p99: float
    # The longest, of those that others lead.
    beside_pause_s: float


class Found(NamedTuple):
    killed: list[Killed]
    elected_s: list[float]
    stopped_s: list[float]
    # What the disk took by itself while nodes were killed, in order of size.
    syncs: list[float]


async def on_a_thread(running: Cluster) -> dict[int, str]:
    """Who leads what, when all are in sync."""
    await asyncio.to_thread(running.wait_in_sync, TOPIC)
    return await asyncio.to_thread(running.led_by, TOPIC)


async def led_by(running: Cluster, wanted: Callable[[Placed], str], request: ElectLeaders) -> dict[int, str]:
    """Until they are. A leader that can't hand over soon enough goes on leading, and is asked again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await on_a_thread(running)
            await ask(running.address, request)
            for _ in range(_LOOKS):
                placed = await asyncio.to_thread(running.placed, TOPIC)
                if all(each.leader == wanted(each) for each in placed):
                    return {each.number: each.leader for each in placed}
                await asyncio.sleep(_LOOK_S)


async def led_as_preferred(running: Cluster) -> dict[int, str]:
    return await led_by(running, lambda each: each.replicas[0], ElectLeaders(TOPIC))


async def killed(running: Cluster, loaded: Load, name: str, within_s: float) -> Killed:
    leaders = await led_as_preferred(running)
    lost = [number for number, leader in leaders.items() if leader == name]
    others = [number for number, leader in leaders.items() if leader != name]
    await loaded.told_again(leaders)
    await loaded.caught_up(within_s=10)
    since = time.perf_counter()
    await asyncio.sleep(within_s)
    at = time.perf_counter()
    # Until it is gone: its kernel takes some 40 ms to close its connections, and the client has to go on.
    await asyncio.to_thread(running.nodes[name].kill)
    await loaded.told_again(leaders)
    until = time.perf_counter()
    await asyncio.sleep(at + within_s - until)
    await loaded.told_again(others)
    again_s = max(loaded.longest(number, at, until).at for number in lost) - at
    pauses = [loaded.longest(number, at, until) for number in others]
    found = Killed(
        again_s,
        harness.percentile(loaded.latencies(others, since, at), 0.99),
        harness.percentile(loaded.latencies(others, at, at + within_s), 0.99),
        harness.percentile(loaded.latencies(others, at, at + again_s), 0.99),
        max(pause.at - pause.due for pause in pauses),
    )
    await started_again(running, name)
    return found


async def started_again(running: Cluster, name: str) -> None:
    running.nodes[name].start()
    await asyncio.to_thread(running.nodes[name].wait_ready)


def with_first(name: str, each: Placed) -> str:
    return each.leader if each.number else name


async def elected(run: Run, running: Cluster, loaded: Load) -> list[float]:
    """Partition 0 is led by one after the other."""
    found = []
    await led_as_preferred(running)
    for _ in range(run.pick(3, 1)):
        for name in NODES:
            if (await on_a_thread(running))[0] == name:
                continue
            await loaded.told_again([0])
            since = time.perf_counter()
            await led_by(running, partial(with_first, name), ElectLeaders(TOPIC, 0, name))
            await loaded.told_again([0])
            pause = loaded.longest(0, since, time.perf_counter())
            found.append(pause.at - pause.due)
    return found


async def stopped(running: Cluster, loaded: Load, name: str) -> float:
    leaders = await led_as_preferred(running)
    await loaded.told_again(leaders)
    since = time.perf_counter()
    await asyncio.to_thread(running.nodes[name].stop)
    await loaded.told_again(leaders)
    until = time.perf_counter()
    pauses = [loaded.longest(number, since, until) for number in leaders]
    await started_again(running, name)
    return max(pause.at - pause.due for pause in pauses)


async def found_by(run: Run, running: Cluster, within_s: float) -> Found:
    q: Client
    names = NODES[: run.pick(len(NODES), 1)]
    await asyncio.to_thread(running.create, TOPIC, PARTITIONS)
    async with penstock.aio.connect(running.address) as q, load(q, TOPIC, PARTITIONS) as loaded:
        moves = await elected(run, running, loaded)
        stops = [await stopped(running, loaded, name) for name in names]
        with syncing(run.directory / "beside") as taken:
            deaths = [await killed(running, loaded, name, within_s) for name in run.pick(2, 1) * names]
            syncs = taken()
        return Found(deaths, moves, stops, syncs)


def measure(run: Run) -> Iterator[Figure]:
    if not has_etcd():
        return
    ttl_s = run.pick(TTL_S, TTL_S_QUICK)
    with cluster(run, session_ttl_s=ttl_s) as running:
        found = asyncio.run(found_by(run, running, ttl_s + MORE_S))
    deaths = found.killed
    again = max(each.again_s for each in deaths)
    yield harness.at_most("killed: until the first new acknowledgement, the longest", again, "s", ttl_s + MORE_S)
    ratio = median(each.beside_p99 / each.before_p99 for each in deaths)
    yield harness.at_most("killed: partitions of others, p99 meanwhile / before", ratio, "×", BESIDE_BAR)
    worst = max(each.beside_p99 / each.before_p99 for each in deaths)
    yield info("killed: partitions of others, p99 meanwhile / before, the worst", worst, "×")
    until_then = median(each.until_then_p99 / each.before_p99 for each in deaths)
    yield info("killed: partitions of others, p99 only until others lead / before", until_then, "×")
    yield info("killed: partitions of others, p99 before", 1e3 * median(each.before_p99 for each in deaths), "ms")
    yield info("killed: partitions of others, p99 meanwhile", 1e3 * median(each.beside_p99 for each in deaths), "ms")
    pause = max(each.beside_pause_s for each in deaths)
    yield info("killed: partitions of others, the longest time without an acknowledgement", 1e3 * pause, "ms")
    yield from info_of_syncs(found.syncs)
    for what, pauses in (("elected", found.elected_s), ("stopped", found.stopped_s)):
        told = f"{what}: the longest time without an acknowledgement"
        yield harness.at_most(told, 1e3 * max(pauses), "ms", MOVE_BAR_MS)
    yield info("elected: the median of the longest times", 1e3 * median(found.elected_s), "ms")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=1)
