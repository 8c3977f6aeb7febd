"""How many messages a second does Spark archive, and how large is the archive beside the log?

Spark and a broker process on this machine, `local[2]`; JSON values of about 100 B in six partitions, with keys; the
archive pipeline as `penstock pipeline archive --once` runs it, in batches of a million. In the first of them Spark
starts its workers; the others count. A batch ends when its files are on disk and committed, and the broker is told:

    archived       messages a second
    Parquet        bytes of all files, beside the bytes of the log they were read from
    written only   the same columns to files of an archive in one process, without Spark and a broker; there is no bar
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import harness
import penstock
from harness import Figure, Run
from penstock.archive import Archive, write_files
from penstock.limits import MIB
from penstock.spark.builtin.archive import Archiving, prepared, start
from penstock.spark.connecting import Connecting
from penstock.spark.pipeline.progress import MESSAGES
from serving import PARTITIONS, Broker, broker
from spark_scan import session

BAR_K = 300
SIZE_BAR = 0.6
TOPIC = "orders"
BATCHES = 3
FIRST = ("ann", "bob", "chen", "dora", "emil", "fatima", "goran", "hana", "ivan", "jun", "kim", "lea", "mo", "nina")
LAST = ("adler", "baker", "costa", "dubois", "evans", "fischer", "garcia", "haas", "ito", "jansen", "kaya", "lopez")
CURRENCIES = ("EUR", "USD", "GBP", "CHF", "JPY")
START = datetime(2026, 1, 14, 12, tzinfo=UTC)
_ROWS = 10_000


def order(number: int, dice: random.Random) -> dict[str, object]:
    """As a shop would send it: what can be told apart by a compressor is, and what can't is not."""
    return {
        "id": UUID(int=dice.getrandbits(128)).hex[:12],
        "by": f"{dice.choice(FIRST)}.{dice.choice(LAST)}{dice.randrange(1_000)}",
        "amount": round(dice.lognormvariate(3.5, 1), 2),
        "cur": dice.choice(CURRENCIES),
        "at": (START + timedelta(milliseconds=37 * number + dice.randrange(30))).isoformat(timespec="milliseconds")[
            :23
        ],
    }


def tables(count: int) -> Iterator[pa.Table]:
    dice = random.Random(harness.SEED)
    for first in range(0, count, _ROWS):
        rows = [order(number, dice) for number in range(first, first + _ROWS)]
        values = [json.dumps(row, separators=(",", ":")).encode() for row in rows]
        yield pa.table({"key": [str(row["by"]).encode() for row in rows], "value": values})


def filled(running: Broker, count: int) -> float:
    """Bytes of a value, on average."""
    size = 0
    with penstock.connect(running.address) as q:
        q.create_topic(TOPIC, partitions=PARTITIONS, archive="required")
        with q.producer(TOPIC, batch_messages=_ROWS, batch_bytes=4 * MIB) as producer:
            for table in tables(count):
                size += sum(len(value) for value in table["value"].to_pylist())
                producer.send_batch(table)
    return size / count


def archived(running: Broker, run: Run, spark: SparkSession, count: int) -> tuple[float, float]:
    """Seconds for each message of the batches behind the first, and Parquet's share of the log's bytes."""
    with penstock.connect(running.address) as q, run.folder() as folder:
        connecting = Connecting(running.address)
        name = f"bench-{uuid4().hex[:8]}"
        # Each time into an archive of its own, which the broker has not been told of.
        place = str(folder / "archive")
        what = Archiving(name, connecting, place, TOPIC, offsets_max=count // BATCHES, refills=True)
        archive = prepared(what, q)
        (query,) = start(spark, what, archive, q, str(folder / "checkpoint"))
        query.awaitTermination()
        archive.refresh()
        files = archive.files()
        assert sum(entry.rows for entry in files) == count
        log_bytes = sum(part.bytes for part in q.topic(TOPIC).partitions)
    counted = query.recentProgress[1:]
    took_ms = sum(progress["durationMs"]["triggerExecution"] for progress in counted)
    messages = sum(progress["observedMetrics"][MESSAGES]["messages"] for progress in counted)
    assert messages >= count * (BATCHES - 1) // BATCHES
    return took_ms / 1_000 / messages, sum(entry.bytes for entry in files) / log_bytes


def written(run: Run, batches: list[pa.RecordBatch], count: int) -> tuple[float, float]:
    with run.folder() as folder:
        Archive.open(folder, create=True)
        work = partial(write_files, folder, batches, topic=TOPIC, topic_id="id", partition=0)
        taken = harness.seconds(partial(work, first_offset=0, end_offset=count))
    return taken / count, 0.0


def in_memory(count: int) -> list[pa.RecordBatch]:
    found = []
    for number, table in enumerate(tables(count)):
        offsets = np.arange(number * _ROWS, (number + 1) * _ROWS)
        times = pa.array(1_768_392_000_000_000 + offsets * 3).cast(pa.timestamp("us", tz="UTC"))
        columns = [pa.array(offsets), times, times, *(table[name].combine_chunks() for name in ("key", "value"))]
        found.append(pa.RecordBatch.from_arrays(columns, ["offset", "append_time", "timestamp", "key", "value"]))
    return found


def measure(run: Run) -> Iterator[Figure]:
    count = BATCHES * run.pick(1_000_000, 60_000)
    few = run.pick(500_000, 50_000)
    batches = in_memory(few)
    spark = session()
    try:
        with broker(run) as running:
            value_bytes = filled(running, count)
            contenders = {
                "archived": lambda: archived(running, run, spark, count),
                "written only": lambda: written(run, batches, few),
            }
            found = harness.interleave(run.rounds, contenders)
    finally:
        spark.stop()
    rates = {name: 1e-3 / median(taken for taken, _ in each) for name, each in found.items()}
    yield harness.at_least("archived", rates["archived"], "k msg/s", BAR_K)
    yield harness.at_most("Parquet", median(share for _, share in found["archived"]), "of the log", SIZE_BAR)
    yield harness.info("written only", rates["written only"], "k msg/s")
    yield harness.info("a value", value_bytes, "B")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=3)
