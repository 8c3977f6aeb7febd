"""Numbers in the order in which their jobs wait, as runs of those that follow each other."""

from __future__ import annotations

from collections import deque

from penstock.ring.batch import Run


class Runs:
    """First in, first out."""

    def __init__(self) -> None:
        self._runs: deque[Run] = deque()

    def push(self, first: int, count: int) -> None:
        if self._runs:
            last, length = self._runs[-1]
            if last + length == first:
                self._runs[-1] = (last, length + count)
                return
        self._runs.append((first, count))

    def pop(self, count: int) -> list[Run]:
        """As many numbers; there must be as many."""
        found: list[Run] = []
        while count:
            first, length = self._runs.popleft()
            if length > count:
                self._runs.appendleft((first + count, length - count))
                length = count
            found.append((first, length))
            count -= length
        return found
