"""The built-in pipeline `report`: how messages fared, from the log of messages and the log of deliveries."""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import AlreadyExists, PenstockError, PipelineFailed
from penstock.spark.builtin.report_scope import Asked, scope_of
from penstock.spark.builtin.report_tables import TABLES, Report
from penstock.spark.pipeline.failures import cause_of
from penstock.spark.pipeline.session import check_spark, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIMES = "spark.sql.parquet.outputTimestampType"


def make_report(spark: SparkSession, asked: Asked) -> Report:
    """TopicNotFound and the like come before anything is read."""
    from penstock.spark.builtin import report_figures as figures
    from penstock.spark.builtin import report_frames as frames

    asked.check()
    scope = scope_of(asked.connecting.client(), asked)
    made = datetime.now(UTC)
    messages = frames.messages_of(spark, asked, scope).persist()
    events = frames.events_of(spark, asked, scope).persist()
    moves = frames.moves_of(events).persist()
    lives = frames.lives_of(messages, events, moves, asked, scope).persist()
    keyed = figures.keyed_of(messages).persist()
    try:
        counts = figures.counts_of(messages)
        bucket_s = figures.bucket_for(counts)
        topics = figures.topics(counts, keyed, scope)
        started = [(row["topic"], row["group"]) for row in moves.select("topic", "group").distinct().collect()]
        tables = {
            "topics": topics,
            "groups": figures.groups(lives, started, scope),
            "partitions": figures.partitions(counts, scope),
            "keys": figures.keys(keyed, topics, asked.keys_max),
            "times": figures.times(messages, bucket_s),
            "group_times": figures.group_times(lives, bucket_s),
        }
    finally:
        for frame in (keyed, lives, moves, events, messages):
            frame.unpersist()
    since, until = figures.time_of(asked.since_us), figures.time_of(asked.until_us)
    return Report(asked.connecting.url, made, since, until, bucket_s, tables)


# --- Parquet --------------------------------------------------------------------------------------------------


def check_parquet(spark: SparkSession, directory: str) -> None:
    """AlreadyExists if there is a report. Wherever Spark can write: a URI, too."""
    taken = [table for table in TABLES if _exists(spark, f"{directory}/{table}")]
    if taken:
        raise AlreadyExists(
            f"{directory} has the tables {', '.join(taken)} already: name another directory, or say --overwrite"
        )


def _exists(spark: SparkSession, path: str) -> bool:
    jvm, java = spark.sparkContext._jvm, spark.sparkContext._jsc
    assert jvm is not None
    place = jvm.org.apache.hadoop.fs.Path(path)
    return bool(place.getFileSystem(java.hadoopConfiguration()).exists(place))


def write_parquet(spark: SparkSession, report: Report, directory: str, *, overwrite: bool) -> None:
    """A directory for each table."""
    mode = "overwrite" if overwrite else "error"
    with _known_times(spark):
        for table, schema in TABLES.items():
            rows = [tuple(row.values()) for row in report.tables[table]]
            spark.createDataFrame(rows, schema).coalesce(1).write.mode(mode).parquet(f"{directory}/{table}")


@contextmanager
def _known_times(spark: SparkSession) -> Iterator[None]:
    """Spark's default for timestamps is a form that Parquet has given up, and that tells no zone."""
    before = spark.conf.get(_TIMES)
    spark.conf.set(_TIMES, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(_TIMES, before)


# --- Spark ----------------------------------------------------------------------------------------------------


@contextmanager
def spark_for_report(master: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Of a process that has a session, that one. What goes wrong in it is told in a sentence."""
    check_spark()
    from pyspark.sql import SparkSession

    log = Path(tempfile.mkdtemp(prefix="penstock-report-")) / "log.txt"
    running = SparkSession.getActiveSession()
    spark = running or open_session("report", {**conf, "spark.master": master}, log)
    try:
        with _explained(log):
            yield spark
    finally:
        if running is None:
            spark.stop()
    shutil.rmtree(log.parent, ignore_errors=True)


@contextmanager
def _explained(log: Path) -> Iterator[None]:
    """The log stays where something went wrong that has no sentence of ours."""
    try:
        yield
    except PenstockError:
        shutil.rmtree(log.parent, ignore_errors=True)
        raise
    except Exception as error:
        with log.open("a", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
        raise PipelineFailed(f"{cause_of(error)} (Spark's log: {log})", log=str(log)) from error
