"""What a client does to topics while it is measured: it publishes to some of them, and consumes from all of them.

    publish         one message, waited for, again; the topics take turns
    send            a blocking producer for each topic, one `send` a message; a thousand to one topic, then to the next
    send_batch      ready Arrow tables of 1,000, none waited for before the next is sent; the topics take turns
    iterate         a blocking consumer, one message at a time, an `ack` for each, told together after 5 ms (ack_linger)
    batches         a blocking consumer, in columns, one acknowledgement for each batch, waited for

All are seconds for each message, until the last one is on disk.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

import pyarrow as pa

import harness
from penstock.client.blocking import Client
from penstock.limits import MIB

A_TABLE = 1_000
A_BURST = 1_000
PREFETCH = 5_000


def publish(q: Client, topics: Sequence[str], count: int) -> float:
    """The median: one message that waits for a slow sync says nothing about the others."""
    taken = [
        harness.seconds(partial(q.publish, topics[number % len(topics)], b"x" * harness.VALUE_BYTES))
        for number in range(count)
    ]
    return median(taken)


def send(q: Client, topics: Sequence[str], some: Sequence[bytes], burst: int = A_BURST) -> float:
    with ExitStack() as stack:
        producers = [stack.enter_context(q.producer(topic)) for topic in topics]
        started = time.perf_counter()
        for number, at in enumerate(range(0, len(some), burst)):
            put = producers[number % len(producers)].send
            for value in some[at : at + burst]:
                put(value)
        for producer in producers:
            producer.flush()
        return (time.perf_counter() - started) / len(some)


def send_batch(q: Client, topics: Sequence[str], table: pa.Table, count: int, **options: Any) -> float:
    """`count` tables."""
    with ExitStack() as stack:
        producers = [
            stack.enter_context(q.producer(topic, batch_messages=len(table), batch_bytes=4 * MIB, **options))
            for topic in topics
        ]
        started = time.perf_counter()
        for number in range(count):
            producers[number % len(producers)].send_batch(table, wait=False)
        for producer in producers:
            producer.flush()
        return (time.perf_counter() - started) / (count * len(table))


def iterate(q: Client, topics: Sequence[str], count: int, group: str = "each", **settings: Any) -> float:
    with q.consumer(group, topics, prefetch=PREFETCH, ack_linger="5ms", until_idle="10s", **settings) as consumer:
        done = 0
        started = time.perf_counter()
        for message in consumer:
            assert message.value
            message.ack()
            done += 1
            if done == count:
                break
        consumer.flush()
        spent = time.perf_counter() - started
    assert done == count
    return spent / count


def batches(q: Client, topics: Sequence[str], count: int, group: str = "many", **settings: Any) -> float:
    with q.consumer(group, topics, prefetch=PREFETCH, until_idle="10s", **settings) as consumer:
        done = 0
        started = time.perf_counter()
        for batch in consumer.batches():
            batch.ack()
            done += len(batch)
            if done == count:
                break
        spent = time.perf_counter() - started
    assert done == count
    return spent / count
