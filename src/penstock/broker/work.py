"""How the broker gets things done: on a thread, one after the other, or in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Any, TypeVar

from penstock.broker.turns import BROKER, PRINCIPAL, Turn
from penstock.errors import EtcdError, EtcdReplaced, Fatal, LogClosed, NotFound, PenstockError

T = TypeVar("T")

# Of a scan or a walk, between two turns of others. A publish waits for one slice at the most.
SLICE_US = 1_000
# So that a slice ends, however fast its rows come.
SLICE_ROWS = 100

log = logging.getLogger("penstock.broker")


class Work:
    """Belongs to the event loop it is made on."""

    def __init__(
        self, executor: Executor, readers: Executor | None = None, monotonic_us: Callable[[], int] = lambda: 0
    ) -> None:
        """Scans of logs run on `readers`; by default on `executor`. With a clock that stands still, slices end by their
        number of rows."""
        self._monotonic_us = monotonic_us
        self.loop = asyncio.get_running_loop()
        self._executor = executor
        self._readers = readers or executor
        # Whoever holds it changes the catalog.
        self.changing = asyncio.Lock()
        # Each is held for one slice.
        self._walking, self._scanning = Turn(), Turn()
        self.tasks: set[asyncio.Task[None]] = set()
        # What a task in the background or a disk died of: the broker must not go on as if nothing had happened.
        self.failure: BaseException | None = None
        # Not at every tick.
        self._reported = ""

    def check(self) -> None:
        if self.failure is not None:
            raise Fatal(f"the broker has failed: {self.failure!r}") from self.failure

    async def on_a_thread(self, work: Callable[[], T]) -> T:
        return await self.loop.run_in_executor(self._executor, work)

    async def on_a_reading_thread(self, work: Callable[[], T]) -> T:
        """For pages of a log, of which many may be asked for at once: nothing that is to be written waits for them."""
        return await self.loop.run_in_executor(self._readers, work)

    async def scan(self, rows: Iterator[T | None]) -> list[T]:
        """Run an iterator to its end on the reading thread; return what it yields, without None.

        Each slice of `SLICE_US` is a job of its own. Scans take turns by principal, and other jobs of the thread wait
        for one slice at the most. A row that does not match must be yielded as None, or the slice does not end there.
        If the caller is cancelled, the scan ends with the current slice.
        """
        found: list[T] = []
        goes_on = True
        while goes_on:
            async with self._scanning:
                goes_on = await self.on_a_reading_thread(lambda: _slice(rows, found, self._monotonic_us))
        return found

    async def walk(self, rows: Iterator[T | None], *, at_once: bool = False) -> list[T]:
        """Like `scan`, on the event loop: for state that only the loop may look at.

        Walks take turns by principal. However many are under way, the event loop spends at most half its time on them:
        one slice, and no other for as long as that took. `at_once`: the first slice does not wait for its turn.
        """
        found: list[T] = []
        if at_once and not _slice(rows, found, self._monotonic_us):
            return found
        while True:
            async with self._walking:
                began_us = self._monotonic_us()
                goes_on = _slice(rows, found, self._monotonic_us)
                # A thread that wrote something gets the interpreter's lock meanwhile; with sleep(0) it waits for 5 ms.
                await asyncio.sleep((self._monotonic_us() - began_us) / 1e6)
            if not goes_on:
                return found

    # --- one after the other -----------------------------------------------------------------------------

    async def alone(self, change: Coroutine[Any, Any, T]) -> T:
        """One change of the catalog at a time, each to its end: also if whoever asked for it gives up waiting."""

        async def in_turn() -> T:
            async with self.changing:
                return await change

        return await to_its_end(in_turn())

    # --- in the background -------------------------------------------------------------------------------

    def in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """The broker's own work, also if a client's request leads to it."""
        context = copy_context()
        context.run(PRINCIPAL.set, BROKER)
        task = self.loop.create_task(work, context=context)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if not isinstance(error, PenstockError) or isinstance(error, Fatal | EtcdReplaced):
            self.failure = error
        elif not _passes(error) and error.message != self._reported:
            # What is stored must not end the broker: it would end every other one that is started on the same data.
            self._reported = error.message
            log.error("what the broker does by itself has failed, and is tried again: %s", error.message)

    def could_not_write(self, error: PenstockError) -> None:
        """A message. A full disk passes; after anything that does not, nobody knows what is on it."""
        if isinstance(error, Fatal) and self.failure is None:
            self.failure = error


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Also if the caller is cancelled: nothing waits for a failure then, and the event loop must not report it."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(retrieve)
    return await asyncio.shield(task)


def retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _slice(rows: Iterator[T | None], found: list[T], monotonic_us: Callable[[], int]) -> bool:
    """Whether there may be more."""
    until_us = monotonic_us() + SLICE_US
    for count, row in enumerate(rows, 1):
        if row is not None:
            found.append(row)
        if count == SLICE_ROWS or monotonic_us() >= until_us:
            return True
    return False


def _passes(error: PenstockError) -> bool:
    """What can be tried again is, at the next tick, and by then etcd may take what it did not take now; a topic or a
    broker that was closed needs nothing any more."""
    return error.retriable or isinstance(error, EtcdError | LogClosed | NotFound)
