"""The frames that were read last, for those who read a little at a time.

A frame holds a thousand messages, and many consumers ask for ten. What is in it never changes; retention and
compaction may remove messages from the log that are still here, which is as if they had been read a moment earlier.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict

from penstock.frame import Frame
from penstock.limits import MIB


class FrameCache:
    """Of all partitions of a broker together, no more than `bytes_max`. Belongs to one event loop.

    Frames that were read together share their memory, and come and go together, more or less.
    """

    def __init__(self, bytes_max: int = 32 * MIB) -> None:
        self._bytes_max = bytes_max
        self._size = 0
        self._frames: OrderedDict[tuple[int, int], Frame] = OrderedDict()
        # By partition: where its frames start, in order.
        self._starts: dict[int, list[int]] = {}

    def find(self, owner: int, offset: int) -> Frame | None:
        """The frame that holds this offset."""
        starts = self._starts.get(owner)
        if not starts:
            return None
        at = bisect_right(starts, offset) - 1
        if at < 0:
            return None
        frame = self._frames[owner, starts[at]]
        if frame.next_offset <= offset:
            return None
        self._frames.move_to_end((owner, starts[at]))
        return frame

    def add(self, owner: int, frame: Frame) -> None:
        key = (owner, frame.base_offset)
        if key in self._frames:
            return
        self._frames[key] = frame
        insort(self._starts.setdefault(owner, []), frame.base_offset)
        self._size += len(frame.data)
        while self._size > self._bytes_max:
            (other, start), old = self._frames.popitem(last=False)
            self._size -= len(old.data)
            self._starts[other].remove(start)

    def forget(self, owner: int) -> None:
        for start in self._starts.pop(owner, ()):
            self._size -= len(self._frames.pop((owner, start)).data)
