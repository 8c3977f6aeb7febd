"""Waiting that does not wait: with a clock that stands still, nothing comes of it but what is under way already."""

from __future__ import annotations

import asyncio

# Long enough for what other threads have begun, short enough for a test that polls what is empty a hundred times.
MOMENT_S = 0.01


class ManualTimers:
    """`Timers` for a broker with a ManualClock."""

    async def wait(self, ring: asyncio.Future[None], until_us: int, due_us: int = 0) -> bool:
        """Gives others a moment. False if nothing has happened in it: then nothing will before the clock is moved."""
        done, _ = await asyncio.wait([ring], timeout=MOMENT_S)
        return bool(done)
