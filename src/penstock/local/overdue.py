"""Whoever publishes to a cluster waits until all replicas in sync have it: as long as that takes, but not for ever.

What is late is stored all the same, as soon as there are enough of them again, unless another node is elected that
does not have it. An idempotent producer sends it again, is found to have sent it before, and waits on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

from penstock.errors import NotCommitted

T = TypeVar("T")

# Of followers that hang, a leader takes leave within 4 s; an election takes as long as a session.
PATIENCE_S = 30.0
_LOOK_S = 1.0


class Overdue:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Until when, the first to end first.
        self._waiting: dict[asyncio.Future[Any], float] = {}
        self._working: set[asyncio.Task[Any]] = set()
        self._looking: asyncio.TimerHandle | None = None

    def bounded(self, committing: asyncio.Future[T]) -> asyncio.Future[T]:
        """The same, or NotCommitted. What is given is never cancelled from here."""
        if committing.done():
            return committing
        waiter: asyncio.Future[T] = self._loop.create_future()
        self._waiting[waiter] = self._loop.time() + PATIENCE_S
        committing.add_done_callback(partial(self._pass_on, waiter))
        if self._looking is None:
            self._look_later()
        return waiter

    async def within(self, work: Coroutine[Any, Any, T]) -> T:
        """The same. It goes on by itself, also if the caller is cancelled."""
        task = self._loop.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return await self.bounded(task)

    def _pass_on(self, waiter: asyncio.Future[T], committing: asyncio.Future[T]) -> None:
        self._waiting.pop(waiter, None)
        if waiter.done():
            # It was told to be late, or nobody waits any more.
            return
        if committing.cancelled():
            waiter.cancel()
        elif (error := committing.exception()) is None:
            waiter.set_result(committing.result())
        else:
            waiter.set_exception(error)
            waiter.exception()

    def _look_later(self) -> None:
        self._looking = self._loop.call_later(min(_LOOK_S, PATIENCE_S), self._look)

    def _look(self) -> None:
        self._looking = None
        now = self._loop.time()
        late = list(takewhile(lambda waiter: self._waiting[waiter] <= now, self._waiting))
        for waiter in late:
            del self._waiting[waiter]
            if not waiter.done():
                waiter.set_exception(_late())
                waiter.exception()
        if self._waiting:
            self._look_later()


def _late() -> NotCommitted:
    return NotCommitted(
        f"after {PATIENCE_S:g} s it is on the leader's disk, but not on those of all replicas in sync, or not of as "
        "many as the topic's min_isr demands: it may be stored yet, or not. See which nodes are down"
    )
