"""A log that is to begin anew, empty, at another offset: for a follower that its leader has left too far behind.

    file "reset", 48 bytes, replaced as a whole; it is there only while a reset is under way

       0    4   magic "PNR", version 1
       4    4   CRC-32C of bytes 8–47
       8   16   log id
      24    8   start offset    where the log is to begin
      32    4   epoch           of what lay below it, and
      36    4   its id
      40    8   first offset    of that epoch; −1: nothing is known of it

Once this file is on disk the old log is gone, and a crash at any later point ends here: whoever opens the log carries
the reset out, from the start. What that does can be done twice: the mark vouches for nothing, the segments are
removed, the manifest and the lineage are written, and at last this file is removed. What is left is a log without
segments, as a truncation to nothing leaves one.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import LogCorrupt, UnknownFormat
from penstock.storage import epochs
from penstock.storage.epochs import Epoch
from penstock.storage.files import Files, replace_file
from penstock.storage.manifest import Manifest, read_manifest, write_manifest
from penstock.storage.mark import Mark, MarkFile
from penstock.storage.recovery import is_rewrite, segment_bases
from penstock.storage.segment import log_name, remove_indexes

NAME = "reset"
_MAGIC = b"PNR\x01"
_HEAD = struct.Struct("<4sI")
_BODY = struct.Struct("<16sqIIq")
_SIZE = _HEAD.size + _BODY.size


class Reset(NamedTuple):
    log_id: bytes
    start_offset: int
    epoch: Epoch | None


def write_reset(files: Files, reset: Reset) -> None:
    epoch = reset.epoch or Epoch(0, -1)
    body = _BODY.pack(reset.log_id, reset.start_offset, epoch.epoch, epoch.id, epoch.first_offset)
    replace_file(files, NAME, [_HEAD.pack(_MAGIC, crc32c(body)) + body])


def read_reset(files: Files) -> Reset | None:
    """None when there is none; LogCorrupt when it can't be believed."""
    if NAME not in files.names():
        return None
    file = files.open(NAME, "read")
    data = file.read_at(0, _SIZE + 1)
    file.close()
    if data[:3] == _MAGIC[:3] and len(data) > 3 and data[3] != _MAGIC[3]:
        raise UnknownFormat(f"reset version {data[3]}; this build reads version {_MAGIC[3]}", file=NAME)
    if len(data) != _SIZE or data[:4] != _MAGIC or crc32c(data[8:]) != _HEAD.unpack_from(data)[1]:
        raise LogCorrupt("the file of a reset that was under way is damaged", file=NAME, position=0)
    log_id, start_offset, epoch, id, first_offset = _BODY.unpack_from(data, _HEAD.size)
    return Reset(log_id, start_offset, None if first_offset < 0 else Epoch(epoch, first_offset, id))


def carry_out(files: Files, reset: Reset) -> Manifest:
    """From any state that a crash leaves of an earlier try."""
    # A killed process may have left the name of this file visible, but not on disk.
    files.sync()
    manifest = read_manifest(files)
    if manifest is None or manifest.log_id != reset.log_id:
        raise LogCorrupt("a reset is under way here, of another log", file=NAME, position=8)
    mark = MarkFile(files, reset.log_id)
    mark.lower(Mark(-1, 0, 0))
    mark.close()
    for base in segment_bases(files):
        remove_indexes(files, base)
        files.remove(log_name(base))
    for name in filter(is_rewrite, files.names()):
        files.remove(name)
    files.sync()
    manifest = Manifest(reset.log_id, reset.start_offset)
    write_manifest(files, manifest)
    if reset.epoch is not None:
        epochs.write_epochs(files, reset.log_id, (reset.epoch,))
    elif epochs.NAME in files.names():
        files.remove(epochs.NAME)
        files.sync()
    files.remove(NAME)
    files.sync()
    return manifest
