"""What a reading query meets when the broker goes away, and when retention is faster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
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
    assert all("going on, as failOnDataLoss is false" in record.message for record in caplog.records)
    assert len(caplog.records) == 2


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
