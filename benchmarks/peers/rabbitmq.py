"""RabbitMQ's quorum queues: persistent messages with publisher confirms; a consumer with a prefetch, an ack for each or
for many.

A quorum queue writes to a log that is synced before a message is confirmed: durable, and there is no other setting.
Acknowledgements go the same way, but nobody is told when they are on disk. pika's blocking connection waits for the
confirm of each message by itself; with its asynchronous one, on uvloop, many are under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

import pacing
from peers import Turn, new_name, rabbitmq_node
from peers.arrivals import Arrivals
from peers.closed_loop import Published, in_tasks

if TYPE_CHECKING:
    from pika.channel import Channel

AT_ONCE = 1_000
PREFETCH = 2 * AT_ONCE
# Confirms that may be waited for; a client without a bound would only fill its own buffers.
UNCONFIRMED_MAX = 4 * AT_ONCE
PERSISTENT = 2


class QuorumQueues:
    product = "RabbitMQ quorum queues"
    name = product
    is_durable = True
    kept_as = rabbitmq_node.NAME
    messages = 10_000

    def missing(self) -> str | None:
        if importlib.util.find_spec("pika") is None:
            return "the Python package pika (pip install 'penstock[bench]')"
        return rabbitmq_node.missing()

    def described(self) -> str:
        return (
            f"{rabbitmq_node.described()}, quorum queue, which always syncs; pika {version('pika')} on uvloop, "
            f"persistent messages with confirms, prefetch of {PREFETCH:,}, ack of each, or of the last of {AT_ONCE:,}"
        )

    @contextlib.contextmanager
    def serving(self, path: Path) -> Iterator[str]:
        with rabbitmq_node.node(path) as ports:
            yield ports

    def turn(self, address: str, values: Sequence[bytes]) -> Turn:
        return uvloop.run(_turn(address, values))

    def publish(self, address: str, batch: Sequence[bytes], clients: int, seconds: float) -> Published:
        return uvloop.run(_publish(address, batch, clients, seconds))

    def create(self, address: str, topic: str) -> None:
        uvloop.run(_create(address, topic))

    def produce(self, address: str, topic: str, rate: int, count: int) -> None:
        uvloop.run(_produce(address, topic, rate, count))

    def consume(self, address: str, topic: str, arrivals: Arrivals, ready: Callable[[], None]) -> None:
        uvloop.run(_consume(address, topic, arrivals, ready))


# --- what pika leaves to its callers ------------------------------------------------------------------------


async def _answer(call: Callable[..., object], **arguments: Any) -> Any:
    answer = asyncio.get_running_loop().create_future()
    call(**arguments, callback=answer.set_result)
    return await answer


@contextlib.asynccontextmanager
async def _channel(address: str) -> AsyncIterator[Channel]:
    """On a connection of its own."""
    from pika import ConnectionParameters
    from pika.adapters.asyncio_connection import AsyncioConnection

    port, _ = rabbitmq_node.ports(address)
    loop = asyncio.get_running_loop()
    opened, closed = loop.create_future(), loop.create_future()
    connection = AsyncioConnection(
        ConnectionParameters("127.0.0.1", port),
        on_open_callback=opened.set_result,
        on_open_error_callback=lambda _, error: opened.set_exception(error),
        on_close_callback=lambda *_: closed.set_result(None),
    )
    await opened
    got = loop.create_future()
    connection.channel(on_open_callback=got.set_result)
    try:
        yield await got
    finally:
        connection.close()
        await closed


class Publisher:
    """A channel in confirm mode, and the messages whose confirm has not come."""

    def __init__(self, channel: Channel, queue: str) -> None:
        from pika import BasicProperties

        self._channel = channel
        self._queue = queue
        self._properties = BasicProperties(delivery_mode=PERSISTENT)
        self._sent = 0
        # In the order of their numbers, as a dict keeps them.
        self._pending: dict[int, None] = {}
        self._goal = 0
        self._reached: asyncio.Future[None] | None = None

    async def start(self) -> None:
        await _answer(self._channel.confirm_delivery, ack_nack_callback=self._on_confirm)

    def send(self, value: bytes) -> None:
        self._sent += 1
        self._pending[self._sent] = None
        self._channel.basic_publish("", self._queue, value, self._properties)

    async def settled(self, pending_max: int = 0) -> None:
        """When no more than so many confirms are missing."""
        if len(self._pending) > pending_max:
            self._goal, self._reached = pending_max, asyncio.get_running_loop().create_future()
            await self._reached

    def _on_confirm(self, frame: Any) -> None:
        from pika.spec import Basic

        assert isinstance(frame.method, Basic.Ack), frame
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            while self._pending and (first := next(iter(self._pending))) <= tag:
                del self._pending[first]
        else:
            del self._pending[tag]
        if self._reached is not None and len(self._pending) <= self._goal:
            self._reached.set_result(None)
            self._reached = None


async def _declare(channel: Channel, queue: str) -> None:
    await _answer(channel.queue_declare, queue=queue, durable=True, arguments={"x-queue-type": "quorum"})


# --- all of them, one way -----------------------------------------------------------------------------------


async def _turn(address: str, values: Sequence[bytes]) -> Turn:
    few = values[: AT_ONCE // 10]
    await _there_and_back(address, few, ack_every=1)
    publish_s, ack_each_s = await _there_and_back(address, values, ack_every=1)
    _, ack_many_s = await _there_and_back(address, values, ack_every=AT_ONCE)
    return Turn(publish_s, ack_each_s, ack_many_s)


async def _there_and_back(address: str, values: Sequence[bytes], ack_every: int) -> tuple[float, float]:
    """Seconds for each message: what has been acknowledged is gone, so each way to consume has a queue of its own."""
    queue = new_name()
    async with _channel(address) as channel:
        await _declare(channel, queue)
        publisher = Publisher(channel, queue)
        await publisher.start()
        started = time.perf_counter()
        for value in values:
            publisher.send(value)
            await publisher.settled(UNCONFIRMED_MAX)
        await publisher.settled()
        published = time.perf_counter()
        await _consume_all(channel, queue, len(values), ack_every)
        consumed = time.perf_counter()
        await _answer(channel.queue_delete, queue=queue)
    return (published - started) / len(values), (consumed - published) / len(values)


async def _consume_all(channel: Channel, queue: str, count: int, ack_every: int) -> None:
    over = asyncio.get_running_loop().create_future()
    done = 0

    def on_message(channel: Channel, method: Any, _: Any, body: bytes) -> None:
        nonlocal done
        assert body
        done += 1
        if done % ack_every == 0 or done == count:
            channel.basic_ack(method.delivery_tag, multiple=ack_every > 1)
        if done == count:
            over.set_result(None)

    await _answer(channel.basic_qos, prefetch_count=PREFETCH)
    await _answer(channel.basic_consume, queue=queue, on_message_callback=on_message)
    await over
    # Answered when everything before it has been dealt with.
    await _answer(channel.queue_declare, queue=queue, passive=True)


# --- batch by batch -----------------------------------------------------------------------------------------


async def _publish(address: str, batch: Sequence[bytes], clients: int, seconds: float) -> Published:
    queue = new_name()
    async with contextlib.AsyncExitStack() as stack:
        channels = [await stack.enter_async_context(_channel(address)) for _ in range(clients)]
        await _declare(channels[0], queue)
        publishers = [Publisher(channel, queue) for channel in channels]
        for publisher in publishers:
            await publisher.start()
        published = await in_tasks(batch, seconds, [partial(_publish_batch, publisher) for publisher in publishers])
        await _answer(channels[0].queue_delete, queue=queue)
        return published


async def _publish_batch(publisher: Publisher, batch: Sequence[bytes]) -> None:
    for value in batch:
        publisher.send(value)
    await publisher.settled()


# --- at an even pace ----------------------------------------------------------------------------------------


async def _create(address: str, topic: str) -> None:
    async with _channel(address) as channel:
        await _declare(channel, topic)


async def _produce(address: str, topic: str, rate: int, count: int) -> None:
    async with _channel(address) as channel:
        publisher = Publisher(channel, topic)
        await publisher.start()
        for values in pacing.due(rate, count):
            for value in values:
                publisher.send(value)
            await publisher.settled(UNCONFIRMED_MAX)
            await asyncio.sleep(pacing.TICK_S)
        await publisher.settled()


async def _consume(address: str, topic: str, arrivals: Arrivals, ready: Callable[[], None]) -> None:
    over = asyncio.Event()

    def on_message(channel: Channel, method: Any, _: Any, body: bytes) -> None:
        arrivals.add(body)
        channel.basic_ack(method.delivery_tag)
        if arrivals.is_over:
            over.set()

    async with _channel(address) as channel:
        await _answer(channel.basic_qos, prefetch_count=PREFETCH)
        await _answer(channel.basic_consume, queue=topic, on_message_callback=on_message)
        ready()
        await asyncio.wait_for(over.wait(), arrivals.patience_s)
