"""Time that moves when told."""

from __future__ import annotations

from datetime import timedelta

from penstock.durations import duration_us


class ManualClock:
    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us
        # Nothing like the wall clock: a time of one that is taken for one of the other is far off.
        self._monotonic_us = 1_000_000

    def now_us(self) -> int:
        return self._now_us

    def monotonic_us(self) -> int:
        return self._monotonic_us

    def advance_us(self, by: int) -> None:
        """Time passes. By less than nothing: as `step_us`, since time does not go back."""
        self._now_us += by
        self._monotonic_us += max(by, 0)

    def step_us(self, by: int) -> None:
        """The wall clock is set, forwards or backwards, and no time passes."""
        self._now_us += by

    def advance(self, by: str | timedelta) -> None:
        """Forwards, as users write it: "7d", "1h30m", "250ms"."""
        self.advance_us(duration_us(by))
