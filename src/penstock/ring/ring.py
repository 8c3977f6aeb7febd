"""An in-process job queue: bounded, with attempts and delays, and with a journal if jobs are to outlive the process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from penstock.clock import Clock, SystemClock
from penstock.ring.batch import JobBatch
from penstock.ring.failed import FailedJob
from penstock.ring.jobs import Jobs
from penstock.ring.settings import Duration, RingSettings, listed, seconds
from penstock.ring.stats import Counts, Rates, RingStats, why_slow
from penstock.ring.waiting import WaitingThread, drive

if TYPE_CHECKING:
    from penstock.ring.aio import AsyncRing
    from penstock.ring.replay import Found
    from penstock.ring.workers import Handler, Work, Workers


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
    behind: a kill undoes at most the last `flush_interval`. `flush` waits until all is on disk. Jobs must then be what
    msgpack can hold: None, bool, int, float, str, bytes, list, dict, datetime; dataclasses and msgspec.Structs come
    back as such if `type` names theirs.
    """

    def __init__(
        self,
        capacity: int = 65_536,
        *,
        when_full: Literal["block", "reject", "drop_oldest"] = "block",
        max_attempts: int = 5,
        backoff: Mapping[str, Any] | None = None,
        failed_max: int = 10_000,
        journal: str | PathLike[str] | None = None,
        flush_interval: Duration = "100ms",
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
        super().__init__(settings, clock or SystemClock(), steady, is_plain=journal is None)
        self._workers: list[Workers] = []
        self._handled_s, self._handled_batches = 0.0, 0
        self._made_s = steady()
        self._rates = Rates(self._made_s)
        if journal is not None:
            self._recover(journal, flush_interval, type)

    def _recover(self, path: Any, flush_interval: Duration, job_type: Any) -> None:
        from penstock.ring.journal import Journal

        self._journal = Journal.open(
            path,
            lock=self._lock,
            interval_s=seconds(flush_interval),
            job_type=job_type,
            clock=self._clock,
            flushed=self._flushed,
        )
        try:
            self._fill(self._journal.recovered())
        except BaseException:
            self._journal.close()
            raise

    def _fill(self, found: Found) -> None:
        now_s, now_us = self._steady(), self._clock.now_us()
        for run, jobs in found.fresh:
            self._numbers.push(*run)
            self._waiting.extend(jobs)
        for tried in found.tried:
            if tried.was_held and tried.attempts >= self._settings.max_attempts:
                reason = "the process ended while it was being worked on"
                self._give_up(tried.job, tried.sequence, tried.attempts, reason)
            else:
                due_s = now_s + max(tried.due_us - now_us, 0) / 1e6
                self._retries.add(tried.job, tried.sequence, tried.attempts, due_s)
        for failed in found.failed:
            self._keep_failed(failed)

    # --- putting and taking ----------------------------------------------------------------------------------

    def put(self, job: Any, wait: Duration | None = None) -> None:
        """Adds a job. If the ring is full and blocks: RingFull after `wait`, if it is given."""
        if self._is_plain and len(self._waiting) + len(self._heap) < self._capacity:
            self._append(job)
            self._put += 1
            if self._takers_waiting:
                self._takers.wake_one()
            return
        drive(self._putting([job], wait, WaitingThread))

    def put_many(self, jobs: Iterable[Any], wait: Duration | None = None) -> None:
        """Adds all of them, in their order; as room comes, if the ring is full and blocks.

        RingFull has in its details how many were `put` before `wait` was over. A ring that rejects takes all or none.
        """
        drive(self._putting(listed(jobs), wait, WaitingThread))

    def take(self, max: int = 1, wait: Duration | None = None) -> JobBatch:
        """Between one and `max` jobs, as soon as there is one; an empty batch if there is none until `wait` is over.

        Jobs to be tried again come first. RingClosed once the ring is closed.
        """
        if max == 1 and self._is_plain and not self._heap:
            batch = JobBatch(self, [])
            self._in_flight.add(batch)
            try:
                batch.jobs = [self._popleft()]
            except IndexError:
                self._discard(batch)
            else:
                self._taken += 1
                if self._putters_waiting:
                    self._putters.wake_one()
                return batch
        taken: JobBatch = drive(self._taking(max, wait, WaitingThread))
        return taken

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
        running = self.start(handler, workers, batch, kind=kind, until_idle=until_idle)
        try:
            running.join()
        except BaseException:
            running.stop()
            raise
        finally:
            with self._lock:
                self._workers.remove(running)

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
        from penstock.ring.starting import start

        self._check_open()
        running = start(self, handler, workers, batch, kind, until_idle)
        with self._lock:
            self._workers.append(running)
        return running

    def _take_for(self, work: Work) -> JobBatch:
        taken: JobBatch = drive(self._taking(work.batch_max, work.until_idle, WaitingThread, work))
        return taken

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
            gone = self._failed.pop(None)
            if self._journal is not None:
                self._journal.done([(failed.sequence, 1) for failed in gone])
        return len(gone)

    # --- the whole of it -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Jobs that wait, for their first attempt or another one."""
        return len(self._waiting) + len(self._heap)

    def join(self, wait: Duration | None = None) -> bool:
        """Until every job is acknowledged or has failed; False if `wait` was over before."""
        return bool(drive(self._joining(wait, WaitingThread)))

    def flush(self) -> None:
        """Everything put and answered for before is on disk when this returns. Without a journal: nothing to do."""
        if self._journal is not None:
            self._journal.flush()

    def _flushed(self) -> None:
        if self._putters_waiting:
            self._putters.wake_all()

    def close(self, wait: Duration | None = None) -> None:
        """Nothing is put or taken any more; workers finish what they hold, at most for `wait`; the journal is synced.

        Jobs that are left are in the journal, if there is one, and gone if not: `join` first to have them done.
        """
        with self._lock:
            self._is_plain = False
            self._is_closed = True
            workers = list(self._workers)
        for line in (self._takers, self._putters, self._joiners):
            line.wake_all()
        for some in workers:
            some.stop(wait)
        if self._journal is not None:
            self._journal.close()

    def __enter__(self) -> Ring:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def stats(self) -> RingStats:
        """What is in it, how fast it goes, and why it is slow: cheap enough to be asked every second."""
        now_s = self._steady()
        with self._lock:
            counts = Counts(self._put, self._taken, self._acked)
            put_per_s, acked_per_s = self._rates.per_second(now_s, counts)
            began = [began_s for some in self._workers for began_s in some.began_s()]
            held = sum(len(batch) - len(batch._settled or ()) for batch in list(self._in_flight))
            stats = RingStats(
                capacity=self._capacity,
                waiting=len(self._waiting),
                in_flight=held,
                delayed=len(self._heap),
                failed=len(self._failed),
                put=counts.put,
                taken=counts.taken,
                acked=counts.acked,
                retried=self._retried,
                rejected=self._rejected,
                dropped=self._dropped,
                failed_dropped=self._failed.dropped,
                put_per_s=put_per_s,
                acked_per_s=acked_per_s,
                put_waited_s=self._put_waited_s,
                take_waited_s=self._take_waited_s,
                handled_s=self._handled_s,
                handled_batches=self._handled_batches,
                workers=sum(some.count for some in self._workers),
                handling_s_max=max((now_s - one for one in began), default=0.0),
                journal=None if self._journal is None else self._journal.stats(),
                last_error=self._last_error,
                why_slow="",
            )
        return replace(stats, why_slow=why_slow(stats, now_s - self._made_s))
