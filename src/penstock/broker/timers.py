"""Waiting for something to happen, or for a time to come. With a virtual clock, `testing` has another one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.clock import Clock


class Timers(Protocol):
    async def wait(self, futures: Sequence[asyncio.Future[Any]], until_us: int) -> bool:
        """Until one of these is done, or the clock says so. False if neither will happen by waiting."""


class LoopTimers:
    # The clock may be set while somebody waits: nobody sleeps longer than this without looking again.
    _LONGEST_S = 1.0
    # What is overdue but can't be taken, by this caller or now, is looked at again; meanwhile others get on.
    _OVERDUE_US = 2_000

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def wait(self, futures: Sequence[asyncio.Future[Any]], until_us: int) -> bool:
        now_us = self._clock.now_us()
        if until_us <= now_us:
            until_us = now_us + self._OVERDUE_US
        while True:
            left = (until_us - self._clock.now_us()) / 1_000_000
            if left <= 0:
                return True
            done, _ = await asyncio.wait(
                futures, timeout=min(left, self._LONGEST_S), return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                return True
