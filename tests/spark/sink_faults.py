"""A small cluster of its own, for test_sink.py: an executor that dies in a task, and then a driver.

    python sink_faults.py URL TOPIC DIRECTORY

First a job in which a task has written all its rows when its executor is killed, then a stream that ends with its
driver.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from conftest import new_session
from penstock.spark import PenstockDataSource
from penstock.spark.sink import PenstockStreamWriter


def interrupted_job(spark: SparkSession, url: str, topic: str, directory: Path) -> None:
    killed = directory / "killed"

    def kill_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last = None
        for batch in batches:
            for start in range(0, batch.num_rows, 40):
                yield batch.slice(start, 40)
            last = batch.column("value")[-1].as_py()
        if last == "299" and not killed.exists():
            killed.touch()
            # A worker is forked by a daemon, which the executor has started.
            os.kill(parent_of(os.getppid()), signal.SIGKILL)
            signal.pause()

    df = spark.range(0, 300, 1, 2).selectExpr("cast(id as string) as value", "cast(id % 7 as string) as key")
    rows = df.mapInArrow(kill_once, df.schema)
    rows.write.format("penstock").options(url=url, topic=f"{topic}-job").mode("append").save()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


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
    Dying.victims = (int(spark._jvm.java.lang.ProcessHandle.current().pid()), os.getpid())
    spark.dataSource.register(Dying)
    df = spark.readStream.text(str(directory / "files"))
    options = {"url": url, "topic": topic, "checkpointLocation": str(directory / "checkpoint")}
    df.writeStream.format("penstock").options(**options).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
