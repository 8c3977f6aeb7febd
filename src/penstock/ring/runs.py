"""Numbers in the order in which their jobs wait, as runs of those that follow each other."""

from __future__ import annotations

from collections import deque

from penstock.ring.batch import Run


class Runs:
    """First in, first out. Under the ring's lock.

    Which number is next is `gone` and nothing else, so that it changes in one step: an interrupted take or put leaves a
    number with every job that waits. Runs that are used up go later.
    """

    __slots__ = ("_runs", "gone")

    def __init__(self) -> None:
        # How many were pushed before a run, its first number, and how many it has.
        self._runs: deque[tuple[int, int, int]] = deque()
        # As many as were ever taken out.
        self.gone = 0

    def push(self, first: int, count: int) -> None:
        if self._runs:
            before, start, length = self._runs[-1]
            if start + length == first:
                self._runs[-1] = (before, start, length + count)
                return
            before += length
        else:
            before = self.gone
        # Not `append`, behind which Ctrl-C could come, and take the number from its job.
        self._runs += ((before, first, count),)

    def first(self, count: int) -> list[Run]:
        """The next so many; there must be as many. They stay until `gone` says otherwise."""
        runs, gone = self._runs, self.gone
        while count and runs:
            before, start, length = runs[0]
            left = before + length - gone
            if left >= count:
                return [(start + gone - before, count)]
            if left > 0:
                break
            runs.popleft()
        found: list[Run] = []
        for before, start, length in runs if count else ():
            skipped = max(gone - before, 0)
            found.append((start + skipped, min(length - skipped, count)))
            count -= found[-1][1]
            if not count:
                break
        return found
