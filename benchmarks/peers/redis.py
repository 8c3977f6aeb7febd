"""Redis Streams: XADD in pipelines; XREADGROUP of many at a time, and an XACK for each in a pipeline, or one for all.

Durable is `appendonly yes, appendfsync always`: one sync for what a pipeline brings at once. The default keeps
everything in memory, with a snapshot now and then.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peers import Turn, accepts, free_port, running

AT_ONCE = 1_000
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


class RedisStreams:
    messages = 50_000

    def __init__(self, is_durable: bool) -> None:
        self.is_durable = is_durable
        self.name = f"Redis Streams, {'fsync always' if is_durable else 'default'}"

    def missing(self) -> str | None:
        if shutil.which("redis-server") is None:
            return "redis-server (apt-get install redis-server)"
        if any(importlib.util.find_spec(name) is None for name in ("redis", "hiredis")):
            return "the Python packages redis and hiredis (pip install 'penstock[bench]')"
        return None

    def described(self) -> str:
        told = subprocess.run(["redis-server", "--version"], check=True, capture_output=True, text=True).stdout
        server = next(word.removeprefix("v=") for word in told.split() if word.startswith("v="))
        settings = "appendonly yes, appendfsync always" if self.is_durable else "default settings"
        client = f"redis-py {version('redis')} with hiredis {version('hiredis')}"
        return (
            f"redis-server {server}, {settings}; {client}, XADD in pipelines of {AT_ONCE:,}, XREADGROUP of {AT_ONCE:,} "
            "and XACK of each in a pipeline, or one XACK"
        )

    def turn(self, path: Path, values: Sequence[bytes]) -> Turn:
        import redis

        port = free_port()
        command: list[str | Path] = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", path]
        if self.is_durable:
            command += DURABLE
        with running(command, lambda: accepts(port)), redis.Redis(port=port) as client:
            _publish(client, "warm", values[: AT_ONCE // 10])
            _consume(client, "warm", len(values[: AT_ONCE // 10]), _ack_each)
            return Turn(
                publish_s=_publish(client, "bench", values),
                ack_each_s=_consume(client, "bench", len(values), _ack_each),
                ack_many_s=_consume(client, "bench", len(values), _ack_many),
            )


def _publish(client: Any, stream: str, values: Sequence[bytes]) -> float:
    started = time.perf_counter()
    for at in range(0, len(values), AT_ONCE):
        pipeline = client.pipeline(transaction=False)
        for value in values[at : at + AT_ONCE]:
            pipeline.xadd(stream, {"value": value})
        pipeline.execute()
    return (time.perf_counter() - started) / len(values)


def _consume(client: Any, stream: str, count: int, ack: Callable[[Any, str, str, list[bytes]], int]) -> float:
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
