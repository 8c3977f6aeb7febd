"""A broker behind a real port, on the event loop of the test."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
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

# CPU time of one callback, which other processes hardly lengthen. A request should hold the event loop for 10 ms; on a
# machine with many busy processes, one that does took 0.3 s.
HELD_CPU_S_MAX = 0.5
# Enough on a machine that is twenty times slower than usual, and less than the minute for which some polls wait: a lost
# wake-up fails the test.
PATIENCE_S = 55


class Longest:
    """The callback of the event loop that used the most CPU time, without garbage collections and coroutines of the
    tests."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.name = ""
        self._collected_s = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        run = asyncio.events.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            task = getattr(handle._callback, "__self__", handle._callback)  # type: ignore[attr-defined]
            began, collected_s = time.thread_time(), self._collected_s
            run(handle)
            cpu_s = time.thread_time() - began - (self._collected_s - collected_s)
            if cpu_s > self.cpu_s and not _is_of_a_test(task):
                self.cpu_s, self.name = cpu_s, repr(task)

        def collecting(phase: str, info: dict[str, int]) -> None:
            self._collected_s += time.thread_time() * (1 if phase == "stop" else -1)

        asyncio.events.Handle._run = measured  # type: ignore[method-assign]
        gc.callbacks.append(collecting)
        try:
            yield
        finally:
            gc.callbacks.remove(collecting)
            asyncio.events.Handle._run = run  # type: ignore[method-assign]


def _is_of_a_test(task: object) -> bool:
    code = getattr(task.get_coro(), "cr_code", None) if isinstance(task, asyncio.Task) else None
    return code is not None and Path(code.co_filename).is_relative_to(Path(__file__).parent)


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
    longest = Longest()
    try:
        with longest.watched():
            yield Served(site, door, await door.open("127.0.0.1", 0))
    finally:
        await door.close()
        await site.close()
    assert longest.cpu_s < HELD_CPU_S_MAX, f"{longest.name} held the event loop for {longest.cpu_s:.3f} s of CPU"


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
