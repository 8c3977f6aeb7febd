"""Replies of a stream: requests are carried out as they come, several at a time, and answered in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from penstock.limits import MIB

AT_ONCE_MAX = 100
IN_FLIGHT_BYTES_MAX = 16 * MIB


@dataclass(slots=True)
class _Reply:
    task: asyncio.Task[Any]
    size: int
    told: asyncio.Future[None]


class Replies:
    """`write` sends one reply."""

    def __init__(self, write: Callable[[Any], Awaitable[None]]) -> None:
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Reply] = deque()
        self._in_flight = 0
        self._changed = asyncio.Event()

    async def add(self, work: Coroutine[Any, Any, Any], size: int) -> None:
        """As soon as there is room; `work` starts in the order in which it is added, and makes the reply."""
        while len(self._waiting) >= AT_ONCE_MAX or self._in_flight > IN_FLIGHT_BYTES_MAX:
            await self._change()
        task = self._loop.create_task(work)
        # If the stream ends before, nobody else looks.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._waiting.append(_Reply(task, size, self._loop.create_future()))
        self._in_flight += size
        self._changed.set()

    async def tell(self) -> None:
        """All that are added, until it is cancelled. What is under way then is carried out, but nobody hears of it."""
        while True:
            while not self._waiting:
                await self._change()
            first = self._waiting[0]
            await asyncio.wait((first.task,))
            await self._write(first.task.result())
            self._waiting.popleft()
            self._in_flight -= first.size
            first.told.set_result(None)
            self._changed.set()

    async def told(self) -> None:
        """Until those that were added by now are."""
        if self._waiting:
            await asyncio.wait((self._waiting[-1].told,))

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


async def until_first(*works: Coroutine[Any, Any, None]) -> None:
    """Until one of them ends, with what that raises. The others are cancelled then."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
