"""Time that moves when told."""

from __future__ import annotations

from datetime import timedelta

from penstock.durations import duration_us


class ManualClock:
    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us

    def advance_us(self, by: int) -> None:
        """Forwards, or backwards as a real clock may be set."""
        self._now_us += by

    def advance(self, by: str | timedelta) -> None:
        """Forwards, as users write it: "7d", "1h30m", "250ms"."""
        self.advance_us(duration_us(by))
