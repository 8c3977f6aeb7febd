"""What a prompt, a log line or a debugger shows: what it is, where it is, and never a whole payload."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from penstock.client.client import Client
from penstock.client.transport import Receipt
from penstock.errors import TopicNotFound
from penstock.message import Message
from penstock.published import Published
from penstock.testing import VirtualQueue

LONG = b"x" * 1_000
SHOWN = f"{LONG[:40]!r}… (1000 bytes)"


def test_a_queue_and_what_it_makes_say_what_they_are() -> None:
    with VirtualQueue() as queue:
        queue.create_topic("orders", 2)
        assert repr(queue) == "<VirtualQueue in memory, open>"
        consumer = queue.consumer("w", ["orders"], name="ann")
        assert repr(consumer) == "<Consumer ann of w on orders, open>"
        consumer.close()
        assert repr(consumer) == "<Consumer ann of w on orders, closed>"
        producer = queue.producer("orders", linger="1h")
        assert repr(producer) == "<Producer for orders, 0 unsent>"
        sending = producer.send(b"a", partition=1)
        assert repr(sending) == "<Sending to orders, on its way>"
        assert repr(producer) == "<Producer for orders, 1 unsent>"
        producer.close()
        assert repr(producer) == "<Producer for orders, 0 unsent, closed>"
        assert repr(sending) == "<Sending to orders, stored as orders:1:0>"
        assert repr(queue.reader("orders")) == "<Reader of orders from earliest to latest>"
        some = queue.reader("orders", partitions=[0], from_offset={0: 3}, to_time="2030-01-01T00:00:00Z")
        assert repr(some) == "<Reader of orders partitions [0] from {0: 3} to 2030-01-01T00:00:00.000000Z>"
    assert repr(queue) == "<VirtualQueue in memory, closed>"


def test_a_sending_that_failed_says_why(queue: VirtualQueue) -> None:
    producer = queue.producer("orders", linger="1h")
    sending = producer.send(b"a")
    queue.delete_topic("orders")
    with pytest.raises(TopicNotFound):
        producer.close()
    told = 'topic "orders" does not exist. Create it: penstock topic create orders'
    assert repr(sending) == f"<Sending to orders, failed: TopicNotFound({told!r})>"


def test_messages_show_the_start_of_what_is_long(queue: VirtualQueue) -> None:
    queue.publish("orders", LONG, key=LONG)
    queue.publish("orders", None, key="k", headers={"a": LONG}, priority="high")
    messages = queue.consumer("w", "orders", lanes="none").poll()
    assert repr(messages[0]) == f"<Received orders:0:0 key={SHOWN} value={SHOWN}>"
    assert repr(messages[1]) == "<Received orders:0:1 key=b'k' value=None>"
    assert repr(messages[0].message) == f"<Message value={SHOWN} key={SHOWN} timestamp={messages[0].timestamp}>"
    assert "value=None key=b'k' 1 headers timestamp=" in repr(messages[1].message)
    assert repr(Message(b"a")) == "<Message value=b'a'>"


def test_batches_receipts_and_where_messages_went_are_short(queue: VirtualQueue) -> None:
    with queue.producer("orders") as producer:
        published = producer.send_batch(pa.table({"value": [LONG] * 100}))
    assert repr(published) == "<PublishedBatch of 100 messages to orders, in 1 partitions>"
    (batch,) = queue.consumer("w", "orders", until_idle="0s").batches()
    assert repr(batch) == "<ReceivedBatch of 100 messages, from orders:0:0 on>"
    receipt = Receipt("orders", 0, 7, BitMap64(range(3, 1_000)))
    assert repr(receipt) == "<Receipt of lease 7 for 997 messages, from orders:0:3 on>"
    assert repr(Receipt("orders", 0, 7, BitMap64())) == "<Receipt of lease 7 for 0 messages, from orders:0>"
    assert repr(Published("orders", 0, 3, 0)) == "<Published orders:0:3 at 1970-01-01T00:00:00.000000Z>"


def test_the_async_ones_say_the_same(run_client: Any) -> None:
    async def work(client: Client) -> None:
        assert repr(client) == "<Client somewhere, open>"
        assert repr(client.consumer("w", "orders", name="ann")) == "<Consumer ann of w on orders, open>"

    run_client(work)
