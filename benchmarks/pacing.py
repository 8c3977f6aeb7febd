"""Messages at an even pace, from a process of their own, and how long each is under way.

A message is stamped with the moment at which it was due, not with that of its sending: a producer that is held up does
not hide what it holds up. Producer, broker and consumer read the same clock.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from uuid import uuid4

import harness
import penstock
from harness import VALUE_BYTES, Figure, info
from penstock.client.blocking import Client
from penstock.client.sending import Sending

PROCESSES = multiprocessing.get_context("spawn")
STAMP_DIGITS = 20
TICK_S = 0.001
# Of what is received; a topic and its consumer have just been made.
WARM_UP = 0.1
BLOCK_BYTES, SYNC_EVERY_S = 4_096, 0.05


def due(rate: int, count: int) -> Iterator[list[bytes]]:
    """`rate` messages a second: at each asking those that have become due, perhaps none, until there were `count`."""
    filler = b"x" * (VALUE_BYTES - STAMP_DIGITS)
    started_ns, sent = time.monotonic_ns(), 0
    while sent < count:
        by_now = min((time.monotonic_ns() - started_ns) * rate // 1_000_000_000 + 1, count)
        yield [b"%020d" % (started_ns + number * 1_000_000_000 // rate) + filler for number in range(sent, by_now)]
        sent = by_now


def produce(address: str, topic: str, rate: int, count: int, linger: str) -> None:
    """`rate` messages a second, looking at the clock every millisecond."""
    with penstock.connect(address) as q, q.producer(topic, linger=linger) as producer:
        for values in due(rate, count):
            for value in values:
                producer.send(value)
            time.sleep(TICK_S)


def under_way(q: Client, address: str, topic: str, *, rate: int, count: int, linger: str = "3ms") -> list[float]:
    """Seconds from due to received, in order of size, by a consumer that acknowledges each."""
    taken_ns = []
    producer = PROCESSES.Process(target=produce, args=(address, topic, rate, count, linger))
    with q.consumer("measured", topic, prefetch=1_000, ack_linger="5ms", until_idle="60s") as consumer:
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


# --- what the disk takes by itself --------------------------------------------------------------------------


def sync(path: str, here: Connection) -> None:
    """A block of a file that does not grow, again and again, until asked; sends back how long each sync took."""
    taken = []
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(file, bytes(BLOCK_BYTES), 0)
        os.fsync(file)
        while not here.poll(SYNC_EVERY_S):
            os.pwrite(file, bytes(BLOCK_BYTES), 0)
            began = time.perf_counter()
            os.fdatasync(file)
            taken.append(time.perf_counter() - began)
    finally:
        os.close(file)
    here.send(sorted(taken))


@contextmanager
def syncing(path: Path) -> Iterator[Callable[[], list[float]]]:
    """Meanwhile; asked once, how long each took, in order of size."""
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=sync, args=(str(path), there), daemon=True)
    process.start()
    there.close()

    def found() -> list[float]:
        here.send(None)
        taken: list[float] = here.recv()
        return taken

    try:
        yield found
    finally:
        process.kill()
        process.join()
        here.close()


def info_of_syncs(taken: list[float]) -> Iterator[Figure]:
    """In order of size."""
    yield info("a sync of one block meanwhile, p50", 1e3 * harness.percentile(taken, 0.5), "ms")
    yield info("a sync of one block meanwhile, p99", 1e3 * harness.percentile(taken, 0.99), "ms")
    yield info("a sync of one block meanwhile, longest", 1e3 * taken[-1], "ms")


# --- until it is stored -------------------------------------------------------------------------------------


def publish(address: str, topic: str, rate: int, seconds: float, here: Connection) -> None:
    """Sends back how long each message took from due to stored."""
    taken: list[float] = []

    def note(due: float, sending: Sending) -> None:
        sending.result()
        taken.append(time.monotonic() - due)

    with penstock.connect(address) as q, q.producer(topic) as producer:
        producer.send(b"x" * VALUE_BYTES).result()
        started, sent = time.monotonic(), 0
        while time.monotonic() - started < seconds:
            for number in range(sent, int((time.monotonic() - started) * rate)):
                producer.send(b"x" * VALUE_BYTES).add_done_callback(partial(note, started + number / rate))
                sent = number + 1
            time.sleep(TICK_S)
    here.send(sorted(taken))


def p99_until_stored(q: Client, address: str, *, rate: int, seconds: float, partitions: int) -> float:
    """In seconds, from due to stored, of a producer with default settings and a topic of its own."""
    topic = f"live-{uuid4().hex[:8]}"
    q.create_topic(topic, partitions=partitions)
    here, there = PROCESSES.Pipe()
    publisher = PROCESSES.Process(target=publish, args=(address, topic, rate, seconds, there))
    publisher.start()
    there.close()
    taken = here.recv()
    publisher.join()
    here.close()
    q.delete_topic(topic)
    return float(harness.percentile(taken, 0.99))
