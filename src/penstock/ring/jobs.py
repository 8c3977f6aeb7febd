"""The jobs of a ring: where each is, who waits for it, and what becomes of it.

    put ─► waiting ─ take ─► in flight ─ ack ─► gone
              ▲                  │
              └── retries ◄──────┼─ retry, if attempts are left
                                 └─ fail, or none left ─► failed

Bounds: nothing is put while waiting + retries ≥ capacity, but for one more by each thread that puts at the same moment;
in flight, what takers asked for; failed ≤ failed_max. What is retried or redriven goes back whether there is room or
not, since it can go nowhere else. So there are never more jobs than capacity + in flight at its most + failed_max + the
threads that put. An empty ring holds nothing but itself; a journal adds what its own bounds say.

What is shared and touched without the lock is one deque (`_waiting`) and one set (`_in_flight`), by operations that
each happen as a whole: append, popleft, add, remove. A batch is in flight before its job leaves `_waiting`, so a job is
always in one of them. All else, and everything with a journal, is under the lock. The counters of the quick way are
for people: `join` and the bounds do not go by them.

Ctrl-C, or whatever else one thread may raise in another, comes behind a call, at the start of one, or at the next turn
of a loop. So what belongs together is done without these in between (`_leaving`), or undone: whoever is interrupted has
put all or nothing, and taken nothing. A second one, while the first is being dealt with, is not provided for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat, starmap
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Any

from penstock.clock import Clock
from penstock.errors import InvalidInput, PenstockError, RingClosed, RingFull
from penstock.ring.batch import JobBatch
from penstock.ring.failed import FailedJob, FailedJobs
from penstock.ring.portions import Portions
from penstock.ring.retries import Retries, Retry
from penstock.ring.runs import Runs
from penstock.ring.settings import Duration, RingSettings, seconds, whole
from penstock.ring.stats import Counts, jobs_wait
from penstock.ring.waiting import Line, Waiter, Waiting

if TYPE_CHECKING:
    from penstock.ring.journal import Journal
    from penstock.ring.workers import Work

TAKE_MAX = 1 << 24


class Jobs:
    """What `Ring`, its batches and its workers share; not for users."""

    # Not for the memory: with more than 30 attributes an object without them is slower to look at.
    __slots__ = (
        "__weakref__",
        "_acked_before",
        "_append",
        "_capacity",
        "_cleared",
        "_clock",
        "_dropped",
        "_failed",
        "_given_up",
        "_heap",
        "_hold",
        "_in_flight",
        "_is_closed",
        "_is_plain",
        "_joiners",
        "_joiners_waiting",
        "_journal",
        "_last_error",
        "_leaving",
        "_lock",
        "_numbers",
        "_popleft",
        "_put",
        "_put_waited_s",
        "_putters",
        "_putters_waiting",
        "_recovered",
        "_rejected",
        "_retried",
        "_retries",
        "_settings",
        "_steady",
        "_take_waited_s",
        "_takers",
        "_takers_waiting",
        "_waiting",
    )

    def __init__(self, settings: RingSettings, clock: Clock, steady: Callable[[], float], *, is_plain: bool) -> None:
        """`steady` are seconds that only go forward."""
        self._settings = settings
        self._clock = clock
        self._steady = steady
        self._capacity = settings.capacity
        self._lock = Lock()
        self._waiting: deque[Any] = deque()
        self._append = self._waiting.append
        self._popleft = self._waiting.popleft
        # Jobs as they leave; IndexError if there is none. To go through it takes no call.
        self._leaving = starmap(self._popleft, repeat(()))
        self._in_flight: set[JobBatch] = set()
        self._hold = self._in_flight.add
        self._retries = Retries()
        self._heap = self._retries.heap
        self._failed = FailedJobs(settings.failed_max)
        self._takers, self._putters, self._joiners = Line(), Line(), Line()
        # Looked at by everybody who puts or takes.
        self._takers_waiting = self._takers.waiters
        self._putters_waiting = self._putters.waiters
        self._joiners_waiting = self._joiners.waiters
        self._journal: Journal | None = None
        self._numbers = Runs()
        # Open and without a journal: the quick way is free.
        self._is_plain = is_plain
        self._is_closed = False
        # Acknowledgements are not counted: whatever came, and is nowhere else, has been acknowledged.
        self._put = self._recovered = self._cleared = self._given_up = self._acked_before = 0
        self._retried = self._rejected = self._dropped = 0
        self._put_waited_s = self._take_waited_s = 0.0
        self._last_error: str | None = None

    # --- putting -------------------------------------------------------------------------------------------

    def _putting(self, jobs: list[Any], wait: Duration | None, waiter: Callable[[], Waiter]) -> Waiting:
        until_s = None if wait is None else self._steady() + self._put_wait_s(wait)
        portions = None if self._journal is None else Portions(self._journal.encode, jobs)
        done = self._put_now(jobs, 0, portions)
        try:
            while done < len(jobs):
                waiting, was_woken = waiter(), False
                began_s = self._steady()
                try:
                    self._putters.join(waiting)
                    done += self._put_now(jobs, done, portions)
                    left_s = None if until_s is None else until_s - began_s
                    if done < len(jobs) and (left_s is None or left_s > 0):
                        was_woken = yield waiting, left_s
                finally:
                    if not was_woken:
                        try:
                            self._putters_waiting.remove(waiting)
                        except ValueError:
                            self._putters.wake_one()
                    waited_s = self._steady() - began_s
                    self._put_waited_s += waited_s
                if not was_woken:
                    done += self._put_now(jobs, done, portions)
                    if done < len(jobs):
                        raise self._refused(len(jobs), done)
        except PenstockError as error:
            # Whatever went wrong while it waited, some may have gone in before.
            error.details.setdefault("put", done)
            raise
        finally:
            if self._putters_waiting and self._room() > 0:
                self._putters.wake_one()

    def _put_wait_s(self, wait: Duration) -> float:
        wait_s = seconds(wait)
        if wait_s and self._settings.when_full != "block":
            raise InvalidInput(
                f'a put waits for room only with when_full="block", and this ring has "{self._settings.when_full}": '
                "it takes no `wait`"
            )
        return wait_s

    def _put_now(self, jobs: list[Any], done: int, portions: Portions | None) -> int:
        """How many more of them went in."""
        with self._lock:
            self._check_open()
            if self._journal is not None:
                self._journal.check(can_write=True)
            wanted = len(jobs) - done
            room = max(self._room(), 0)
            if self._settings.when_full == "block":
                count = min(room, wanted)
                if count and self._journal is not None and portions is not None:
                    count = portions.fitting(count, self._journal.room_bytes(is_begun=done > 0))
                if count:
                    self._add(jobs if count == len(jobs) else jobs[done : done + count], portions)
            else:
                count = self._put_at_once(jobs, room, portions)
        if count and self._takers_waiting:
            self._takers.wake_one()
        return count

    def _put_at_once(self, jobs: list[Any], room: int, portions: Portions | None) -> int:
        """All of them, or RingFull."""
        if not jobs:
            return 0
        if self._journal is not None and portions is not None and portions.size > self._journal.room_bytes():
            self._journal.make_room()
            raise self._refused(len(jobs), 0, portions.size)
        if len(jobs) <= room:
            self._add(jobs, portions)
            return len(jobs)
        if self._settings.when_full == "reject":
            raise self._refused(len(jobs), 0)
        return self._put_over(jobs, portions)

    def _put_over(self, jobs: list[Any], portions: Portions | None) -> int:
        """All of them, in the place of the oldest ones; of more than there is room for, the last."""
        kept = jobs[-self._capacity :]
        if self._journal is not None and len(kept) < len(jobs):
            portions = Portions(self._journal.encode, kept)
        self._put += len(jobs) - len(kept)
        self._dropped += len(jobs) - len(kept)
        while self._room() < len(kept):
            self._drop_oldest()
        self._add(kept, portions)
        return len(jobs)

    def _drop_oldest(self) -> None:
        number = self._numbers.first(1) if self._journal is not None else []
        try:
            for _ in self._leaving:
                self._numbers.gone += 1
                break
        except IndexError:
            retry = self._retries.drop_oldest()
            if retry is None:
                # Takers were quicker.
                return
            number = [(retry.sequence, 1)]
        self._dropped += 1
        if self._journal is not None:
            self._journal.done(number)

    def _add(self, jobs: list[Any], portions: Portions | None) -> None:
        """The next ones of `portions`."""
        count, waiting = len(jobs), self._waiting
        if self._journal is not None and portions is not None:
            unused = self._journal.next_number
            try:
                first, _ = self._journal.put(portions.next(count))
                self._numbers.push(first, count)
                # No call between the two: every job that waits has its number.
                waiting += jobs
            except BaseException:
                if given := self._journal.next_number - unused:
                    # They are in the journal, and nowhere else.
                    self._journal.done([(unused, given)])
                raise
        else:
            waiting += jobs
        self._put += count

    def _room(self) -> int:
        if self._is_behind():
            return 0
        return self._capacity - len(self._waiting) - len(self._heap)

    def _is_behind(self) -> bool:
        return self._journal is not None and self._journal.is_behind

    def _refused(self, wanted: int, put: int, size: int = 0) -> RingFull:
        """`size`: of what is put, if it is that."""
        self._rejected += wanted - put
        message = f"{jobs_wait(len(self._waiting))}, and {len(self._heap):,} for another attempt; "
        message += f"there is room for {self._capacity:,}"
        if self._journal is not None and (size or self._journal.room_bytes(is_begun=put > 0) < 0):
            message = "the journal can't be written as fast as jobs come"
            if size:
                message += f": {size:,} bytes at once, and it has room for {max(self._journal.room_bytes(), 0):,} now"
        return RingFull(message, put=put, capacity=self._capacity)

    # --- taking --------------------------------------------------------------------------------------------

    def _taking(
        self,
        count_max: int,
        wait: Duration | None,
        waiter: Callable[[], Waiter],
        work: Work | None = None,
        batch: JobBatch | None = None,
    ) -> Waiting:
        """Into `batch`, if whoever takes has one already: then it can be given back, however this ends."""
        whole("max", count_max, 1, TAKE_MAX)
        until_s = None if wait is None else self._steady() + seconds(wait)
        if batch is None:
            batch = JobBatch(self, [])
        self._take_now(batch, count_max)
        try:
            while not batch:
                waiting, was_woken = waiter(), False
                began_s = self._steady()
                try:
                    self._takers.join(waiting)
                    self._take_now(batch, count_max)
                    is_late = until_s is not None and began_s >= until_s
                    if batch or is_late or (work is not None and work.is_over):
                        break
                    was_woken = yield waiting, self._until_due(began_s, until_s)
                finally:
                    if not was_woken:
                        try:
                            self._takers_waiting.remove(waiting)
                        except ValueError:
                            # A call that came meanwhile is for the next one.
                            self._takers.wake_one()
                    waited_s = self._steady() - began_s
                    self._take_waited_s += waited_s
                self._take_now(batch, count_max)
        finally:
            self._after_taking()
        return batch

    def _until_due(self, now_s: float, until_s: float | None) -> float | None:
        due_s = self._retries.next_due_s()
        if due_s is None:
            return None if until_s is None else until_s - now_s
        return (due_s if until_s is None else min(due_s, until_s)) - now_s

    def _take_now(self, batch: JobBatch, count_max: int) -> None:
        with self._lock:
            self._check_open()
            tried: list[Retry] = []
            jobs: list[Any] = []
            batch.jobs = jobs
            try:
                self._hold(batch)
                if self._heap:
                    self._retries.due(self._steady(), count_max, tried)
                    jobs += [retry.job for retry in tried]
                fresh = min(count_max - len(tried), len(self._waiting))
                if self._journal is not None:
                    batch._runs = [(retry.sequence, 1) for retry in tried] + self._numbers.first(fresh)
                leaving = starmap(self._popleft, repeat((), fresh))
                try:
                    # What was popped is kept in the list also if others were quicker with the rest. That is so without
                    # a journal only; with one, no call between the two.
                    jobs += leaving
                    self._numbers.gone += fresh
                except IndexError:
                    pass
                if tried:
                    batch._attempts = [retry.attempts + 1 for retry in tried] + [1] * (len(jobs) - len(tried))
                if not jobs:
                    batch._runs = None
                    self._discard(batch)
                elif self._journal is not None:
                    assert batch._runs is not None
                    self._journal.taken(batch._runs, batch._attempts)
            except BaseException:
                self._undo(batch, tried)
                raise

    def _undo(self, batch: JobBatch, tried: list[Retry]) -> None:
        """Of a take that was interrupted anywhere, under the lock."""
        fresh = batch.jobs[len(tried) :]
        batch.jobs = [*(retry.job for retry in tried), *fresh]
        batch._attempts = [*(retry.attempts + 1 for retry in tried), *repeat(1, len(fresh))]
        if self._journal is not None and batch._runs is None:
            batch._runs = [(retry.sequence, 1) for retry in tried]
        self._restore(batch)

    def _restore(self, batch: JobBatch) -> None:
        """Nobody has seen its jobs: they are due before all others, in their order, and have not been tried."""
        now_us = self._clock.now_us()
        # Numbers that were not used yet are of jobs that still wait.
        for job, sequence, attempts in zip(batch.jobs, batch._sequences(), batch.attempts, strict=False):
            self._retries.add(job, sequence, attempts - 1, -inf)
            if self._journal is not None:
                self._journal.retried(sequence, attempts - 1, now_us)
        self._in_flight.discard(batch)

    def _give_back(self, batch: JobBatch) -> None:
        """Of a take that was interrupted, if there is something in it."""
        with self._lock:
            if batch in self._in_flight:
                self._restore(batch)
        if self._takers_waiting:
            self._takers.wake_one()
        self._wake_joiners()

    def _discard(self, batch: JobBatch) -> None:
        """Of a batch that nothing came into. Who joins may have seen it, and thought that there was something."""
        self._in_flight.discard(batch)
        if self._joiners.waiters:
            self._wake_joiners()

    def _after_taking(self) -> None:
        """Whoever is next in either line has a turn, if there is something for it."""
        if self._putters_waiting and self._room() > 0:
            self._putters.wake_one()
        if self._takers_waiting and (self._waiting or self._heap):
            # Also for a job that is not due yet: who leaves may have been the only one to sleep no longer than until
            # then.
            self._takers.wake_one()

    # --- answers -------------------------------------------------------------------------------------------

    def _ack(self, batch: JobBatch, positions: Sequence[int]) -> None:
        with self._lock:
            self._check_answerable()
            self._forget(batch, positions)
            self._settle(batch, positions)
        self._wake_joiners()

    def _retry(self, batch: JobBatch, positions: Sequence[int], delay: Duration | None, reason: str) -> None:
        delay_s = None if delay is None else seconds(delay)
        is_first = False
        with self._lock:
            self._check_answerable()
            now_s = self._steady()
            for at in positions:
                tries, sequence, job = batch._attempt(at), batch._sequence(at), batch.jobs[at]
                if tries >= self._settings.max_attempts:
                    self._given_up += 1
                    self._give_up(job, sequence, tries, reason or f"tried {tries} times")
                    continue
                self._retried += 1
                later_s = self._settings.backoff.delay_us(tries) / 1e6 if delay_s is None else delay_s
                is_first |= self._retries.add(job, sequence, tries, now_s + later_s)
                if self._journal is not None:
                    self._journal.retried(sequence, tries, self._clock.now_us() + int(later_s * 1e6))
            if reason:
                self._last_error = reason
            self._settle(batch, positions)
        if is_first:
            # Somebody who sleeps may have to wake up earlier than it meant to.
            self._takers.wake_one()
        self._wake_joiners()

    def _fail(self, batch: JobBatch, positions: Sequence[int], reason: str) -> None:
        with self._lock:
            self._check_answerable()
            self._given_up += len(positions)
            for at in positions:
                self._give_up(batch.jobs[at], batch._sequence(at), batch._attempt(at), reason)
            if reason:
                self._last_error = reason
            self._settle(batch, positions)
        self._wake_joiners()

    def _check_answerable(self) -> None:
        if self._journal is not None:
            self._journal.check()

    def _settle(self, batch: JobBatch, positions: Sequence[int]) -> None:
        if batch._note_settled(positions):
            self._in_flight.discard(batch)

    def _forget(self, batch: JobBatch, positions: Sequence[int]) -> None:
        if self._journal is None:
            return
        assert batch._runs is not None
        if len(positions) == len(batch.jobs):
            self._journal.done(batch._runs)
        else:
            self._journal.done([(batch._sequence(at), 1) for at in positions])

    def _give_up(self, job: Any, sequence: int, attempts: int, reason: str) -> None:
        failed = FailedJob(job, attempts, reason, self._clock.now_us(), sequence)
        if self._journal is not None:
            self._journal.failed(sequence, attempts, failed.failed_at, reason)
        self._keep_failed(failed)

    def _keep_failed(self, failed: FailedJob) -> None:
        gone = self._failed.add(failed)
        if gone is not None and self._journal is not None:
            self._journal.done([(gone.sequence, 1)])

    def _counts(self) -> Counts:
        """Under the lock; those who do without it go on meanwhile, so this may be of a moment ago."""
        put = self._put
        # In the order in which jobs go: one that is taken meanwhile counts twice, and not as acknowledged.
        waiting = len(self._waiting)
        held = sum(len(batch) - len(batch._settled or ()) for batch in list(self._in_flight))
        elsewhere = held + waiting + len(self._heap) + len(self._failed)
        gone = self._dropped + self._failed.dropped + self._cleared
        acked = max(put + self._recovered - elsewhere - gone, self._acked_before)
        self._acked_before = acked
        return Counts(put, acked + self._retried + self._given_up + held, acked, held)

    # --- joining -------------------------------------------------------------------------------------------

    def _joining(self, wait: Duration | None, waiter: Callable[[], Waiter]) -> Waiting:
        until_s = None if wait is None else self._steady() + seconds(wait)
        while True:
            waiting, was_woken = waiter(), False
            self._joiners.join(waiting)
            try:
                if self._is_idle():
                    return True
                self._check_open()
                left_s = None if until_s is None else until_s - self._steady()
                if left_s is None or left_s > 0:
                    was_woken = yield waiting, left_s
            finally:
                # All are woken at once: nobody misses a call that came to another.
                self._joiners.leave(waiting)
            if not was_woken:
                return self._is_idle()

    def _is_idle(self) -> bool:
        with self._lock:
            # Under the lock a job can only go from waiting to in flight, and is there before it leaves.
            return self._seems_idle()

    def _seems_idle(self) -> bool:
        return not self._heap and not self._waiting and not self._in_flight

    def _wake_joiners(self) -> None:
        if self._joiners.waiters and self._seems_idle():
            self._joiners.wake_all()

    def _check_open(self) -> None:
        if self._is_closed:
            raise RingClosed("the ring is closed")
        if self._journal is not None:
            self._journal.check()
