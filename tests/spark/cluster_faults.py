"""A small cluster of its own, for test_sink.py: executors that die in a task, and then a driver.

    python cluster_faults.py URL TOPIC DIRECTORY

First a job in which a task has written all its rows when its executor is killed, then a scan and a stream in which a
task has read some of its rows, and last a stream that ends with its driver.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from conftest import new_session
from penstock.spark import PenstockDataSource
from penstock.spark.batch import PenstockReader
from penstock.spark.sink import PenstockStreamWriter
from penstock.spark.stream import PenstockStreamReader


def interrupted_job(spark: SparkSession, url: str, topic: str, directory: Path) -> None:
    killed = directory / "killed"

    def kill_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last = None
        for batch in batches:
            for start in range(0, batch.num_rows, 40):
                yield batch.slice(start, 40)
            last = batch.column("value")[-1].as_py()
        if last == "299":
            kill_executor_once(killed)

    df = spark.range(0, 300, 1, 2).selectExpr("cast(id as string) as value", "cast(id % 7 as string) as key")
    rows = df.mapInArrow(kill_once, df.schema)
    rows.write.format("penstock").options(url=url, topic=f"{topic}-job").mode("append").save()


def kill_executor_once(killed: Path) -> None:
    """In one of its Python workers. `killed` is there from then on."""
    try:
        killed.touch(exist_ok=False)
    except FileExistsError:
        return
    # A worker is forked by a daemon, which the executor has started.
    os.kill(parent_of(os.getppid()), signal.SIGKILL)
    signal.pause()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Mortal(PenstockDataSource):
    """An executor is gone when it has read the first rows of a partition: once in a scan, and once in a stream."""

    directory = Path()

    def reader(self, schema: StructType) -> Any:
        reader = super().reader(schema)
        reader.__class__ = MortalReader
        reader.killed = self.directory / "killed in a scan"
        return reader

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802
        reader = super().streamReader(schema)
        reader.__class__ = MortalStreamReader
        reader.killed = self.directory / "killed in a stream"
        return reader


class MortalReader(PenstockReader):
    killed = Path()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return dying_after_some(super().read(partition), self.killed)


class MortalStreamReader(PenstockStreamReader):
    killed = Path()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return dying_after_some(super().read(partition), self.killed)


def dying_after_some(batches: Iterator[pa.RecordBatch], killed: Path) -> Iterator[pa.RecordBatch]:
    yield next(batches)
    more = next(batches)
    kill_executor_once(killed)
    yield more
    yield from batches


def interrupted_reading(spark: SparkSession, url: str, topic: str, directory: Path) -> None:
    """What the scan has read is in a file, what the stream has read in a topic."""
    Mortal.directory = directory
    spark.dataSource.register(Mortal)
    # So that the sink has some of the rows, too, when the executor is killed.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    source = {"url": url, "subscribe": f"{topic}-source", "startingOffsets": "earliest"}
    scanned = spark.read.format("penstock").options(**source).load()
    rows = scanned.selectExpr("cast(key as string) as key", "length(value) as length").collect()
    (directory / "scanned").write_text(json.dumps([[row["key"], row["length"]] for row in rows]))
    df = spark.readStream.format("penstock").options(**source).load().select("key", "value")
    sink = {"url": url, "topic": f"{topic}-copy", "checkpointLocation": str(directory / "copying")}
    df.writeStream.format("penstock").options(**sink).trigger(availableNow=True).start().awaitTermination()


class Dying(PenstockDataSource):
    """The driver is gone when the first batch is written, before that is in the checkpoint."""

    victims: tuple[int, ...] = ()

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = DyingWriter
        writer.victims = self.victims
        return writer


class DyingWriter(PenstockStreamWriter):
    victims: tuple[int, ...] = ()

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        assert sum(message.rows for message in messages) == 200
        for pid in self.victims:
            os.kill(pid, signal.SIGKILL)


def main(url: str, topic: str, directory: Path) -> None:
    spark = new_session("local-cluster[2,1,1024]", directory / "warehouse")
    (directory / "application").write_text(spark.sparkContext.applicationId)
    interrupted_job(spark, url, topic, directory)
    interrupted_reading(spark, url, topic, directory)
    Dying.victims = (int(spark._jvm.java.lang.ProcessHandle.current().pid()), os.getpid())
    spark.dataSource.register(Dying)
    df = spark.readStream.text(str(directory / "files"))
    options = {"url": url, "topic": topic, "checkpointLocation": str(directory / "checkpoint")}
    df.writeStream.format("penstock").options(**options).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
