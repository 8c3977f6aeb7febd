"""An in-process job queue: bounded, with attempts and delays, and with a journal if jobs are to outlive the process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from os import PathLike
from threading import Lock, Thread, current_thread, get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidSetting
from penstock.ring import forked
from penstock.ring.batch import JobBatch
from penstock.ring.complaints import Complaints
from penstock.ring.failed import FailedJob
from penstock.ring.jobs import Jobs
from penstock.ring.settings import CAPACITY_MAX, Duration, RingSettings, listed, seconds, whole
from penstock.ring.stats import Rates, RingStats, stats_of
from penstock.ring.waiting import WaitingThread, drive

if TYPE_CHECKING:
    from weakref import finalize

    from penstock.ring.aio import AsyncRing
    from penstock.ring.handlers import Handler
    from penstock.ring.workers import Work, Workers, WorkerThreads
    from penstock.storage.files import Files

# A number that is this very object is an int, and not True or 1.0; asking so costs nothing.
_ONE = 1
# Of a batch until it has one.
_NO_JOBS: list[Any] = []


class Ring(Jobs):
    """A bounded queue of jobs for the threads, tasks and child processes of this process.

        ring = penstock.Ring(capacity=10_000)
        ring.put({"mail": "ann@example.com"})
        with ring.take(100, wait="1s") as batch:
            for job in batch:
                ...

    `when_full`: "block" until there is room, "reject" with RingFull, or "drop_oldest" of those that wait.
    `max_attempts`, `backoff`: how often and when a job is tried again before `failed` has it; `failed_max` are kept.
    `journal`: a directory; jobs that nobody acknowledged are there again after a restart or a kill. It is written
    behind: a kill undoes the last `flush_interval` ("100ms"), as long as the disk and the interpreter keep up. `flush`
    waits until all is on disk; so does a program that ends, or lets go of the ring, without closing it. A forked child
    can't use it. Jobs must then be what msgpack can hold: None, bool, int, float, str, bytes, list, dict, datetime;
    dataclasses and msgspec.Structs come back as such if `type` names theirs, which is looked at with a journal and in
    processes only.
    """

    __slots__ = (
        "_closer",
        "_closing_error",
        "_complaints",
        "_finalizer",
        "_handled_batches",
        "_handled_s",
        "_handling",
        "_job_type",
        "_made_s",
        "_rates",
        "_starting",
        "_workers",
    )
    _finalizer: finalize[..., Any]
    # For tests: smaller segments; and nothing written behind, so that only `flush` writes.
    _journal_options: ClassVar[Mapping[str, int]] = {}
    _is_written_behind: ClassVar[bool] = True

    def __init__(
        self,
        capacity: int = 65_536,
        *,
        when_full: Literal["block", "reject", "drop_oldest"] = "block",
        max_attempts: int = 5,
        backoff: Mapping[str, Any] | None = None,
        failed_max: int = 10_000,
        journal: str | PathLike[str] | Files | None = None,
        flush_interval: Duration | None = None,
        type: Any = Any,
        clock: Clock | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = RingSettings.of(
            capacity=capacity,
            when_full=when_full,
            max_attempts=max_attempts,
            backoff=backoff,
            failed_max=failed_max,
        )
        if journal is None and flush_interval is not None:
            raise InvalidSetting(
                "flush_interval is that of the journal, and this ring is given none: journal=directory"
            )
        super().__init__(settings, clock or SystemClock(), steady, is_plain=journal is None)
        self._complaints = Complaints(steady)
        self._workers: list[Workers] = []
        # Batches that are with a handler, and in which thread. One that closes the ring leaves the rest to the closer.
        self._handling: dict[JobBatch, int] = {}
        self._starting = Lock()
        self._closer: Thread | None = None
        self._closing_error: BaseException | None = None
        self._job_type = type
        self._handled_s, self._handled_batches = 0.0, 0
        self._made_s = steady()
        self._rates = Rates(self._made_s)
        if journal is not None:
            from penstock.ring.recovery import recover

            recover(self, journal, flush_interval, type)
        forked.note(self)

    # --- putting and taking ----------------------------------------------------------------------------------

    def put(self, job: Any, wait: Duration | None = None) -> None:
        """Adds a job. If the ring is full and blocks: RingFull after `wait`, if it is given."""
        if wait is None and self._is_plain and len(self._waiting) + len(self._heap) < self._capacity:
            self._append(job)
            self._put += 1
            if self._takers_waiting:
                self._takers.wake_one()
            return
        drive(self._putting([job], wait, WaitingThread))

    def put_many(self, jobs: Iterable[Any], wait: Duration | None = None) -> None:
        """Adds all of them, in their order; as room comes, if the ring is full and blocks.

        With a journal also as the disk has them, if they are more than 64 MiB. RingFull has in its details how many
        were `put` before `wait` was over. A ring that rejects takes all or none.
        """
        drive(self._putting(listed(jobs), wait, WaitingThread))

    def take(self, max: int = 1, wait: Duration | None = None) -> JobBatch:
        """Between one and `max` jobs, as soon as there is one; an empty batch if there is none until `wait` is over.

        Jobs to be tried again come first. RingClosed once the ring is closed.
        """
        batch = JobBatch(self, _NO_JOBS)
        try:
            if max is _ONE and wait is None and self._is_plain and not self._heap:
                self._hold(batch)
                try:
                    # From one to the other without a call, behind which Ctrl-C could come.
                    for job in self._leaving:
                        batch.jobs = [job]
                        break
                except IndexError:
                    self._discard(batch)
                else:
                    if self._putters_waiting:
                        self._putters.wake_one()
                    return batch
            taken: JobBatch = drive(self._taking(max, wait, WaitingThread, None, batch))
            return taken
        except BaseException:
            self._give_back(batch)
            raise

    # --- workers -------------------------------------------------------------------------------------------

    def run(
        self,
        handler: Handler,
        workers: int = 1,
        batch: int = 100,
        *,
        kind: Literal["threads", "processes"] = "threads",
        until_idle: Duration | None = None,
    ) -> None:
        """Hands batches of up to `batch` jobs to `handler`, `workers` at a time, until the ring is closed.

        What it does not answer for itself is acknowledged when it returns, and tried again when it raises. A coroutine
        function is run in an event loop. `kind="processes"`: each worker is a process, for handlers that compute.
        `until_idle`: returns when there has been nothing to do for so long.
        """
        running = self._workers_for(handler, workers, batch, kind, until_idle)
        try:
            # From here on a worker may have begun, also if this is interrupted.
            self._begin(running)
            running.join()
        except BaseException:
            running.stop()
            raise
        finally:
            self._remove(running)
        if self._closer is not None:
            self._finish(None)

    def start(
        self,
        handler: Handler,
        workers: int = 1,
        batch: int = 100,
        *,
        kind: Literal["threads", "processes"] = "threads",
        until_idle: Duration | None = None,
    ) -> Workers:
        """The same, and returns at once: what it returns has `stop` and `join`."""
        running = self._workers_for(handler, workers, batch, kind, until_idle)
        self._begin(running)
        return running

    def _workers_for(
        self, handler: Handler, workers: int, batch: int, kind: str, until_idle: Duration | None
    ) -> WorkerThreads:
        from penstock.ring.starting import workers_for

        self._check_open()
        return workers_for(self, handler, workers, batch, kind, until_idle)

    def _begin(self, workers: WorkerThreads) -> None:
        # Whoever closes the ring is to find those who are just beginning.
        with self._starting:
            self._check_open()
            self._list(workers)
            workers.begin()

    def _list(self, running: Workers) -> None:
        with self._lock:
            if not running.have_ended:
                self._workers.append(running)

    def _remove(self, running: Workers) -> None:
        """By the last of them, when they have ended; by who ran them, if that was not so."""
        with self._lock:
            if running in self._workers:
                self._workers.remove(running)

    def _take_for(self, work: Work) -> JobBatch:
        batch = JobBatch(self, _NO_JOBS)
        try:
            taken: JobBatch = drive(self._taking(work.batch_max, work.until_idle, WaitingThread, work, batch))
            return taken
        except BaseException:
            self._give_back(batch)
            raise

    def _note_handled(self, spent_s: float) -> None:
        with self._lock:
            self._handled_s += spent_s
            self._handled_batches += 1

    @property
    def aio(self) -> AsyncRing:
        """The same ring for tasks: `await ring.aio.put(job)`, `await ring.aio.take(100)`."""
        from penstock.ring.aio import AsyncRing

        return AsyncRing(self)

    # --- failed jobs ---------------------------------------------------------------------------------------

    def failed(self) -> list[FailedJob]:
        """Those that were tried too often, or given up; the oldest first."""
        with self._lock:
            return self._failed.all()

    def redrive(self, count: int | None = None) -> int:
        """Failed jobs, the oldest first, are tried again as if they were new. How many."""
        if count is not None:
            whole("count", count, 0, CAPACITY_MAX)
        with self._lock:
            self._check_open()
            again = self._failed.pop(count)
            for failed in again:
                self._retries.add(failed.job, failed.sequence, 0, self._steady())
                if self._journal is not None:
                    self._journal.retried(failed.sequence, 0, self._clock.now_us())
        if again:
            self._takers.wake_one()
        return len(again)

    def clear_failed(self) -> int:
        """Forgets all of them. How many."""
        with self._lock:
            self._check_answerable()
            gone = self._failed.pop(None)
            self._cleared += len(gone)
            if self._journal is not None:
                self._journal.done([(failed.sequence, 1) for failed in gone])
        return len(gone)

    # --- the whole of it -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Jobs that wait, for their first attempt or another one."""
        return len(self._waiting) + len(self._heap)

    def __repr__(self) -> str:
        held = sum(len(batch) - len(batch._settled or ()) for batch in list(self._in_flight))
        where = "" if self._journal is None else f", journal {self._journal.directory}"
        closed = ", closed" if self._is_closed else ""
        return f"<Ring of {self._capacity:,}: {len(self):,} waiting, {held:,} in flight{where}{closed}>"

    def join(self, wait: Duration | None = None) -> bool:
        """Until every job is acknowledged or has failed, also those due later; False if `wait` was over before."""
        return bool(drive(self._joining(wait, WaitingThread)))

    def flush(self) -> None:
        """Everything put and answered for before is on disk when this returns. Without a journal: nothing to do."""
        if self._journal is not None:
            self._journal.flush()

    def _flushed(self) -> None:
        if self._putters_waiting:
            self._putters.wake_all()
        if self._journal is not None and self._journal.is_broken:
            # They are to hear of it.
            self._takers.wake_all()
            self._joiners.wake_all()

    def close(self, wait: Duration | None = None) -> None:
        """Nothing is put or taken any more; workers finish what they hold, at most for `wait`; the journal is synced.

        Jobs that are left are in the journal, if there is one, and gone if not: `join` first to have them done. A
        handler that closes the ring does not wait for all this, since it is waited for itself.
        """
        wait_s = None if wait is None else seconds(wait)
        with self._lock:
            self._is_plain = False
            self._is_closed = True
        for line in (self._takers, self._putters, self._joiners):
            line.wake_all()
        if get_ident() not in list(self._handling.values()):
            self._finish(wait_s)
            return
        with self._lock:
            if self._closer is None:
                self._closer = Thread(target=self._finish_apart, args=(wait_s,), name="penstock-ring-close")
                self._closer.start()

    def _finish_apart(self, wait_s: float | None) -> None:
        try:
            self._finish(wait_s)
        except BaseException as error:
            self._closing_error = error

    def _finish(self, wait_s: float | None) -> None:
        if self._closer is not None and self._closer is not current_thread():
            self._closer.join()
            error, self._closing_error = self._closing_error, None
            if error is not None:
                raise error
        until_s = None if wait_s is None else time.monotonic() + wait_s
        with self._starting:
            workers = list(self._workers)
        for some in workers:
            some.stop(None if until_s is None else timedelta(seconds=max(until_s - time.monotonic(), 0)))
        self._complaints.end()
        if self._journal is not None:
            self._finalizer.detach()
            self._journal.close()

    def __enter__(self) -> Ring:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def stats(self) -> RingStats:
        """What is in it, how fast it goes, and why it is slow: cheap enough to be asked every second."""
        return stats_of(self)
