"""The delayed-retry channel: jobs that have been tried, by when they are due again."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import repeat, starmap
from typing import Any, NamedTuple


class Retry(NamedTuple):
    """`order` is that in which they came, so that jobs themselves are never compared."""

    due_s: float
    order: int
    job: Any
    sequence: int
    attempts: int


class Retries:
    """Under the ring's lock."""

    def __init__(self) -> None:
        # Read without the lock: empty means that nothing can be due.
        self.heap: list[Retry] = []
        self._came = 0
        # Those that are due first, as they are asked for; IndexError if there is none.
        self._leaving = starmap(heappop, repeat((self.heap,)))

    def add(self, job: Any, sequence: int, attempts: int, due_s: float) -> bool:
        """Whether it is due before all others."""
        self._came += 1
        retry = Retry(due_s, self._came, job, sequence, attempts)
        heappush(self.heap, retry)
        return self.heap[0] is retry

    def add_run(self, jobs: Sequence[Any], first: int, attempts: int, due_s: float) -> None:
        """Jobs with numbers that follow each other, due behind all that are there."""
        assert not self.heap or self.heap[-1].due_s <= due_s
        orders = range(self._came + 1, self._came + len(jobs) + 1)
        numbers = range(first, first + len(jobs))
        # In order already, so it stays a heap.
        self.heap += map(Retry._make, zip(repeat(due_s), orders, jobs, numbers, repeat(attempts), strict=False))
        self._came += len(jobs)

    def due(self, now_s: float, count_max: int, found: list[Retry]) -> None:
        """Those that are, at most so many; each is in the heap or in `found`, also for whoever is interrupted."""
        heap = self.heap
        if not heap or heap[0].due_s > now_s:
            return
        # From one to the other without a call, behind which Ctrl-C could come.
        for retry in self._leaving:
            found += (retry,)
            if len(found) >= count_max or not heap or heap[0].due_s > now_s:
                return

    def next_due_s(self) -> float | None:
        heap = self.heap
        try:
            return heap[0].due_s
        except IndexError:
            return None

    def drop_oldest(self) -> Retry | None:
        """The one that came first, wherever it stands."""
        if not self.heap:
            return None
        oldest = min(self.heap, key=lambda retry: retry.order)
        self.heap.remove(oldest)
        heapify(self.heap)
        return oldest
