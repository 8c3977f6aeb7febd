"""By whom the copies of what leaders have sent are written.

To hand a little to a thread, and to hear of it again, takes more of a processor than to write it and wait for a fast
disk. So the event loop does that itself (ADR 19): what is small, while nobody else writes to the log, and the disk is
fast, and not too much in one turn. How fast it is goes by its better times: how long a busy machine takes to come back
is not the disk's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, TypeVar

from penstock.storage.log import Log

T = TypeVar("T")

SMALL_BYTES = 64 * 1024
FAST_S = 0.0005
# In one turn of the loop, for all logs together: whoever waits for the loop waits for that.
TURN_S = 0.005
# Of the difference to what was expected, if it was quicker, and if it was slower.
_QUICKER, _SLOWER = 0.1, 0.02


class Storing:
    """Belongs to one event loop."""

    def __init__(
        self,
        on_a_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        now: Callable[[], float] = perf_counter,
    ) -> None:
        self._on_a_thread = on_a_thread
        self._now = now
        self._takes_s = 0.0
        self._spent_s = 0.0

    async def store(self, log: Log, work: Callable[[], T], size: int) -> T:
        """What `work` does: so many bytes appended to the log, and synced."""

        def timed() -> tuple[T, float]:
            began = self._now()
            return work(), self._now() - began

        done: T
        is_small = size <= SMALL_BYTES
        if is_small and self._may_be_kept_waiting and log.writing.acquire(blocking=False):
            try:
                done, took_s = timed()
            finally:
                log.writing.release()
            self._spend(took_s)
        else:
            done, took_s = await self._on_a_thread(timed)
        if is_small:
            self._takes_s += (_QUICKER if took_s < self._takes_s else _SLOWER) * (took_s - self._takes_s)
        return done

    @property
    def _may_be_kept_waiting(self) -> bool:
        return self._takes_s < FAST_S and self._spent_s < TURN_S

    def _spend(self, seconds: float) -> None:
        if not self._spent_s:
            asyncio.get_running_loop().call_soon(self._turned)
        self._spent_s += seconds

    def _turned(self) -> None:
        self._spent_s = 0.0
