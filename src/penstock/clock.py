"""Time as the rest of the code sees it, in microseconds; clocks are handed in, never read on the side.

    now_us         wall clock, since the Unix epoch: what users see and what is stored. Anybody may set it.
    monotonic_us   since the machine was booted: how long something lasts. Never set, and means nothing elsewhere.

A duration, a time-out or an expiry is counted on the monotonic clock. The wall clock decides only what users gave as a
date (`deliver_at`, cron, retention) or what must be compared across machines.

Microseconds because Arrow, Spark and Python's datetime all hold them without loss; an int64 of them lasts
until the year 294,247, and `TIME_MAX_US` stops at 9999 so that every stored time can be shown as a date.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple, Protocol

# Times of suspension included. Not every system has it.
_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
TIME_MAX_US = 253_402_300_799_999_999


class Clock(Protocol):
    def now_us(self) -> int: ...

    def monotonic_us(self) -> int: ...


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_us(self) -> int:
        return time.clock_gettime_ns(_BOOT_TIME) // 1_000


class Instant(NamedTuple):
    """One moment by both clocks, read together: what was stored by the wall clock is translated with it."""

    wall_us: int
    monotonic_us: int

    @classmethod
    def of(cls, clock: Clock) -> Instant:
        return cls(clock.now_us(), clock.monotonic_us())

    @classmethod
    def in_log(cls, at_us: int) -> Instant:
        """For state that is read back from a log and does not run: its times are those of the log."""
        return cls(at_us, at_us)

    def to_wall(self, monotonic_us: int) -> int:
        return self.wall_us + monotonic_us - self.monotonic_us


def rfc3339(time_us: int) -> str:
    """Times after the year 9999, which the format can't express, are its last moment."""
    time_us = min(time_us, TIME_MAX_US)
    seconds, micros = divmod(time_us, 1_000_000)
    return f"{_second(seconds)}.{micros:06d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    """Many that are told in a row are of the same one."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
