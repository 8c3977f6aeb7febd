"""Which epoch wrote which offsets of a log: what a leader and a follower compare to find where they part.

Every epoch begins with a frame of its own, so no epoch is empty, and the last one is that of the log's last frame. Of
which epoch was what lay right before the log's start stays known, even if nothing is left in the log.

An epoch has an id, for its number may be used twice once etcd was restored from a backup. 0: not known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class Lineage:
    """Invariant: epochs and their first offsets both rise."""

    __slots__ = ("_epochs", "_firsts", "_ids")

    def __init__(self, entries: Iterable[tuple[int, int] | tuple[int, int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._firsts: list[int] = []
        self._ids: list[int] = []
        for entry in entries:
            self.add(*entry)

    def __repr__(self) -> str:
        return f"Lineage({self.entries})"

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._firsts, strict=True))

    @property
    def last(self) -> int:
        """The epoch of the last frame; 0 if there is none."""
        return self._epochs[-1] if self._epochs else 0

    @property
    def last_id(self) -> int:
        return self._ids[-1] if self._ids else 0

    def id_of(self, epoch: int) -> int:
        at = bisect_left(self._epochs, epoch)
        return self._ids[at] if at < len(self._epochs) and self._epochs[at] == epoch else 0

    def add(self, epoch: int, first: int, id: int = 0) -> None:
        """Frames from that offset on are of that epoch. That more of the last epoch follows is no news."""
        if self._epochs and epoch == self._epochs[-1]:
            return
        assert epoch > self.last, f"epoch {epoch} after {self.last}"
        assert not self._firsts or first > self._firsts[-1], f"epoch {epoch} begins at {first}, in {self}"
        self._epochs.append(epoch)
        self._firsts.append(first)
        self._ids.append(id)

    def end_of(self, epoch: int, end: int) -> tuple[int, int]:
        """The largest epoch up to this one that is here, and where it ends in a log that ends at `end`.

        (0, 0) if the log has nothing that old.
        """
        at = bisect_right(self._epochs, epoch)
        if at == 0:
            return 0, 0
        return self._epochs[at - 1], self._firsts[at] if at < len(self._firsts) else end

    def within(self, first: int, end: int) -> tuple[tuple[int, int], ...]:
        """The same for a stretch of the log: the epochs in it, each with its first offset there."""
        if first >= end:
            return ()
        at = max(bisect_right(self._firsts, first) - 1, 0)
        until = bisect_left(self._firsts, end)
        return tuple((self._epochs[i], max(self._firsts[i], first)) for i in range(at, until))

    def cut(self, offset: int) -> None:
        """The log ends at `offset` now."""
        until = bisect_left(self._firsts, offset)
        del self._epochs[until:], self._firsts[until:], self._ids[until:]

    def trim(self, start: int) -> None:
        """The log begins at `start` now."""
        at = bisect_left(self._firsts, start) - 1
        if at > 0:
            del self._epochs[:at], self._firsts[:at], self._ids[:at]
