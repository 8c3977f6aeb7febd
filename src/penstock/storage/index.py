"""Sparse indexes of a segment: offset → position (`.index`) and append time → position (`.timeindex`).

One entry for about every 16 KiB of frames; both indexes have an entry at the same frames, always the first.

    0    4   magic "PNO" or "PNT", version 1
    4    4   CRC-32C of byte 8 to the end
    8   16   log id                   ┐
   24    8   base offset              │ of the segment it belongs to
   32    4   generation               ┘
   36    4   number of entries n
   40    8   bytes of the segment it covers, all of them synced
   48    8   next offset             ┐ after those bytes
   56    8   last append time        ┘
   64        keys i64 × n, then positions u32 × n

An index is written when its segment is sealed or the log is closed. It is never trusted without checking: one
that is damaged, belongs to another segment or covers another size is rebuilt from the segment.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from crc32c import crc32c

OFFSETS_MAGIC = b"PNO\x01"
TIMES_MAGIC = b"PNT\x01"
_HEAD = struct.Struct("<4sI")
_BODY = struct.Struct("<16sqIIqqq")
_ENTRIES_AT = _HEAD.size + _BODY.size
assert array("q").itemsize == 8
assert array("I").itemsize == 4


class Coverage(NamedTuple):
    """What an index says of its segment."""

    log_id: bytes
    base_offset: int
    generation: int
    size: int
    next_offset: int
    last_append_time: int


# What was appended last is what most ask for: small frames would be looked through for up to an interval.
_RECENT = 8


class SparseIndex:
    """Keys that never run backwards, each with the position of the frame it belongs to.

    `recent` is the same of the last appends, entries or not; it is not kept with the index.
    """

    __slots__ = ("keys", "positions", "recent")

    def __init__(self, keys: array[int] | None = None, positions: array[int] | None = None) -> None:
        self.keys = array("q") if keys is None else keys
        self.positions = array("I") if positions is None else positions
        # Replaced as a whole: readers are on other threads.
        self.recent: tuple[tuple[int, int], ...] = ()

    def add(self, key: int, position: int) -> None:
        # In this order: a reader on another thread that finds the key also finds the position.
        self.positions.append(position)
        self.keys.append(key)

    def appended(self, key: int, position: int) -> None:
        self.recent = (*self.recent[1 - _RECENT :], (key, position))

    def nearest(self, key: int) -> int | None:
        """Position of a frame whose key is ≤ `key`, with few between."""
        entry = self.at_or_before(key)
        for known, position in reversed(self.recent):
            if known <= key:
                # Of many frames that were appended at once, this is the first, and entries may be nearer.
                return position if entry is None else max(position, entry)
        return entry

    def at_or_before(self, key: int) -> int | None:
        """Position of the last entry whose key is ≤ `key`."""
        i = bisect_right(self.keys, key)
        return self.positions[i - 1] if i else None

    def at_or_after(self, key: int) -> int | None:
        """Position of the first entry whose key is ≥ `key`."""
        i = bisect_left(self.keys, key)
        return self.positions[i] if i < len(self.keys) else None

    def before(self, key: int) -> int | None:
        """Position of the last entry whose key is < `key`."""
        i = bisect_left(self.keys, key)
        return self.positions[i - 1] if i else None

    def cut(self, position: int) -> SparseIndex:
        """The entries before `position`, as an index of their own: readers may still hold this one."""
        kept = bisect_left(self.positions, position)
        return SparseIndex(self.keys[:kept], self.positions[:kept])

    def encode(self, magic: bytes, coverage: Coverage) -> bytes:
        log_id, base_offset, generation, *rest = coverage
        body = _BODY.pack(log_id, base_offset, generation, len(self.keys), *rest)
        body += self.keys.tobytes() + self.positions.tobytes()
        return _HEAD.pack(magic, crc32c(body)) + body

    @classmethod
    def decode(cls, magic: bytes, data: bytes) -> tuple[SparseIndex, Coverage] | None:
        """None when these bytes are not a whole index of that kind."""
        if len(data) < _ENTRIES_AT or data[:4] != magic:
            return None
        if crc32c(memoryview(data)[8:]) != _HEAD.unpack_from(data)[1]:
            return None
        log_id, base_offset, generation, entries, *rest = _BODY.unpack_from(data, 8)
        if len(data) != _ENTRIES_AT + 12 * entries:
            return None
        keys, positions = array("q"), array("I")
        keys.frombytes(data[_ENTRIES_AT : _ENTRIES_AT + 8 * entries])
        positions.frombytes(data[_ENTRIES_AT + 8 * entries :])
        return cls(keys, positions), Coverage(log_id, base_offset, generation, *rest)
