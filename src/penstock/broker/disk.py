"""Who writes: a thread, or the event loop itself.

A thread is woken, writes and syncs, and wakes the loop again, which goes on with its work meanwhile. If there is no
other work, the two wake-ups are all that comes of it, and on a fast disk they take as long as the sync. So what comes
alone is written on the loop, as long as the disk is fast; everything else by threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from threading import get_ident

from penstock.limits import KIB

# What a loop may be kept waiting for, on average of the last writes; the newest counts an eighth.
_FAST_US = 500
_NEWEST = 0.125
_FEW, _FEW_BYTES = 4, 64 * KIB


class Disk:
    """Shared by the logs of a broker. Belongs to one event loop, but for `submit` and `took`."""

    def __init__(self, executor: Executor, *, lone_writes: bool = True) -> None:
        """Without `lone_writes`, everything is left to threads."""
        self.executor = executor
        self._lone_writes = lone_writes
        self._thread = get_ident()
        # Handed in and not told yet, by all logs.
        self.under_way = 0
        # By whether it was with a sync: one that is merely written does not wait for the disk.
        self._average_us = [0.0, 0.0]

    @property
    def is_mine(self) -> bool:
        """Whether this is the thread of the event loop."""
        return get_ident() == self._thread

    def submit(self, work: Callable[[], None]) -> None:
        self.executor.submit(work)

    def took(self, spent_us: int, is_synced: bool) -> None:
        """So long it was until something was on disk, or merely written: the best guess about the next time."""
        # A clock that was set back says nothing.
        self._average_us[is_synced] += _NEWEST * (max(spent_us, 0) - self._average_us[is_synced])

    def may_be_kept_waiting(self, items: int, size: int, is_synced: bool) -> bool:
        """For so many items of one log, whether the loop may write them itself."""
        is_alone = self.under_way <= items <= _FEW and size <= _FEW_BYTES
        return is_alone and self._lone_writes and self._average_us[is_synced] < _FAST_US
