"""The way into a log for code on an event loop: `await commit(…)`, and it is on disk.

A log that need not be synced at once (`Log.sync_within`) is synced from here in time; "on disk" then means "written".

`async` ends here. Below, but for syncs by the kernel, is plain Python. Whether the loop writes or a thread, and who
waits for the disk, is up to `Disk`; the loop hears of a whole group of commits at once.

Of a log that is replicated, `wrote` hears what is on disk here, and callers are told only once `committed` says that it
is wherever it has to be; those who want to know no more than that it is here ask for `on_disk`.

Chained rows wait for a full disk to have room, and are written then, in their order. Their callers receive NotCommitted
at once: the rows are decided, and lost only if the process ends before there is room.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from penstock.broker.disk import Disk, Synced
from penstock.clock import Clock
from penstock.errors import DiskFull, LeadershipLost, LogClosed, NotCommitted, PenstockError
from penstock.frame import Frame
from penstock.limits import DEFAULT_LIMITS, Limits
from penstock.message import Message
from penstock.storage.commit import Committed, GroupCommit, Outcome
from penstock.storage.log import Log

log = logging.getLogger("penstock.broker")

_Waiter = asyncio.Future[Committed]
_Outcomes = Sequence[tuple[_Waiter | None, Outcome]]
# Between two attempts to write to a full disk.
ROOM_S = 0.5


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
        wrote: Callable[[], None] | None = None,
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
        self._wrote = wrote
        # On disk here up to that offset, and not committed yet.
        self._held: deque[tuple[int, _Outcomes]] = deque()
        self._committed = 0
        self._has_resigned = False
        # By who waits until it is committed: who is told as soon as it is on disk here.
        self._early: dict[_Waiter, _Waiter] = {}
        # Why rows wait for room on the disk; None if they do not.
        self.no_room: DiskFull | None = None
        self._trying_again: asyncio.TimerHandle | None = None
        self._commits: GroupCommit[_Waiter | None] = GroupCommit(
            log,
            clock=clock,
            run=self._run,
            tell=self._tell,
            took=disk.took,
            limits=limits,
            is_chained=is_chained,
            no_room=self._tell_no_room if is_chained else None,
        )

    def commit(self, item: Frame | Message) -> _Waiter:
        """Done when it is on disk; raises DiskFull if it could not be written, Fatal if nobody knows."""
        waiter: _Waiter = self._loop.create_future()
        self._commits.commit(waiter, item)
        self._came(1)
        return waiter

    def commit_alone(self, frame: Frame) -> Committed | None:
        """On disk when this returns; raises what `commit` would. None if it does not come alone, or the loop may not be
        kept waiting for it: then it is for `commit`."""
        log = self._log
        is_synced = log.sync_within_us is None
        if self._disk.under_way or not self._disk.may_be_kept_waiting(1, len(frame.data), is_synced):
            return None
        if not log.is_open:
            return None
        if self._wrote is not None:
            # Others must have it, too, before anybody is told.
            return None
        if not log.writing.acquire(blocking=False):
            return None
        log.marks_later = True
        try:
            outcome = self._commits.commit_alone(None, frame)
        finally:
            log.marks_later = False
            log.writing.release()
        if outcome is None:
            return None
        # Behind whoever is told of it.
        self._loop.call_soon(self._after_one)
        if isinstance(outcome, PenstockError):
            self._failed(outcome)
            raise outcome
        return outcome

    def _after_one(self) -> None:
        self._log.mark()
        self._after()

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
        if self._starting is not None and not self._may_write_now() and not self._may_sync_soon():
            # It is much. The loop may have a long turn to go yet: a thread can begin.
            self._starting.cancel()
            self._start()

    def check_led(self) -> None:
        """Raise LeadershipLost after `resign`."""
        if self._has_resigned:
            raise _lost()

    @property
    def is_gathering(self) -> bool:
        """Something waits to be written: what is handed in now is written together with it."""
        return self._commits.waiting[0] > 0

    async def settled(self) -> None:
        """What was handed in so far is on disk, has failed, or waits for room; also that which nobody waits for any
        more."""
        if self._settled < self._handed_in and self.no_room is None:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append((self._handed_in, waiter))
            await waiter

    def _run(self, write: Callable[[], None]) -> None:
        if self._disk.is_mine:
            # What else comes in this turn of the loop is written together with it.
            self._starting = self._loop.call_soon(self._write_now, write)
        else:
            self._disk.submit(write)

    def _may_write_now(self) -> bool:
        is_synced = self._log.sync_within_us is None
        return self._log.is_open and self._disk.may_be_kept_waiting(*self._commits.waiting, is_synced)

    def _may_sync_soon(self) -> bool:
        return self._disk.may_sync_soon(self._log, self._commits.waiting[1])

    def _write_now(self, write: Callable[[], None]) -> None:
        is_alone = self._may_write_now()
        if not (is_alone or self._may_sync_soon()) or not self._log.writing.acquire(blocking=False):
            self._start()
            return
        self._starting = None
        self._is_at_it = self._log.marks_later = True
        try:
            if is_alone:
                write()
            else:
                self._commits.begin(self._sync_soon)
        finally:
            self._is_at_it = self._log.marks_later = False
            self._log.writing.release()
            # Behind those who are being told.
            self._loop.call_soon(self._log.mark)

    def _sync_soon(self, done: Synced) -> None:
        def synced(error: PenstockError | None) -> None:
            self._is_at_it = True
            try:
                done(error)
            finally:
                self._is_at_it = False

        self._disk.sync_soon(self._log, synced)

    def _start(self) -> None:
        self._starting = None
        self._commits.start(self._disk.submit)

    def _tell(self, outcomes: _Outcomes) -> None:
        if self._is_at_it:
            self._written(outcomes, self._log.synced_offset)
        else:
            self._loop.call_soon_threadsafe(self._written, outcomes, self._log.synced_offset)

    def _tell_no_room(self, error: DiskFull) -> None:
        if self._is_at_it:
            self._wait_for_room(error)
        else:
            self._loop.call_soon_threadsafe(self._wait_for_room, error)

    def _wait_for_room(self, error: DiskFull) -> None:
        if self.no_room is None:
            log.warning("acknowledgements and other changes wait for room on the disk: %s", error.message)
        self.no_room = error
        self._trying_again = self._loop.call_later(ROOM_S, self._commits.retry)
        late = NotCommitted(
            f"it is decided, and written as soon as there is room on the disk: {error.message}", **error.details
        )
        for waiter in self._commits.tokens():
            if waiter is not None and not waiter.done():
                waiter.set_exception(late.again())
                waiter.exception()
        self._wake_settled(self._handed_in)

    def end_wait(self, error: PenstockError) -> None:
        """Wait for room no longer: rows that do fail with `error`."""
        self._stop_waiting()
        self._commits.end_wait(error)

    def _stop_waiting(self) -> None:
        if self._trying_again is not None:
            self._trying_again.cancel()

    def _written(self, outcomes: _Outcomes, end_offset: int) -> None:
        self.no_room = None
        self._disk.under_way -= len(outcomes)
        if self._wrote is None:
            self._resolve(outcomes)
            return
        self._held.append((end_offset, outcomes))
        if self._has_resigned:
            self.resign()
            return
        if self._early:
            for waiter, outcome in outcomes:
                self._tell_early(waiter, outcome)
        # It may be committed already, on the word of those who were told with others; or it could not be written, and
        # moves nothing that somebody would speak of.
        self.committed(self._committed)
        self._wrote()

    def on_disk(self, committing: _Waiter) -> _Waiter:
        """Done as soon as it is on disk here, wherever else it has to be. Not to be cancelled."""
        if self._wrote is None or committing.done():
            return committing
        early = self._early.get(committing)
        if early is None:
            early = self._early[committing] = self._loop.create_future()
            held = (outcome for _, outcomes in self._held for waiter, outcome in outcomes if waiter is committing)
            if (found := next(held, None)) is not None:
                self._tell_early(committing, found)
        return early

    def _tell_early(self, waiter: _Waiter | None, outcome: Outcome) -> None:
        early = self._early.pop(waiter, None) if waiter is not None else None
        if early is None or early.cancelled():
            return
        if isinstance(outcome, PenstockError):
            early.set_exception(outcome.again())
            early.exception()
        else:
            early.set_result(outcome)

    def committed(self, offset: int) -> None:
        """What lies below it of a replicated log is wherever it has to be."""
        self._committed = offset
        while self._held and self._held[0][0] <= offset:
            self._resolve(self._held.popleft()[1])

    def resign(self) -> None:
        """Another node may lead the log now. Appends that are not committed, those under way included, fail with
        LeadershipLost: the next leader may commit them or not.

        Nothing else is written, not even if this node leads again: that leadership has a journal of its own.
        """
        lost = _lost()
        if not self._has_resigned:
            self._has_resigned = True
            self._stop_waiting()
            self._commits.stop(lost)
        while self._held:
            _, outcomes = self._held.popleft()
            told = [(waiter, one if isinstance(one, PenstockError) else lost.again()) for waiter, one in outcomes]
            for waiter, outcome in told:
                self._tell_early(waiter, outcome)
            self._resolve(told)

    def _resolve(self, outcomes: _Outcomes) -> None:
        for waiter, outcome in outcomes:
            if isinstance(outcome, PenstockError):
                self._failed(outcome)
                if waiter is not None and not waiter.done():
                    waiter.set_exception(outcome)
                    # It has been told, to `failed`, even if nobody looks at it any more.
                    waiter.exception()
            elif waiter is not None and not waiter.done():
                # A caller that gave up waiting: its frame is written all the same.
                waiter.set_result(outcome)
        self._settled += len(outcomes)
        self._wake_settled(self._settled)
        self._after()

    def _wake_settled(self, settled: int) -> None:
        while self._waiting and self._waiting[0][0] <= settled:
            _, waiting = self._waiting.pop(0)
            if not waiting.done():
                waiting.set_result(None)

    def _after(self) -> None:
        """More has been written."""
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


def _lost() -> LeadershipLost:
    return LeadershipLost("this node does not lead the partition any more; it may have been stored, or not")
