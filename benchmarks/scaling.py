"""Does a message cost more if there is much of everything else?

Two broker processes on this machine, and a client over TCP; messages of 100 B, every publish and acknowledgement on
disk before it is told. One broker has one topic with one partition and one group at work. The other one has the same,
and:

    8 partitions        as the topic's, instead of one
    100 topics          all of them written and consumed, in turn, by the same client: the same number of messages; and
                        once more without a bar: a message to each in turn, so that frames are many and small
    99 idle topics      that are there
    1,000 groups        999 that have got a little of the same topic, and 999 whose consumers wait for another one
    100 M stored        in the same topic, ahead of what is written and consumed

The same is done to both in turns (see loads.py), and the time for each message is compared; beside it, what the broker
process has used of the processors. Last, 1,000 groups that all get 1,000 messages are compared with one that gets a
million, for each delivery.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import NamedTuple

import pyarrow as pa

import crowd
import harness
import loads
import penstock
from harness import Figure, Run, info
from penstock.client.blocking import Client
from serving import Broker, broker, values

BAR = 1.25
ROWS_MAX = 10_000
# Groups that consume in columns.
MANY = ("many-1", "many-2", "many-3")


class Cost(NamedTuple):
    """Of each message, in seconds."""

    time_s: float
    cpu_s: float


@dataclass
class Side:
    """A broker, and its topics that are written and consumed. `stored` is how many messages there are of the first."""

    running: Broker
    q: Client
    partitions: int = 1
    topics: list[str] = field(default_factory=lambda: ["t"])
    stored: int = 0

    def cost(self, count: int, work: Callable[[], float]) -> Cost:
        before = self.running.cpu_s
        return Cost(work(), (self.running.cpu_s - before) / count)


Turn = Mapping[str, Cost]


def turn(run: Run, side: Side, some: Sequence[bytes], table: pa.Table) -> Turn:
    q, topics = side.q, side.topics
    alone, tables, looks = run.pick(300, 10), run.pick(300, 9), run.pick(300, 10)
    written = len(some) + tables * len(table)
    # One to each first: it makes the room that the next ones are written into (ADR 13).
    loads.publish(q, topics, len(topics))
    found = {"publish": side.cost(alone, lambda: loads.publish(q, topics, alone))}
    for group in ("each", *MANY):
        loads.batches(q, topics, len(topics) + alone, group)
    found |= {
        "send": side.cost(len(some), lambda: loads.send(q, topics, some)),
        "send_batch": side.cost(tables * len(table), lambda: loads.send_batch(q, topics, table, tables)),
        "iterate": side.cost(written, lambda: loads.iterate(q, topics, written)),
        "batches": side.cost(len(MANY) * written, lambda: consume_each(q, topics, written)),
    }
    if side.partitions == len(topics) == 1:
        side.stored += len(topics) + alone + written
        found["message"] = side.cost(looks, lambda: point_read(side, written, looks))
    return found


def consume_each(q: Client, topics: Sequence[str], count: int) -> float:
    """By several groups, one after the other: one alone takes so little time that anything disturbs it."""
    return median(loads.batches(q, topics, count, group) for group in MANY)


def point_read(side: Side, last: int, count: int) -> float:
    """One of the last messages by its id; of both sides those that were written in this turn."""
    dice = random.Random(harness.SEED)
    offsets = [side.stored - 1 - dice.randrange(last) for _ in range(count)]
    return median(harness.seconds(partial(side.q.message, f"t:0:{offset}")) for offset in offsets)


# --- what there is much of ----------------------------------------------------------------------------------


def many_topics(run: Run, side: Side, stack: ExitStack) -> None:
    idle_topics(run, side, stack)
    side.topics = [topic.name for topic in side.q.topics()]


def idle_topics(run: Run, side: Side, stack: ExitStack) -> None:
    for number in range(run.pick(99, 3)):
        side.q.create_topic(f"t{number}", partitions=1)


def many_groups(run: Run, side: Side, stack: ExitStack) -> None:
    count = run.pick(999, 5)
    side.q.create_topic("crowd", partitions=1)
    loads.send(side.q, ["t"], values(10))
    crowd.each_takes(side.running.address, "t", [f"behind-{number}" for number in range(count)], 10)
    begin_behind(side, 10)
    names = [f"waiting-{number}" for number in range(count)]
    stack.enter_context(crowd.waiting(side.running.address, "crowd", names))


def much_stored(run: Run, side: Side, stack: ExitStack) -> None:
    table = pa.table({"value": [b"%0100d" % (number % 10) for number in range(ROWS_MAX)]})
    tables = run.pick(10_000, 5)
    loads.send_batch(side.q, ["t"], table, tables, compression="zstd", buffer_bytes=256 << 20)
    begin_behind(side, tables * ROWS_MAX)


def begin_behind(side: Side, count: int) -> None:
    """So many are stored; the groups that are measured have nothing to do with them."""
    side.stored = count
    for group in ("each", *MANY):
        side.q.create_group(group, start="latest")
        with side.q.consumer(group, "t") as consumer:
            assert consumer.poll(1) == []


def nothing(run: Run, side: Side, stack: ExitStack) -> None:
    """As it is."""


CASES: Mapping[str, tuple[int, Callable[[Run, Side, ExitStack], None]]] = {
    "8 partitions": (8, nothing),
    "100 topics": (1, many_topics),
    "99 idle topics": (1, idle_topics),
    "1,000 groups": (1, many_groups),
    "100 M stored": (1, much_stored),
}


# --- figures ------------------------------------------------------------------------------------------------


def two_sides(run: Run, stack: ExitStack) -> list[Side]:
    """Started at the same time: most of what a broker does then is to import."""
    with ThreadPoolExecutor(2) as pool:
        brokers = list(pool.map(stack.enter_context, [broker(run), broker(run)]))
    return [Side(running, stack.enter_context(penstock.connect(running.address))) for running in brokers]


def measure(run: Run) -> Iterator[Figure]:
    some = values(run.pick(200_000, 3_000))
    table = pa.table({"value": values(loads.A_TABLE)})
    for name, (partitions, prepare) in CASES.items():
        with ExitStack() as stack:
            sides = two_sides(run, stack)
            for side, count in zip(sides, (1, partitions), strict=True):
                side.partitions = count
                side.q.create_topic("t", partitions=count)
            prepare(run, sides[1], stack)
            contenders = {
                which: partial(turn, run, side, some, table) for which, side in zip(("one", "many"), sides, strict=True)
            }
            taken = harness.interleave(run.rounds, contenders)
            yield from compared(name, taken["many"], taken["one"])
            if len(sides[1].topics) > 1:
                yield from a_message_to_each(run, sides, some)
    yield from delivered(run)


def a_message_to_each(run: Run, sides: Sequence[Side], some: Sequence[bytes]) -> Iterator[Figure]:
    one, many = sides
    contenders = {
        "one": partial(loads.send, one.q, one.topics, some, 1),
        "many": partial(loads.send, many.q, many.topics, some, 1),
    }
    taken = harness.interleave(run.rounds, contenders)
    ratio = harness.ratio(taken["many"], taken["one"])
    yield info("100 topics: send, a message to each in turn, time / with one", ratio, "×")


def compared(name: str, many: Sequence[Turn], one: Sequence[Turn]) -> Iterator[Figure]:
    for what in many[0]:
        if what not in one[0]:
            continue
        ratio = harness.ratio([each[what].time_s for each in many], [each[what].time_s for each in one])
        yield harness.at_most(f"{name}: {what}, time / with one", ratio, "×", BAR)
        ratio = harness.ratio([each[what].cpu_s for each in many], [each[what].cpu_s for each in one])
        yield info(f"{name}: {what}, processor time of the broker / with one", ratio, "×")
        yield info(f"{name}: {what}", 1e6 * median(each[what].time_s for each in many), "µs")


def delivered(run: Run) -> Iterator[Figure]:
    count, some = run.pick(1_000, 5), values(1_000)
    turns = iter(range(1_000))

    def all_get(side: Side, names: list[str], times: int) -> Cost:
        topic = f"topic-{next(turns)}"
        side.q.create_topic(topic, partitions=1)
        address = side.running.address
        return side.cost(count * len(some), lambda: crowd.deliveries(address, topic, names, some, times))

    with ExitStack() as stack:
        sides = two_sides(run, stack)
        names = [f"group-{number}" for number in range(count)]
        contenders = {
            "many": partial(all_get, sides[0], names, 1),
            "one": partial(all_get, sides[1], names[:1], count),
        }
        taken = harness.interleave(min(run.rounds, 3), contenders)
    many, one = taken["many"], taken["one"]
    ratio = harness.ratio([each.time_s for each in many], [each.time_s for each in one])
    yield harness.at_most("delivered to 1,000 groups, time / to one", ratio, "×", BAR)
    ratio = harness.ratio([each.cpu_s for each in many], [each.cpu_s for each in one])
    yield info("delivered to 1,000 groups, processor time of the broker / to one", ratio, "×")
    yield info("delivered to 1,000 groups", 1e-3 / median(each.time_s for each in many), "k deliveries/s")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
