"""Many groups, each with one consumer, in a process of their own: they exist, they wait, or all get everything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from multiprocessing.connection import Connection

import uvloop

import penstock
from pacing import PROCESSES
from penstock.client.client import Client
from penstock.client.consumer import Consumer

# Consumers that wait for messages on one connection; a broker reads on while fewer than a thousand requests are open.
ON_A_CONNECTION = 250


async def members(stack: AsyncExitStack, address: str, topic: str, names: list[str], prefetch: int) -> list[Consumer]:
    """A consumer of each of these groups, which are made if they are not there."""
    found: list[Consumer] = []
    for at in range(0, len(names), ON_A_CONNECTION):
        q: Client = await stack.enter_async_context(penstock.aio.connect(address))
        for name in names[at : at + ON_A_CONNECTION]:
            found.append(await stack.enter_async_context(q.consumer(name, topic, prefetch=prefetch)))
    return found


async def _each_takes(address: str, topic: str, names: list[str], count: int) -> None:
    """So many messages, in one batch, acknowledged."""
    async with AsyncExitStack() as stack:
        for consumer in await members(stack, address, topic, names, count):
            for message in await consumer.poll(count, wait="10s"):
                await message.ack()


def each_takes(address: str, topic: str, names: list[str], count: int) -> None:
    uvloop.run(_each_takes(address, topic, names, count))


# --- waiting ------------------------------------------------------------------------------------------------


async def _wait(address: str, topic: str, names: list[str], here: Connection) -> None:
    async with AsyncExitStack() as stack:
        waiting = [
            asyncio.ensure_future(consumer.next()) for consumer in await members(stack, address, topic, names, 1)
        ]
        # One turn, so that each has asked; the broker answers a request of ours only after it has read theirs.
        await asyncio.sleep(0)
        here.send("here")
        await asyncio.get_running_loop().run_in_executor(None, here.recv)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _wait_until_told(address: str, topic: str, names: list[str], here: Connection) -> None:
    uvloop.run(_wait(address, topic, names, here))


@contextmanager
def waiting(address: str, topic: str, names: list[str]) -> Iterator[None]:
    """Each of these groups has a consumer that waits for messages of the topic, where none come."""
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=_wait_until_told, args=(address, topic, names, there))
    process.start()
    there.close()
    try:
        assert here.recv() == "here"
        yield
        here.send("enough")
    finally:
        process.join()
        here.close()


# --- all get everything -------------------------------------------------------------------------------------


async def _deliveries(address: str, topic: str, names: list[str], values: list[bytes], times: int) -> float:
    batch = len(values)

    async def take(consumer: Consumer) -> None:
        done = 0
        async for some in consumer.batches():
            await some.ack()
            done += len(some)
            if done == batch * times:
                return

    async with AsyncExitStack() as stack:
        consumers = await members(stack, address, topic, names, batch)
        q: Client = await stack.enter_async_context(penstock.aio.connect(address))
        taking = [asyncio.ensure_future(take(consumer)) for consumer in consumers]
        async with q.producer(topic, batch_messages=batch) as producer:
            started = time.perf_counter()
            for _ in range(times):
                for value in values:
                    await producer.send(value)
            await producer.flush()
            await asyncio.gather(*taking)
            return (time.perf_counter() - started) / (len(names) * batch * times)


def deliveries(address: str, topic: str, names: list[str], values: list[bytes], times: int = 1) -> float:
    """Seconds for each delivery, from the first `send` to the last acknowledgement; the values are sent so many times,
    to consumers of all these groups that wait for them and acknowledge what comes together."""
    return uvloop.run(_deliveries(address, topic, names, values, times))
