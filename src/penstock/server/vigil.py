"""Staying awake between two lone publishes.

Who publishes one message after the other, and waits for each, sends the next about 100 µs after an answer. A processor
that goes to sleep in between takes tens of microseconds to wake up, and finds its caches cold. So after such an answer
the loop turns round and round for a moment, looking for what comes (ADR 18): only while the next publish comes in time
more often than not. Whoever sends one every millisecond costs nothing here, and nor does whoever publishes beside
others.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from time import perf_counter

# Of being in time; the newest publish counts an eighth.
_NEWEST, _WORTH_IT = 0.125, 0.5


class Vigil:
    """Belongs to one event loop."""

    def __init__(self, loop: AbstractEventLoop, awake_us: int, now: Callable[[], float] = perf_counter) -> None:
        self._loop = loop
        self._awake_s = awake_us / 1e6
        self._now = now
        self._until = 0.0
        self._in_time = 0.0
        self.is_kept = False

    def heard(self) -> None:
        """A lone publish has come."""
        self._in_time += _NEWEST * ((self._now() <= self._until) - self._in_time)

    def answered(self) -> None:
        """It has been told where it is stored: the next may come."""
        self._until = self._now() + self._awake_s
        if self._in_time > _WORTH_IT and not self.is_kept:
            self.is_kept = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if self._in_time > _WORTH_IT and self._now() <= self._until:
            self._loop.call_soon(self._turn)
        else:
            self.is_kept = False
