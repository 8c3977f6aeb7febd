"""RabbitMQ's streams: `send_batch` with its confirms; a consumer that stores how far it is now and then.

A stream confirms a message when it is written, before it is synced: not durable, and there is no setting to make it so.
A consumer stores an offset for many messages; one for each is nothing that is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
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
    import rstream

AT_ONCE = 1_000
# Chunks that the server may send before it is asked for more.
CREDIT = 100


class Streams:
    product = "RabbitMQ streams"
    name = f"{product}, default"
    is_durable = False
    kept_as = rabbitmq_node.NAME
    messages = 50_000

    def missing(self) -> str | None:
        if importlib.util.find_spec("rstream") is None:
            return "the Python package rstream (pip install 'penstock[bench]')"
        return rabbitmq_node.missing()

    def described(self) -> str:
        return (
            f"{rabbitmq_node.described()}, stream, confirmed before it is synced; rstream {version('rstream')} on "
            f"uvloop, send_batch of up to {AT_ONCE:,}, offset stored every {AT_ONCE:,}"
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


def _where(address: str) -> dict[str, Any]:
    _, port = rabbitmq_node.ports(address)
    return {"host": "127.0.0.1", "port": port, "username": "guest", "password": "guest"}


class Publisher:
    """A producer, and how many of its messages are not confirmed."""

    def __init__(self, producer: rstream.Producer, stream: str) -> None:
        self._producer = producer
        self._stream = stream
        self._pending = 0
        self._settled = asyncio.Event()

    async def send(self, values: Sequence[bytes]) -> None:
        self._pending += len(values)
        self._settled.clear()
        await self._producer.send_batch(self._stream, values, on_publish_confirm=self._on_confirm)

    async def settled(self) -> None:
        await self._settled.wait()

    def _on_confirm(self, status: rstream.ConfirmationStatus) -> None:
        assert status.is_confirmed, status
        self._pending -= 1
        if not self._pending:
            self._settled.set()


# --- all of them, one way -----------------------------------------------------------------------------------


async def _turn(address: str, values: Sequence[bytes]) -> Turn:
    few, warm, bench = values[: AT_ONCE // 10], new_name(), new_name()
    await _publish_all(address, warm, few)
    await _consume_all(address, warm, len(few))
    publish_s = await _publish_all(address, bench, values)
    return Turn(publish_s, None, await _consume_all(address, bench, len(values)))


async def _publish_all(address: str, stream: str, values: Sequence[bytes]) -> float:
    import rstream

    async with rstream.Producer(**_where(address)) as producer:
        await producer.create_stream(stream)
        publisher = Publisher(producer, stream)
        started = time.perf_counter()
        for at in range(0, len(values), AT_ONCE):
            await publisher.send(values[at : at + AT_ONCE])
        await publisher.settled()
        return (time.perf_counter() - started) / len(values)


async def _consume_all(address: str, stream: str, count: int) -> float:
    import rstream

    done = 0
    async with rstream.Consumer(**_where(address)) as consumer:
        over = asyncio.Event()

        async def on_message(value: bytes, context: rstream.MessageContext) -> None:
            nonlocal done
            assert value
            done += 1
            if done % AT_ONCE == 0 or done == count:
                await consumer.store_offset(stream, "ann", context.offset)
            if done == count:
                over.set()

        started = time.perf_counter()
        await consumer.subscribe(stream, on_message, initial_credit=CREDIT)
        await over.wait()
        return (time.perf_counter() - started) / count


# --- batch by batch -----------------------------------------------------------------------------------------


async def _publish(address: str, batch: Sequence[bytes], clients: int, seconds: float) -> Published:
    import rstream

    stream = new_name()
    async with contextlib.AsyncExitStack() as stack:
        producers = [await stack.enter_async_context(rstream.Producer(**_where(address))) for _ in range(clients)]
        await producers[0].create_stream(stream)
        publishers = [Publisher(producer, stream) for producer in producers]
        published = await in_tasks(batch, seconds, [partial(_publish_batch, publisher) for publisher in publishers])
    # Not by one of its own producers, which would begin to look for another leader.
    async with rstream.Producer(**_where(address)) as other:
        await other.delete_stream(stream)
    return published


async def _publish_batch(publisher: Publisher, batch: Sequence[bytes]) -> None:
    await publisher.send(batch)
    await publisher.settled()


# --- at an even pace ----------------------------------------------------------------------------------------


async def _create(address: str, topic: str) -> None:
    import rstream

    async with rstream.Producer(**_where(address)) as producer:
        await producer.create_stream(topic)


async def _produce(address: str, topic: str, rate: int, count: int) -> None:
    import rstream

    async with rstream.Producer(**_where(address)) as producer:
        publisher = Publisher(producer, topic)
        for values in pacing.due(rate, count):
            if values:
                await publisher.send(values)
            await asyncio.sleep(pacing.TICK_S)
        await publisher.settled()


async def _consume(address: str, topic: str, arrivals: Arrivals, ready: Callable[[], None]) -> None:
    import rstream

    over = asyncio.Event()
    done = 0

    async def on_message(value: bytes, context: rstream.MessageContext) -> None:
        nonlocal done
        arrivals.add(value)
        done += 1
        if done % AT_ONCE == 0:
            await context.consumer.store_offset(topic, "ann", context.offset)
        if arrivals.is_over:
            over.set()

    async with rstream.Consumer(**_where(address)) as consumer:
        await consumer.subscribe(topic, on_message, initial_credit=CREDIT)
        ready()
        await asyncio.wait_for(over.wait(), arrivals.patience_s)
