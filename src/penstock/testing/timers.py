"""Waiting that does not wait: with a clock that stands still, nothing comes of it but what is under way already."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

# Long enough for what other threads have begun, short enough for a test that polls what is empty a hundred times.
MOMENT_S = 0.01


class ManualTimers:
    """`Timers` for a broker with a ManualClock."""

    async def wait(self, futures: Sequence[asyncio.Future[Any]], until_us: int) -> bool:
        """Gives others a moment. False if nothing has happened in it: then nothing will before the clock is moved."""
        done, _ = await asyncio.wait(futures, timeout=MOMENT_S, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
