"""What a log must know before it looks at its segments: who it is, where it starts, from where on it is whole, and
which offsets it may have given out.

    file "manifest", 48 bytes, replaced as a whole (write, sync, rename, sync of the directory)

       0    4   magic "PNM", version 1
       4    4   CRC-32C of bytes 8–47
       8   16   log id          also in every segment and index, so that files of two logs can't be mixed up
      24    8   start offset    nothing below it exists any more; leftovers below it may be removed
      32    8   whole from      retention took nothing out from here on; 0 if it never took out single messages
      40    8   reserved        offsets below it may have been told of before they were on disk, and are never given
                                out again; 0 if nothing is told before it is on disk

Beside it lies "manifest.new", 48 zero bytes: the next manifest is written over them and renamed. So a full disk, on
which no file can be made, can still be freed by deleting the oldest segments.

A log whose manifest is missing or damaged is refused: without it, segments that are missing at the front could
not be told from segments that retention removed.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import Fatal, LogCorrupt, StorageError, UnknownFormat
from penstock.storage.files import Files

NAME = "manifest"
SPARE = "manifest.new"
_MAGIC = b"PNM\x01"
_BODY = struct.Struct("<16sqqq")
_HEAD = struct.Struct("<4sI")
_SIZE = _HEAD.size + _BODY.size


class Manifest(NamedTuple):
    log_id: bytes
    start_offset: int
    whole_from: int = 0
    reserved: int = 0


def read_manifest(files: Files) -> Manifest | None:
    """None when there is none; LogCorrupt when it can't be believed."""
    if NAME not in files.names():
        return None
    file = files.open(NAME, "read")
    data = file.read_at(0, _SIZE + 1)
    file.close()
    if data[:3] == _MAGIC[:3] and len(data) > 3 and data[3] != _MAGIC[3]:
        raise UnknownFormat(f"manifest version {data[3]}; this build reads version {_MAGIC[3]}", file=NAME)
    if len(data) != _SIZE or data[:4] != _MAGIC or crc32c(data[8:]) != _HEAD.unpack_from(data)[1]:
        raise LogCorrupt("the manifest is damaged", file=NAME, position=0)
    return Manifest(*_BODY.unpack_from(data, 8))


def write_manifest(files: Files, manifest: Manifest) -> None:
    body = _BODY.pack(*manifest)
    _make_spare(files)
    file = files.open(SPARE, "append")
    try:
        file.write_at(0, _HEAD.pack(_MAGIC, crc32c(body)) + body)
        file.sync()
    finally:
        file.close()
    files.rename(SPARE, NAME)
    files.sync()
    try:
        _make_spare(files)
    except Fatal:
        raise
    except StorageError:
        # The manifest is written. Without a spare the next one needs room, which there may be by then.
        pass


def _make_spare(files: Files) -> None:
    if SPARE in files.names():
        file = files.open(SPARE, "append")
        is_whole = file.size() == _SIZE
        file.close()
        if is_whole:
            return
        files.remove(SPARE)
    file = files.open(SPARE, "create")
    try:
        file.write([bytes(_SIZE)])
        file.sync()
    finally:
        file.close()
    files.sync()
