"""Who wrote what: the offsets at which a log's leader epochs begin. Replication compares logs by it.

    file "epochs", replaced as a whole; there is none while every frame is of epoch 0

       0    4   magic "PNE", version 1
       4    4   CRC-32C of the rest
       8   16   log id
      24    4   n               entries
      28    4   zero
      32  16n   epoch (u32), id (u32), first offset (i64): epochs and offsets ascend

An entry is on disk before the first frame of its epoch is written. So the file never misses an epoch that the log has,
whatever a crash leaves of the log; it may know of one that the log does not have: an entry at or beyond the end counts
for nothing, and before anything else is written there, the file is written without it. The other way round every start
would have to look at the frames behind what the file knows, and a truncation to write the file, at the right moment.
Of the entries below the start of the log the last one counts: it says of which epoch it was what lay there, so
that a copy which ends right at the start is known to fit.

The id tells two epochs of the same number apart: after etcd was restored from a backup, a leader can be elected at an
epoch that was used before. It is random, the same in all copies, and 0 if it is not known: the epoch began under an
older build, or the file was rebuilt.

But for the ids, the file can be rebuilt: an epoch begins with a frame of its own (`Log.append_epoch_start`), which
neither merging nor compaction removes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from crc32c import crc32c

from penstock.errors import UnknownFormat
from penstock.frame import OFFSET_MAX, Frame
from penstock.storage.files import Files, replace_file

NAME = "epochs"
EPOCH_MAX = (1 << 32) - 1
_MAGIC = b"PNE\x01"
_HEAD = struct.Struct("<4sI")
_BODY = struct.Struct("<16sI4x")
_ENTRY = struct.Struct("<IIq")
_ENTRIES_AT = _HEAD.size + _BODY.size
# Elections are rare: a file of this size has seen a million since anything was last deleted from the log.
_BYTES_MAX = 16 << 20


class Epoch(NamedTuple):
    epoch: int
    first_offset: int
    id: int = 0


Lineage = tuple[Epoch, ...]


# --- what a lineage says ------------------------------------------------------------------------------------


def within(entries: Iterable[Epoch], start_offset: int, end_offset: int) -> Lineage:
    """Those that count for a log from `start_offset` to `end_offset`."""
    kept = [entry for entry in entries if entry.first_offset < end_offset]
    below = sum(entry.first_offset < start_offset for entry in kept)
    return tuple(kept[max(below - 1, 0) :])


def lineage_of(entries: Lineage, start_offset: int, end_offset: int) -> Lineage:
    """With an entry for the start of the log: what lies before the first epoch that is written down is of epoch 0."""
    if len(entries) == 1 and entries[0].first_offset <= start_offset < end_offset:
        # As mostly, and looked at with every copy.
        return entries
    counting = within(entries, start_offset, end_offset)
    if start_offset < end_offset and (not counting or counting[0].first_offset > start_offset):
        return (Epoch(0, start_offset), *counting)
    return counting


def epoch_at(lineage: Lineage, offset: int) -> int:
    """The epoch of what is stored under `offset`."""
    epoch = 0
    for entry in lineage:
        if entry.first_offset > offset:
            break
        epoch = entry.epoch
    return epoch


def _begun_by(stamps: Iterable[tuple[int, int]], last: int, ids: Mapping[int, int]) -> list[Epoch]:
    """What frames of these epochs and base offsets add to a lineage that ends with the epoch `last`; `ids` by epoch."""
    begun = []
    for epoch, base_offset in stamps:
        if epoch != last:
            begun.append(Epoch(epoch, base_offset, ids.get(epoch, 0)))
            last = epoch
    return begun


# --- on disk ------------------------------------------------------------------------------------------------


class Frames(Protocol):
    """What is asked of the log that a lineage is of."""

    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def recovery_notes(self) -> list[str]: ...
    def heads(self) -> Iterable[Frame]: ...
    def last_head(self) -> Frame | None: ...


class Epochs:
    """The entries of an open log, and its file. Opened with `Epochs.open`.

    Invariant: while `is_written`, the file has the entries, and none at or beyond the log's end.
    """

    def __init__(self, files: Files, log_id: bytes, log: Frames) -> None:
        self._files = files
        self._log_id = log_id
        self._log = log
        self.entries: Lineage = ()
        self.last = 0
        self.is_written = True
        # What was begun, and whose frames are not written yet.
        self._begun: Lineage | None = None
        # With the frames. Without a file, only once somebody asks for the lineage: most logs have none.
        self.is_compared = False

    @classmethod
    def open(cls, files: Files, log_id: bytes, log: Frames) -> Epochs:
        epochs = cls(files, log_id, log)
        if NAME in files.names():
            entries = read_epochs(files, log_id)
            if entries is None:
                epochs._rebuild("damaged")
            else:
                epochs._take(entries, is_written=True)
                epochs.cut(log.end_offset)
                epochs.compare()
        return epochs

    def compare(self) -> None:
        """Epochs never descend, so the last frame tells whether one is missing."""
        head = None if self.is_compared else self._log.last_head()
        if head is not None and head.leader_epoch != epoch_at(self.entries, head.base_offset):
            self._rebuild("missing, or of another time")
        self.is_compared = True

    def _rebuild(self, why: str) -> None:
        """From the frames; the file is written ahead of the next one."""
        stamps = [(head.leader_epoch, head.base_offset) for head in self._log.heads()]
        begun = _begun_by(stamps, 0, {})
        if begun and begun[0].first_offset == stamps[0][1]:
            # Of what lay before the first frame nothing else is known.
            begun[0] = begun[0]._replace(first_offset=min(self._log.start_offset, begun[0].first_offset))
        self._take(tuple(begun), is_written=False)
        self.is_compared = True
        self._log.recovery_notes.append(f"the lineage of epochs was {why}, and was rebuilt from the frames")

    def begin(self, stamps: Sequence[tuple[int, int]], ids: Mapping[int, int]) -> None:
        """Frames of these epochs and base offsets are about to be written: their epochs are on disk when this returns.

        Until they are settled `is_written` is false: if the frames are not written after all, the file is written
        again ahead of others.
        """
        begun = (*self.entries, *_begun_by(stamps, self.last, ids))
        self._begun = within(begun, self._log.start_offset, OFFSET_MAX + 1)
        self.is_written = False
        write_epochs(self._files, self._log_id, self._begun)

    def settle(self) -> None:
        """The frames are written."""
        assert self._begun is not None
        self._take(self._begun, is_written=True)

    def cut(self, end_offset: int) -> None:
        """The log ends here now. The file follows before anything is written behind it."""
        kept = within(self.entries, 0, end_offset)
        if kept != self.entries:
            self._take(kept, is_written=False)

    def _take(self, entries: Lineage, *, is_written: bool) -> None:
        self.entries = entries
        self.last = entries[-1].epoch if entries else 0
        self.is_written = is_written


def write_epochs(files: Files, log_id: bytes, entries: Lineage) -> None:
    packed = [_ENTRY.pack(entry.epoch, entry.id, entry.first_offset) for entry in entries]
    body = _BODY.pack(log_id, len(entries)) + b"".join(packed)
    replace_file(files, NAME, [_HEAD.pack(_MAGIC, crc32c(body)) + body])


def read_epochs(files: Files, log_id: bytes) -> Lineage | None:
    """None if what is there can't be believed."""
    file = files.open(NAME, "read")
    data = file.read_at(0, min(file.size(), _BYTES_MAX))
    file.close()
    if data[:3] == _MAGIC[:3] and len(data) > 3 and data[3] != _MAGIC[3]:
        raise UnknownFormat(f"epochs version {data[3]}; this build reads version {_MAGIC[3]}", file=NAME)
    if len(data) < _ENTRIES_AT or data[:4] != _MAGIC or crc32c(data[8:]) != _HEAD.unpack_from(data)[1]:
        return None
    owner, count = _BODY.unpack_from(data, _HEAD.size)
    if owner != log_id or len(data) != _ENTRIES_AT + count * _ENTRY.size:
        return None
    entries = tuple(Epoch(epoch, first, id) for epoch, id, first in _ENTRY.iter_unpack(data[_ENTRIES_AT:]))
    ascends = all(one.epoch < other.epoch and one.first_offset < other.first_offset for one, other in pairwise(entries))
    return entries if ascends else None
