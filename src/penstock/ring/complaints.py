"""Batches that a handler failed with, in the log of the program: not each of them, or it would be full of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from threading import Lock

# Of each ring, at most one in so long.
QUIET_S = 1.0
_log = logging.getLogger("penstock.ring")


class Complaints:
    def __init__(self, steady: Callable[[], float]) -> None:
        """`steady` are seconds that only go forward."""
        self._steady = steady
        self._lock = Lock()
        self._next_s = -inf
        self._unshown = 0

    def failed(self, jobs: int, reason: str, error: BaseException | None = None, traceback: str = "") -> None:
        """The traceback is that of `error`, or, from another process, a text."""
        with self._lock:
            now_s = self._steady()
            if now_s < self._next_s:
                self._unshown += 1
                return
            self._next_s = now_s + QUIET_S
            unshown, self._unshown = self._unshown, 0
        before = f" (and {_batches(unshown)} before, not shown)" if unshown else ""
        shown = f"\n{traceback.rstrip()}" if traceback else ""
        many = "1 job" if jobs == 1 else f"{jobs:,} jobs"
        _log.warning("a handler failed with a batch of %s: %s%s%s", many, reason, before, shown, exc_info=error)

    def end(self) -> None:
        """Nothing more will come: says how many were not shown."""
        with self._lock:
            unshown, self._unshown = self._unshown, 0
        if unshown:
            _log.warning("handlers failed with %s more, not shown", _batches(unshown))


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count:,} batches"
