"""Workers in processes of their own, for handlers that compute: each has a thread here that feeds it.

The thread takes a batch, sends its jobs, waits for the answers, and gives them to the batch: to the ring and its
journal the work is done here. A process that ends while it holds a batch is replaced, and the batch tried again.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from multiprocessing.util import Finalize
from threading import Lock, current_thread
from time import monotonic
from typing import Any

from penstock.errors import InvalidInput, RingClosed, WorkerFailed
from penstock.ring.batch import JobBatch
from penstock.ring.exchange import Outcome, Parcels, parcel_of
from penstock.ring.handlers import Handler
from penstock.ring.settings import Duration, seconds
from penstock.ring.spawned import TERMINATING_S, Ended, Spawned
from penstock.ring.waiting import JoinableThread
from penstock.ring.workers import Work


class Processes:
    """A process each. A coroutine function runs in one event loop of its process, a batch at a time."""

    def __init__(self, work: Work, handler: Handler, job_type: Any, *, is_async: bool) -> None:
        order = order_of(handler, job_type)
        self._work = work
        self.count = work.count
        self._error: BaseException | None = None
        self._feeders = [
            Feeder(work, lambda name: Spawned(order, is_async, name), f"penstock-ring-{number}", self)
            for number in range(work.count)
        ]
        self._at_work = list(self._feeders)
        self.have_ended = False
        # A program that ends without closing its ring leaves no process behind. Cancelled at their end: it keeps the
        # ring.
        self._finalizer = Finalize(self, end_all, (work, self._feeders, 0), exitpriority=0)

    def begin(self) -> None:
        for feeder in self._feeders:
            feeder.thread.start()

    def failed(self, error: BaseException) -> None:
        self._error = self._error or error
        self._work.stop_soon()

    def one_ended(self) -> None:
        self._at_work.pop()
        if not self._at_work:
            self._finalizer.cancel()
            self._work.ended(self)

    def began_s(self) -> Iterable[float]:
        return self._work.began_s()

    def stop(self, wait: Duration | None = None) -> bool:
        """After `wait` they are ended, and what they held is tried again: False if that was so. All have ended then."""
        return end_all(self._work, self._feeders, wait)

    def join(self) -> None:
        for feeder in self._feeders:
            feeder.thread.join()
        if self._error is not None:
            raise self._error


def order_of(handler: Handler, job_type: Any) -> bytes:
    """What a process needs to know, by name. InvalidInput if that can't be."""
    Parcels(job_type)
    for what, value in (("the handler", handler), ("the type of the jobs", job_type)):
        try:
            pickle.dumps(value)
        except Exception as error:
            raise InvalidInput(
                f"{what} can't be given to another process: {error}. "
                "It is to be defined at the top of a module that can be imported there"
            ) from error
    return pickle.dumps((handler, job_type))


def end_all(work: Work, feeders: Sequence[Feeder], wait: Duration | None) -> bool:
    until_s = None if wait is None else monotonic() + seconds(wait)
    work.stop_soon()
    late = _still_at_work(feeders, until_s)
    for feeder in late:
        feeder.terminate()
    for feeder in _still_at_work(late, monotonic() + TERMINATING_S):
        feeder.kill()
    _still_at_work(late, None)
    return not late


def _still_at_work(feeders: Sequence[Feeder], until_s: float | None) -> list[Feeder]:
    # The last one to end may be the one who clears up after all of them.
    others = [feeder for feeder in feeders if feeder.thread is not current_thread()]
    for feeder in others:
        feeder.thread.join(None if until_s is None else max(until_s - monotonic(), 0))
    return [feeder for feeder in others if feeder.thread.is_alive()]


class Feeder:
    """A thread and its process."""

    def __init__(self, work: Work, spawn: Callable[[str], Spawned], name: str, all_of_them: Processes) -> None:
        self._work = work
        self._spawn = spawn
        self._all = all_of_them
        self._child: Spawned | None = None
        # Between whoever aborts and a process that is just being started.
        self._lock = Lock()
        self._is_aborted = False
        self.thread = JoinableThread(self._run, name)

    def _run(self) -> None:
        try:
            while not self._work.is_over:
                # Before jobs are taken: if it can't be started they stay as they are.
                child = self._child or self._start()
                batch = self._work.ring._take_for(self._work)
                if batch:
                    self._handle(child, batch)
                elif self._work.is_idle(batch):
                    return
        except (RingClosed, Aborted):
            return
        except BaseException as error:
            # A process that is ended while it starts has not failed.
            if not (self._is_aborted and isinstance(error, WorkerFailed)):
                self._all.failed(error)
        finally:
            try:
                self._end()
            finally:
                self._all.one_ended()

    def _start(self) -> Spawned:
        with self._lock:
            if self._is_aborted:
                raise Aborted("the workers were stopped")
            self._child = child = self._spawn(self.thread.name)
        child.wait_ready()
        return child

    def _handle(self, child: Spawned, batch: JobBatch) -> None:
        self._work.begin(batch)
        try:
            parcel, unwritten = parcel_of(batch._attempts, batch.jobs)
            for at, reason in unwritten.items():
                self._work.ring._fail(batch, [at], reason)
            if not batch.is_settled:
                places = [at for at in range(len(batch)) if at not in unwritten] if unwritten else None
                self._apply(batch, places, self._outcome(child, parcel))
        except BaseException as error:
            self._work.end(batch, error)
            raise
        self._work.end(batch, None)

    def _outcome(self, child: Spawned, parcel: bytes) -> Outcome:
        try:
            return child.handle(parcel)
        except Ended as ended:
            self._end()
            if ended.was_given or self._work.is_over:
                return Outcome([], str(ended))
        # It had ended before there was something to do: nobody has begun with these jobs.
        try:
            return self._start().handle(parcel)
        except Ended as ended:
            self._end()
            return Outcome([], str(ended))

    def _apply(self, batch: JobBatch, places: list[int] | None, outcome: Outcome) -> None:
        ring = self._work.ring
        for answer in outcome.answers:
            positions = answer.positions if places is None else [places[at] for at in answer.positions]
            if answer.kind == "ack":
                ring._ack(batch, positions)
            elif answer.kind == "fail":
                ring._fail(batch, positions, answer.reason)
            else:
                delay = None if answer.delay_us is None else timedelta(microseconds=answer.delay_us)
                ring._retry(batch, positions, delay, answer.reason)
        if outcome.raised is not None:
            reason, traceback = outcome.raised
            ring._complaints.failed(len(batch), reason, traceback=traceback)
        elif outcome.error is not None and not self._is_aborted:
            ring._complaints.failed(len(batch), outcome.error)
        if outcome.error is not None:
            batch.retry(reason=outcome.error)

    def _end(self) -> None:
        child = self._child
        if child is not None:
            child.end()
            with self._lock:
                self._child = None

    def terminate(self) -> None:
        """Its process is ended by a signal. The thread gives back what it held, and ends too."""
        with self._lock:
            self._is_aborted = True
            if self._child is not None:
                self._child.terminate()

    def kill(self) -> None:
        with self._lock:
            if self._child is not None:
                self._child.kill()


class Aborted(Exception):
    """No other process is to be started."""
