"""A disk of a node: what is on it for sure, and what has only been written.

A crash keeps what is durable and any prefix of the rest. A disk that is wiped is another disk.
"""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.cluster.core.extent import Extent
from penstock.cluster.core.lineage import Lineage

# The epoch that wrote it, and what it says. None is the frame that begins an epoch.
Entry = tuple[int, Any]


class DiskLog:
    __slots__ = ("base", "before", "durable", "entries")

    def __init__(self) -> None:
        self.base = 0
        # The epoch of what lay before the base, and where that began: it is kept in a file of its own.
        self.before: tuple[int, int] | None = None
        self.entries: list[Entry] = []
        self.durable = 0

    @property
    def end(self) -> int:
        return self.base + len(self.entries)

    def read(self, first: int, end: int) -> list[Entry]:
        return self.entries[first - self.base : end - self.base]

    def cut(self, offset: int) -> None:
        del self.entries[offset - self.base :]
        self.durable = min(self.durable, offset)

    def reset(self, start: int) -> None:
        self.base = self.durable = start
        self.before = None
        self.entries = []

    def trim(self, start: int) -> None:
        gone = [epoch for epoch in self.epochs() if epoch[1] < start]
        self.before = gone[-1] if gone else None
        del self.entries[: start - self.base]
        self.base = start

    def crash(self, random: Random) -> None:
        pending = self.end - self.durable
        if pending:
            self.cut(self.durable + int(random.random() * (pending + 1)))
        self.durable = self.end

    def extent(self) -> Extent:
        """As recovery finds it."""
        return Extent(self.base, self.end, Lineage(self.epochs()))

    def epochs(self) -> tuple[tuple[int, int], ...]:
        found = epochs_of(self.entries, self.base)
        if self.before is None:
            return found
        return (self.before, *(epoch for epoch in found if epoch[0] != self.before[0]))


class Disk:
    def __init__(self, name: str, partitions: int) -> None:
        self.name = name
        self.partitions = [(DiskLog(), DiskLog()) for _ in range(partitions)]

    def crash(self, random: Random) -> None:
        for logs in self.partitions:
            for log in logs:
                log.crash(random)


def epochs_of(entries: list[Entry], first: int) -> tuple[tuple[int, int], ...]:
    found = []
    last = 0
    for offset, entry in enumerate(entries, first):
        if entry[0] != last:
            last = entry[0]
            found.append((last, offset))
    return tuple(found)
