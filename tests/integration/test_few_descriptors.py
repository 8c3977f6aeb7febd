"""A real broker process that may open few files, and has many partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from broker_process import BrokerProcess, broker_process
from penstock.client.blocking import Client
from penstock.errors import TooManyPartitions

DESCRIPTORS = 256
# Each has two logs, of a segment and a mark.
PARTITIONS = 100


def publish_to_all(q: Client, life: str) -> list[bytes]:
    values = [f"{life} {partition}".encode() for partition in range(PARTITIONS)]
    with q.producer("t") as producer:
        for partition, value in enumerate(values):
            producer.send(value, partition=partition)
    return values


def consumed(q: Client, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    with q.consumer("workers", "t", name="ann", until_idle="20s") as consumer:
        for batch in consumer.batches():
            values += [message.value for message in batch.messages()]
            batch.ack()
            if len(values) >= count:
                break
    return sorted(values)


def open_in(broker: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir()))


def test_a_broker_with_more_partitions_than_descriptors_works_and_starts_again(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", descriptors=DESCRIPTORS) as broker:
        with penstock.connect(broker.address) as q:
            q.create_topic("t", partitions=PARTITIONS)
            values = publish_to_all(q, "first")
            assert consumed(q, PARTITIONS) == sorted(values)
            assert open_in(broker) < DESCRIPTORS
        broker.kill()
        broker.start()
        with penstock.connect(broker.address) as q:
            more = publish_to_all(q, "second")
            # What was acknowledged before the kill is not among them.
            assert consumed(q, PARTITIONS) == sorted(more)
            assert sorted(message.value or b"" for message in q.reader("t")) == sorted(values + more)
            assert open_in(broker) < DESCRIPTORS
        assert broker.stop()[0] == 0
        broker.start()
        with penstock.connect(broker.address) as q:
            third = publish_to_all(q, "third")
            assert consumed(q, PARTITIONS) == sorted(third)


def test_more_partitions_than_go_with_its_descriptors_are_refused_and_the_broker_goes_on(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", descriptors=DESCRIPTORS) as broker, penstock.connect(broker.address) as q:
        q.create_topic("t", partitions=2)
        with pytest.raises(TooManyPartitions, match="ulimit -n") as caught:
            q.create_topic("large", partitions=1_000)
        assert caught.value.details == {"partitions": 1_002, "partitions_max": 768}
        with pytest.raises(TooManyPartitions):
            q.change_topic("t", partitions=1_000)
        assert [topic.name for topic in q.topics()] == ["t"]
        q.publish("t", b"x")
