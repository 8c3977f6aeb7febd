"""The way into a log for code on an event loop: `await commit(…)`, and it is on disk.

A log that need not be synced at once (`Log.sync_within`) is synced from here in time; "on disk" then means "written".

`async` ends here. Below is plain Python; the disk is written and synced on a thread, and the loop hears of a whole
group of commits at once. What comes alone is written on the loop: see `Disk`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.broker.disk import Disk
from penstock.clock import Clock
from penstock.errors import LogClosed, PenstockError
from penstock.frame import Frame
from penstock.limits import DEFAULT_LIMITS, Limits
from penstock.message import Message
from penstock.storage.commit import Committed, GroupCommit, Outcome
from penstock.storage.log import Log

_Waiter = asyncio.Future[Committed]


class Journal:
    """Belongs to one event loop."""

    def __init__(
        self,
        log: Log,
        *,
        clock: Clock,
        disk: Disk,
        loop: asyncio.AbstractEventLoop,
        limits: Limits = DEFAULT_LIMITS,
        told: Callable[[], None] = lambda: None,
        failed: Callable[[PenstockError], None] = lambda error: None,
        is_chained: bool = False,
    ) -> None:
        """`told` is called on the loop when more is on disk, once for all that were written together; `failed` for each
        that was not written, whether somebody still waits for it or not. `is_chained`: see `GroupCommit`."""
        self._loop = loop
        self._log = log
        self._disk = disk
        self._told = told
        self._failed = failed
        self._handed_in = self._settled = 0
        # What the next turn of the loop begins with, if something has come alone in this one.
        self._starting: asyncio.Handle | None = None
        # The loop is writing itself.
        self._is_at_it = False
        self._to_sync: asyncio.TimerHandle | None = None
        self._syncing: asyncio.Future[None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._commits: GroupCommit[_Waiter | None] = GroupCommit(
            log, clock=clock, run=self._run, tell=self._tell, took=disk.took, limits=limits, is_chained=is_chained
        )

    def commit(self, item: Frame | Message) -> _Waiter:
        """Done when it is on disk; raises DiskFull if it could not be written, Fatal if nobody knows."""
        waiter: _Waiter = self._loop.create_future()
        self._commits.commit(waiter, item)
        self._came(1)
        return waiter

    def write(self, row: Message) -> _Waiter:
        """The same for a row of the broker's own, which needs no check."""
        waiter: _Waiter = self._loop.create_future()
        self._commits.commit_rows(waiter, (row,))
        self._came(1)
        return waiter

    def post(self, rows: Sequence[Message]) -> None:
        """The same for rows that nobody waits for, all of them or none."""
        self._commits.commit_rows(None, rows)
        self._came(len(rows))

    def _came(self, items: int) -> None:
        self._handed_in += items
        self._disk.under_way += items
        if self._starting is not None and not self._disk.may_be_kept_waiting(*self._commits.waiting):
            # It does not come alone. The loop may have a long turn to go yet: a thread can begin.
            self._starting.cancel()
            self._start()

    @property
    def is_gathering(self) -> bool:
        """Something waits to be written: what is handed in now is written together with it."""
        return self._commits.waiting[0] > 0

    async def settled(self) -> None:
        """What was handed in so far is on disk, or has failed; also that which nobody waits for any more."""
        if self._settled < self._handed_in:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((self._handed_in, waiter))
            await waiter

    def _run(self, write: Callable[[], None]) -> None:
        if self._disk.is_mine:
            # What else comes in this turn of the loop is written together with it.
            self._starting = self._loop.call_soon(self._write_now, write)
        else:
            self._disk.submit(write)

    def _write_now(self, write: Callable[[], None]) -> None:
        if not self._disk.may_be_kept_waiting(*self._commits.waiting) or not self._log.writing.acquire(blocking=False):
            self._start()
            return
        self._starting = None
        self._is_at_it = self._log.marks_later = True
        try:
            write()
        finally:
            self._is_at_it = self._log.marks_later = False
            self._log.writing.release()
            # Behind those who are being told.
            self._loop.call_soon(self._log.mark)

    def _start(self) -> None:
        self._starting = None
        self._commits.start(self._disk.submit)

    def _tell(self, outcomes: Sequence[tuple[_Waiter | None, Outcome]]) -> None:
        if self._is_at_it:
            self._resolve(outcomes)
        else:
            self._loop.call_soon_threadsafe(self._resolve, outcomes)

    def _resolve(self, outcomes: Sequence[tuple[_Waiter | None, Outcome]]) -> None:
        for waiter, outcome in outcomes:
            if isinstance(outcome, PenstockError):
                self._failed(outcome)
                if waiter is not None and not waiter.cancelled():
                    waiter.set_exception(outcome)
                    # It has been told, to `failed`, even if nobody looks at it any more.
                    waiter.exception()
            elif waiter is not None and not waiter.cancelled():
                # A caller that gave up waiting: its frame is written all the same.
                waiter.set_result(outcome)
        self._settled += len(outcomes)
        self._disk.under_way -= len(outcomes)
        while self._waiting and self._waiting[0][0] <= self._settled:
            _, waiting = self._waiting.pop(0)
            if not waiting.done():
                waiting.set_result(None)
        if self._log.sync_within_us is not None:
            self._sync_later(self._log.sync_within_us)
        self._told()

    # --- a log that is not synced at once ----------------------------------------------------------------

    def _sync_later(self, within_us: int) -> None:
        due = self._loop.time() + within_us / 1_000_000
        if self._log.synced_offset == self._log.end_offset or (self._to_sync and self._to_sync.when() <= due):
            return
        if self._to_sync is not None:
            self._to_sync.cancel()
        self._to_sync = self._loop.call_at(due, self._sync)

    def _sync(self) -> None:
        self._to_sync = None
        if self._log.synced_offset < self._log.end_offset:
            self._syncing = self._loop.run_in_executor(self._disk.executor, self._log.sync)
            self._syncing.add_done_callback(self._synced)

    def _synced(self, syncing: asyncio.Future[None]) -> None:
        try:
            syncing.result()
        except LogClosed:
            # Closing it has synced it.
            pass
        except PenstockError as error:
            self._failed(error)

    async def stop(self) -> None:
        """Nothing more is synced from here: the log is going to be closed."""
        if self._to_sync is not None:
            self._to_sync.cancel()
        if self._syncing is not None and not self._syncing.done():
            await asyncio.wait([self._syncing])
