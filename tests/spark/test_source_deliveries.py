"""What became of messages, as a table: `include` says deliveries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from broker_process import BrokerProcess
from penstock.client.blocking import Client
from penstock.client.deliveries import DELIVERIES_SCHEMA
from penstock.client.requests import TopicInfo
from penstock.durations import time_us
from penstock.errors import OffsetOutOfRange
from penstock.spark import tables
from penstock.spark.asked import asked_by
from penstock.spark.planning import Range
from penstock.spark.reading import read
from penstock.spark.schema import schema_of, wanted_of
from penstock.spark.subscription import Subscription
from penstock.spark.tables import Deliveries, Held

TIMES = ("time", "until")


@pytest.fixture
def topic(q: Client) -> str:
    """Two messages, of which one was acknowledged and one refused."""
    q.create_topic("traced", 1)
    for number in range(2):
        q.publish("traced", f"{number}")
    consumer = q.consumer("workers", "traced", until_idle="1ms", name="ann")
    for message in consumer:
        message.ack() if message.offset == 0 else message.reject("odd")
    consumer.close()
    give_up = time.monotonic() + 30
    # The dead letter is written soon after the refusal.
    while "DEAD_LETTERED" not in {row["event"] for row in rows_of(q, "traced")}:
        assert time.monotonic() < give_up
    return "traced"


def rows_of(q: Client, topic: str) -> list[dict[str, Any]]:
    return [row for batch in q.deliveries(topic).batches() for row in batch.to_pylist()]


def in_micros(row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: None if row[name] is None else time_us(row[name]) for name in TIMES}


def events_in(frame: DataFrame) -> list[dict[str, Any]]:
    """With times in microseconds."""
    columns = [f"unix_micros({name}) AS {name}" if name in TIMES else f"`{name}`" for name in frame.columns]
    return [row.asDict() for row in frame.selectExpr(*columns).collect()]


def test_deliveries_are_a_table_and_a_stream_of_it(
    q: Client, topic: str, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    options = {"url": broker.address, "subscribe": topic, "include": "deliveries"}

    def frame() -> DataFrame:
        return spark.read.format("penstock").options(**options).load()

    found = events_in(frame())
    assert found == [in_micros(row) for row in rows_of(q, topic)]
    assert [(row["event"], row["offset"], row["reason"]) for row in found if row["offset"] is not None] == [
        ("DELIVERED", 0, None),
        ("DELIVERED", 1, None),
        ("ACKNOWLEDGED", 0, None),
        ("EXHAUSTED", 1, "odd"),
        ("DEAD_LETTERED", 1, None),
    ]
    published = max(message.append_time for message in q.reader(topic))
    leases = {row["lease"] for row in found} - {None}
    assert len(leases) == 1
    for row in found:
        is_leased = row["event"] in ("DELIVERED", "ACKNOWLEDGED", "EXHAUSTED")
        told = row["consumer"], row["attempt"], {row["lease"]} - {None}
        assert not is_leased or told == ("ann", 1, leases)
        assert (row["topic"], row["partition"], row["group"]) == (topic, 0, "workers")
        assert row["time"] > published
        assert (row["until"] is not None) == (row["event"] == "DELIVERED")
        assert row["until"] is None or row["until"] > row["time"]

    def run() -> int:
        stream = spark.readStream.format("penstock").options(**options, startingOffsets="earliest").load()
        writing = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writing.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(progress["numInputRows"] for progress in query.recentProgress)

    rows = frame().count()
    assert run() == rows
    q.publish(topic, "2")
    with q.consumer("others", topic) as others:
        next(iter(others)).ack()
    assert run() == frame().count() - rows > 0


class Late:
    """A client whose list of topics is older than what it hears of each of them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._listed = client.topics()

    def topics(self) -> list[TopicInfo]:
        return self._listed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def test_a_topic_of_a_pattern_that_is_deleted_under_the_look_is_not_there(q: Client) -> None:
    for name in ("listed-deleted", "listed-shrunk", "listed-still"):
        q.create_topic(name, 2)
    late = cast(Client, Late(q))
    q.delete_topic("listed-deleted")
    q.delete_topic("listed-shrunk")
    q.create_topic("listed-shrunk", 1)
    found = Subscription("by pattern", "deliveries", pattern="listed-.*").look(late)
    assert list(found) == ["listed-still"]
    assert found["listed-still"].ends == {0: 0, 1: 0}


class Shortened(Deliveries):
    """Event 4 is of many messages and comes in pieces; then all up to event 6 is deleted."""

    def held(self, client: Client, info: TopicInfo) -> list[Held]:
        return [Held(0, 7)]

    def batches(self, client: Client, topic: str, partition: int, start: int, *more: Any) -> Iterator[pa.RecordBatch]:
        if start == 0:
            yield from (_event(4, piece) for piece in (range(6_000), range(6_000, 12_000), range(12_000, 12_007)))
            raise OffsetOutOfRange("offset 5 is not within 6 to 7", start=6, end=7)
        assert start == 6
        yield _event(6, range(1))


def _event(number: int, offsets: range) -> pa.RecordBatch:
    rows = [{"event_offset": number, "event": "DELIVERED", "offset": offset} for offset in offsets]
    return pa.RecordBatch.from_pylist(rows, DELIVERIES_SCHEMA)


def test_of_an_event_of_many_messages_none_is_left_out_when_the_log_is_shortened_behind_it(
    q: Client, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.create_topic("shortened", 1)
    monkeypatch.setitem(tables.LOGS, "deliveries", Shortened())
    options = {"url": broker.address, "subscribe": "shortened", "include": "deliveries", "failOnDataLoss": "false"}
    wanted = wanted_of("deliveries", schema_of("deliveries"))
    batches = read(asked_by(options, is_stream=False), wanted, Range("shortened", q.topic("shortened").id, 0, 0, 7))
    found = pa.Table.from_batches(batches).select(["event_offset", "offset"]).to_pylist()
    assert [(row["event_offset"], row["offset"]) for row in found] == [(4, each) for each in range(12_007)] + [(6, 0)]
