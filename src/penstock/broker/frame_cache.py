"""The frames that were read last, for those who read a little at a time.

A frame holds a thousand messages, and many consumers ask for ten. What is in it never changes, but retention and
compaction may remove messages from the log that are still here: after them, the frames of the partition are forgotten.
Nobody may lease what a start would not find any more.

Frames are kept by owner: a number of its own for each `Reading`, which no later one gets. An address of an object
would not do, since the next object may be at the same place. Who owns frames evicts them at its end.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from itertools import count
from typing import NamedTuple

from penstock.broker.key_hash import Hashes
from penstock.frame import Frame, FrameFacts
from penstock.limits import MIB


class _Kept(NamedTuple):
    frame: Frame
    facts: FrameFacts


class FrameCache:
    """Of all partitions of a broker together, no more than `bytes_max`. Belongs to one event loop.

    Frames that were read together share their memory, and come and go together, more or less.
    """

    def __init__(self, bytes_max: int = 32 * MIB) -> None:
        self._bytes_max = bytes_max
        self._size = 0
        self._owners = count(1)
        self._frames: OrderedDict[tuple[int, int], _Kept] = OrderedDict()
        # By owner: where its frames start, in order.
        self._starts: dict[int, list[int]] = {}
        # Of the keys in a frame, once somebody wanted to know them.
        self._hashes: dict[tuple[int, int], Hashes] = {}

    def new_owner(self) -> int:
        """Return an owner that was never used before. Safe on any thread."""
        return next(self._owners)

    def find(self, owner: int, offset: int) -> _Kept | None:
        """The frame that holds this offset."""
        starts = self._starts.get(owner)
        if not starts:
            return None
        at = bisect_right(starts, offset) - 1
        if at < 0:
            return None
        key = owner, starts[at]
        kept = self._frames[key]
        if kept.facts.base_offset + kept.facts.span <= offset:
            return None
        self._frames.move_to_end(key)
        return kept

    def add(self, owner: int, frame: Frame, facts: FrameFacts) -> None:
        key = (owner, facts.base_offset)
        if key in self._frames:
            # Merged with others since.
            self._drop(*key)
        else:
            insort(self._starts.setdefault(owner, []), facts.base_offset)
        self._frames[key] = _Kept(frame, facts)
        self._size += len(frame.data)
        self._make_room()

    def hashes(self, owner: int, frame: Frame) -> Hashes | None:
        return self._hashes.get((owner, frame.base_offset)) if self._has(owner, frame) else None

    def add_hashes(self, owner: int, frame: Frame, hashes: Hashes) -> None:
        """Kept as long as the frame is."""
        if self._has(owner, frame):
            self._hashes[owner, frame.base_offset] = hashes
            self._size += hashes.nbytes
            self._make_room()

    def _has(self, owner: int, frame: Frame) -> bool:
        """This very one: another that starts where it does may hold other messages."""
        known = self._frames.get((owner, frame.base_offset))
        return known is not None and known.frame is frame

    def _make_room(self) -> None:
        while self._size > self._bytes_max:
            (owner, start) = next(iter(self._frames))
            self._drop(owner, start)
            self._starts[owner].remove(start)
            if not self._starts[owner]:
                del self._starts[owner]

    def forget(self, owner: int) -> None:
        for start in self._starts.pop(owner, ()):
            self._drop(owner, start)

    def _drop(self, owner: int, start: int) -> None:
        frame, _ = self._frames.pop((owner, start))
        self._size -= len(frame.data)
        hashes = self._hashes.pop((owner, start), None)
        if hashes is not None:
            self._size -= hashes.nbytes
