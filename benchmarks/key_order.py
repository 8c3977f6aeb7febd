"""What does order cost, and how does that depend on the number of keys?

A broker process and a client on this machine, over TCP; messages of 100 B with keys, six partitions; a blocking
consumer takes them in columns and acknowledges each batch, on disk before it is told. As many messages are consumed by
a group without an order, by one ordered by key and by one ordered by partition. The keys are 1, 100, 10,000 or one for
each message, in turn; with one key, everything is in one partition.

Then four consumers of one group on four threads, each with a connection, that share the partitions (assignment shared):
by key and without an order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median

import pyarrow as pa

import harness
import loads
import penstock
from harness import Figure, Run, info
from penstock.client.blocking import Client
from serving import PARTITIONS, Broker, broker, values

ORDERINGS = ("none", "key", "partition")
CONSUMERS = 4
SHARED_KEYS = 10_000


def write(q: Client, topic: str, count: int, keys: int) -> None:
    """In tables of 1,000, as a producer would gather them."""
    names = [b"key-%d" % (number % keys) for number in range(count)]
    some = values(count)
    with q.producer(topic) as producer:
        for at in range(0, count, loads.A_TABLE):
            end = at + loads.A_TABLE
            producer.send_batch(pa.table({"value": some[at:end], "key": names[at:end]}), wait=False)
        producer.flush()


def shared(q: Client, running: Broker, ordering: str, count: int) -> float:
    """Seconds for each message, with several consumers at once."""
    topic = f"shared-{ordering}"
    write(q, topic, count, SHARED_KEYS)
    left, ended, lock = count, 0.0, threading.Lock()

    def work() -> None:
        nonlocal left, ended
        with (
            penstock.connect(running.address) as mine,
            mine.consumer(
                topic, topic, prefetch=1_000, until_idle="200ms", ordering=ordering, assignment="shared"
            ) as one,
        ):
            for batch in one.batches():
                batch.ack()
                with lock:
                    left -= len(batch)
                    ended = time.perf_counter()

    started = time.perf_counter()
    with ThreadPoolExecutor(CONSUMERS) as pool:
        for done in [pool.submit(work) for _ in range(CONSUMERS)]:
            done.result()
    assert left == 0
    return (ended - started) / count


def alone(q: Client, topic: str, ordering: str, count: int, keys: int) -> float:
    write(q, topic, count, keys)
    return loads.batches(q, [topic], count, group=topic, ordering=ordering)


def measure(run: Run) -> Iterator[Figure]:
    count = run.pick(100_000, 2_000)
    with broker(run) as running, penstock.connect(running.address) as q:
        for keys in (1, 100, SHARED_KEYS, count):
            yield from with_keys(run, q, count, keys)
        for ordering in ("none", "key"):
            q.create_topic(f"shared-{ordering}", partitions=PARTITIONS)
        contenders = {ordering: partial(shared, q, running, ordering, count) for ordering in ("none", "key")}
        taken = harness.interleave(run.rounds, contenders)
    yield info("4 consumers, 10,000 keys, no order", 1e-3 / median(taken["none"]), "k messages/s")
    yield info("4 consumers, 10,000 keys, by key: time / no order", harness.ratio(taken["key"], taken["none"]), "×")


def with_keys(run: Run, q: Client, count: int, keys: int) -> Iterator[Figure]:
    contenders = {}
    for ordering in ORDERINGS:
        topic = f"{keys}-keys-{ordering}"
        q.create_topic(topic, partitions=PARTITIONS)
        contenders[ordering] = partial(alone, q, topic, ordering, count, keys)
    taken = harness.interleave(run.rounds, contenders)
    named = "a key for each message" if keys == count else "1 key" if keys == 1 else f"{keys:,} keys"
    yield info(f"{named}, no order", 1e-3 / median(taken["none"]), "k messages/s")
    for ordering in ORDERINGS[1:]:
        yield info(f"{named}, by {ordering}: time / no order", harness.ratio(taken[ordering], taken["none"]), "×")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
