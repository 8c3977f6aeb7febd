"""Kafka, where KAFKA_BOOTSTRAP says: `produce` with acks=all; `consume` of many at a time.

A broker answers when all in-sync replicas have written, not when they have synced: that is the default, and safe as
long as they do not all fail at once. Durable, as ours, is the topic with `flush.messages=1`: a sync for each batch that
is appended. An ack of each is `store_offsets`, committed by the client now and then; of many, one commit that is waited
for. The topics have one partition and the cluster's number of replicas, and are deleted afterwards.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pacing
from peers import Turn, new_name
from peers.arrivals import Arrivals
from peers.closed_loop import Published, in_threads

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer
    from confluent_kafka.admin import AdminClient

AT_ONCE = 1_000
WAIT_S = 30.0
# librdkafka's own, and none where nothing more comes until what was sent is acknowledged.
LINGER_MS = 5
LINGER_MS_BATCHES = 0
# And worse, on a scale of syslog's.
WARNINGS = 4


class Kafka:
    product = "Kafka"

    def __init__(self, is_durable: bool) -> None:
        self.is_durable = is_durable
        self.name = f"{self.product}, {'flush of each' if is_durable else 'default'}"
        self.kept_as = self.name
        self.messages = 50_000
        self._made: list[str] = []

    def missing(self) -> str | None:
        if not os.environ.get("KAFKA_BOOTSTRAP"):
            return "KAFKA_BOOTSTRAP, the address of a cluster (host:port)"
        if importlib.util.find_spec("confluent_kafka") is None:
            return "the Python package confluent-kafka (pip install 'penstock[bench]')"
        return None

    def described(self) -> str:
        synced = "flush.messages=1, synced before it is answered" if self.is_durable else "answered before it is synced"
        return (
            f"Kafka at {os.environ['KAFKA_BOOTSTRAP']}, one partition, acks=all, {synced}; confluent-kafka "
            f"{version('confluent-kafka')}, consume of {AT_ONCE:,}, store_offsets of each, or one commit"
        )

    @contextlib.contextmanager
    def serving(self, path: Path) -> Iterator[str]:
        """Nothing is started; the topics that were made meanwhile go."""
        address = os.environ["KAFKA_BOOTSTRAP"]
        try:
            yield address
        finally:
            _delete(address, self._made)
            self._made = []

    def turn(self, address: str, values: Sequence[bytes]) -> Turn:
        few, warm, bench = values[: AT_ONCE // 10], self._new_topic(address), self._new_topic(address)
        _publish_all(address, warm, few)
        _consume_all(address, warm, len(few), of_each=True)
        return Turn(
            publish_s=_publish_all(address, bench, values),
            ack_each_s=_consume_all(address, bench, len(values), of_each=True),
            ack_many_s=_consume_all(address, bench, len(values), of_each=False),
        )

    def publish(self, address: str, batch: Sequence[bytes], clients: int, seconds: float) -> Published:
        topic = self._new_topic(address)

        @contextlib.contextmanager
        def connected() -> Iterator[Callable[[Sequence[bytes]], object]]:
            yield partial(_produce_all, _producer(address, LINGER_MS_BATCHES), topic)

        return in_threads(clients, batch, seconds, connected)

    def create(self, address: str, topic: str) -> None:
        from confluent_kafka.admin import NewTopic

        wanted = NewTopic(topic, num_partitions=1, config={"flush.messages": "1"} if self.is_durable else {})
        admin = _admin(address)
        admin.create_topics([wanted], operation_timeout=WAIT_S)[topic].result()
        self._made.append(topic)

    def produce(self, address: str, topic: str, rate: int, count: int) -> None:
        producer = _producer(address)
        for values in pacing.due(rate, count):
            for value in values:
                producer.produce(topic, value, on_delivery=_check)
            producer.poll(0)
            time.sleep(pacing.TICK_S)
        _flush(producer)

    def consume(self, address: str, topic: str, arrivals: Arrivals, ready: Callable[[], None]) -> None:
        with _consumer(address, topic, topic) as consumer:
            ready()
            while not arrivals.is_over:
                message = consumer.poll(1)
                if message is not None:
                    arrivals.add(_value(message))
                    consumer.store_offsets(message)

    def _new_topic(self, address: str) -> str:
        topic = new_name()
        self.create(address, topic)
        return topic


def _admin(address: str) -> AdminClient:
    """To be held until it has answered: nobody is told what becomes of the requests of one that is gone."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": address, "log_level": WARNINGS})


def _delete(address: str, topics: list[str]) -> None:
    if topics:
        admin = _admin(address)
        for gone in admin.delete_topics(topics, operation_timeout=WAIT_S).values():
            gone.result()


def _producer(address: str, linger_ms: int = LINGER_MS) -> Producer:
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": linger_ms})


def _check(error: KafkaError | None, message: Message) -> None:
    assert error is None, error


def _flush(producer: Producer) -> None:
    left = producer.flush(WAIT_S)
    assert left == 0, f"{left} messages were not acknowledged"


def _produce_all(producer: Producer, topic: str, values: Sequence[bytes]) -> None:
    for value in values:
        producer.produce(topic, value, on_delivery=_check)
    _flush(producer)


def _publish_all(address: str, topic: str, values: Sequence[bytes]) -> float:
    producer = _producer(address)
    # Connected, and knows the leader, as the others do when they begin.
    producer.list_topics(topic, WAIT_S)
    started = time.perf_counter()
    for at in range(0, len(values), AT_ONCE):
        for value in values[at : at + AT_ONCE]:
            producer.produce(topic, value, on_delivery=_check)
        producer.poll(0)
    _flush(producer)
    return (time.perf_counter() - started) / len(values)


@contextlib.contextmanager
def _consumer(address: str, topic: str, group: str) -> Iterator[Consumer]:
    """Of the whole topic from its beginning; assigned, so that nobody waits for a group to be formed."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "enable.auto.offset.store": False})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        yield consumer
    finally:
        # Commits what is stored.
        consumer.close()


def _value(message: Message) -> bytes:
    assert message.error() is None, message.error()
    value = message.value()
    assert isinstance(value, bytes)
    return value


def _consume_all(address: str, topic: str, count: int, *, of_each: bool) -> float:
    """From the first one on, when it is connected and fetches, as the others do when they begin."""
    with _consumer(address, topic, f"{topic}-{of_each}") as consumer:
        first = consumer.poll(WAIT_S)
        assert first is not None, "nothing came"
        done = 1
        started = time.perf_counter()
        while done < count:
            # It waits until it has as many as it may take.
            messages = consumer.consume(min(AT_ONCE, count - done), WAIT_S)
            assert messages, "nothing came"
            for message in messages:
                assert _value(message)
                if of_each:
                    consumer.store_offsets(message)
            if not of_each:
                consumer.commit(asynchronous=False, message=messages[-1])
            done += len(messages)
        if of_each:
            consumer.commit(asynchronous=False)
        return (time.perf_counter() - started) / (count - 1)
