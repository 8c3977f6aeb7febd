"""What was fetched and nobody has seen yet: in order, whoever takes from it, and given back when it is over."""

from __future__ import annotations

import asyncio
from threading import Event, Thread
from typing import Any

import pytest

from penstock.client.client import Client
from penstock.client.membership import Membership
from penstock.local.transport import LocalTransport
from penstock.testing import VirtualClock, VirtualQueue


async def filled(client: Client, count: int, partitions: int = 1) -> None:
    await client.create_topic("orders", partitions)
    async with client.producer("orders") as producer:
        for number in range(count):
            await producer.send(b"%d" % number, partition=number % partitions)


def age(membership: Membership) -> None:
    """Half of the time of what is on the shelf is over."""
    for one in [*membership.shelf._rows, *membership.shelf._batches]:
        one.lease.fresh_until_us = 0


def test_a_thread_takes_in_order_while_the_loop_looks_for_what_has_waited_too_long(queue: VirtualQueue) -> None:
    count = 60_000
    with queue.producer("orders") as producer:
        for number in range(count):
            producer.send(b"%d" % number)
    consumer = queue.consumer("w", "orders", prefetch=10_000, until_idle="1s", max_in_flight=count)
    shelf, is_over = consumer._inner.membership.shelf, Event()

    async def look_once() -> None:
        assert shelf.take_stale()[0] == {}

    def look() -> None:
        # On the event loop, as a consumer does: what is added is added there, too.
        while not is_over.is_set():
            queue._portal.run(look_once())

    looking = Thread(target=look)
    looking.start()
    try:
        offsets = [message.offset for message in consumer]
    finally:
        is_over.set()
        looking.join()
    assert offsets == list(range(count))


def test_nothing_is_taken_from_a_consumer_that_is_closed(queue: VirtualQueue) -> None:
    for number in range(3):
        queue.publish("orders", b"%d" % number)
    consumer = queue.consumer("w", "orders")
    assert next(consumer).value == b"0"
    consumer.close()
    shelf = consumer._inner.membership.shelf
    assert (shelf.take(), shelf.take_next(), shelf.take_next(only_fresh=True), shelf.take_batch()) == (None,) * 4
    assert [message.value for message in queue.consumer("w", "orders").poll()] == [b"1", b"2"]


def test_what_is_put_back_into_a_closed_consumer_goes_to_the_next_one(run_client: Any) -> None:
    async def work(client: Client) -> None:
        await filled(client, 2)
        consumer = client.consumer("w", "orders")
        (first, second) = await consumer.poll()
        await consumer.close()
        consumer.membership.put_back([first, second])
        await asyncio.gather(*consumer.membership._giving_back)
        again = await client.consumer("w", "orders").poll()
        assert [(message.value, message.attempt) for message in again] == [(b"0", 1), (b"1", 1)]

    run_client(work)


class Slow:
    """A transport whose answers wait at a gate."""

    def __init__(self, inner: LocalTransport) -> None:
        self.inner = inner
        self.gate = asyncio.Event()
        self.gate.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def answer(self, *given: Any) -> None:
        await self.gate.wait()
        await self.inner.answer(*given)


def test_closing_waits_for_what_is_being_given_back(run_client: Any) -> None:
    ways: list[Slow] = []

    def through(transport: LocalTransport) -> Slow:
        ways.append(Slow(transport))
        return ways[0]

    async def work(client: Client) -> None:
        await filled(client, 9, partitions=3)
        consumer = client.consumer("w", "orders")
        message = await consumer.next()
        assert message is not None
        age(consumer.membership)
        ways[0].gate.clear()
        consumer.membership._look()
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(consumer.close())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not closing.done()
        ways[0].gate.set()
        await closing
        others = await client.consumer("w", "orders").poll()
        assert [other.attempt for other in others] == [1] * 8

    run_client(work, through=through)


def test_a_poll_that_is_given_up_keeps_what_it_had_taken(run_client: Any) -> None:
    ways: list[Slow] = []

    def through(transport: LocalTransport) -> Slow:
        ways.append(Slow(transport))
        return ways[0]

    async def work(client: Client) -> None:
        await filled(client, 6)
        consumer = client.consumer("w", "orders")
        assert await consumer.next() is not None
        age(consumer.membership)
        ways[0].gate.clear()
        polling = asyncio.ensure_future(consumer.poll(10))
        for _ in range(5):
            await asyncio.sleep(0)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        ways[0].gate.set()
        assert [message.value for message in await consumer.poll(10)] == [b"%d" % number for number in range(1, 6)]

    run_client(work, through=through)


def test_a_consumer_looks_again_once_however_often_it_polls(queue: VirtualQueue, clock: VirtualClock) -> None:
    for number in range(300):
        queue.publish("orders", b"%d" % number)
    consumer = queue.consumer("w", "orders", prefetch=10, until_idle="1s")
    timers = set()
    for message in consumer:
        message.ack()
        timers.add(consumer._inner.membership._looking)
    assert len(timers) == 1
    assert None not in timers
