"""How fast does Spark scan a topic, beside a Python source that has everything in memory, and beside Parquet?

Spark with two cores (`local[2]`), a broker process on the same machine; messages of 100 B, each with a value of its own
and one of a thousand keys, in six partitions; a batch query that reads everything and throws it away
(`format("noop")`). In the same rounds:

    all columns          format("penstock")
    key, value           the same with these two as its schema: the broker does not send the others
    offset, timestamp    the same
    memory               a Python data source that yields record batches of the same columns and rows without a broker
    Parquet              the same rows, which Spark's JVM reads itself

What memory reaches of Parquet's rate is the bound for every source in Python (ADR 22).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import harness
import penstock
from harness import Figure, Run, at_least, info
from penstock.clock import SystemClock
from penstock.limits import MIB
from penstock.spark import in_background
from penstock.spark.schema import schema_of
from serving import PARTITIONS, Broker, broker, values

ROWS = 10_000
COLUMNS_BAR = 2.0
MEMORY_BAR = 0.4


class Memory(DataSource):
    """As many rows of the same columns as a topic has, made of one record batch again and again."""

    @classmethod
    def name(cls) -> str:
        return "memory_batches"

    def schema(self) -> StructType:
        return schema_of("messages")

    def reader(self, schema: StructType) -> DataSourceReader:
        return MemoryReader(to_arrow_schema(schema, timezone="UTC"), int(self.options["batches"]))


class MemoryReader(DataSourceReader):
    def __init__(self, schema: pa.Schema, batches: int) -> None:
        self._schema = schema
        self._batches = batches

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = self._batch(partition.value)
        for _ in range(partition.value, self._batches, PARTITIONS):
            yield batch

    def _batch(self, number: int) -> pa.RecordBatch:
        now_us = SystemClock().now_us()
        columns = {
            "id": [f"bench:{number}:{1_000_000 + row}" for row in range(ROWS)],
            "topic": ["bench"] * ROWS,
            "partition": [number] * ROWS,
            "offset": list(range(1_000_000, 1_000_000 + ROWS)),
            "timestamp": [now_us + row for row in range(ROWS)],
            "append_time": [now_us] * ROWS,
            "key": keys(),
            "value": values(ROWS),
            "headers": [[]] * ROWS,
            "priority": [0] * ROWS,
            "deliver_at": [None] * ROWS,
        }
        return pa.RecordBatch.from_arrays(
            [pa.array(columns[field.name], field.type) for field in self._schema], schema=self._schema
        )


def session(*, behind: bool = False) -> SparkSession:
    """`behind` everything else on this machine, as pipelines run (`penstock.spark.in_background`)."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Spark's workers import this script's neighbours, too.
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parent)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[2]").appName("penstock benchmark")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = in_background(builder.getOrCreate()) if behind else builder.getOrCreate()
    spark.dataSource.register(Memory)
    return spark


def keys() -> list[bytes]:
    return [b"user-%d" % (row % 1_000) for row in range(ROWS)]


def fill(address: str, count: int) -> None:
    """Every value is different. Parquet would keep a thousand that repeat as a dictionary, and read next to nothing."""
    ends = pa.array([value[8:] for value in values(ROWS)])
    with penstock.connect(address) as q:
        q.create_topic("bench", partitions=PARTITIONS)
        with q.producer("bench", batch_messages=ROWS, batch_bytes=4 * MIB) as producer:
            for number in range(count // ROWS):
                rows = pa.array(range(number * ROWS, (number + 1) * ROWS)).cast(pa.string())
                begins = pc.utf8_lpad(rows, 8, "0").cast(pa.binary())
                table = pa.table({"value": pc.binary_join_element_wise(begins, ends, b""), "key": keys()})
                producer.send_batch(table, partition=number % PARTITIONS)


def scan(frame: DataFrame) -> float:
    return harness.seconds(lambda: frame.write.format("noop").mode("overwrite").save())


def topic(spark: SparkSession, address: str, schema: str | None = None) -> DataFrame:
    reading = spark.read.format("penstock").option("url", address).option("subscribe", "bench")
    return (reading if schema is None else reading.schema(schema)).load()


def memory(spark: SparkSession, batches: int, schema: str | None = None) -> DataFrame:
    reading = spark.read.format("memory_batches").option("batches", str(batches))
    return (reading if schema is None else reading.schema(schema)).load()


def measure(run: Run) -> Iterator[Figure]:
    count = run.pick(10_000_000, 100_000)
    spark = session()
    try:
        with broker(run) as running:
            began = time.perf_counter()
            fill(running.address, count)
            harness.say(f"{count:,} messages published in {time.perf_counter() - began:.1f} s")
            yield from figures(run, spark, running, count)
    finally:
        spark.stop()


def figures(run: Run, spark: SparkSession, running: Broker, count: int) -> Iterator[Figure]:
    address, batches, pair = running.address, count // ROWS, "key BINARY, value BINARY"
    with run.folder() as folder:
        parquet = str(folder / "parquet")
        topic(spark, address).write.parquet(parquet)
        taken = harness.interleave(
            run.rounds,
            {
                "all columns": lambda: scan(topic(spark, address)),
                "key, value": lambda: scan(topic(spark, address, pair)),
                "offset, timestamp": lambda: scan(topic(spark, address, "offset BIGINT, timestamp TIMESTAMP")),
                "from memory": lambda: scan(memory(spark, batches)),
                "key, value from memory": lambda: scan(memory(spark, batches, pair)),
                "Parquet": lambda: scan(spark.read.parquet(parquet)),
                "key, value of Parquet": lambda: scan(spark.read.parquet(parquet).select("key", "value")),
            },
        )
    for name, seconds in taken.items():
        yield info(f"scan, {name}", count / min(seconds) / 1_000, "thousand rows/s")
    beside_memory = harness.ratio(taken["from memory"], taken["all columns"])
    yield at_least("scan beside memory", beside_memory, "times the rate", MEMORY_BAR)
    few = harness.ratio(taken["all columns"], taken["offset, timestamp"])
    yield at_least("offset, timestamp beside all columns", few, "times the rate", COLUMNS_BAR)
    for ours, theirs in (
        ("all columns", "Parquet"),
        ("from memory", "Parquet"),
        ("key, value", "key, value of Parquet"),
        ("key, value from memory", "key, value of Parquet"),
    ):
        yield info(f"{ours} beside Parquet", harness.ratio(taken[theirs], taken[ours]), "times the rate")


if __name__ == "__main__":
    assert __doc__ is not None
    harness.main(__doc__, measure, rounds=3)
