"""The jobs of one put, encoded for the journal, and put some at a time if there is not room for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.ring.records import Piece


class Portions:
    """Encoded when it is made, so that nothing is put if one can't be written: `encode` raises InvalidInput."""

    __slots__ = ("_at", "_broken", "_encode", "_gone", "_jobs", "_pieces")

    def __init__(self, encode: Callable[[list[Any], int], list[Piece]], jobs: list[Any]) -> None:
        """`encode` gets jobs, and the position of the first in what was put."""
        self._encode = encode
        self._jobs = jobs
        self._pieces = encode(jobs, 0)
        self._gone = 0
        # The piece whose jobs are next, and how many of them are gone: then its bytes are of no use.
        self._at = self._broken = 0

    @property
    def size(self) -> int:
        return sum(len(data) for _, data in self._pieces)

    def fitting(self, count_max: int, bytes_max: int) -> int:
        """How many of them may go next: a piece more is begun as long as there are not more than `bytes_max`."""
        if bytes_max >= 0 and len(self._pieces) == 1:
            return min(len(self._jobs) - self._gone, count_max)
        found, size = -self._broken, 0
        for at in range(self._at, len(self._pieces)):
            if size > bytes_max or found >= count_max:
                break
            count, data = self._pieces[at]
            found += count
            size += len(data)
        return max(min(found, count_max), 0)

    def next(self, count: int) -> list[Piece]:
        """The next so many. InvalidInput if one was changed meanwhile, and can't be written any more."""
        if count == len(self._jobs):
            self._at, self._gone = len(self._pieces), count
            return self._pieces
        found: list[Piece] = []
        at, broken, gone = self._at, self._broken, self._gone
        until = gone + count
        while gone < until:
            length = self._pieces[at][0] - broken
            some = min(length, until - gone)
            if some == self._pieces[at][0]:
                found.append(self._pieces[at])
            else:
                found += self._encode(self._jobs[gone : gone + some], gone)
            gone += some
            at, broken = (at + 1, 0) if some == length else (at, broken + some)
        self._at, self._broken, self._gone = at, broken, gone
        return found
