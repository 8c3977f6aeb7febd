"""Does reading a topic from its start to its end disturb those who publish?

A broker process and clients over TCP on this machine, everything on disk before it is told. 500 messages a second go
through a producer in a process of its own; how long each takes from due to stored, alone and beside

    a scan       one process that reads another topic of the broker as Arrow batches, over and over
    two scans    two of them: with producer and broker more than two cores have to do
    two busy     as many processes that decode batches they have in memory, and do not know the broker: what the
                 scheduler makes of two busy cores without us
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import NamedTuple

import pyarrow as pa

import harness
import penstock
from harness import Figure, Run, at_most, info
from pacing import PROCESSES, p99_until_stored
from penstock.client.blocking import Client
from penstock.client.rows import LOG_SCHEMA, between
from penstock.limits import MIB
from serving import PARTITIONS, Broker, broker, values

BAR = 2
RATE = 500
ROWS = 10_000


def fill(q: Client, count: int) -> None:
    table = pa.table({"value": values(ROWS)})
    q.create_topic("scanned", partitions=PARTITIONS)
    with q.producer("scanned", batch_messages=ROWS, batch_bytes=4 * MIB) as producer:
        for number in range(count // ROWS):
            producer.send_batch(table, partition=number % PARTITIONS)


# --- beside it, in processes of their own -------------------------------------------------------------------


def scan(address: str, count: int, here: Connection) -> None:
    """Sends back how many rows it has read when it is told to stop."""
    rows = 0
    with penstock.connect(address) as q:
        here.send("ready")
        while not here.poll():
            before = rows
            for batch in q.reader("scanned").batches():
                rows += batch.num_rows
                if here.poll():
                    break
            else:
                assert rows - before == count, f"{rows - before} of {count} messages were read"
    here.send(rows)


def decode(here: Connection) -> None:
    frame = harness.make_frame(ROWS)
    rows = 0
    here.send("ready")
    while not here.poll():
        columns = between(frame, 0, ROWS)
        assert columns is not None
        rows += columns.arrow(0, LOG_SCHEMA).num_rows
    here.send(rows)


class Beside:
    """What so many processes have done, all together, once it is over."""

    rows = 0


@contextmanager
def processes(count: int, target: Callable[..., None], *arguments: object) -> Iterator[Beside]:
    beside = Beside()
    with ExitStack() as stack:
        ends: list[Connection] = []
        for _ in range(count):
            here, there = PROCESSES.Pipe()
            process = PROCESSES.Process(target=target, args=(*arguments, there))
            process.start()
            there.close()
            stack.callback(process.join)
            ends.append(stack.enter_context(here))
        for here in ends:
            assert here.recv() == "ready"
        try:
            yield beside
        finally:
            for here in ends:
                here.send("stop")
            beside.rows = sum(here.recv() for here in ends)


# --- the figures --------------------------------------------------------------------------------------------


class Found(NamedTuple):
    p99_s: float
    rows_per_s: float


def found(
    q: Client, running: Broker, seconds: float, count: int, target: Callable[..., None], *arguments: object
) -> Found:
    with processes(count, target, *arguments) as beside:
        started = time.perf_counter()
        p99 = p99_until_stored(q, running.address, rate=RATE, seconds=seconds, partitions=PARTITIONS)
        spent = time.perf_counter() - started
    return Found(p99, beside.rows / spent)


def measure(run: Run) -> Iterator[Figure]:
    count, seconds = run.pick(3_000_000, 60_000), run.pick(8, 1)
    with broker(run) as running, penstock.connect(running.address) as q:
        fill(q, count)
        reading = (scan, running.address, count)
        contenders = {
            "alone": partial(found, q, running, seconds, 0, decode),
            "a scan": partial(found, q, running, seconds, 1, *reading),
            "two scans": partial(found, q, running, seconds, 2, *reading),
            "two busy": partial(found, q, running, seconds, 2, decode),
        }
        taken = harness.interleave(run.rounds, contenders)
    p99 = {name: [each.p99_s for each in some] for name, some in taken.items()}
    yield at_most("publish beside a scan / alone, p99", harness.ratio(p99["a scan"], p99["alone"]), "×", BAR)
    yield info("publish beside two scans / alone, p99", harness.ratio(p99["two scans"], p99["alone"]), "×")
    yield info("publish beside two busy processes / alone, p99", harness.ratio(p99["two busy"], p99["alone"]), "×")
    for name, some in p99.items():
        yield info(f"publish, {name}: p99", 1e3 * median(some), "ms")
    for name in ("a scan", "two scans"):
        rate = median(each.rows_per_s for each in taken[name])
        yield info(f"read meanwhile, {name}", rate / 1e6, "million rows/s")


if __name__ == "__main__":
    assert __doc__ is not None
    harness.main(__doc__, measure, rounds=3)
