"""Time as the rest of the code sees it: microseconds since the Unix epoch, handed in, never read on the side.

Microseconds because Arrow, Spark and Python's datetime all hold them without loss; an int64 of them lasts
until the year 294,247, and `TIME_MAX_US` stops at 9999 so that every stored time can be shown as a date.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

TIME_MAX_US = 253_402_300_799_999_999


class Clock(Protocol):
    def now_us(self) -> int: ...


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1_000


class BootClock:
    """Since the machine was booted, times of suspension included: for how long something may be relied on, which a
    clock that is set, or one that stands still while a laptop or a virtual machine sleeps, could not tell."""

    def now_us(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def rfc3339(time_us: int) -> str:
    seconds, micros = divmod(time_us, 1_000_000)
    return f"{_second(seconds)}.{micros:06d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    """Many that are told in a row are of the same one."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
