"""Threads that take jobs and hand them to a handler, until they are told to stop or the ring is closed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from threading import current_thread, get_ident
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from penstock.errors import RingClosed
from penstock.handlers import reason_of
from penstock.ring.batch import JobBatch
from penstock.ring.handlers import Handler, check_returned
from penstock.ring.jobs import TAKE_MAX
from penstock.ring.settings import Duration, seconds, whole
from penstock.ring.waiting import JoinableThread

if TYPE_CHECKING:
    from penstock.ring.ring import Ring

WORKERS_MAX = 1_000
IDLE_S_MIN = 0.001


class Workers(Protocol):
    """Started by `Ring.start`; each has `count` of them at work."""

    count: int
    # All of them: then the ring does not know them any more.
    have_ended: bool

    def stop(self, wait: Duration | None = None) -> bool:
        """They finish what they hold, and end; False if they have not after `wait`, or if a handler asks."""

    def join(self) -> None:
        """Until all have ended; raises what one of them could not go on after."""

    def began_s(self) -> Iterable[float]:
        """When those began that are at work on a batch, by the ring's own seconds."""


class WorkerThreads(Workers, Protocol):
    """They are stopped and joined, too, if `begin` was interrupted."""

    def begin(self) -> None: ...


class Work:
    """What threads and tasks have in common: what is done with a batch, and with what comes of it."""

    def __init__(self, ring: Ring, count: int, batch: int, until_idle: Duration | None) -> None:
        self.ring = ring
        self.count = whole("workers", count, 1, WORKERS_MAX)
        self.batch_max = whole("batch", batch, 1, TAKE_MAX)
        # Not less, so that those who wait for others to be done do not spin.
        self.until_idle = None if until_idle is None else timedelta(seconds=max(seconds(until_idle), IDLE_S_MIN))
        self.is_over = False
        self._began_s: dict[JobBatch, float] = {}

    def began_s(self) -> Iterable[float]:
        return list(self._began_s.values())

    def is_idle(self, batch: JobBatch) -> bool:
        """Whether a take that brought this is the last one."""
        return self.is_over or (self.until_idle is not None and not batch and self.ring._is_idle())

    def begin(self, batch: JobBatch) -> None:
        self._began_s[batch] = self.ring._steady()
        self.ring._handling[batch] = get_ident()

    def end(self, batch: JobBatch, error: BaseException | None) -> None:
        """Answers for what the handler did not."""
        began_s = self._began_s.pop(batch)
        self.ring._note_handled(self.ring._steady() - began_s)
        try:
            if batch.is_settled:
                return
            if error is None:
                batch.ack()
            else:
                batch.retry(reason=reason_of(error))
        finally:
            del self.ring._handling[batch]

    def failed(self, batch: JobBatch, error: Exception) -> None:
        """The handler raised it."""
        self.ring._complaints.failed(len(batch), reason_of(error), error)
        self.end(batch, error)

    def stop_soon(self) -> None:
        self.is_over = True
        self.ring._takers.wake_all()

    def ended(self, workers: Workers) -> None:
        """The last one of them, by itself or because it was told to."""
        workers.have_ended = True
        self.ring._remove(workers)


class Threads:
    """A thread each."""

    def __init__(self, work: Work, handler: Handler) -> None:
        self._work = work
        self._handler = handler
        self.count = work.count
        self._error: BaseException | None = None
        self._threads = [JoinableThread(self._run, f"penstock-ring-{number}") for number in range(work.count)]
        self._at_work = list(self._threads)
        self.have_ended = False

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        try:
            while not self._work.is_over:
                batch = self._work.ring._take_for(self._work)
                if batch:
                    self._handle(batch)
                elif self._work.is_idle(batch):
                    return
        except RingClosed:
            return
        except BaseException as error:
            self._error = error
            self._work.stop_soon()
        finally:
            self._at_work.pop()
            if not self._at_work:
                self._work.ended(self)

    def _handle(self, batch: JobBatch) -> None:
        self._work.begin(batch)
        try:
            check_returned(self._handler(batch))
        except Exception as error:
            self._work.failed(batch, error)
        except BaseException as error:
            self._work.end(batch, error)
            raise
        else:
            self._work.end(batch, None)

    def began_s(self) -> Iterable[float]:
        return self._work.began_s()

    def stop(self, wait: Duration | None = None) -> bool:
        self._work.stop_soon()
        if current_thread() in self._threads:
            # A handler, which others may be waiting for: it can't wait for them.
            return False
        until_s = None if wait is None else monotonic() + seconds(wait)
        for thread in self._threads:
            thread.join(None if until_s is None else max(until_s - monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error
