"""Redis Streams: XADD in pipelines; XREADGROUP of many at a time, and an XACK for each in a pipeline, or one for all.

Durable is `appendonly yes, appendfsync always`: one sync for what a pipeline brings at once. The default keeps
everything in memory, with a snapshot now and then.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pacing
from peers import Turn, new_name
from peers.arrivals import Arrivals
from peers.closed_loop import Published, in_threads
from peers.serving import accepts, free_port, running

AT_ONCE = 1_000
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
GROUP = "measured"


class RedisStreams:
    product = "Redis Streams"
    kept_as = None
    messages = 50_000

    def __init__(self, is_durable: bool) -> None:
        self.is_durable = is_durable
        self.name = f"{self.product}, {'fsync always' if is_durable else 'default'}"

    def missing(self) -> str | None:
        if shutil.which("redis-server") is None:
            return "redis-server (apt-get install redis-server)"
        if any(importlib.util.find_spec(name) is None for name in ("redis", "hiredis")):
            return "the Python packages redis and hiredis (pip install 'penstock[bench]')"
        return None

    def described(self) -> str:
        told = subprocess.run(["redis-server", "--version"], check=True, capture_output=True, text=True).stdout
        server = next(word.removeprefix("v=") for word in told.split() if word.startswith("v="))
        settings = "appendonly yes, appendfsync always" if self.is_durable else "default settings, nothing synced"
        client = f"redis-py {version('redis')} with hiredis {version('hiredis')}"
        return (
            f"redis-server {server}, {settings}; {client}, XADD in pipelines of up to {AT_ONCE:,}, XREADGROUP of "
            f"{AT_ONCE:,} and XACK of each in a pipeline, or one XACK"
        )

    @contextlib.contextmanager
    def serving(self, path: Path) -> Iterator[str]:
        port = free_port()
        command: list[str | Path] = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", path]
        if self.is_durable:
            command += DURABLE
        with running(command, lambda: accepts(port)):
            yield f"redis://127.0.0.1:{port}"

    def turn(self, address: str, values: Sequence[bytes]) -> Turn:
        few, warm, bench = values[: AT_ONCE // 10], new_name(), new_name()
        with _client(address) as client:
            _publish_all(client, warm, few)
            _consume_all(client, warm, len(few), _ack_each)
            return Turn(
                publish_s=_publish_all(client, bench, values),
                ack_each_s=_consume_all(client, bench, len(values), _ack_each),
                ack_many_s=_consume_all(client, bench, len(values), _ack_many),
            )

    def publish(self, address: str, batch: Sequence[bytes], clients: int, seconds: float) -> Published:
        stream = new_name()

        @contextlib.contextmanager
        def connected() -> Iterator[Callable[[Sequence[bytes]], object]]:
            with _client(address) as client:
                yield partial(_add, client, stream)

        return in_threads(clients, batch, seconds, connected)

    def create(self, address: str, topic: str) -> None:
        with _client(address) as client:
            client.xgroup_create(topic, GROUP, mkstream=True)

    def produce(self, address: str, topic: str, rate: int, count: int) -> None:
        with _client(address) as client:
            for values in pacing.due(rate, count):
                _add(client, topic, values)
                time.sleep(pacing.TICK_S)

    def consume(self, address: str, topic: str, arrivals: Arrivals, ready: Callable[[], None]) -> None:
        with _client(address) as client:
            ready()
            while not arrivals.is_over:
                for _, entries in client.xreadgroup(GROUP, "ann", {topic: ">"}, count=AT_ONCE, block=1_000):
                    for _, fields in entries:
                        arrivals.add(fields[b"value"])
                    _ack_each(client, topic, GROUP, [number for number, _ in entries])


def _client(address: str) -> Any:
    import redis

    return redis.Redis.from_url(address)


def _add(client: Any, stream: str, values: Sequence[bytes]) -> None:
    if len(values) == 1:
        client.xadd(stream, {"value": values[0]})
        return
    pipeline = client.pipeline(transaction=False)
    for value in values:
        pipeline.xadd(stream, {"value": value})
    pipeline.execute()


def _publish_all(client: Any, stream: str, values: Sequence[bytes]) -> float:
    started = time.perf_counter()
    for at in range(0, len(values), AT_ONCE):
        _add(client, stream, values[at : at + AT_ONCE])
    return (time.perf_counter() - started) / len(values)


def _consume_all(client: Any, stream: str, count: int, ack: Callable[[Any, str, str, list[bytes]], int]) -> float:
    group = ack.__name__
    client.xgroup_create(stream, group, id="0")
    done = 0
    started = time.perf_counter()
    while done < count:
        [(_, entries)] = client.xreadgroup(group, "ann", {stream: ">"}, count=AT_ONCE, block=10_000)
        handled = []
        for number, fields in entries:
            assert fields[b"value"]
            handled.append(number)
        done += ack(client, stream, group, handled)
    return (time.perf_counter() - started) / count


def _ack_each(client: Any, stream: str, group: str, handled: list[bytes]) -> int:
    pipeline = client.pipeline(transaction=False)
    for number in handled:
        pipeline.xack(stream, group, number)
    return sum(pipeline.execute())


def _ack_many(client: Any, stream: str, group: str, handled: list[bytes]) -> int:
    acked: int = client.xack(stream, group, *handled)
    return acked
