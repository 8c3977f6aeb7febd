"""Tables of a thread that waits for each, past the outbox and the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from interrupting import is_interrupted
from penstock.client.client import Client
from penstock.client.producer import Producer
from penstock.client.sender import Way
from penstock.client.transport import Stored
from penstock.errors import Overloaded, TopicNotFound
from penstock.frame import Frame

SENDING = ("penstock.client.producer", "penstock.client.sender", "penstock.client.outbox", "penstock.client.lane")


def rows(*values: bytes) -> pa.Table:
    return pa.table({"value": list(values)})


async def at_once(producer: Producer, table: pa.Table, way: Way, partition: int | None = None) -> Stored | None:
    """What came of it, also if the loop had to take over; None if it can't go that way."""
    parts = producer.parts_of(table, partition)
    assert parts is not None
    outcome = await asyncio.to_thread(producer.parts_at_once, parts, way)
    return await asyncio.wrap_future(outcome) if isinstance(outcome, Future) else outcome


@asynccontextmanager
async def producing(client: Client, partitions: int = 1, **options: Any) -> AsyncIterator[tuple[Producer, Way]]:
    """And a way that arrives."""
    await client.create_topic("orders", partitions)
    async with client.producer("orders", **options) as producer:
        transport, loop = producer._transport, asyncio.get_running_loop()

        def way(topic: str, partition: int, frame: Frame, acks: str) -> Stored | None:
            return asyncio.run_coroutine_threadsafe(transport.publish_frame(topic, partition, frame), loop).result()

        yield producer, way


async def values(client: Client) -> list[bytes | None]:
    return [message.value async for message in client.reader("orders")]


@pytest.mark.parametrize("error", [None, Overloaded("not now")], ids=["unknown", "refused for now"])
@pytest.mark.parametrize("gets_through", [True, False])
def test_a_table_whose_short_way_fails_is_stored_once(
    run_client: Any, gets_through: bool, error: Overloaded | None
) -> None:
    async def work(client: Client) -> None:
        async with producing(client) as (producer, arriving):

            def way(topic: str, partition: int, frame: Frame, acks: str) -> Stored | None:
                if gets_through:
                    arriving(topic, partition, frame, acks)
                if error is not None:
                    raise error
                return None

            for number in range(3):
                stored = await at_once(producer, rows(b"a%d" % number, b"b%d" % number), way)
                assert stored is not None
                assert stored.offset == 2 * number
        assert await values(client) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]

    run_client(work)


def test_a_table_and_single_messages_share_one_sequence(run_client: Any) -> None:
    async def work(client: Client) -> None:
        async with producing(client) as (producer, way):
            await at_once(producer, rows(b"0", b"1"), way)
            await producer.send_batch(rows(b"2", b"3"))
            await (await producer.send(b"4"))
            await at_once(producer, rows(b"5"), way)
        assert await values(client) == [b"%d" % number for number in range(6)]

    run_client(work)


def test_a_table_does_not_overtake_what_was_sent_before_and_what_comes_meanwhile_is_behind_it(run_client: Any) -> None:
    async def work(client: Client) -> None:
        async with producing(client, linger="1h") as (producer, arriving):
            loop = asyncio.get_running_loop()
            await producer.send(b"0")
            assert await at_once(producer, rows(b"no"), arriving) is None
            await producer.flush()

            def way(topic: str, partition: int, frame: Frame, acks: str) -> Stored | None:
                asyncio.run_coroutine_threadsafe(producer.send_batch(rows(b"2"), wait=False), loop).result()
                asyncio.run_coroutine_threadsafe(producer.send(b"3"), loop).result()
                return arriving(topic, partition, frame, acks)

            assert await at_once(producer, rows(b"1"), way) is not None
            await producer.flush()
        assert await values(client) == [b"0", b"1", b"2", b"3"]

    run_client(work)


def test_only_what_goes_whole_and_is_waited_for_goes_that_way(run_client: Any) -> None:
    async def work(client: Client) -> None:
        async with producing(client, partitions=2) as (producer, way):
            keyed = pa.table({"value": [b"x"] * 20, "key": [b"%d" % number for number in range(20)]})
            assert await at_once(producer, keyed, way) is None
            assert await at_once(producer, keyed, way, partition=1) is not None
            assert await at_once(producer, keyed.slice(0, 1), way) is not None
            assert await at_once(producer, rows(*[bytes(1_000)] * 1_100), way) is None, "more than 1 MiB"
            turns = [await at_once(producer, rows(b"x"), way) for _ in range(4)]
            assert sorted(turn.partition for turn in turns if turn) == [0, 0, 1, 1]
        for options in ({"compression": "lz4"}, {"acks": "none"}):
            async with client.producer("orders", **options) as other:
                assert await at_once(other, rows(b"x"), way) is None
        assert other.parts_of(rows(b"x"), None) is None, "it is closed"
        assert client.producer("orders").parts_of(rows(b"x"), None) is None, "it is not ready"

    run_client(work)


def test_a_refused_table_leaves_the_partition_free_for_the_next(run_client: Any) -> None:
    async def work(client: Client) -> None:
        async with producing(client) as (producer, arriving):

            def way(topic: str, partition: int, frame: Frame, acks: str) -> Stored | None:
                raise TopicNotFound("orders is not there")

            with pytest.raises(TopicNotFound):
                await at_once(producer, rows(b"lost"), way)
            assert await at_once(producer, rows(b"0"), arriving) is not None
        assert await values(client) == [b"0"]

    run_client(work)


async def stored_behind(producer: Producer, value: bytes) -> None:
    assert producer._outbox is not None
    try:
        await asyncio.wait_for(await producer.send(value), 10)
    except TimeoutError:
        # So that it can be closed.
        producer._outbox.lane(0).holder = None
        raise


def answered(arriving: Way, meanwhile: Callable[[], None]) -> Way:
    return arriving


def unanswered(arriving: Way, meanwhile: Callable[[], None]) -> Way:
    return lambda topic, partition, frame, acks: None


def lost_behind_the_broker(arriving: Way, meanwhile: Callable[[], None]) -> Way:
    def way(topic: str, partition: int, frame: Frame, acks: str) -> Stored | None:
        arriving(topic, partition, frame, acks)
        return None

    return way


def refused(arriving: Way, meanwhile: Callable[[], None]) -> Way:
    def way(topic: str, partition: int, frame: Frame, acks: str) -> Stored | None:
        raise TopicNotFound("orders is not there")

    return way


def others_wait(arriving: Way, meanwhile: Callable[[], None]) -> Way:
    def way(topic: str, partition: int, frame: Frame, acks: str) -> Stored | None:
        meanwhile()
        return arriving(topic, partition, frame, acks)

    return way


@pytest.mark.parametrize(
    "kind", [answered, unanswered, lost_behind_the_broker, refused, others_wait], ids=lambda kind: kind.__name__
)
def test_an_interrupt_at_any_point_leaves_the_partition_free_and_nothing_twice(run_client: Any, kind: Any) -> None:
    async def work(client: Client) -> None:
        async with producing(client, linger="0s") as (producer, arriving):
            loop = asyncio.get_running_loop()
            sent: list[bytes] = []

            def meanwhile() -> None:
                sent.append(b"meanwhile %d" % len(sent))
                asyncio.run_coroutine_threadsafe(producer.send(sent[-1]), loop).result()

            def call(table: pa.Table) -> None:
                parts = producer.parts_of(table, None)
                assert parts is not None
                try:
                    producer.parts_at_once(parts, kind(arriving, meanwhile))
                except TopicNotFound:
                    assert kind is refused

            for point in count():
                table = rows(b"table %d" % point)
                over = not await asyncio.to_thread(is_interrupted, lambda table=table: call(table), point, SENDING)
                # A partition that is reserved for ever would keep this for ever.
                sent.append(b"behind %d" % point)
                await stored_behind(producer, sent[-1])
                if over:
                    break
        stored = await values(client)
        assert [value for value in stored if value in set(sent)] == sent
        tables = [value for value in stored if value not in set(sent)]
        assert len(set(tables)) == len(tables)
        assert (rows(b"table %d" % point)["value"][0].as_py() in tables) is (kind is not refused)
        assert point > 30

    run_client(work)
