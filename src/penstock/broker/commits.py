"""When messages of a replicated partition were on all the disks they had to be on, and on whose: for their traces.

Kept in memory, for as many steps of the log as there is room for: it is of use while somebody looks for what is slow.
Whoever follows keeps it as well, and has it when it leads.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from threading import Lock
from typing import NamedTuple

_STEPS_MAX = 10_000
_UNKNOWN = 0


class Commit(NamedTuple):
    """Everything below `offset` was committed at that time."""

    offset: int
    time_us: int
    nodes: tuple[str, ...]


class Commits:
    """Added to by the event loop, read by other threads. Invariant: offsets ascend."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._offsets = array("q")
        self._times = array("q")
        # From which offset on it was these nodes.
        self._since = array("q")
        self._nodes: list[tuple[str, ...]] = []

    @property
    def last(self) -> int:
        """0 if there is none."""
        return self._offsets[-1] if self._offsets else 0

    def add(self, offset: int, time_us: int, nodes: tuple[str, ...]) -> None:
        if self._offsets and offset <= self._offsets[-1]:
            return
        with self._lock:
            self._append(offset, time_us)
            if not self._nodes or self._nodes[-1] != nodes:
                self._since.append(offset)
                self._nodes.append(nodes)

    def skip(self, offset: int) -> None:
        """It was committed so far, and nobody here knows when."""
        if self._offsets and offset <= self._offsets[-1]:
            return
        with self._lock:
            if self._times and self._times[-1] == _UNKNOWN:
                self._offsets[-1] = offset
            else:
                self._append(offset, _UNKNOWN)

    def of(self, offset: int) -> Commit | None:
        """The step with which this message was committed; None if that is not known, or is to come."""
        with self._lock:
            at = bisect_right(self._offsets, offset)
            if not 0 < at < len(self._offsets) or self._times[at] == _UNKNOWN:
                return None
            step = self._offsets[at]
            nodes = self._nodes[bisect_right(self._since, step) - 1]
            return Commit(step, self._times[at], nodes)

    def clear(self) -> None:
        """Others may come to the same offsets. What is added first then says nothing of what was before."""
        with self._lock:
            for each in (self._offsets, self._times, self._since, self._nodes):
                del each[:]

    def _append(self, offset: int, time_us: int) -> None:
        self._offsets.append(offset)
        self._times.append(time_us)
        if len(self._offsets) >= 2 * _STEPS_MAX:
            del self._offsets[:_STEPS_MAX], self._times[:_STEPS_MAX]
            # The last of those before the first step that is left is what it was then.
            over = max(0, bisect_right(self._since, self._offsets[0]) - 1)
            del self._since[:over], self._nodes[:over]
