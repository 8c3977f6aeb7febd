"""Whoever publishes to a cluster, or answers for a message, waits until all replicas in sync know: but not for ever.

What is late counts all the same, as soon as there are enough of them again, unless another node is elected that does
not know of it. An idempotent producer sends it again, is found to have sent it before, and waits on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from itertools import takewhile
from typing import TypeVar

from penstock.durations import duration_text
from penstock.errors import NotCommitted
from penstock.storage.commit import Committed

T = TypeVar("T")
_Waiter = asyncio.Future[Committed]

_LOOK_S = 1.0


class Overdue:
    """Belongs to one event loop."""

    def __init__(self, patience_us: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._patience_us = patience_us
        self._patience_s = patience_us / 1_000_000
        # Until when, the first to end first.
        self._waiting: dict[_Waiter, float] = {}
        self._looking: asyncio.TimerHandle | None = None

    def bounded(self, committing: _Waiter) -> _Waiter:
        """The same, or NotCommitted. What is given is never cancelled from here."""
        if committing.done():
            return committing
        waiter: _Waiter = self._loop.create_future()
        self._waiting[waiter] = self._loop.time() + self._patience_s
        committing.add_done_callback(partial(self._pass_on, waiter))
        if self._looking is None:
            self._look_later()
        return waiter

    async def within(self, work: Awaitable[T]) -> T:
        """The same for what may be cancelled."""
        try:
            async with asyncio.timeout(self._patience_s):
                return await work
        except TimeoutError:
            raise self._late() from None

    def _pass_on(self, waiter: _Waiter, committing: _Waiter) -> None:
        self._waiting.pop(waiter, None)
        error = committing.exception()
        if waiter.done():
            # It was told to be late, or nobody waits any more.
            return
        if error is None:
            waiter.set_result(committing.result())
        else:
            waiter.set_exception(error)
            waiter.exception()

    def _look_later(self) -> None:
        self._looking = self._loop.call_later(min(_LOOK_S, self._patience_s), self._look)

    def _look(self) -> None:
        self._looking = None
        now = self._loop.time()
        late = list(takewhile(lambda waiter: self._waiting[waiter] <= now, self._waiting))
        for waiter in late:
            del self._waiting[waiter]
            if not waiter.done():
                waiter.set_exception(self._late())
                waiter.exception()
        if self._waiting:
            self._look_later()

    def _late(self) -> NotCommitted:
        return NotCommitted(
            f"taken {duration_text(self._patience_us)} ago, and not yet on the disks of all replicas in sync, or of as "
            "many as the topic's min_isr demands: it may count yet, or not. See which nodes are down"
        )
