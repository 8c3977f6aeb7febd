"""How the broker gets things done: on a thread, one after the other, or in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

from penstock.errors import EtcdError, EtcdReplaced, Fatal, LogClosed, NotFound, PenstockError

T = TypeVar("T")


class Work:
    """Belongs to the event loop it is made on."""

    def __init__(self, executor: Executor, readers: Executor | None = None) -> None:
        """Whoever scans a log does so on `readers`; without, as everything else."""
        self.loop = asyncio.get_running_loop()
        self._executor = executor
        self._readers = readers or executor
        # Whoever holds it changes the catalog.
        self.changing = asyncio.Lock()
        self.tasks: set[asyncio.Task[None]] = set()
        # What a task in the background or a disk died of: the broker must not go on as if nothing had happened.
        self.failure: BaseException | None = None

    def check(self) -> None:
        if self.failure is not None:
            raise Fatal(f"the broker has failed: {self.failure!r}") from self.failure

    async def on_a_thread(self, work: Callable[[], T]) -> T:
        return await self.loop.run_in_executor(self._executor, work)

    async def on_a_reading_thread(self, work: Callable[[], T]) -> T:
        """For pages of a log, of which many may be asked for at once: nothing that is to be written waits for them."""
        return await self.loop.run_in_executor(self._readers, work)

    # --- one after the other -----------------------------------------------------------------------------

    async def alone(self, change: Coroutine[Any, Any, T]) -> T:
        """One change of the catalog at a time, each to its end: also if whoever asked for it gives up waiting."""

        async def in_turn() -> T:
            async with self.changing:
                return await change

        return await asyncio.shield(self.loop.create_task(in_turn()))

    async def save(self, change: Callable[[], None]) -> None:
        """A change of the catalog and of nothing else."""
        await self.alone(self.on_a_thread(change))

    # --- in the background -------------------------------------------------------------------------------

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not _passes(error):
            self.failure = error

    def could_not_write(self, error: PenstockError) -> None:
        """A message. A full disk passes; after anything that does not, nobody knows what is on it."""
        if isinstance(error, Fatal) and self.failure is None:
            self.failure = error


def _passes(error: BaseException) -> bool:
    """What can be tried again is, at the next tick, and by then etcd may take what it did not take now; a topic or a
    broker that was closed needs nothing any more."""
    if isinstance(error, EtcdError):
        return not isinstance(error, EtcdReplaced)
    return isinstance(error, PenstockError) and (error.retriable or isinstance(error, LogClosed | NotFound))
