"""How far a log is known to be on disk, kept beside it.

    file "synced", 56 bytes, overwritten in place after each sync of the log; itself synced only when it is lowered

       0    4   magic "PNY", version 1
       4    4   CRC-32C of bytes 8–55
       8   16   log id
      24    8   base offset of the active segment
      32    8   bytes of that segment that are on disk
      40    8   offset of the next message at that point
      48    8   zero

It may lag behind after a power loss; it is never ahead of the disk. So what it says is on disk must be there:
if it is not, that is damage, not a torn tail. Every frame records the same for the frames before it; the mark
adds the last ones, which no later frame vouches for. A mark that is missing or damaged is made anew and noted.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.storage.files import File, Files

NAME = "synced"
_MAGIC = b"PNY\x01"
_HEAD = struct.Struct("<4sI")
_BODY = struct.Struct("<16sqqq8x")
_SIZE = _HEAD.size + _BODY.size


class Mark(NamedTuple):
    base_offset: int
    position: int
    next_offset: int


class MarkFile:
    """The mark of a log that is open for writing."""

    def __init__(self, files: Files, log_id: bytes) -> None:
        self._log_id = log_id
        self._file: File
        if NAME in files.names():
            self._file = files.open(NAME, "append")
        else:
            self._file = files.open(NAME, "create")
            self._file.write([bytes(_SIZE)])
            self._file.sync()
            files.sync()

    def write(self, mark: Mark) -> None:
        """Called after the bytes it speaks of were synced. If this is lost, the mark lags behind."""
        self._file.write_hint(0, self._encoded(mark))

    def lower(self, mark: Mark) -> None:
        """On disk when this returns: from here on nothing vouches for the bytes behind it."""
        self._file.write_at(0, self._encoded(mark))
        self.sync()

    def _encoded(self, mark: Mark) -> bytes:
        body = _BODY.pack(self._log_id, *mark)
        return _HEAD.pack(_MAGIC, crc32c(body)) + body

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


def read_mark(files: Files, log_id: bytes) -> Mark | None:
    """None when there is none that can be believed."""
    if NAME not in files.names():
        return None
    file = files.open(NAME, "read")
    data = file.read_at(0, _SIZE)
    file.close()
    if len(data) != _SIZE or data[:4] != _MAGIC or crc32c(data[8:]) != _HEAD.unpack_from(data)[1]:
        return None
    owner, *fields = _BODY.unpack_from(data, 8)
    return Mark(*fields) if owner == log_id else None
