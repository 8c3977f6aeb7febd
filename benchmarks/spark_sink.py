"""How many rows a second does Spark write to a topic?

Spark and a broker process on this machine, `local[2]`; rows with values of 100 B that Spark holds in memory, six
partitions, everything on disk before a task ends:

    without keys    rows take turns, ten thousand to a partition
    with keys       each row goes to the partition of its key
    topic to topic  a stream of another topic's keys and values, in batches of a million; those behind the first count
    thrown away     rows without keys through a Python worker that keeps nothing of them
    Parquet         the same rows, which Spark's JVM writes itself, without syncing them

What is thrown away is what Spark itself takes to bring rows to Python: the bound for every sink in Python (ADR 22).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import harness
import penstock
from harness import Figure, Run
from penstock.limits import MIB
from serving import PARTITIONS, Broker, broker, values

BAR_K = 400
STREAM_BAR_K = 300
STREAM_ROWS = 1_000_000


def session(run: Run) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master("local[2]")
        .appName("penstock benchmark")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.warehouse.dir", str(run.directory / "warehouse"))
        .getOrCreate()
    )


def rows(spark: SparkSession, count: int) -> DataFrame:
    """In memory when this returns."""
    value = "cast(rpad(cast(id as string), 100, 'x') as binary) as value"
    df = spark.range(0, count, 1, 2).selectExpr(value, "cast(id % 10000 as string) as key").cache()
    df.count()
    return df


def to_topic(running: Broker, df: DataFrame, count: int) -> float:
    """Seconds for each row; a topic for each time, so that none is longer than another."""
    topic = f"bench-{uuid4().hex[:8]}"
    with penstock.connect(running.address) as q:
        q.create_topic(topic, partitions=PARTITIONS)
        write = df.write.format("penstock").options(url=running.address, topic=topic).mode("append")
        taken = harness.seconds(write.save)
        stored = sum(partition.end_offset for partition in q.topic(topic).partitions)
        assert stored == count, f"{stored} of {count} rows were stored"
        q.delete_topic(topic)
    return taken / count


def filled(running: Broker, count: int) -> str:
    """A topic to be read from."""
    topic = f"full-{uuid4().hex[:8]}"
    table = pa.table({"value": values(10_000)})
    with penstock.connect(running.address) as q:
        q.create_topic(topic, partitions=PARTITIONS)
        with q.producer(topic, batch_messages=len(table), batch_bytes=4 * MIB) as producer:
            for _ in range(count // len(table)):
                producer.send_batch(table, wait=False)
    return topic


def through(running: Broker, run: Run, spark: SparkSession, source: str, batch: int) -> float:
    """Seconds for each row of the batches behind the first, in which Spark starts its workers."""
    target = f"bench-{uuid4().hex[:8]}"
    with penstock.connect(running.address) as q, run.folder() as checkpoint:
        q.create_topic(target, partitions=PARTITIONS)
        options = {"url": running.address, "subscribe": source, "startingOffsets": "earliest"}
        df = spark.readStream.format("penstock").options(**options, maxOffsetsPerTrigger=str(batch)).load()
        writing = df.select("key", "value").writeStream.format("penstock")
        query = (
            writing.options(url=running.address, topic=target, checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        read, written = (sum(each.end_offset for each in q.topic(name).partitions) for name in (source, target))
        assert read == written, f"{written} of {read} messages were stored"
        q.delete_topic(target)
    counted = query.recentProgress[1:]
    took_ms = sum(progress["durationMs"]["triggerExecution"] for progress in counted)
    return float(took_ms / 1_000 / sum(progress["numInputRows"] for progress in counted))


def to_nowhere(df: DataFrame, count: int) -> float:
    def drop(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 1)

    return harness.seconds(df.mapInArrow(drop, df.schema).write.format("noop").mode("overwrite").save) / count


def to_parquet(run: Run, df: DataFrame, count: int) -> float:
    with run.folder() as folder:
        return harness.seconds(lambda: df.write.mode("overwrite").parquet(str(folder / "parquet"))) / count


def measure(run: Run) -> Iterator[Figure]:
    count = run.pick(2_000_000, 200_000)
    spark = session(run)
    try:
        df = rows(spark, count)
        with broker(run) as running:
            batch = run.pick(STREAM_ROWS, 60_000)
            source = filled(running, 3 * batch)
            contenders: dict[str, Callable[[], float]] = {
                "without keys": partial(to_topic, running, df.select("value"), count),
                "with keys": partial(to_topic, running, df, count),
                "topic to topic": partial(through, running, run, spark, source, batch),
                "thrown away": partial(to_nowhere, df.select("value"), count),
                "Parquet without keys": partial(to_parquet, run, df.select("value"), count),
                "Parquet with keys": partial(to_parquet, run, df, count),
            }
            taken = harness.interleave(run.rounds, contenders)
    finally:
        spark.stop()
    for name in ("without keys", "with keys"):
        yield harness.at_least(name, 1e-3 / median(taken[name]), "k rows/s", BAR_K)
    yield harness.at_least("topic to topic", 1e-3 / median(taken["topic to topic"]), "k rows/s", STREAM_BAR_K)
    yield harness.info("thrown away", 1e-3 / median(taken["thrown away"]), "k rows/s")
    for name, parquet in (
        ("without keys", "Parquet without keys"),
        ("with keys", "Parquet with keys"),
        ("thrown away", "Parquet without keys"),
    ):
        yield harness.info(f"{name} beside Parquet", harness.ratio(taken[parquet], taken[name]), "times the rate")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=3)
