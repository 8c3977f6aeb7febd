"""When messages of a replicated partition were on all the disks they had to be on, and on whose: for their traces.

Kept in memory, for as many steps of the log as there is room for: it is of use while somebody looks for what is slow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

_STEPS_MAX = 10_000


class Commit(NamedTuple):
    """Everything below `offset` was committed at that time."""

    offset: int
    time_us: int
    nodes: tuple[str, ...]


class Commits:
    """Invariant: offsets ascend."""

    def __init__(self) -> None:
        self._steps: deque[Commit] = deque(maxlen=_STEPS_MAX)

    def add(self, offset: int, time_us: int, nodes: tuple[str, ...]) -> None:
        if not self._steps or offset > self._steps[-1].offset:
            self._steps.append(Commit(offset, time_us, nodes))

    def of(self, offset: int) -> Commit | None:
        """The step with which this message was committed; None if that was before, or is forgotten, or is to come."""
        at = bisect_right(self._steps, offset, key=lambda step: step.offset)
        return self._steps[at] if 0 < at < len(self._steps) else None
