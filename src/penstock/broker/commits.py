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
            self._offsets.append(offset)
            self._times.append(time_us)
            if not self._nodes or self._nodes[-1] != nodes:
                self._since.append(offset)
                self._nodes.append(nodes)
            if len(self._offsets) >= 2 * _STEPS_MAX:
                self._forget_first(len(self._offsets) - _STEPS_MAX)

    def of(self, offset: int) -> Commit | None:
        """The step with which this message was committed; None if that was before, or is forgotten, or is to come."""
        with self._lock:
            at = bisect_right(self._offsets, offset)
            if not 0 < at < len(self._offsets):
                return None
            step = self._offsets[at]
            nodes = self._nodes[bisect_right(self._since, step) - 1]
            return Commit(step, self._times[at], nodes)

    def cut(self, offset: int) -> None:
        """The log ends there: others may come to the offsets beyond."""
        with self._lock:
            self._keep(bisect_right(self._offsets, offset))

    def clear(self) -> None:
        """What is added next says nothing of what was before."""
        with self._lock:
            self._keep(0)

    def _keep(self, count: int) -> None:
        del self._offsets[count:], self._times[count:]
        kept = bisect_right(self._since, self.last) if count else 0
        del self._since[kept:], self._nodes[kept:]

    def _forget_first(self, count: int) -> None:
        del self._offsets[:count], self._times[:count]
        # The last of those that were before the first step that is left is what it was then.
        count = bisect_right(self._since, self._offsets[0]) - 1
        del self._since[:count], self._nodes[:count]
