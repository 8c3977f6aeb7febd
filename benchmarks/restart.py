"""How long is a broker away when it is started again?

`penstock serve` in a process of its own, over a data directory with ten million messages of 100 B in six partitions, of
which a group has acknowledged half; a client over TCP. From the start of the process until it is ready, until one
message is published and on disk, and until a consumer of the group has its first batch:

    clean       after it was told to end (SIGTERM)
    killed      after it was killed (SIGKILL) with messages just written and some leased
    empty       in an empty directory, where the topic is made first

What must be read after a kill is the last segment of each partition; beside the time that it takes longer than after a
clean end is that to read as many bytes and to compute their checksums.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pyarrow as pa
from crc32c import crc32c

import harness
import loads
import penstock
from harness import Figure, Run, info
from penstock.client.blocking import Client
from penstock.limits import MIB
from serving import PARTITIONS, Broker, values

TABLE_ROWS = 10_000
TOPIC, GROUP = "t", "g"


class Times(NamedTuple):
    """Seconds from the start of the process; the last, that to read what a kill makes it read."""

    ready_s: float
    published_s: float
    consumed_s: float
    limit_s: float = 0.0


def build(path: Path, messages: int) -> None:
    running = Broker(path, ("native",))
    table = pa.table({"value": values(min(TABLE_ROWS, messages))})
    with penstock.connect(running.address) as q:
        q.create_topic(TOPIC, partitions=PARTITIONS)
        loads.send_batch(q, [TOPIC], table, messages // len(table))
        with q.consumer(GROUP, TOPIC, prefetch=loads.PREFETCH) as consumer:
            done = 0
            for batch in consumer.batches():
                batch.ack()
                done += len(batch)
                if done >= messages // 2:
                    break
    running.stop()


def start(path: Path, *, kills: bool) -> Times:
    """Once; and ends it in one way or the other."""
    limit_s = last_segments_s(path) if kills else 0.0
    began = time.perf_counter()
    running = Broker(path, ("native",))
    ready_s = time.perf_counter() - began
    with penstock.connect(running.address) as q:
        if TOPIC not in [topic.name for topic in q.topics()]:
            q.create_topic(TOPIC, partitions=PARTITIONS)
        q.publish(TOPIC, b"first")
        published_s = time.perf_counter() - began
        with q.consumer(GROUP, TOPIC, prefetch=1_000) as consumer:
            batch = next(consumer.batches())
            consumed_s = time.perf_counter() - began
            batch.ack()
        if kills:
            leave_behind(q, running)
    if not kills:
        running.stop()
    return Times(ready_s, published_s, consumed_s, limit_s)


def leave_behind(q: Client, running: Broker) -> None:
    """Messages just written, some of them leased."""
    loads.send(q, [TOPIC], values(10_000))
    with q.consumer("another", TOPIC, prefetch=1_000) as consumer:
        assert consumer.poll(1_000)
        running.kill()


def empty(run: Run) -> Times:
    with run.folder() as path:
        return start(path, kills=False)


def last_segments_s(path: Path) -> float:
    """To read the last segment of each log of messages, and to compute its checksum."""
    began = time.perf_counter()
    for log in sorted(path.glob("data/partitions/*/messages")):
        fd = os.open(max(log.glob("*.log")), os.O_RDONLY)
        try:
            at = 0
            while data := os.pread(fd, 4 * MIB, at):
                crc32c(data)
                at += len(data)
        finally:
            os.close(fd)
    return time.perf_counter() - began


def measure(run: Run) -> Iterator[Figure]:
    with run.folder() as clean, run.folder() as killed:
        build(clean, run.pick(10_000_000, 20_000))
        shutil.copytree(clean / "data", killed / "data")
        contenders = {
            "clean": partial(start, clean, kills=False),
            "killed": partial(start, killed, kills=True),
            "empty": partial(empty, run),
        }
        taken = harness.interleave(run.rounds, contenders)
    named = {"clean": "after a clean end", "killed": "after a kill", "empty": "in an empty directory"}
    for name, told in named.items():
        for at, what in enumerate(("ready", "first publish", "first batch")):
            yield info(f"{what}, {told}", 1e3 * median(one[at] for one in taken[name]), "ms")
    ready = {name: [one.ready_s for one in found] for name, found in taken.items()}
    yield info("ready, after a clean end / in an empty directory", harness.ratio(ready["clean"], ready["empty"]), "×")
    yield info("ready, after a kill / in an empty directory", harness.ratio(ready["killed"], ready["empty"]), "×")
    longer = median(ready["killed"]) - median(ready["clean"])
    yield info("ready, after a kill: longer than after a clean end", 1e3 * longer, "ms")
    limit_s = median(one.limit_s for one in taken["killed"])
    yield info("to read the last segments with their checksums", 1e3 * limit_s, "ms")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
