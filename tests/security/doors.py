"""One broker behind all three doors, on the event loop of the test, and somebody who knocks at each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import httpx

from grpc_served import stub_of
from penstock.client.client import Client
from penstock.clock import Clock, SystemClock
from penstock.errors import PenstockError
from penstock.limits import DEFAULT_LIMITS, Limits
from penstock.local.transport import LocalTransport
from penstock.net.connection import Connection, Place
from penstock.net.remote import RemoteTransport
from penstock.server.gate import Gate
from penstock.server.grpc.door import GrpcDoor
from penstock.server.http.door import HttpDoor
from penstock.server.native import NativeDoor
from penstock.storage.files import DiskFiles, Files
from penstock.wire.packets import Decoder, Packet
from stalling import loop_watched


class Doors:
    """`native`, `http` and `grpc` are the doors; the others are ways to knock."""

    def __init__(self, site: LocalTransport, gate: Gate, round_s: float) -> None:
        self.site = site
        self.gate = gate
        # What a door says after which the broker must not go on: never here.
        self.broke: list[PenstockError] = []
        self.native = NativeDoor(site, gate, broke=self.broke.append)
        self.http = HttpDoor(site, gate, broke=self.broke.append, round_s=round_s)
        self.grpc = GrpcDoor(site, gate, broke=self.broke.append)
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        self.native_port = await self.native.open("127.0.0.1", 0)
        self.http_port = await self.http.open("127.0.0.1", 0)
        self.grpc_port = await self.grpc.open("127.0.0.1", 0)
        self.web = await self._stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.http_port}", timeout=20)
        )
        channel = await self._stack.enter_async_context(self.channel())
        self.stub: SimpleNamespace = stub_of(channel)

    async def close(self) -> None:
        await self._stack.aclose()
        for door in (self.native, self.http, self.grpc):
            await door.close()
        await self.site.close()

    @property
    def place(self) -> Place:
        return Place("127.0.0.1", self.native_port)

    @asynccontextmanager
    async def connection(self, key: str | None = None) -> AsyncIterator[Connection]:
        """A bare one of the native protocol."""
        connection = await Connection.to(self.place._replace(key=key), SystemClock())
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def client(self, key: str | None = None) -> AsyncIterator[Client]:
        transport = await RemoteTransport.to(self.place._replace(key=key), SystemClock())
        async with Client(transport, place=str(self.place)) as client:
            yield client

    @asynccontextmanager
    async def channel(self, *options: tuple[str, Any]) -> AsyncIterator[grpc.aio.Channel]:
        """A connection of its own: channels of one process share theirs otherwise."""
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{self.grpc_port}", options=[("grpc.use_local_subchannel_pool", 1), *options]
        ) as channel:
            yield channel

    def state(self) -> dict[str, Any]:
        """All that somebody could have changed."""
        broker = self.site.broker
        return {
            "topics": [(record.name, record.id, record.partitions, record.settings) for record in broker.topics],
            "ends": {
                record.name: [part.messages.end_offset for part in broker.topic(record.name).partitions]
                for record in broker.topics
            },
            "groups": [(record.name, record.settings) for record in broker.groups],
            "members": {
                record.name: [] if (found := broker.consumers.of(record.name)) is None else sorted(found.names())
                for record in broker.groups
            },
            "schedules": [record.name for record in broker.schedules.list()],
        }


@asynccontextmanager
async def opened(
    path: Path,
    *,
    access: Path | None = None,
    limits: Limits = DEFAULT_LIMITS,
    files: Callable[[], Files] | None = None,
    clock: Clock | None = None,
    round_s: float = 0.02,
) -> AsyncIterator[Doors]:
    site = await LocalTransport.open(files or partial(DiskFiles, path), clock=clock or SystemClock(), limits=limits)
    doors = Doors(site, Gate(site, access), round_s)
    try:
        with loop_watched():
            await doors.open()
            yield doors
        assert not doors.broke
    finally:
        await doors.close()


def knock(path: Path, work: Callable[[Doors], Awaitable[None]], *, seconds: float = 60, **options: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(seconds), opened(path, **options) as doors:
            await work(doors)

    asyncio.run(run())


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0)


def packets(data: bytes) -> list[Packet]:
    return list(Decoder(1 << 30).feed(data))
