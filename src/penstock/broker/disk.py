"""Who writes, and who waits for the disk.

    alone, and the disk is fast     the event loop writes and syncs
    small                           the event loop writes, the kernel syncs meanwhile (`Syncs`)
    large, or no such kernel        a thread writes and syncs

A thread is woken, writes and syncs, and wakes the loop again, which goes on with its work meanwhile. If there is little
to write, the two wake-ups are most of what comes of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from threading import get_ident

from penstock.errors import Fatal, LogClosed, PenstockError
from penstock.limits import KIB
from penstock.storage.commit import unexpected
from penstock.storage.kernel_syncs import Syncs
from penstock.storage.log import Log, Unsynced

# What a loop may be kept waiting for, on average of the last writes; the newest counts an eighth.
_FAST_US = 500
_NEWEST = 0.125
_FEW, SMALL_BYTES = 4, 64 * KIB

# With why it is not on disk.
Synced = Callable[[PenstockError | None], None]


class Disk:
    """Shared by the logs of a broker. Belongs to one event loop, but for `submit` and `took`."""

    def __init__(self, executor: Executor, *, lone_writes: bool = True, syncs: Syncs | None = None) -> None:
        """Without `lone_writes` and `syncs`, everything is left to threads."""
        self.executor = executor
        self._loop = asyncio.get_running_loop()
        self._syncs = syncs
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
        is_alone = self.under_way <= items <= _FEW and size <= SMALL_BYTES
        return is_alone and self._lone_writes and self._average_us[is_synced] < _FAST_US

    def may_sync_soon(self, log: Log, size: int) -> bool:
        """Whether the loop may write so many bytes to the log, to have them synced meanwhile."""
        if self._syncs is None or not self._syncs.is_there or size > SMALL_BYTES:
            return False
        return log.sync_within_us is None and log.merely_writes(size)

    def sync_soon(self, log: Log, done: Synced) -> None:
        """What was written to the log so far is on disk when `done` is called, later, by the loop."""
        try:
            unsynced = log.unsynced()
        except PenstockError as error:
            self._loop.call_soon(done, error)
            return
        if unsynced is None:
            self._loop.call_soon(done, None)
        else:
            by_a_thread = partial(self._on_a_thread, log.sync, done)
            if self._syncs is None:
                by_a_thread()
            else:
                self._syncs.begin(unsynced.file, partial(self._synced, log, unsynced, done), by_a_thread)

    def _synced(self, log: Log, unsynced: Unsynced, done: Synced, failure: Fatal | None) -> None:
        if not log.writing.acquire(blocking=False):
            # Somebody else is at it, and may be for long.
            self._on_a_thread(partial(log.synced, unsynced, failure), done)
            return
        error: PenstockError | None = None
        log.marks_later = True
        try:
            log.synced(unsynced, failure)
        except PenstockError as found:
            error = found
        finally:
            log.marks_later = False
            log.writing.release()
        done(error)
        # Behind those who are being told.
        self._loop.call_soon(log.mark)

    def _on_a_thread(self, sync: Callable[[], None], done: Synced) -> None:
        def work() -> None:
            error: PenstockError | None = None
            try:
                sync()
            except PenstockError as found:
                error = found
            except Exception as found:
                error = unexpected(found)
            self._loop.call_soon_threadsafe(done, error)

        try:
            self.submit(work)
        except RuntimeError as found:
            # The pool is gone.
            self._loop.call_soon(done, LogClosed(f"nothing can be synced any more: {found}"))

    def close(self) -> None:
        if self._syncs is not None:
            self._syncs.close()
