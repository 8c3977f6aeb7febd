"""What do priority lanes cost, and how fast do urgent messages get past a backlog?

A broker process on this machine, and clients over TCP; messages of 100 B, one partition, all on disk before it is told:

    throughput      a blocking producer and, after it, a blocking consumer in columns: messages that all have the same
                    priority; one in ten high and one in ten low, for a group with strict lanes; the same for a group
                    with weighted lanes; and for one that ignores lanes
    urgent          200,000 normal messages wait, and a consumer takes ten at a time; now and then a message of high
                    priority is published: how long from there until the consumer has it. Beside it, the same for a
                    normal message in a topic where nothing waits
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from statistics import median

import harness
import loads
import penstock
from harness import Figure, Run, info
from penstock.client.blocking import Client
from penstock.message import Priority
from serving import broker, values

POLICIES = ("strict", "weighted", "none")
NORMAL = (Priority.NORMAL,)
MIXED = (Priority.HIGH, *[Priority.NORMAL] * 8, Priority.LOW)
AT_ONCE = 10


# --- throughput ---------------------------------------------------------------------------------------------


def send(q: Client, topic: str, some: Sequence[bytes], priorities: Sequence[Priority]) -> float:
    with q.producer(topic) as producer:
        started = time.perf_counter()
        for value, priority in zip(some, cycle(priorities), strict=False):
            producer.send(value, priority=priority)
        producer.flush()
        return (time.perf_counter() - started) / len(some)


def moved(
    q: Client, topic: str, some: Sequence[bytes], priorities: Sequence[Priority], lanes: str
) -> tuple[float, float]:
    """Seconds for each message, to send and to consume."""
    sent = send(q, topic, some, priorities)
    return sent, loads.batches(q, [topic], len(some), group=topic, lanes=lanes)


def throughput(run: Run, q: Client) -> Iterator[Figure]:
    some = values(run.pick(100_000, 2_000))
    contenders = {"normal": partial(moved, q, "normal", some, NORMAL, "strict")}
    for policy in POLICIES:
        contenders[policy] = partial(moved, q, policy, some, MIXED, policy)
    for topic in contenders:
        q.create_topic(topic, partitions=1)
    taken = harness.interleave(run.rounds, contenders)
    for at, what in enumerate(("send", "consume")):
        normal = [one[at] for one in taken["normal"]]
        yield info(f"{what}, one lane", 1e-3 / median(normal), "k messages/s")
        for policy in POLICIES:
            lanes = [one[at] for one in taken[policy]]
            if what == "send" and policy != POLICIES[0]:
                continue
            told = "three lanes" if what == "send" else f"three lanes, {policy}"
            yield info(f"{what}, {told}", 1e-3 / median(lanes), "k messages/s")
            yield info(f"{what}, {told}: time / one lane", harness.ratio(lanes, normal), "×")


# --- urgent -------------------------------------------------------------------------------------------------


def urgent(q: Client, topic: str, count: int, every: int) -> float:
    """Seconds from the start of its publishing to when it is received, in the middle. Each takes its turn after `every`
    batches of other messages, if there are any."""
    taken = []
    with q.consumer("measured", topic) as consumer:
        for number in range(count):
            for _ in range(every):
                for message in consumer.poll(AT_ONCE):
                    message.ack()
            name = b"urgent %d" % number
            started = time.perf_counter()
            q.publish(topic, name, priority=Priority.HIGH if every else Priority.NORMAL)
            is_there = False
            while not is_there:
                for message in consumer.poll(AT_ONCE, wait="10s"):
                    if message.value == name:
                        is_there = True
                        taken.append(time.perf_counter() - started)
                    message.ack()
    assert len(taken) == count
    return median(taken)


def past_a_backlog(run: Run, q: Client) -> Iterator[Figure]:
    backlog, count = run.pick(200_000, 2_000), run.pick(100, 5)
    for topic in ("full", "empty"):
        q.create_topic(topic, partitions=1)
    loads.send(q, ["full"], values(backlog))
    contenders = {
        "full": partial(urgent, q, "full", count, 2),
        "empty": partial(urgent, q, "empty", count, 0),
    }
    taken = harness.interleave(run.rounds, contenders)
    assert run.rounds * count * 3 * AT_ONCE < backlog, "the backlog is used up"
    yield info("urgent past 200,000, p50", 1e3 * median(taken["full"]), "ms")
    yield info("with nothing in front, p50", 1e3 * median(taken["empty"]), "ms")
    ratio = harness.ratio(taken["full"], taken["empty"])
    yield harness.at_most("urgent past 200,000 / with nothing in front, p50", ratio, "×", 2)


def measure(run: Run) -> Iterator[Figure]:
    with ExitStack() as stack:
        running = stack.enter_context(broker(run))
        q = stack.enter_context(penstock.connect(running.address))
        yield from throughput(run, q)
        yield from past_a_backlog(run, q)


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
