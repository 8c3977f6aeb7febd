"""Waiting for something to happen, or for a time to come. With a virtual clock, `testing` has another one."""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.clock import TIME_MAX_US, Clock


class Timers(Protocol):
    async def wait(self, ring: asyncio.Future[None], until_us: int, due_us: int = TIME_MAX_US) -> bool:
        """Until it is done, or it is `until_us` by the monotonic clock or `due_us` by the wall clock; then it may be
        done as well. False if none of these will happen by waiting.

        The future is for this alone.
        """


class LoopTimers:
    # The wall clock may be set while a caller waits: a timer reads it again after this time at the latest.
    _LONGEST_S = 1.0
    # What is overdue but can't be taken, by this caller or now, is looked at again; meanwhile others get on.
    _OVERDUE_US = 2_000

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def wait(self, ring: asyncio.Future[None], until_us: int, due_us: int = TIME_MAX_US) -> bool:
        """By a timer that wakes nobody before: `asyncio.wait` costs three times as much, at every poll."""
        loop = asyncio.get_running_loop()
        now_us, clock = self._clock.monotonic_us(), self._clock
        if until_us <= now_us or due_us <= clock.now_us():
            until_us, due_us = now_us + self._OVERDUE_US, TIME_MAX_US
        timer: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal timer
            left_s = min(until_us - clock.monotonic_us(), due_us - clock.now_us()) / 1_000_000
            if left_s > 0:
                timer = loop.call_later(min(left_s, self._LONGEST_S), look)
            elif not ring.done():
                ring.set_result(None)

        look()
        try:
            await ring
        finally:
            if timer is not None:
                timer.cancel()
        return True
