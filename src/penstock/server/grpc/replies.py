"""Replies of a stream: requests are carried out as they come, several at a time, and answered in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from penstock.server.grpc.intake import Account

AT_ONCE_MAX = 100
# None, if there is nothing to reply.
Begin = Callable[[Any], Coroutine[Any, Any, Any] | None]


@dataclass(slots=True)
class _Reply:
    task: asyncio.Task[Any]
    size: int
    told: asyncio.Future[None]


class Replies:
    """`write` sends one reply; `account` is that of the connection."""

    def __init__(self, write: Callable[[Any], Awaitable[None]], account: Account) -> None:
        self._write = write
        self._account = account
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Reply] = deque()

    async def take(self, read: Callable[[], Awaitable[Any]], begin: Begin) -> None:
        """All requests that come, each read as soon as there is room for it, until there are no more and the replies
        are told. What `begin` returns makes the reply; it starts in the order in which they come."""
        while await self._take_one(read, begin):
            pass
        await self.told()

    async def _take_one(self, read: Callable[[], Awaitable[Any]], begin: Begin) -> bool:
        """A function of its own: while the next one is waited for, nobody holds this one."""
        while len(self._waiting) >= AT_ONCE_MAX or self._account.is_full:
            await self._account.change()
        came = await read()
        if came is grpc.aio.EOF:
            return False
        work = begin(came.request)
        if work is not None:
            self._add(work, came.size)
        return True

    def _add(self, work: Coroutine[Any, Any, Any], size: int) -> None:
        task = self._loop.create_task(work)
        # If the stream ends before, nobody else looks.
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._waiting.append(_Reply(task, size, self._loop.create_future()))
        self._account.add(size)
        self._account.note()

    async def tell(self) -> None:
        """All that are added, until it is cancelled. What is under way then is carried out, but nobody hears of it."""
        while True:
            while not self._waiting:
                await self._account.change()
            first = self._waiting[0]
            await asyncio.wait((first.task,))
            await self._write(first.task.result())
            self._waiting.popleft()
            self._account.settle(first.size)
            first.told.set_result(None)

    async def told(self) -> None:
        """Until those that were added by now are."""
        if self._waiting:
            await asyncio.wait((self._waiting[-1].told,))

    def end(self) -> None:
        """Nobody hears of the others any more; they count until they are done."""
        for reply in self._waiting:
            reply.task.add_done_callback(partial(self._settle, reply.size))
        self._waiting.clear()

    def _settle(self, size: int, task: asyncio.Task[Any]) -> None:
        self._account.settle(size)


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
