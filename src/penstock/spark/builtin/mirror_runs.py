"""Which offset of a mirror a message has, from its offset at the source.

A run is a stretch without gaps on either side:

    source   …  40  41  42      44  45      ← 43 was compacted away
                 │   │   │       │   │
    target   …   7   8   9      10  11      two runs: (40, 7, 3) and (44, 10, 2)

Invariant: runs are in the order of the source, none overlaps another, and targets rise with sources. So what is at a
target offset or behind it is exactly what is at the source from some offset on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from penstock.client.placing import Placed
from penstock.columns import Ints


class Run(NamedTuple):
    source: int
    target: int
    messages: int

    @property
    def source_end(self) -> int:
        return self.source + self.messages

    @property
    def target_end(self) -> int:
        return self.target + self.messages


class Numbered(NamedTuple):
    """So many messages, put as `number` and those that follow it, have `offset` at the source and those behind it."""

    number: int
    messages: int
    offset: int


class Numbering:
    """The messages of one partition in the order in which they are put: their offsets, and their numbers."""

    def __init__(self) -> None:
        self.stretches: list[Numbered] = []

    def add(self, offsets: Ints, numbers: Ints) -> None:
        """Both rise."""
        breaks = np.flatnonzero((np.diff(offsets) != 1) | (np.diff(numbers) != 1)) + 1
        edges = [0, *breaks.tolist(), len(offsets)]
        for first, last in pairwise(edges):
            number, offset, count = int(numbers[first]), int(offsets[first]), last - first
            end = self.stretches[-1] if self.stretches else None
            if end is not None and (end.number + end.messages, end.offset + end.messages) == (number, offset):
                self.stretches[-1] = end._replace(messages=end.messages + count)
            else:
                self.stretches.append(Numbered(number, count, offset))


def joined(numbered: Iterable[Numbered], placed: Iterable[Placed]) -> Iterator[Run]:
    """By the numbers that both have. Both are in the order of their numbers."""
    there = list(placed)
    place = 0
    for source in numbered:
        while place < len(there) and there[place].number + there[place].messages <= source.number:
            place += 1
        at = place
        while at < len(there) and there[at].number < source.number + source.messages:
            target = there[at]
            first = max(source.number, target.number)
            last = min(source.number + source.messages, target.number + target.messages)
            yield Run(source.offset + first - source.number, target.offset + first - target.number, last - first)
            at += 1


def grown(runs: list[Run], more: Iterable[Run]) -> None:
    """What is known already, because a batch is told again, is passed over."""
    for run in more:
        known = runs[-1].source_end if runs else 0
        past = max(0, known - run.source)
        if past >= run.messages:
            continue
        new = Run(run.source + past, run.target + past, run.messages - past)
        if runs and (runs[-1].source_end, runs[-1].target_end) == new[:2]:
            runs[-1] = runs[-1]._replace(messages=runs[-1].messages + new.messages)
        else:
            runs.append(new)


def translated(runs: list[Run], offset: int) -> int | None:
    """Where the first message is that was at `offset` or behind it: the smallest place that misses none of them.

    If it is not mirrored yet, it will be behind the last one that is. None if nothing is mirrored.
    """
    if not runs:
        return None
    at = bisect_right(runs, offset, key=lambda run: run.source_end)
    if at == len(runs):
        return runs[-1].target_end
    return runs[at].target + max(0, offset - runs[at].source)
