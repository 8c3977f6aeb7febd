"""What became of messages, as a table: `include` says deliveries."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from broker_process import BrokerProcess
from penstock.client.blocking import Client


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


def events_in(frame: DataFrame) -> list[tuple[object, ...]]:
    rows = frame.where("offset IS NOT NULL").orderBy("event_offset", "offset").collect()
    return [(row["event"], row["group"], row["offset"], row["reason"]) for row in rows]


def test_deliveries_are_a_table_and_a_stream_of_it(
    q: Client, topic: str, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    options = {"url": broker.address, "subscribe": topic, "include": "deliveries"}

    def frame() -> DataFrame:
        return spark.read.format("penstock").options(**options).load()

    expected = [
        tuple(row[name] for name in ("event", "group", "offset", "reason"))
        for row in rows_of(q, topic)
        if row["offset"] is not None
    ]
    assert {offset for _, _, offset, _ in expected} == {0, 1}
    assert any(reason == "odd" for _, _, _, reason in expected)
    assert sorted(events_in(frame()), key=str) == sorted(expected, key=str)

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
