"""Time that moves when told, and wakes those who sleep until then."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from penstock.testing.clock import ManualClock

# Of the event loop, between one waking and the next: enough for what follows from it without real input and output.
_TURNS = 50


class ManualTime(ManualClock):
    def __init__(self, now_us: int = 1_000_000_000) -> None:
        super().__init__(now_us)
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._listeners: list[Callable[[], None]] = []

    def on_move(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def sleep_us(self, us: int) -> None:
        due = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now_us() + us, next(self._numbers), due))
        await due

    async def pass_us(self, us: int) -> None:
        """As if so much time went by: each sleeper wakes at its own time, and does what it does before the next."""
        end_us = self.now_us() + us
        await settled()
        while self._sleepers and self._sleepers[0][0] <= end_us:
            due_us, _, due = heapq.heappop(self._sleepers)
            self._move_to(max(due_us, self.now_us()))
            if not due.done():
                due.set_result(None)
            await settled()
        self._move_to(end_us)
        await settled()

    def _move_to(self, at_us: int) -> None:
        self.advance_us(at_us - self.now_us())
        for listener in self._listeners:
            listener()


async def settled() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)
