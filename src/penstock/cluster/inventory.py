"""Which copies of partitions are on this disk, and of which logs they are made.

    file "copies" in the data directory: magic "PNI", version 1 (4 bytes) · CRC-32C of the rest (4 bytes) · JSON
    file "copies.changes", batches of what has changed since, one after the other:
        magic "PNB", version 1 (4 bytes) · CRC-32C of the rest (4 bytes) · CRC-32C in "copies" (4 bytes) · length of the
        JSON (4 bytes) · JSON: a partition's logs, or null if it was removed

A node that is in sync by its disk may be elected for what it has. If a directory of a partition were missing, an empty
one in its place would be taken for a copy that has everything: so what was here is written down apart from it, and
whatever is not there any more, or is another log, is refused.

A change is appended, together with those of other threads, so that the thousandth copy costs no more than the first.
Once the changes are larger than the list, and at every start and clean end, the list is written anew. Its new CRC makes
the old changes void: a crash before they are removed does no harm, and neither does a build that knows the list alone.
A batch that does not match its CRC is what a crash has left of the last one, unless another is behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from threading import Lock

import msgspec
from crc32c import crc32c

from penstock.decoding import from_json
from penstock.errors import DiskFull, Fatal, LogCorrupt, PenstockError, UnknownFormat
from penstock.limits import KIB
from penstock.storage.checked import read_checked, write_checked
from penstock.storage.files import File, Files
from penstock.storage.log import Log

NAME = "copies"
CHANGES = "copies.changes"
_MAGIC = b"PNI\x01"
_BATCH = b"PNB\x01"
# CRC of the rest; of the list that it changes; length.
_HEAD = struct.Struct("<III")
_HEAD_BYTES = len(_BATCH) + _HEAD.size
# Less than that is never a reason to write the list anew.
_CHANGES_BYTES_MIN = 64 * KIB
_MUST_REWRITE = 1 << 62

# The ids of a partition's logs.
_Logs = tuple[str, str]
_Changes = dict[str, _Logs | None]


class Inventory:
    """Used on threads."""

    def __init__(self, files: Files) -> None:
        self._files = files
        # `_lock` guards the dictionaries and is held briefly; `_writing` is held by the thread that writes.
        self._lock = Lock()
        self._writing = Lock()
        # By the id of the partition; and what is to be written.
        self._copies, self._base, self._list_bytes = _read(files)
        # False on a new disk, and if the file was lost.
        self.was_found = self._list_bytes > 0
        self._pending: _Changes = {}
        self._changes: File | None = None
        self._changes_bytes = 0
        self._failure: Fatal | None = None
        if CHANGES in files.names():
            changes = _read_changes(files, self._base)
            _apply(changes, self._copies)
            try:
                if changes:
                    self._rewrite(self._copies)
                else:
                    self._drop_changes()
            except DiskFull:
                # They are on disk as they are. Nothing is appended to what may end in the middle of a batch.
                self._changes_bytes = _MUST_REWRITE

    def __contains__(self, partition: str) -> bool:
        return partition in self._copies

    def check(self, partition: str, is_there: Callable[[str], bool]) -> None:
        """Before it is opened, and made if it is not there. `is_there`: whether it has a directory."""
        if partition in self._copies and not is_there(partition):
            raise LogCorrupt(
                f"the copy of partition {partition} was in the data directory and is not there any more: put it back, "
                "or empty the data directory, and the node begins anew with what the others have",
                file=f"partitions/{partition}",
                position=0,
            )

    def add(self, partition: str, logs: tuple[Log, Log]) -> None:
        """It is open. On disk when this returns: only then may the node say that it has it."""
        found = logs[0].log_id.hex(), logs[1].log_id.hex()
        with self._lock:
            known = self._copies.get(partition)
        if known == found:
            return
        if known is not None:
            raise LogCorrupt(
                f"a log of partition {partition} is not the one that was there: put that one back, or empty "
                "the data directory, and the node begins anew with what the others have",
                file=f"partitions/{partition}",
                position=0,
            )
        self._change(partition, found)

    def remove(self, partition: str) -> None:
        """Before its directory is."""
        if partition in self._copies:
            self._change(partition, None)

    def close(self) -> None:
        """Leave nothing but the list, which every build reads."""
        with self._writing:
            if self._changes_bytes and self._failure is None:
                self._rewrite(self._copies)

    def _change(self, partition: str, logs: _Logs | None) -> None:
        """On disk when this returns, written by this thread or by one that was faster, together with its own."""
        with self._lock:
            self._pending[partition] = logs
        with self._writing:
            with self._lock:
                batch = dict(self._pending)
            if partition not in batch:
                return
            try:
                self._write(batch)
            except PenstockError as error:
                if isinstance(error, Fatal):
                    self._failure = error
                # The other threads retry, and each gets an error of its own.
                with self._lock:
                    del self._pending[partition]
                raise
            with self._lock:
                _apply(batch, self._copies)
                for written in batch:
                    del self._pending[written]

    def _write(self, batch: _Changes) -> None:
        if self._failure is not None:
            raise self._failure.again()
        body = msgspec.json.encode(batch)
        if self._changes_bytes + len(body) > max(_CHANGES_BYTES_MIN, self._list_bytes):
            copies = dict(self._copies)
            _apply(batch, copies)
            self._rewrite(copies)
            return
        file = self._changes
        try:
            if file is None:
                file = self._files.open(CHANGES, "create")
            rest = _HEAD.pack(0, self._base, len(body))[4:] + body
            file.write([_BATCH, crc32c(rest).to_bytes(4, "little"), rest])
            file.sync()
            if self._changes is None:
                self._files.sync()
                self._changes = file
        except PenstockError:
            # Part of it may be there, and nothing may be appended behind that: the next change writes the list anew.
            self._changes, self._changes_bytes = file, _MUST_REWRITE
            raise
        self._changes_bytes += _HEAD_BYTES + len(body)

    def _rewrite(self, copies: Mapping[str, _Logs]) -> None:
        contents = msgspec.json.encode(copies)
        write_checked(self._files, NAME, _MAGIC, contents)
        self._base, self._list_bytes = crc32c(contents), len(contents)
        self._drop_changes()

    def _drop_changes(self) -> None:
        """They are void, and gone before another list can make them valid again."""
        if self._changes is not None:
            self._changes.close()
        if CHANGES in self._files.names():
            self._files.remove(CHANGES)
            self._files.sync()
        self._changes, self._changes_bytes = None, 0


def _apply(changes: _Changes, copies: dict[str, _Logs]) -> None:
    for partition, logs in changes.items():
        if logs is None:
            copies.pop(partition, None)
        else:
            copies[partition] = logs


def _read(files: Files) -> tuple[dict[str, _Logs], int, int]:
    """The list, its CRC and its length."""
    body = read_checked(files, NAME, _MAGIC, "list of copies")
    if body is None:
        return {}, 0, 0
    return from_json(body, dict[str, _Logs]), crc32c(body), len(body)


def _read_changes(files: Files, base: int) -> _Changes:
    file = files.open(CHANGES, "read")
    data = file.read_at(0, file.size())
    file.close()
    changes: _Changes = {}
    at = 0
    while (found := _batch_at(data, at)) is not None:
        batch, of, at = found
        if of == base:
            changes.update(batch)
    behind = data.find(_BATCH, at + 1)
    while behind >= 0:
        later = _batch_at(data, behind)
        if later is not None and later[1] == base:
            raise LogCorrupt(
                f"the changes of the list of copies are damaged at byte {at}: restore the file, or empty the data "
                "directory, and the node begins anew with what the others have",
                file=CHANGES,
                position=at,
            )
        behind = data.find(_BATCH, behind + 1)
    return changes


def _batch_at(data: bytes, at: int) -> tuple[_Changes, int, int] | None:
    """A whole batch, the list that it changes, and where it ends."""
    if data[at : at + 3] == _BATCH[:3] and data[at + 3 : at + 4] not in (b"", _BATCH[3:]):
        raise UnknownFormat(
            f"changes of the list of copies version {data[at + 3]}; this build reads version {_BATCH[3]}", file=CHANGES
        )
    if data[at : at + len(_BATCH)] != _BATCH or len(data) - at < _HEAD_BYTES:
        return None
    crc, base, length = _HEAD.unpack_from(data, at + len(_BATCH))
    end = at + _HEAD_BYTES + length
    if end > len(data) or crc32c(data[at + 8 : end]) != crc:
        return None
    return from_json(data[at + _HEAD_BYTES : end], _Changes), base, end
