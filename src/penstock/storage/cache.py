"""Sealed segments that are open for reading: a bounded number, the least recently read is closed first.

One cache may serve many logs, so that file handles and index memory are bounded for a whole broker and not for
each of its partitions.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from penstock.errors import StorageError
from penstock.storage.files import Files
from penstock.storage.segment import NotCached, Opened, Segment, read_indexes, scan_to_damage


class SegmentCache:
    def __init__(self, segments_max: int = 256) -> None:
        assert segments_max > 0
        self._segments_max = segments_max
        self._opened: OrderedDict[Segment, Opened] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._opened)

    def open(self, files: Files, segment: Segment) -> Opened:
        if (held := segment.opened) is not None:
            return held
        with self._lock:
            if segment in self._opened:
                self._opened.move_to_end(segment)
                return self._opened[segment]
        try:
            opened = _open_sealed(files, segment)
        except StorageError:
            if (held := segment.opened) is None:
                raise
        else:
            held = segment.opened
        if held is not None:
            # Replaced in the meantime: what was opened may be its successor. The log keeps the old file for us.
            return held
        with self._lock:
            self._opened[segment] = opened
            while len(self._opened) > self._segments_max:
                self._opened.popitem(last=False)
        return opened

    def held(self, segment: Segment) -> Opened:
        """NotCached if it is not open."""
        if (held := segment.opened) is not None:
            return held
        with self._lock:
            if segment not in self._opened:
                raise NotCached
            self._opened.move_to_end(segment)
            return self._opened[segment]

    def forget(self, segment: Segment) -> None:
        """A reader in the middle of the segment keeps its file until it is done."""
        with self._lock:
            self._opened.pop(segment, None)


def _open_sealed(files: Files, segment: Segment) -> Opened:
    file = files.open(segment.name, "read")
    indexes = read_indexes(files, segment.base_offset)
    if indexes is not None and indexes[2] == segment.coverage():
        return Opened(file, indexes[0], indexes[1])
    # Damaged since the log was opened: the segment itself is all that is needed.
    scanned = scan_to_damage(segment, file)
    if scanned.damage is not None:
        raise scanned.damage
    return scanned.opened
