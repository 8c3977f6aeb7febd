"""Who has to wait when a consumer joins a group, or leaves it?

Three nodes of a cluster and etcd on this machine; a topic of 12 partitions with three replicas each. A producer in a
process of its own publishes 100 messages a second to each partition; a group of four consumers, each with connections
of its own, gets them, and acknowledges those of 200 ms together. A fifth joins, and leaves again, some times. Counted
is, for each partition, the time from one delivery to the next, in the three seconds after the change:

    stay            of partitions that belong to the same consumer before and after: p99, the median of all changes
    move            of those that belong to another one afterwards: the longest of all

Every message is on three disks when it is published, when it is leased, and when it is acknowledged; here the three are
one. What that alone makes of the times is shown beside it: before the change. And what the disk is like meanwhile: how
long it takes to sync one block, twenty times a second. It is shared with other machines, and stands still now and then.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import uvloop

import harness
import penstock
from cluster_serving import Cluster, cluster, has_etcd
from harness import VALUE_BYTES, Figure, Run, info
from pacing import PROCESSES, TICK_S, info_of_syncs, syncing
from penstock.client.client import Client
from penstock.client.consumer import Consumer

TOPIC, GROUP = "bench", "bench"
PARTITIONS, CONSUMERS = 12, 4
RATE = 100
ACK_LINGER = "200ms"
STAY_BAR_MS, MOVE_BAR_MS = 50, 1_000


class Got(NamedTuple):
    at: float
    by: str


class Change(NamedTuple):
    """Times between deliveries, in seconds, after a consumer came or went; and before that."""

    stay: list[float]
    move: list[float]
    moved: int
    before: list[float]


def produce(address: str) -> None:
    """Until it is killed: as many to each partition, at an even pace."""
    with penstock.connect(address) as q, q.producer(TOPIC) as producer:
        started, sent = time.perf_counter(), 0
        while True:
            by_now = int((time.perf_counter() - started) * RATE * PARTITIONS)
            for number in range(sent, by_now):
                producer.send(b"x" * VALUE_BYTES, partition=number % PARTITIONS)
            sent = by_now
            time.sleep(TICK_S)


class Group:
    """What it has got so far, by partition."""

    def __init__(self) -> None:
        self.got: dict[int, list[Got]] = {number: [] for number in range(PARTITIONS)}

    async def consume(self, consumer: Consumer) -> None:
        async for message in consumer:
            self.got[message.partition].append(Got(time.perf_counter(), consumer.name))
            await message.ack()

    def gaps(self, number: int, since: float, until: float) -> list[float]:
        """Those that end then, also if they began before. One that has not ended ends now."""
        times = [one.at for one in self.got[number]]
        first = max(bisect_left(times, since) - 1, 0)
        times = [*times[first : bisect_left(times, until)], until]
        return [after - before for before, after in pairwise(times)]

    def owner(self, number: int) -> str:
        return self.got[number][-1].by

    def owners(self) -> dict[int, str]:
        return {number: self.owner(number) for number in self.got}

    async def all_got_more(self) -> None:
        counts = {number: len(got) for number, got in self.got.items()}
        while any(len(got) <= counts[number] + RATE // 4 for number, got in self.got.items()):
            await asyncio.sleep(0.02)

    def change(self, before: dict[int, str], began: float, at: float, until: float) -> Change:
        moved = {number for number, owner in before.items() if self.owner(number) != owner}
        return Change(
            self._all(before.keys() - moved, at, until),
            self._all(moved, at, until),
            len(moved),
            self._all(before, began, at),
        )

    def _all(self, numbers: Iterable[int], since: float, until: float) -> list[float]:
        return [gap for number in numbers for gap in self.gaps(number, since, until)]


def consumer(q: Client, number: int) -> Consumer:
    return q.consumer(GROUP, TOPIC, name=f"consumer-{number}", ack_linger=ACK_LINGER)


async def changes(run: Run, running: Cluster) -> dict[str, list[Change]]:
    found: dict[str, list[Change]] = {"joins": [], "leaves": []}
    group = Group()
    seconds = run.pick(3, 1)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(penstock.aio.connect(running.address)) for _ in range(CONSUMERS + 1)]
        tasks = []
        for number in range(CONSUMERS):
            member = await stack.enter_async_context(consumer(clients[number], number))
            tasks.append(asyncio.create_task(group.consume(member)))
        await group.all_got_more()
        for _ in range(run.pick(7, 1)):
            member = consumer(clients[-1], CONSUMERS)
            began, before = time.perf_counter(), group.owners()
            await asyncio.sleep(seconds)
            at = time.perf_counter()
            await member.join()
            fifth = asyncio.create_task(group.consume(member))
            await asyncio.sleep(seconds)
            found["joins"].append(group.change(before, began, at, time.perf_counter()))
            began, before = time.perf_counter(), group.owners()
            await asyncio.sleep(seconds)
            at = time.perf_counter()
            await member.close()
            await fifth
            await asyncio.sleep(seconds)
            found["leaves"].append(group.change(before, began, at, time.perf_counter()))
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    return found


def measure(run: Run) -> Iterator[Figure]:
    if not has_etcd():
        return
    with cluster(run) as running:
        running.create(TOPIC, PARTITIONS)
        producer = PROCESSES.Process(target=partial(produce, running.address), daemon=True)
        producer.start()
        try:
            with syncing(run.directory / "beside") as taken:
                found = uvloop.run(changes(run, running))
                syncs = taken()
        finally:
            producer.kill()
            producer.join()
    for what, some in found.items():
        stay = [harness.percentile(sorted(change.stay), 0.99) for change in some]
        told = f"a consumer {what}: partitions that stay"
        yield harness.at_most(f"{told}, p99 between deliveries", 1e3 * median(stay), "ms", STAY_BAR_MS)
        yield info(f"{told}, p99 of the worst change", 1e3 * max(stay), "ms")
        yield info(f"{told}, longest between deliveries", 1e3 * max(max(change.stay) for change in some), "ms")
        move = [gap for change in some for gap in change.move]
        told = f"a consumer {what}: partitions that move, longest between deliveries"
        yield harness.at_most(told, 1e3 * max(move, default=0.0), "ms", MOVE_BAR_MS)
        yield info(
            f"a consumer {what}: partitions that move, of {PARTITIONS}", max(change.moved for change in some), ""
        )
    before = sorted(gap for some in found.values() for change in some for gap in change.before)
    yield info("while nobody joins or leaves, p99 between deliveries", 1e3 * harness.percentile(before, 0.99), "ms")
    yield info("while nobody joins or leaves, longest between deliveries", 1e3 * before[-1], "ms")
    yield from info_of_syncs(syncs)


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=1)
