"""How much memory does a broker need, and for what?

`penstock serve` in a process of its own, with a client over TCP; the memory that the process has resident, less what it
had before:

    idle            after its start, in an empty directory
    backlog         50 million messages in one topic, of which a group has taken the first 10,000: once they are
                    written, and after a restart
    connections     2,000 that said hello and nothing more
    delayed         a million messages that are due within a day, beside as many that are not delayed
    groups          1,000 that have each got ten messages of one topic, and are gone
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

import crowd
import harness
import loads
import penstock
from harness import Figure, Run, info
from neighbours import SPARE_FILES, allow_files, memory_of_connections
from penstock.client.blocking import Client
from penstock.clock import SystemClock
from penstock.limits import MIB
from serving import Broker, broker, values

ROWS_MAX = 10_000
HOUR_US = 3_600_000_000


def grown(run: Run, work: Callable[[Broker, Client], None]) -> float:
    """Bytes, by this work, of a broker that has done a little of everything."""
    with broker(run) as running, penstock.connect(running.address) as q:
        warm_up(q)
        before = running.resident_bytes
        work(running, q)
        return running.resident_bytes - before


def warm_up(q: Client) -> None:
    q.create_topic("warm", partitions=1)
    loads.send(q, ["warm"], values(ROWS_MAX))
    loads.batches(q, ["warm"], ROWS_MAX)


# --- backlog ------------------------------------------------------------------------------------------------


def backlog(path: Path, tables: int) -> tuple[float, float]:
    """Bytes more than when the broker was new, and after a restart."""
    table = pa.table({"value": [b"%0100d" % (number % 10) for number in range(ROWS_MAX)]})
    running = Broker(path, ("native",))
    new = running.resident_bytes
    try:
        with penstock.connect(running.address) as q:
            q.create_topic("t", partitions=1)
            loads.send_batch(q, ["t"], table, tables, compression="zstd", buffer_bytes=64 * MIB)
            loads.batches(q, ["t"], ROWS_MAX)
        written = running.resident_bytes - new
    finally:
        running.stop()
    running = Broker(path, ("native",))
    try:
        return written, running.resident_bytes - new
    finally:
        running.stop()


# --- delayed ------------------------------------------------------------------------------------------------


def published(q: Client, tables: int, *, is_delayed: bool) -> None:
    dice = np.random.default_rng(harness.SEED)
    some = values(ROWS_MAX)
    q.create_topic("t", partitions=1)
    with q.producer("t", batch_messages=ROWS_MAX, batch_bytes=4 * MIB) as producer:
        for _ in range(tables):
            columns = {"value": pa.array(some)}
            if is_delayed:
                first = SystemClock().now_us() + HOUR_US
                times = dice.integers(first, first + 23 * HOUR_US, ROWS_MAX)
                columns["deliver_at"] = pa.array(times, pa.timestamp("us", "UTC"))
            producer.send_batch(pa.table(columns), wait=False)
        producer.flush()


# --- groups -------------------------------------------------------------------------------------------------


def groups(running: Broker, q: Client, count: int) -> None:
    q.create_topic("t", partitions=1)
    loads.send(q, ["t"], values(10))
    crowd.each_takes(running.address, "t", [f"group-{number}" for number in range(count)], 10)


# --- figures ------------------------------------------------------------------------------------------------


def idle_bytes(run: Run) -> float:
    with broker(run) as running:
        return running.resident_bytes


def measure(run: Run) -> Iterator[Figure]:
    rounds = range(run.rounds)
    yield info("idle", median(idle_bytes(run) for _ in rounds) / MIB, "MiB")
    tables = run.pick(5_000, 5)
    with run.folder() as path:
        written, again = backlog(path, tables)
    yield info("backlog of 50 million, once written", written / MIB, "MiB")
    yield info("backlog of 50 million, after a restart", again / MIB, "MiB")
    yield info("backlog of 50 million, after a restart, for each message", again / (tables * ROWS_MAX), "B")
    count = run.pick(2_000, 20)
    allow_files(count + SPARE_FILES)
    with broker(run) as running:
        held = memory_of_connections(running, count) * MIB
    yield info("2,000 idle connections", held / MIB, "MiB")
    yield info("an idle connection", held / count / 1024, "KiB")
    tables = run.pick(100, 2)
    delayed, plain = (
        median(grown(run, lambda _, q, has=has: published(q, tables, is_delayed=has)) for _ in rounds)
        for has in (True, False)
    )
    yield info("a million delayed", (delayed - plain) / MIB, "MiB")
    yield info("a delayed message", (delayed - plain) / (tables * ROWS_MAX), "B")
    count = run.pick(1_000, 10)
    held = median(grown(run, lambda running, q: groups(running, q, count)) for _ in rounds)
    yield info("1,000 groups", held / MIB, "MiB")
    yield info("a group", held / count / 1024, "KiB")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=3)
