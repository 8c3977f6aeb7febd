"""The files of an archive: their names, their columns, and what the manifest says of them.

    <archive>/
      topic=orders/date=2026-01-14/…parquet           the messages: of one partition, of one day (UTC), by offset
      _penstock/format                                 what this is, so that nothing else is taken for an archive
      _penstock/00000000000000000007.commit            what commit 7 added and removed
      _penstock/00000000000000000032.checkpoint        all there was after commit 32, so that nobody reads 1 to 32
      _penstock/new-<random>                           a commit being written; nobody looks at it

    commit, checkpoint:    one line of JSON · "\\n" · CRC-32C of that line, 8 hex digits · "\\n"

Only files that the commits name count: what a writer left that died before its commit is never seen. Directories whose
names start with _ are passed over by Spark and Hive. A file is never changed once it is named.

Parquet's pages have checksums. The version of the columns is in the file's metadata: a reader fills columns that a file
does not have with nulls, and passes over those it does not know. Only `offset` and `append_time` must be there.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TypeVar
from urllib.parse import quote

import msgspec
import pyarrow as pa
from crc32c import crc32c

from penstock.columns import SCHEMA, TIME
from penstock.decoding import from_json
from penstock.errors import ArchiveCorrupt, InvalidInput, UnknownFormat

FORMAT = 1
MANIFEST = "_penstock"
FORMAT_NAME = f"{MANIFEST}/format"
NEW = "new-"

COLUMNS = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("append_time", TIME), *SCHEMA]
)
COLUMNS_VERSION = 1
VERSION_KEY = b"penstock.archive.columns"
# Without them a row is of no use; any other column may be missing.
NEEDED = ("offset", "append_time")

_COMMIT = re.compile(r"([0-9]{20})\.(commit|checkpoint)")
_OFFSET_MAX = (1 << 63) - 1
T = TypeVar("T")


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file, and the offsets [first_offset, end_offset) of a partition that it covers: of those it has every message
    that the log had when it was read. Others were not there any more, or never were.

    A range of which the log had nothing left is covered without a file: `path` is empty then, and `rows` is 0.
    `path` is relative to the archive. Times are microseconds since the epoch; both are 0 without a file. `footer_crc`
    is the CRC-32C of Parquet's footer, which has no checksum of its own as the pages have.
    """

    path: str
    topic: str
    topic_id: str
    partition: int
    first_offset: int
    end_offset: int
    rows: int
    min_append_time: int
    max_append_time: int
    bytes: int
    footer_crc: int

    def check(self) -> None:
        if not self.topic or not self.topic_id or self.partition < 0:
            raise InvalidInput(f"a file of an archive has a topic, its id and a partition, not {self!r}")
        span = self.end_offset - self.first_offset
        if not 0 <= self.first_offset < self.end_offset <= _OFFSET_MAX or not 0 <= self.rows <= span:
            raise InvalidInput(
                f"{self.path or 'a range'}: {self.rows} messages can't be in offsets {self.first_offset} to "
                f"{self.end_offset}"
            )
        if bool(self.path) != bool(self.rows):
            raise InvalidInput(f"a file has messages, and a range without any has no file: {self!r}")
        is_inside = not self.path.startswith("/") and ".." not in self.path.split("/")
        if not is_inside or self.path.startswith(MANIFEST):
            raise InvalidInput(f"{self.path} is no path of a file within the archive")


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """`writer` and `batch` name what was written; a rewrite by the archive itself has none. `forgotten` are files that
    were removed before, and are not on disk any more."""

    version: int = FORMAT
    commit: int
    time_us: int
    writer: str = ""
    batch: int = 0
    added: tuple[FileEntry, ...] = ()
    removed: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """`removed` has when each file was, as long as it may be on disk; `writers` the last batch of each."""

    version: int = FORMAT
    commit: int
    files: tuple[FileEntry, ...]
    writers: dict[str, int]
    removed: dict[str, int]


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """That of everything in the archive."""

    version: int = FORMAT


class _Version(msgspec.Struct, frozen=True):
    version: int


def directory_of(topic: str, date: str) -> str:
    # Names of topics need no escapes today; what is in a path shall never depend on that.
    return f"topic={quote(topic, safe='')}/date={date}"


def date_of(time_us: int) -> str:
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%d")


def commit_name(number: int) -> str:
    return f"{MANIFEST}/{number:020d}.commit"


def checkpoint_name(number: int) -> str:
    return f"{MANIFEST}/{number:020d}.checkpoint"


def numbers_in(names: list[str]) -> tuple[list[int], list[int]]:
    """Of the commits and of the checkpoints among these names, ascending."""
    found = [match for name in names if (match := _COMMIT.fullmatch(name))]
    commits = sorted(int(match[1]) for match in found if match[2] == "commit")
    return commits, sorted(int(match[1]) for match in found if match[2] == "checkpoint")


def encoded(content: msgspec.Struct) -> bytes:
    line = msgspec.json.encode(content)
    return line + b"\n%08x\n" % crc32c(line)


def decoded(name: str, data: bytes, kind: type[T]) -> T:
    line, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        raise ArchiveCorrupt(f"{name} of the archive is damaged", file=name)
    try:
        version = from_json(line, _Version).version
        if version > FORMAT:
            raise UnknownFormat(f"{name} has version {version}; this build reads version {FORMAT}", file=name)
        return from_json(line, kind)
    except msgspec.DecodeError as error:
        raise ArchiveCorrupt(f"{name} of the archive can't be understood: {error}", file=name) from error
