"""What tests of the ring need: time that moves when told, and journals on a disk in memory."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from threading import Thread
from time import monotonic
from typing import Any

from penstock.ring import Ring
from penstock.testing import ManualClock, MemoryFiles

# Only so that a test which would hang fails instead.
PATIENCE_S = 60.0


class Time(ManualClock):
    """A clock, and seconds that only go forward."""

    def __init__(self) -> None:
        super().__init__()
        self._began_us = self.now_us()

    def steady(self) -> float:
        return (self.now_us() - self._began_us) / 1e6


class QuietRing(Ring):
    """With a journal in small segments that is written by `flush` and `close` only."""

    _journal_options = {"segment_bytes_max": 4096, "compact_bytes_min": 8192}  # noqa: RUF012
    _is_written_behind = False


def ring_at(time: Time, *given: Any, **settings: Any) -> Ring:
    return Ring(*given, clock=time, steady=time.steady, **settings)


def quiet_ring(files: Any, time: Time | None = None, **settings: Any) -> QuietRing:
    time = time or Time()
    return QuietRing(journal=files, clock=time, steady=time.steady, **settings)


def killed(ring: Ring) -> None:
    """It gets no chance to write what it has not written."""
    ring._finalizer.detach()


def reopened(ring: Ring, files: MemoryFiles, time: Time | None = None, **settings: Any) -> QuietRing:
    """As the next process finds it after this one was killed."""
    killed(ring)
    return quiet_ring(MemoryFiles(files.disk.after_kill()), time, **settings)


def drained(ring: Ring) -> list[Any]:
    """All that can be taken now; nothing is answered for."""
    found: list[Any] = []
    while batch := ring.take(1000, wait=0):
        found += batch.jobs
    return found


class Started:
    """Threads that tell what went wrong in them."""

    def __init__(self, *works: Callable[[], Any]) -> None:
        self._errors: list[BaseException] = []
        self._threads = [Thread(target=self._run, args=(work,), daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:
            self._errors.append(error)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "it hangs"
        if self._errors:
            raise self._errors[0]


@contextlib.contextmanager
def hurried_switches() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def until_waiting(line: Any, count: int = 1) -> None:
    """Returns when so many stand in that line. They may not sleep yet, which makes no difference to who wakes them."""
    until_s = monotonic() + PATIENCE_S
    while len(line.waiters) < count:
        assert monotonic() < until_s, "nobody came to wait"
