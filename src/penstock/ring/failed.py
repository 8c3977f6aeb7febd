"""Jobs that nobody could do: kept until somebody looks, at most so many."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FailedJob:
    """`reason` is that of the last attempt; `failed_at` is in microseconds since 1970."""

    job: Any
    attempts: int
    reason: str
    failed_at: int
    # Its number in the journal; 0 without one.
    sequence: int = 0


class FailedJobs:
    """Under the ring's lock. Beyond `count_max` the oldest are dropped, and counted."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._jobs: deque[FailedJob] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, failed: FailedJob) -> FailedJob | None:
        """The one that had to go for it, if one had to."""
        self._jobs.append(failed)
        if len(self._jobs) <= self._count_max:
            return None
        self.dropped += 1
        return self._jobs.popleft()

    def all(self) -> list[FailedJob]:
        return list(self._jobs)

    def pop(self, count: int | None) -> list[FailedJob]:
        """The oldest ones."""
        wanted = len(self._jobs) if count is None else min(count, len(self._jobs))
        return [self._jobs.popleft() for _ in range(wanted)]
