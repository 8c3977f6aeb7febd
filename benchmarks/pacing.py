"""Messages at an even pace, from a process of their own, and how long each is under way.

A message is stamped with the moment at which it was due, not with that of its sending: a producer that is held up does
not hide what it holds up. Producer, broker and consumer read the same clock.
"""

from __future__ import annotations

import multiprocessing
import time

import penstock
from harness import VALUE_BYTES
from penstock.client.blocking import Client

PROCESSES = multiprocessing.get_context("spawn")
STAMP_DIGITS = 20
TICK_S = 0.001
# Of what is received; a topic and its consumer have just been made.
WARM_UP = 0.1


def produce(address: str, topic: str, rate: int, count: int, linger: str) -> None:
    """`rate` messages a second, looking at the clock every millisecond."""
    filler = b"x" * (VALUE_BYTES - STAMP_DIGITS)
    with penstock.connect(address) as q, q.producer(topic, linger=linger) as producer:
        started_ns, sent = time.monotonic_ns(), 0
        while sent < count:
            due = min((time.monotonic_ns() - started_ns) * rate // 1_000_000_000 + 1, count)
            for number in range(sent, due):
                producer.send(b"%020d" % (started_ns + number * 1_000_000_000 // rate) + filler)
            sent = due
            time.sleep(TICK_S)


def under_way(q: Client, address: str, topic: str, *, rate: int, count: int, linger: str = "3ms") -> list[float]:
    """Seconds from due to received, in order of size, by a consumer that acknowledges each."""
    taken_ns = []
    producer = PROCESSES.Process(target=produce, args=(address, topic, rate, count, linger))
    with q.consumer("measured", topic, prefetch=1_000, ack_linger="5ms", until_idle="10s") as consumer:
        producer.start()
        for message in consumer:
            assert message.value is not None
            taken_ns.append(time.monotonic_ns() - int(message.value[:STAMP_DIGITS]))
            message.ack()
            if len(taken_ns) == count:
                break
    producer.join()
    assert len(taken_ns) == count
    return sorted(ns / 1e9 for ns in taken_ns[int(count * WARM_UP) :])
