"""What a reading query meets when the broker goes away, and when retention is faster."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

import penstock
from broker_process import BrokerProcess, broker_process
from penstock.client.blocking import Client
from penstock.errors import DataLost
from penstock.spark.asked import asked_by
from penstock.spark.batch import PenstockReader
from penstock.spark.schema import schema_of, wanted_of
from penstock.spark.stream import PenstockStreamReader

ROWS = 400
# More than the broker sends at once, so that a reading is under way for several of its answers.
VALUE = b"x" * 40_000


@pytest.fixture
def own(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that may be ended."""
    with broker_process(tmp_path / "data") as process:
        yield process


def fill(q: Client, topic: str) -> None:
    q.create_topic(topic, 1)
    with q.producer(topic) as producer:
        for number in range(ROWS):
            producer.send(VALUE, key=f"{number}")


def reader_of(broker: BrokerProcess, **options: str) -> PenstockReader:
    asked = asked_by({"url": broker.address, **options}, is_stream=False)
    return PenstockReader(asked, wanted_of("messages", schema_of("messages")))


def begun(reader: PenstockReader) -> tuple[list[int], Iterator[pa.RecordBatch]]:
    """Offsets of the first rows, and the rest."""
    (task,) = reader.partitions()
    batches = reader.read(task)
    return next(batches)["offset"].to_pylist(), batches


def rest_of(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def forget(q: Client, own: BrokerProcess, topic: str) -> None:
    """Retention takes what there is: a broker that starts looks at it soon."""
    q.change_topic(topic, retention={"hours": 0.00001})
    own.kill()
    own.start()
    give_up = time.monotonic() + 30
    while q.topic(topic).partitions[0].start_offset < ROWS:
        assert time.monotonic() < give_up
    # And nothing that comes later.
    q.change_topic(topic, retention={"hours": 1})


def test_a_broker_that_is_restarted_while_it_is_read_is_read_on(own: BrokerProcess) -> None:
    with penstock.connect(own.address) as q:
        fill(q, "restarted")
    first, batches = begun(reader_of(own, subscribe="restarted"))
    own.kill()
    own.start()
    assert 0 < len(first) < ROWS
    assert first + rest_of(batches) == list(range(ROWS))


def test_a_running_query_goes_on_after_the_broker_was_restarted(
    own: BrokerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    seen: list[str] = []

    def take(frame: Any, number: int) -> None:
        seen.extend(bytes(row["value"]).decode() for row in frame.collect())

    with penstock.connect(own.address) as q:
        q.create_topic("running", 2)
        q.publish("running", "before")
        stream = spark.readStream.format("penstock").schema("value BINARY").option("startingOffsets", "earliest")
        frame = stream.option("url", own.address).option("subscribe", "running").load()
        query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            query.processAllAvailable()
            own.kill()
            own.start()
            q.publish("running", "after")
            query.processAllAvailable()
        finally:
            query.stop()
    assert seen == ["before", "after"]


def test_a_query_that_starts_while_the_broker_is_away_waits_for_it(
    own: BrokerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    with penstock.connect(own.address) as q:
        q.create_topic("later", 1)
        q.publish("later", "1")
    own.kill()
    stream = spark.readStream.format("penstock").schema("value BINARY").option("startingOffsets", "earliest")
    writing = stream.option("url", own.address).option("subscribe", "later").load().writeStream.format("noop")
    with socket.create_server(("127.0.0.1", own.port)) as listener:
        query = writing.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        connection, _ = listener.accept()
        connection.close()
    own.start()
    query.awaitTermination()
    assert [progress["numInputRows"] for progress in query.recentProgress] == [1]


@contextmanager
def started_again(broker: BrokerProcess) -> Iterator[None]:
    """As soon as somebody has killed it, which must be done within."""

    def again() -> None:
        broker.process.wait()
        broker.kill()
        broker.start()

    first, starting = broker.process, Thread(target=again)
    starting.start()
    try:
        yield
    finally:
        first.kill()
        starting.join()


def killing(pid: int, at: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Rows as they are; the process is gone when the one with this key is there."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if at in batch["key"].to_pylist():
                os.kill(pid, signal.SIGKILL)
            yield batch

    return pass_on


def test_a_broker_that_is_killed_in_the_middle_of_sparks_reading_and_writing_is_waited_for(
    own: BrokerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    columns, expected = "key BINARY, value BINARY", sorted(f"{number}".encode() for number in range(ROWS))
    source = {"url": own.address, "subscribe": "halfway", "startingOffsets": "earliest"}
    sink = {"url": own.address, "topic": "copied", "checkpointLocation": str(tmp_path / "checkpoint")}
    with penstock.connect(own.address) as q:
        fill(q, "halfway")
        q.create_topic("copied", 1)
    # Rows are passed on while most of them are still to be read.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    try:
        with started_again(own):
            scan = spark.read.format("penstock").schema(columns).options(**source).load()
            first = own.process
            scanned = scan.mapInArrow(killing(first.pid, b"30"), columns).collect()
            assert first.poll() == -signal.SIGKILL
        with started_again(own):
            stream = spark.readStream.format("penstock").schema(columns).options(**source).load()
            first = own.process
            copying = stream.mapInArrow(killing(first.pid, b"30"), columns).writeStream.format("penstock")
            query = copying.options(**sink).trigger(availableNow=True).start()
            query.awaitTermination()
            assert first.poll() == -signal.SIGKILL
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert sorted(bytes(row["key"]) for row in scanned) == expected
    with penstock.connect(own.address) as q:
        copied = list(q.reader("copied"))
    assert sorted(message.key or b"" for message in copied) == expected
    assert {message.value for message in copied} == {VALUE}
    assert [progress["numInputRows"] for progress in query.recentProgress] == [ROWS]


def test_retention_under_a_reading_is_a_loss(own: BrokerProcess) -> None:
    with penstock.connect(own.address) as q:
        fill(q, "short")
        first, batches = begun(reader_of(own, subscribe="short"))
        lenient_first, lenient = begun(reader_of(own, subscribe="short", failOnDataLoss="false"))
        forget(q, own, "short")
        q.publish("short", "later")
        with pytest.raises(DataLost, match=rf"\[data_lost\] offsets \d+ to {ROWS} .* there are {ROWS} to"):
            rest_of(batches)
        rest = rest_of(lenient)
    assert 0 < len(first) < ROWS
    assert lenient_first + rest == list(range(len(lenient_first) + len(rest)))
    assert len(lenient_first) + len(rest) < ROWS


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_topic_deleted_or_made_again_under_a_reading_is_a_loss(
    q: Client, broker: BrokerProcess, is_made_again: bool
) -> None:
    topic = f"under-a-reading-{is_made_again}"
    fill(q, topic)
    _, batches = begun(reader_of(broker, subscribe=topic))
    first, lenient = begun(reader_of(broker, subscribe=topic, failOnDataLoss="false"))
    q.delete_topic(topic)
    if is_made_again:
        fill(q, topic)
    told = "deleted and made again" if is_made_again else "was deleted while it was to be read"
    with pytest.raises(DataLost, match=told):
        rest_of(batches)
    assert 0 < len(first) < ROWS
    # What is there of another topic of that name may be read, or nothing; it is told, and it ends.
    rest_of(lenient)


def test_a_stream_whose_next_messages_retention_has_taken_ends_or_goes_on_with_what_is_there(
    own: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    def stream(**options: str) -> PenstockStreamReader:
        given = {"url": own.address, "subscribe": "slow", "startingOffsets": "earliest", **options}
        return PenstockStreamReader(asked_by(given, is_stream=True), wanted_of("messages", schema_of("messages")))

    with penstock.connect(own.address) as q:
        fill(q, "slow")
        strict, lenient = stream(), stream(failOnDataLoss="false", maxOffsetsPerTrigger="1")
        start = strict.initialOffset()
        forget(q, own, "slow")
        q.publish("slow", "later")
        with pytest.raises(DataLost, match=rf"is at offset 0, and what is there has {ROWS} to {ROWS + 1}"):
            strict.latestOffset(start, ReadAllAvailable())
        end = lenient.latestOffset(start, lenient.getDefaultReadLimit())
        (task,) = lenient.partitions(start, end)
        assert rest_of(lenient.read(task)) == [ROWS]
    told = [record.message for record in caplog.records if record.name.startswith("penstock")]
    assert all("going on, as failOnDataLoss is false" in message for message in told)
    assert len(told) == 2


def test_what_retention_took_before_a_batch_query_is_not_missed(own: BrokerProcess, spark: SparkSession) -> None:
    with penstock.connect(own.address) as q:
        fill(q, "old")
        forget(q, own, "old")
        q.publish("old", "later")
    reading = (
        spark.read.format("penstock").schema("offset BIGINT").option("url", own.address).option("subscribe", "old")
    )
    assert [row["offset"] for row in reading.load().collect()] == [ROWS]
    with pytest.raises(AnalysisException, match=r"\[data_lost\] the option startingOffsets says offset 5"):
        reading.option("startingOffsets", '{"old": {"0": 5}}').load().collect()
