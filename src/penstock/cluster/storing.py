"""By whom the copies of what leaders have sent are written.

What is small is written by the event loop, and synced by the kernel while the loop goes on (ADR 21), unless somebody
else writes to the log, or something else is to be synced first; otherwise a thread does both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from penstock.broker.disk import Disk, Synced
from penstock.errors import PenstockError
from penstock.storage.log import Log

T = TypeVar("T")


class Storing:
    """Belongs to one event loop."""

    def __init__(self, disk: Callable[[], Disk], on_a_thread: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._disk = disk
        self._on_a_thread = on_a_thread

    async def store(self, log: Log, append: Callable[[], T], size: int, *, begins_epoch: bool) -> T:
        """What `append` does; it writes so many bytes to the log, which are on disk when this returns."""
        synced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not begins_epoch and (written := self.store_soon(log, append, size, partial(_tell, synced))) is not None:
            await synced
            return written

        def work() -> T:
            found = append()
            log.sync()
            return found

        on_a_thread: T = await self._on_a_thread(work)
        return on_a_thread

    def store_soon(self, log: Log, append: Callable[[], T], size: int, done: Synced) -> T | None:
        """Written when this returns, if the loop may do that now; otherwise None, and nothing has happened. On disk
        when `done` is called, which is later."""
        if not self._disk().may_sync_soon(log, size) or not log.writing.acquire(blocking=False):
            return None
        try:
            written = append()
            self._disk().sync_soon(log, done)
        finally:
            log.writing.release()
        return written


def _tell(waiter: asyncio.Future[None], error: PenstockError | None) -> None:
    if waiter.cancelled():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
