"""`format("penstock")` as a sink, with real Spark and a real broker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

import penstock
from broker_process import BrokerProcess, broker_process
from penstock.client.blocking import Client
from penstock.spark.pipeline.failures import cause_of


@pytest.fixture
def topic(q: Client) -> str:
    name = f"t{uuid4().hex[:8]}"
    q.create_topic(name, partitions=3)
    return name


def texts(q: Client, topic: str) -> list[str]:
    return sorted((message.value or b"").decode() for message in q.reader(topic))


def numbers(spark: SparkSession, stop: int, tasks: int = 2) -> DataFrame:
    return spark.range(0, stop, 1, tasks).selectExpr("cast(id as string) as value", "cast(id % 5 as string) as key")


def save(df: DataFrame, broker: BrokerProcess, **options: Any) -> None:
    df.write.format("penstock").option("url", broker.address).options(**options).mode("append").save()


def expected(count: int) -> list[str]:
    return sorted(str(number) for number in range(count))


def lines(directory: Path, name: str, start: int, stop: int) -> None:
    """A file for the stream of text files; `start` to `stop`, a line each."""
    directory.mkdir(exist_ok=True)
    (directory / name).write_text("".join(f"{number}\n" for number in range(start, stop)))


def stream(df: DataFrame, broker: BrokerProcess, checkpoint: Path, **options: Any) -> DataStreamWriter:
    given = {"url": broker.address, "checkpointLocation": str(checkpoint), **options}
    return df.writeStream.format("penstock").options(**given).trigger(availableNow=True)


# --- jobs ---------------------------------------------------------------------------------------------------


def test_a_table_is_written_with_its_keys_and_headers(
    spark: SparkSession, broker: BrokerProcess, q: Client, topic: str
) -> None:
    df = numbers(spark, 50).selectExpr(
        "*",
        "array(named_struct('key', 'n', 'value', binary(value))) as headers",
        "'high' as priority",
        "interval '1' hour as ttl",
        "timestamp '2026-01-14 15:00:00' as timestamp",
    )
    save(df, broker, topic=topic)
    found = {message.value: message for message in q.reader(topic)}
    assert sorted(found) == sorted(b"%d" % number for number in range(50))
    one = found[b"7"]
    assert (one.key, one.headers, one.priority, one.timestamp) == (b"2", (("n", b"7"),), 1, 1_768_402_800_000_000)
    assert one.expires_at > one.append_time


def test_a_job_is_written_once_for_each_write_id(
    spark: SparkSession, broker: BrokerProcess, q: Client, topic: str
) -> None:
    df = numbers(spark, 20)
    for _ in range(2):
        save(df, broker, topic=topic, writeId="of monday")
    assert texts(q, topic) == expected(20)
    save(df, broker, topic=topic)
    assert texts(q, topic) == sorted(expected(20) * 2)


@pytest.mark.parametrize(
    ("selected", "options", "told"),
    [
        (
            "id",
            {"topic": "here"},
            r"\[invalid_input\] column id is nothing a message has: the broker gives that itself",
        ),
        ("cast(id as string) as value", {"topic": "nowhere"}, "there is no topic 'nowhere', and writing does not make"),
    ],
)
def test_what_can_not_be_written_is_refused_before_any_row_is(
    spark: SparkSession,
    broker: BrokerProcess,
    q: Client,
    topic: str,
    selected: str,
    options: dict[str, str],
    told: str,
) -> None:
    given = {**options, "topic": topic} if options.get("topic") == "here" else options
    with pytest.raises(PySparkException, match=told):
        save(spark.range(3).selectExpr(selected), broker, **given)
    assert texts(q, topic) == []


def test_a_row_that_can_not_be_a_message_fails_the_job(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    df = numbers(spark, 9, 1).selectExpr("value", "if(value = '7', 'soon', '1s') as delay")
    with pytest.raises(PySparkException, match=r"\[invalid_message\] row 7 of Spark partition 0: delay: a duration is"):
        save(df, broker, topic=topic)


def test_a_broker_that_is_killed_in_the_middle_of_a_job_gets_the_rest_when_it_is_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    with broker_process(tmp_path) as broker:
        pid = broker.process.pid

        def killing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for start in range(0, batch.num_rows, 50):
                    if batch.column("value")[start].as_py() == "500":
                        os.kill(pid, signal.SIGKILL)
                    yield batch.slice(start, 50)

        def again() -> None:
            broker.process.wait()
            broker.kill()
            broker.start()

        with penstock.connect(broker.address) as q:
            q.create_topic("orders", partitions=2)
            restarting = Thread(target=again)
            restarting.start()
            df = numbers(spark, 1_000, 1)
            save(df.mapInArrow(killing, df.schema), broker, topic="orders")
            restarting.join()
            assert texts(q, "orders") == expected(1_000)


# --- streams ------------------------------------------------------------------------------------------------


def test_a_stream_goes_on_where_it_was_and_a_batch_that_is_run_again_is_stored_once(
    spark: SparkSession, broker: BrokerProcess, q: Client, topic: str, tmp_path: Path
) -> None:
    files, checkpoint = tmp_path / "files", tmp_path / "checkpoint"
    lines(files, "a.txt", 0, 10)
    df = spark.readStream.text(str(files))
    stream(df, broker, checkpoint, topic=topic).start().awaitTermination()
    assert texts(q, topic) == expected(10)
    lines(files, "b.txt", 10, 25)
    stream(df, broker, checkpoint, topic=topic).start().awaitTermination()
    assert texts(q, topic) == expected(25)
    # As if the driver had died when everything was written, and before it could say so.
    for commit in (checkpoint / "commits").glob("*1*"):
        commit.unlink()
    lines(files, "c.txt", 25, 30)
    stream(df, broker, checkpoint, topic=topic).start().awaitTermination()
    assert texts(q, topic) == expected(30)


def test_a_stream_that_can_not_be_written_is_refused_before_any_row_is(
    spark: SparkSession, broker: BrokerProcess, q: Client, topic: str, tmp_path: Path
) -> None:
    lines(tmp_path / "files", "a.txt", 0, 3)
    df = spark.readStream.text(str(tmp_path / "files")).selectExpr("value as payload")
    with pytest.raises(PySparkException, match=r"\[invalid_input\] column payload is nothing a message has"):
        stream(df, broker, tmp_path / "checkpoint", topic=topic).start().awaitTermination()
    assert texts(q, topic) == []


def test_a_stream_commits_without_its_broker_and_a_failure_names_its_cause(spark: SparkSession, tmp_path: Path) -> None:
    lines(tmp_path / "files", "a.txt", 0, 3)
    with broker_process(tmp_path / "data") as broker:
        with penstock.connect(broker.address) as q:
            q.create_topic("away", 1)

        def copied(name: str, *, passes_rows: bool) -> StreamingQuery:
            pid = broker.process.pid

            def killing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                for batch in batches:
                    os.kill(pid, signal.SIGKILL)
                    yield batch if passes_rows else batch.slice(0, 0)

            df = spark.readStream.text(str(tmp_path / "files")).mapInArrow(killing, "value string")
            query = stream(df, broker, tmp_path / name, topic="away", retryFor="1s").start()
            with suppress(StreamingQueryException):
                query.awaitTermination()
            assert broker.process.wait() == -signal.SIGKILL
            broker.kill()
            return query

        error = copied("failing", passes_rows=True).exception()
        assert error is not None
        assert cause_of(error).endswith("[connection_lost]")
        broker.start()
        assert copied("checkpoint", passes_rows=False).exception() is None
        assert (tmp_path / "checkpoint" / "commits" / "0").exists()


def test_counts_that_change_are_written_batch_by_batch(
    spark: SparkSession, broker: BrokerProcess, q: Client, topic: str, tmp_path: Path
) -> None:
    lines(tmp_path / "files", "a.txt", 0, 4)
    counted = spark.readStream.text(str(tmp_path / "files")).groupBy("value").count()
    df = counted.selectExpr("value as key", "cast(count as string) as value")
    with pytest.raises(PySparkException, match="topics can only be appended to"):
        stream(df, broker, tmp_path / "one", topic=topic).outputMode("complete").start().awaitTermination()

    def write(rows: DataFrame, batch: int) -> None:
        for _ in range(2):
            save(rows.sortWithinPartitions("key"), broker, topic=topic, writeId="counts")

    changed = df.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "two"))
    changed.foreachBatch(write).trigger(availableNow=True).start().awaitTermination()
    assert sorted((message.key, message.value) for message in q.reader(topic)) == [(b"%d" % n, b"1") for n in range(4)]
    # One name serves all batches.
    lines(tmp_path / "files", "b.txt", 3, 5)
    changed.foreachBatch(write).trigger(availableNow=True).start().awaitTermination()
    assert sorted((message.key, message.value) for message in q.reader(topic)) == [
        (b"0", b"1"), (b"1", b"1"), (b"2", b"1"), (b"3", b"1"), (b"3", b"2"), (b"4", b"1")
    ]  # fmt: skip


# --- with a Spark of their own ------------------------------------------------------------------------------


def test_executors_and_drivers_that_die_lose_nothing_and_store_nothing_twice(
    spark: SparkSession, broker: BrokerProcess, q: Client, topic: str, tmp_path: Path
) -> None:
    """In processes that may die: see cluster_faults.py for what happens there."""
    for name in ("job", "source", "copy"):
        q.create_topic(f"{topic}-{name}", partitions=2)
    # Each partition has more than is read at once.
    with q.producer(f"{topic}-source") as producer:
        for number in range(400):
            producer.send(b"x" * 40_000, key=f"{number}", partition=number % 2)
    lines(tmp_path / "files", "a.txt", 0, 200)
    command = [sys.executable, Path(__file__).with_name("cluster_faults.py"), broker.address, topic, tmp_path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    died = subprocess.run(command, env=environment, timeout=560, capture_output=True, text=True)
    # The executors' logs, which Spark puts into its own directory.
    shutil.rmtree(Path(pyspark.__file__).with_name("work") / (tmp_path / "application").read_text(), ignore_errors=True)
    assert died.returncode == -signal.SIGKILL, died.stderr[-3_000:]
    assert len(list(tmp_path.glob("killed*"))) == 3
    assert texts(q, f"{topic}-job") == expected(300)
    assert sorted(json.loads((tmp_path / "scanned").read_text())) == [[key, 40_000] for key in expected(400)]
    copied = [((message.key or b"").decode(), len(message.value or b"")) for message in q.reader(f"{topic}-copy")]
    assert sorted(copied) == [(key, 40_000) for key in expected(400)]
    # Everything was written, and nobody knows.
    assert texts(q, topic) == expected(200)
    assert not (tmp_path / "checkpoint" / "commits" / "0").exists()
    lines(tmp_path / "files", "b.txt", 200, 250)
    df = spark.readStream.text(str(tmp_path / "files"))
    stream(df, broker, tmp_path / "checkpoint", topic=topic).start().awaitTermination()
    assert texts(q, topic) == expected(250)
    assert (tmp_path / "checkpoint" / "commits" / "1").exists()
