"""Tables by the short way of threads that wait for each."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pyarrow as pa
import pytest

import penstock
from broker_process import BrokerProcess, broker_process
from interrupting import is_interrupted
from penstock.client.blocking import Client, Producer
from penstock.client.transport import Stored
from penstock.errors import (
    BatchTooLarge,
    ConnectionLost,
    InvalidMessage,
    LogClosed,
    PartitionNotFound,
    TopicNotFound,
    UnknownColumn,
)
from penstock.frame import Frame
from penstock.limits import DEFAULT_LIMITS
from penstock.net.express import Express

SENDING = (
    "penstock.client.blocking",
    "penstock.client.lane",
    "penstock.client.outbox",
    "penstock.client.producer",
    "penstock.client.sender",
    "penstock.net.express",
    "penstock.net.remote",
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path) as process:
        yield process


@pytest.fixture
def q(broker: BrokerProcess) -> Iterator[Client]:
    with penstock.connect(broker.address) as client:
        client.create_topic("orders", partitions=1)
        yield client


class Went:
    """The sizes of frames that went the short way, and were answered there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        publish_frame = Express.publish_frame

        def spied(express: Express, topic: str, partition: int, frame: Frame, acks: str = "all") -> Stored | None:
            stored = publish_frame(express, topic, partition, frame, acks)
            if stored is not None:
                self.sizes.append(len(frame.data))
            return stored

        monkeypatch.setattr(Express, "publish_frame", spied)


@pytest.fixture
def went(monkeypatch: pytest.MonkeyPatch) -> Went:
    return Went(monkeypatch)


def rows(*values: bytes) -> pa.Table:
    return pa.table({"value": list(values)})


def values(q: Client) -> list[bytes | None]:
    return [message.value for message in q.reader("orders")]


def opened(producer: Producer, went: Went) -> None:
    """The connection is there from the second one in a row on, and on a slow machine from a later one."""
    while not went.sizes:
        producer.send_batch(rows(b"first"))
    went.sizes.clear()


def test_tables_go_the_short_way_and_tell_where_each_row_is(q: Client, went: Went) -> None:
    with q.producer("orders") as producer:
        opened(producer, went)
        start = len(values(q))
        published = producer.send_batch(rows(b"a", b"b", b"c"))
        assert len(went.sizes) == 1
        assert published.partitions.tolist() == [0, 0, 0]
        assert published.offsets.tolist() == [start, start + 1, start + 2]
        assert (published.partitions.dtype, published.offsets.dtype) == ("int64", "int64")
        later = producer.send_batch(rows(b"d"), wait=False).result()
        assert (type(later), later.offsets.tolist()) == (type(published), [start + 3])
        assert len(went.sizes) == 1
    assert values(q)[start:] == [b"a", b"b", b"c", b"d"]


def test_a_frame_of_nearly_1_mib_goes_whole_and_a_larger_one_the_long_way(q: Client, went: Went) -> None:
    large = [bytes([number % 256]) * 1_000 for number in range(1_000)]
    with q.producer("orders") as producer:
        opened(producer, went)
        start = len(values(q))
        producer.send_batch(rows(*large))
        assert len(went.sizes) == 1
        assert went.sizes[0] > 1_000_000
        producer.send_batch(rows(*large, *large))
        assert len(went.sizes) == 1
    assert values(q)[start:] == large * 3


def test_rows_for_several_partitions_go_the_long_way(q: Client, went: Went) -> None:
    q.create_topic("events", partitions=3)
    keyed = pa.table({"value": [b"x"] * 30, "key": [b"%d" % number for number in range(30)]})
    with q.producer("events") as producer:
        opened(producer, went)
        assert set(producer.send_batch(keyed).partitions.tolist()) == {0, 1, 2}
        assert went.sizes == []
        turns = [producer.send_batch(rows(b"x")).partitions.tolist() for _ in range(6)]
        assert sorted(turns) == [[0], [0], [1], [1], [2], [2]]
        assert len(went.sizes) == 6


def test_what_was_sent_before_comes_before(q: Client, went: Went) -> None:
    with q.producer("orders", linger="1h") as producer:
        opened(producer, went)
        start = len(values(q))
        producer.send(b"0")
        producer.send_batch(rows(b"1"))
        assert went.sizes == []
        producer.send_batch(rows(b"2"))
        producer.send(b"3")
    assert values(q)[start:] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_table_whose_connection_is_lost_is_stored_once(
    q: Client, went: Went, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    exchange = Express._exchange
    lost: list[Frame] = []

    def losing(express: Express, topic: str, partition: int, frame: Frame, acks: str) -> Stored:
        stored = exchange(express, topic, partition, frame, acks) if when == "after" or lost else None
        if not lost:
            lost.append(frame)
            raise ConnectionLost("gone")
        assert stored is not None
        return stored

    with q.producer("orders") as producer:
        opened(producer, went)
        start = len(values(q))
        monkeypatch.setattr(Express, "_exchange", losing)
        told = [producer.send_batch(rows(b"%d" % number)).offsets.tolist() for number in range(3)]
        assert len(lost) == 1
    assert told == [[start], [start + 1], [start + 2]]
    assert values(q)[start:] == [b"0", b"1", b"2"]


def test_a_broker_that_is_killed_loses_nothing_and_stores_nothing_twice(
    broker: BrokerProcess, q: Client, went: Went
) -> None:
    with q.producer("orders") as producer:
        opened(producer, went)
        start = len(values(q))
        told = [producer.send_batch(rows(b"0")).offsets.tolist()]
        broker.kill()
        broker.start()
        told += [producer.send_batch(rows(b"%d" % number)).offsets.tolist() for number in range(1, 4)]
    assert told == [[start + number] for number in range(4)]
    assert values(q)[start:] == [b"0", b"1", b"2", b"3"]


def test_errors_are_those_of_the_long_way(q: Client, went: Went) -> None:
    with q.producer("orders") as producer:
        opened(producer, went)
        start = len(values(q))
        with pytest.raises(PartitionNotFound):
            producer.send_batch(rows(b"x"), partition=1)
        with pytest.raises(BatchTooLarge):
            producer.send_batch(rows(bytes(DEFAULT_LIMITS.message_bytes_max + 1)))
        with pytest.raises(UnknownColumn):
            producer.send_batch(pa.table({"value": [b"x"], "colour": ["red"]}))
        with pytest.raises(InvalidMessage, match="1973"):
            producer.send_batch(pa.table({"value": [b"x"], "deliver_at": [1_000]}))
        with pytest.raises(InvalidMessage, match="allows"):
            producer.send_batch(pa.table({"value": [b"x"], "deliver_at": [time.time_ns() // 1_000 + 10**15]}))
        assert len(values(q)) == start
        producer.send_batch(rows(b"x"))
        assert len(went.sizes) == 1
        q.delete_topic("orders")
        for _ in range(2):
            with pytest.raises(TopicNotFound):
                producer.send_batch(rows(b"x"))
        producer.flush()
    with pytest.raises(LogClosed):
        producer.send_batch(rows(b"x"))


def test_a_producer_of_a_closed_client_says_so(broker: BrokerProcess, q: Client) -> None:
    other = penstock.connect(broker.address)
    producer = other.producer("orders")
    for _ in range(3):
        producer.send_batch(rows(b"x"))
    other.close()
    with pytest.raises(LogClosed):
        producer.send_batch(rows(b"x"))


def test_threads_that_share_a_producer_do_not_hear_of_each_other(q: Client) -> None:
    heard: dict[int, bytes] = {}
    start = Barrier(3)
    with q.producer("orders") as producer:

        def send(thread: int) -> None:
            start.wait()
            for number in range(60):
                told = [b"%d-%d-%d" % (thread, number, row) for row in range(2)]
                heard.update(zip(producer.send_batch(rows(*told)).offsets.tolist(), told, strict=True))

        threads = [Thread(target=send, args=[thread]) for thread in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert dict(enumerate(values(q))) == heard
    assert len(heard) == 360


def test_an_interrupt_at_any_point_leaves_the_producer_as_good_as_new(q: Client, went: Went) -> None:
    sent: list[bytes] = []
    with q.producer("orders", linger="0s") as producer:
        for point in count():
            opened(producer, went)
            table = rows(b"table %d" % point)
            is_over = not is_interrupted(lambda table=table: producer.send_batch(table), point, SENDING)  # type: ignore[misc]
            sent.append(b"behind %d" % point)
            # A partition that is reserved for ever would keep this for ever.
            producer.send(sent[-1]).result(timeout=60)
            if is_over:
                break
    stored = [value for value in values(q) if value != b"first"]
    assert [value for value in stored if value in set(sent)] == sent
    tables: list[Any] = [value for value in stored if value not in set(sent)]
    assert len(set(tables)) == len(tables)
    assert b"table %d" % point in tables
    assert point > 50
