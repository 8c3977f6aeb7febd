"""What do order, failures, tracing and more groups cost a group that leases and acknowledges?

In one process, messages of 100 B with 10,000 keys in frames of 1,000, one partition, leased and acknowledged 1,000 at
a time, every acknowledgement on disk before it is told, 16 leases and then their acks. Each contender is a new group on
the same messages, one after the other in every round:

    plain       no order
    by key      one key at a time; acks are sent at once and 2 are under way when the next lease is taken, so that most
                keys are free; and 16 together, so that most are busy
    nacked      one message in 1,000 is given back once, and comes again
    untraced    as plain, but what only tracing needs is not written: who got what when
    ten         ten groups at the same time

Memory is that of a fresh process with a million messages leased and none acknowledged, minus before.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import NamedTuple

import uvloop
from pyroaring import BitMap64

import harness
from harness import Figure, Run, info
from penstock.batch import Batch
from penstock.broker.broker import Broker
from penstock.broker.deliveries import Deliveries
from penstock.broker.events import AnyEvent
from penstock.broker.group import Group, Receipt
from penstock.broker.settings import GroupSettings
from penstock.clock import Instant, SystemClock
from penstock.frame import Frame
from penstock.limits import MIB
from penstock.storage.files import DiskFiles

UNDER_WAY = 16
A_FRAME = 1_000
KEYS = 10_000
# Of the quick contenders, in turn: one takes a tenth of a second, in which anything may happen on a small machine.
PASSES = 6
_PROCESSES = multiprocessing.get_context("spawn")


class Pace(NamedTuple):
    """Acks are awaited once so many leases are `under_way`, and sent on their way after every `together` leases."""

    under_way: int
    together: int


TOGETHER = Pace(UNDER_WAY, UNDER_WAY)
ONE_BY_ONE = Pace(3, 1)


def frames(count: int) -> list[Frame]:
    values = harness.values(A_FRAME)
    dice = Random(harness.SEED)
    made = []
    for _ in range(min(count, 50)):
        keys = [b"customer-%05d" % dice.randrange(KEYS) for _ in range(A_FRAME)]
        made.append(Frame.of(Batch.from_columns(values, keys=keys, now_us=1)))
    return [made[number % len(made)] for number in range(count)]


async def fill(broker: Broker, count: int) -> None:
    topic = await broker.create_topic("t", 1)
    some = frames(count)
    for at in range(0, count, UNDER_WAY):
        await asyncio.gather(*[topic.publish_frame(frame, 0) for frame in some[at : at + UNDER_WAY]])


async def drain(group: Group, *, nacked: bool = False, pace: Pace = TOGETHER) -> int:
    """Everything there is; how many messages were acknowledged."""
    done = leases = 0
    given_back: set[int] = set()
    under_way: deque[list[asyncio.Task[None]]] = deque()
    while True:
        handed = await group.lease("c", A_FRAME)
        answers: list[asyncio.Task[None]] = []
        for receipt, _ in handed:
            if nacked:
                receipt = _give_one_back(group, receipt, given_back, answers)
            done += len(receipt.offsets)
            answers.append(asyncio.ensure_future(group.ack(receipt)))
        if handed:
            under_way.append(answers)
        elif not under_way:
            return done
        leases += 1
        if leases % pace.together == 0:
            # Now these are on their way to the disk.
            await asyncio.sleep(0)
        # Also if there is nothing to lease: all keys may be busy.
        while len(under_way) >= (pace.under_way if handed else 1):
            for answer in under_way.popleft():
                await answer


def _give_one_back(group: Group, receipt: Receipt, given_back: set[int], answers: list[asyncio.Task[None]]) -> Receipt:
    """The first of every thousand, once."""
    first = receipt.offsets.min()
    offset = first + -first % A_FRAME
    if offset in given_back or offset not in receipt.offsets or len(receipt.offsets) == 1:
        return receipt
    given_back.add(offset)
    one = BitMap64([offset])
    answers.append(asyncio.ensure_future(group.nack(Receipt(receipt.partition, receipt.lease, one), delay_us=0)))
    return Receipt(receipt.partition, receipt.lease, receipt.offsets - one)


class _Untraced(Deliveries):
    """Leases are kept in memory only."""

    def _note(self, events: Sequence[AnyEvent], within_s: float = 0, *, now: Instant | None = None) -> None:
        now = now or Instant.of(self._clock)
        for event in events:
            self._apply(event, now.wall_us, now)


class Bench:
    def __init__(self, broker: Broker, messages: int) -> None:
        self._broker = broker
        self._messages = messages
        self._number = 0

    async def timed(
        self,
        groups: int = 1,
        *,
        nacked: bool = False,
        traced: bool = True,
        pace: Pace = TOGETHER,
        **settings: str,
    ) -> float:
        made = []
        for _ in range(groups):
            self._number += 1
            await self._broker.create_group(f"g{self._number}", GroupSettings().changed(**settings))
            group = self._broker.group(f"g{self._number}", "t")
            await group.start()
            made.append(group)
        deliveries = self._broker.topic("t").partitions[0].groups
        deliveries.__class__ = Deliveries if traced else _Untraced
        started = perf_counter()
        done = sum(await asyncio.gather(*[drain(group, nacked=nacked, pace=pace) for group in made]))
        spent = perf_counter() - started
        deliveries.__class__ = Deliveries
        assert done == self._messages * groups, done
        for group in made:
            await self._broker.delete_group(group.name)
        return spent


async def contest(run: Run, path: Path, count: int) -> dict[str, list[float]]:
    with ThreadPoolExecutor(2) as executor:
        broker = await Broker.open(DiskFiles(path), clock=SystemClock(), executor=executor)
        await fill(broker, count)
        bench = Bench(broker, count * A_FRAME)
        contenders = {
            "plain": bench.timed,
            "by key": partial(bench.timed, ordering="key", pace=ONE_BY_ONE),
            "by busy keys": partial(bench.timed, ordering="key"),
            "nacked": partial(bench.timed, nacked=True),
            "untraced": partial(bench.timed, traced=False),
            "ten": partial(bench.timed, 10),
        }
        quick = ["plain", "nacked", "untraced"]
        others = [name for name in contenders if name not in quick]
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(run.rounds + 1):
            spent = dict.fromkeys(contenders, 0.0)
            for turn in range(PASSES):
                for name in quick[turn % 3 :] + quick[: turn % 3]:
                    spent[name] += await contenders[name]() / PASSES
            for name in others:
                spent[name] = await contenders[name]()
            if number:
                for name in contenders:
                    taken[name].append(spent[name])
        await broker.close()
    return taken


async def publish_beside(path: Path, count: int, idle: int) -> float:
    """Seconds to publish while so many groups are there and do nothing."""
    with ThreadPoolExecutor(2) as executor:
        broker = await Broker.open(DiskFiles(path), clock=SystemClock(), executor=executor)
        topic = await broker.create_topic("t", 1)
        for number in range(idle):
            await broker.create_group(f"g{number}")
            await broker.group(f"g{number}", "t").start()
        some = frames(count)
        started = perf_counter()
        for at in range(0, count, UNDER_WAY):
            await asyncio.gather(*[topic.publish_frame(frame, 0) for frame in some[at : at + UNDER_WAY]])
        spent = perf_counter() - started
        await broker.close()
    return spent


def idle_groups(run: Run, count: int, idle: int) -> float:
    with run.folder() as path:
        return uvloop.run(publish_beside(path, count, idle))


def _resident() -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def tell_memory(path: Path, count: int, at_once: int, parent: Connection) -> None:
    parent.send(uvloop.run(_hold(path, count, at_once)))


async def _hold(path: Path, count: int, at_once: int) -> int:
    with ThreadPoolExecutor(2) as executor:
        broker = await Broker.open(DiskFiles(path), clock=SystemClock(), executor=executor)
        await fill(broker, count)
        await broker.create_group("g", GroupSettings(max_in_flight=1_000_000))
        group = broker.group("g", "t")
        (handed,) = await group.lease("c", at_once)
        del handed
        before = _resident()
        while await group.lease("c", at_once):
            pass
        state = broker.topic("t").partitions[0].groups.state("g")
        assert state.in_flight == count * A_FRAME
        held = _resident() - before
        await broker.close()
        return held


def memory_in_flight(run: Run, count: int, at_once: int) -> float:
    with run.folder() as path:
        parent, child = _PROCESSES.Pipe()
        process = _PROCESSES.Process(target=tell_memory, args=(path, count, at_once, child))
        process.start()
        held: int = parent.recv()
        process.join()
        return held / MIB


def measure(run: Run) -> Iterator[Figure]:
    count = run.pick(800, 16)
    with run.folder() as path:
        taken = uvloop.run(contest(run, path, count))
    messages = count * A_FRAME / 1e6
    yield harness.at_least("plain", messages / median(taken["plain"]), "M messages/s", 5)
    yield harness.at_least("ordered by 10,000 keys", messages / median(taken["by key"]), "M messages/s", 1)
    busy = messages / median(taken["by busy keys"])
    yield info("ordered by 10,000 keys, of which most are busy", busy, "M messages/s")
    yield harness.at_least("one in 1,000 nacked / plain", harness.ratio(taken["plain"], taken["nacked"]), "×", 0.7)
    cost = 1 - harness.ratio(taken["untraced"], taken["plain"])
    yield harness.at_most("cost of tracing", 100 * cost, "%", 5)
    yield harness.at_most("ten groups / one group", harness.ratio(taken["ten"], taken["plain"]), "×", 10)
    published = harness.interleave(
        run.rounds, {"none": partial(idle_groups, run, count, 0), "many": partial(idle_groups, run, count, 100)}
    )
    yield info(
        "publishing beside 100 idle groups / beside none", harness.ratio(published["many"], published["none"]), "×"
    )
    frames_held = run.pick(1_000, 10)
    yield harness.at_most("a million in flight, 1,000 a lease", memory_in_flight(run, frames_held, 1_000), "MiB", 64)
    yield info("a million in flight, 10 a lease", memory_in_flight(run, frames_held, 10), "MiB")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
