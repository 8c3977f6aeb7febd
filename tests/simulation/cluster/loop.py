"""Time in the simulation: a heap of what happens when. Nothing here waits."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

MS = 1_000
SECOND = 1_000_000


class Loop:
    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    @property
    def steps(self) -> int:
        return self._count

    def after(self, delay: float, do: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heappush(self._heap, (self.now + int(delay), self._count, do, args))

    def run_until(self, end: int, is_done: Callable[[], bool] | None = None) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, do, args = heappop(heap)
            do(*args)
            if is_done is not None and is_done():
                return
        self.now = max(self.now, end)
