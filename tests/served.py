"""A broker behind a real port, on the event loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from penstock.client.client import Client
from penstock.clock import SystemClock
from penstock.limits import DEFAULT_LIMITS, Limits
from penstock.local.transport import LocalTransport
from penstock.net.connection import Place
from penstock.net.remote import RemoteTransport
from penstock.server.gate import Gate
from penstock.server.native import NativeDoor
from penstock.storage.files import DiskFiles
from stalling import loop_watched

# Enough on a machine that is twenty times slower than usual, and less than the minute for which some polls wait: a lost
# wake-up fails the test.
PATIENCE_S = 55


class Served:
    def __init__(self, site: LocalTransport, door: NativeDoor, port: int) -> None:
        self.site = site
        self.door = door
        self.place = Place("127.0.0.1", port)

    @asynccontextmanager
    async def client(self, key: str | None = None) -> AsyncIterator[Client]:
        transport = await RemoteTransport.to(self.place._replace(key=key), SystemClock())
        async with Client(transport, place=str(self.place)) as client:
            yield client


@asynccontextmanager
async def served(
    path: Path, *, silence_us: int = 15_000_000, access: Path | None = None, limits: Limits = DEFAULT_LIMITS
) -> AsyncIterator[Served]:
    site = await LocalTransport.open(partial(DiskFiles, path), clock=SystemClock(), limits=limits)
    door = NativeDoor(site, Gate(site, access), silence_us=silence_us)
    try:
        with loop_watched():
            yield Served(site, door, await door.open("127.0.0.1", 0))
    finally:
        await door.close()
        await site.close()


def serve(path: Path, work: Callable[[Served], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S), served(path, **options) as here:
            await work(here)

    asyncio.run(run())


async def said(port: int, *parts: bytes) -> bytes:
    """What is answered to these bytes until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        while some := await reader.read(1 << 16):
            answer += some
    except ConnectionError:
        # It may be closed before all is read; what was said before counts.
        answer += reader._buffer  # type: ignore[attr-defined]
    finally:
        writer.close()
    return answer
