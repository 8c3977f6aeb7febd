"""Publishing one message at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import (
    BatchTooLarge,
    InvalidInput,
    InvalidMessage,
    InvalidName,
    PartitionNotFound,
    PenstockError,
    TopicNotFound,
)
from penstock.partitioner import partition_of
from penstock.testing import VirtualClock, VirtualQueue


def end_offsets(queue: VirtualQueue, topic: str) -> list[int]:
    return [partition.end_offset for partition in queue.topic(topic).partitions]


def test_a_message_is_stored_with_all_it_has(queue: VirtualQueue, clock: VirtualClock) -> None:
    published = queue.publish(
        "orders",
        '{"id":1}',
        key="user-1",
        headers={"source": "web"},
        delay="30m",
        ttl="1h",
        priority="high",
        timestamp="2020-01-01T00:00:00Z",
    )
    assert (published.id, published.append_time) == ("orders:0:0", clock.now_us())
    message = queue.message("orders:0:0")
    assert (message.value, message.key, message.headers) == (b'{"id":1}', b"user-1", (("source", b"web"),))
    assert (message.deliver_at, message.expires_at) == (clock.now_us() + 1_800_000_000, clock.now_us() + 3_600_000_000)
    assert (message.priority, message.timestamp) == (1, 1_577_836_800_000_000)
    assert (message.topic, message.partition, message.offset, message.id) == ("orders", 0, 0, "orders:0:0")
    assert repr(message) == """<StoredMessage orders:0:0 key=b'user-1' value=b'{"id":1}'>"""


def test_messages_of_one_key_go_to_one_partition_and_others_are_spread(queue: VirtualQueue) -> None:
    queue.create_topic("events", 4)
    for number in range(20):
        key = f"k{number}"
        assert queue.publish("events", b"x", key=key).partition == partition_of(key.encode(), 4)
    assert {queue.publish("events", b"x").partition for _ in range(4)} == {0, 1, 2, 3}
    assert queue.publish("events", b"x", partition=2).partition == 2


@pytest.mark.parametrize(
    ("publish", "error"),
    [
        (lambda q: q.publish("nowhere", b"x"), TopicNotFound),
        (lambda q: q.publish("no/slashes", b"x"), InvalidName),
        (lambda q: q.publish(7, b"x"), InvalidName),
        (lambda q: q.publish("orders", 7), InvalidMessage),
        (lambda q: q.publish("orders", b"x", key=7), InvalidMessage),
        (lambda q: q.publish("orders", b"x", headers=[b"a"]), InvalidMessage),
        (lambda q: q.publish("orders", b"x", partition=1), PartitionNotFound),
        (lambda q: q.publish("orders", b"x", partition="0"), InvalidInput),
        (lambda q: q.publish("orders", b"x", partition=True), InvalidInput),
        (lambda q: q.publish("orders", b"x", delay=5), InvalidInput),
        (lambda q: q.publish("orders", b"x", delay="20000d"), InvalidMessage),
        (lambda q: q.publish("orders", b"x", priority="urgent"), InvalidMessage),
        (lambda q: q.publish("orders", b"x", colour="red"), InvalidMessage),
        (lambda q: q.publish("orders", b"x" * (1 << 21)), BatchTooLarge),
        (lambda q: q.publish("orders", b"x", headers={"h": b"x" * 40_000}), BatchTooLarge),
        (lambda q: q.producer("nowhere").send(b"x"), TopicNotFound),
        (lambda q: q.producer("orders").send(b"x", partition=1), PartitionNotFound),
        (lambda q: q.producer("orders").send(b"x" * (1 << 21)), BatchTooLarge),
        (lambda q: q.producer("orders", compression="gzip"), InvalidInput),
        (lambda q: q.producer("orders", linger=5), InvalidInput),
        (lambda q: q.producer("orders", batch_messages=0), InvalidInput),
        (lambda q: q.producer("orders", batch_bytes=1 << 30), InvalidInput),
        (lambda q: q.producer("orders", buffer_bytes="1"), InvalidInput),
    ],
)
def test_what_can_not_be_published_is_refused_and_nothing_is_stored(
    queue: VirtualQueue, publish: Callable[[Any], object], error: type[PenstockError]
) -> None:
    with pytest.raises(error) as refused:
        publish(queue)
    assert refused.value.message
    assert end_offsets(queue, "orders") == [0]
    assert [topic.name for topic in queue.topics()] == ["orders"], "no topic is made by publishing to it"
