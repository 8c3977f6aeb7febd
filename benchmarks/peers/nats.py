"""NATS JetStream: `publish_async` with its window of 4,000 under way; a pull consumer, an ack for each or for many.

Durable is file storage with `sync_interval: always`. The default syncs every two minutes. Neither waits for
acknowledgements to be on disk: nats-py sends them and goes on. At an even pace it is a push consumer, which is what
has the lower latency.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

import pacing
from peers import Turn, new_name
from peers.arrivals import Arrivals
from peers.closed_loop import Published, in_tasks
from peers.serving import accepts, free_port, running

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js import JetStreamContext

AT_ONCE = 1_000
# More than are ever fetched: the consumer is never held up by its own acknowledgements.
ACK_PENDING_MAX = 10 * AT_ONCE


class JetStream:
    product = "NATS JetStream"
    kept_as = None

    def __init__(self, is_durable: bool) -> None:
        self.is_durable = is_durable
        self.name = f"{self.product}, {'sync always' if is_durable else 'default'}"
        self.messages = 5_000 if is_durable else 20_000

    def missing(self) -> str | None:
        if _server() is None:
            return "nats-server (pip install 'penstock[bench]')"
        if importlib.util.find_spec("nats") is None:
            return "the Python package nats-py (pip install 'penstock[bench]')"
        return None

    def described(self) -> str:
        server = subprocess.run([str(_server()), "--version"], check=True, capture_output=True, text=True).stdout
        settings = "sync_interval always" if self.is_durable else "default settings, a sync every two minutes"
        return (
            f"{server.strip()}, file storage, {settings}; nats-py {version('nats-py')} on uvloop, publish_async, "
            f"fetch of {AT_ONCE:,} and ack of each, or of the last for all (ack_policy all)"
        )

    @contextlib.contextmanager
    def serving(self, path: Path) -> Iterator[str]:
        port = free_port()
        always = "sync_interval: always" if self.is_durable else ""
        config = path / "nats.conf"
        config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{path}/js", {always} }}\n')
        with running([str(_server()), "--config", config], lambda: accepts(port)):
            yield f"nats://127.0.0.1:{port}"

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


def _server() -> str | None:
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


@contextlib.asynccontextmanager
async def _connected(address: str) -> AsyncIterator[Client]:
    import nats

    client = await nats.connect(address)
    try:
        yield client
    finally:
        await client.close()


async def _add_stream(js: JetStreamContext, stream: str) -> None:
    from nats.js.api import StorageType

    await js.add_stream(name=stream, subjects=[stream], storage=StorageType.FILE)


# --- all of them, one way -----------------------------------------------------------------------------------


async def _turn(address: str, values: Sequence[bytes]) -> Turn:
    few, warm, bench = values[: AT_ONCE // 10], new_name(), new_name()
    async with _connected(address) as client:
        await _publish_all(client, warm, few)
        await _consume_all(client, warm, len(few), of_each=True)
        return Turn(
            publish_s=await _publish_all(client, bench, values),
            ack_each_s=await _consume_all(client, bench, len(values), of_each=True),
            ack_many_s=await _consume_all(client, bench, len(values), of_each=False),
        )


async def _publish_all(client: Client, stream: str, values: Sequence[bytes]) -> float:
    js = client.jetstream()
    await _add_stream(js, stream)
    started = time.perf_counter()
    under_way = [await js.publish_async(stream, value) for value in values]
    await js.publish_async_completed()
    spent = time.perf_counter() - started
    assert len({(await one).seq for one in under_way}) == len(values)
    return spent / len(values)


async def _consume_all(client: Client, stream: str, count: int, *, of_each: bool) -> float:
    from nats.js.api import AckPolicy, ConsumerConfig

    policy = AckPolicy.EXPLICIT if of_each else AckPolicy.ALL
    config = ConsumerConfig(max_ack_pending=ACK_PENDING_MAX, ack_policy=policy)
    subscription = await client.jetstream().pull_subscribe(stream, durable=policy.value, config=config)
    done = 0
    started = time.perf_counter()
    while done < count:
        messages = await subscription.fetch(AT_ONCE, timeout=10)
        for message in messages:
            assert message.data
            if of_each:
                await message.ack()
        if not of_each:
            await messages[-1].ack()
        done += len(messages)
    await client.flush()
    return (time.perf_counter() - started) / count


# --- batch by batch -----------------------------------------------------------------------------------------


async def _publish(address: str, batch: Sequence[bytes], clients: int, seconds: float) -> Published:
    stream = new_name()
    async with contextlib.AsyncExitStack() as stack:
        contexts = [(await stack.enter_async_context(_connected(address))).jetstream() for _ in range(clients)]
        await _add_stream(contexts[0], stream)
        return await in_tasks(batch, seconds, [partial(_publish_batch, js, stream) for js in contexts])


async def _publish_batch(js: JetStreamContext, stream: str, batch: Sequence[bytes]) -> None:
    if len(batch) == 1:
        await js.publish(stream, batch[0])
        return
    under_way = [await js.publish_async(stream, value) for value in batch]
    await js.publish_async_completed()
    for one in under_way:
        one.result()


# --- at an even pace ----------------------------------------------------------------------------------------


async def _create(address: str, topic: str) -> None:
    async with _connected(address) as client:
        await _add_stream(client.jetstream(), topic)


async def _produce(address: str, topic: str, rate: int, count: int) -> None:
    async with _connected(address) as client:
        js = client.jetstream()
        for values in pacing.due(rate, count):
            for value in values:
                await js.publish_async(topic, value)
            await asyncio.sleep(pacing.TICK_S)
        await js.publish_async_completed()


async def _consume(address: str, topic: str, arrivals: Arrivals, ready: Callable[[], None]) -> None:
    from nats.errors import TimeoutError
    from nats.js.api import AckPolicy, ConsumerConfig

    async with _connected(address) as client:
        config = ConsumerConfig(max_ack_pending=ACK_PENDING_MAX, ack_policy=AckPolicy.EXPLICIT)
        subscription = await client.jetstream().subscribe(topic, durable="measured", manual_ack=True, config=config)
        ready()
        while not arrivals.is_over:
            with contextlib.suppress(TimeoutError):
                message = await subscription.next_msg(timeout=1)
                arrivals.add(message.data)
                await message.ack()
        await client.flush()
