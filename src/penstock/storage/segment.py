"""One segment of a log: a file of frames, and what is needed to find a frame in it.

    file "%020d.log", named by its base offset

       0    4   magic "PNG", version 1
       4    4   CRC-32C of bytes 8–63
       8   16   log id
      24    8   base offset
      32    8   end offset      0, or: this file replaces everything up to here (it was rewritten)
      40    4   generation      0 as appended, one more at each rewrite; indexes must match it
      44    4   flags           1: holds one message a key
      48    8   created         µs
      56    8   appended        µs; the last append time before this segment, which an emptied log must not fall behind
      64        frames, one after the other

Frames are in offset order. As appended they follow each other without a gap, though one of them may stand for offsets
that nobody has (`frame.hole`), which no reader gets to see; a rewrite may leave gaps. Every
segment but the last is sealed: wholly synced, never written to again, only replaced. Behind the frames of the last one
there may be room: zeros, which the next frames overwrite.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import (
    DeviceFailed,
    DiskFull,
    FrameTruncated,
    InvalidFrame,
    LogCorrupt,
    StorageError,
    TooManyOpenFiles,
    UnknownFormat,
    UnknownMagic,
    UnsupportedVersion,
)
from penstock.frame import HEADER_BYTES, MAGIC, Frame, FrameInfo, FrameRun, head_seed, look
from penstock.storage.files import Buffer, File, Files
from penstock.storage.index import OFFSETS_MAGIC, TIMES_MAGIC, Coverage, SparseIndex

SEGMENT_HEADER_BYTES = 64
COMPACTED = 1
# A point read loads and walks at most this much more than it returns; 24 bytes of index for each of it.
INDEX_INTERVAL_BYTES = 16 << 10

# For frames that come alone: at most as many zeros behind the last one, and what counts as small.
ROOM_BYTES = 64 << 10
_SMALL_BYTES = 4 << 10
# Of the last segment: so much at its end is read without a look at the page cache.
_RECENT_BYTES = 256 << 10
_ZEROS = memoryview(bytes(ROOM_BYTES))

_MAGIC = b"PNG\x01"
_HEAD = struct.Struct("<4sI")
_BODY = struct.Struct("<16sqqIIqq")
_SCAN_BYTES = 4 << 20
# A segment of 2 GiB has an index of 1.5 MiB.
_INDEX_BYTES_MAX = 16 << 20
_WALK_BYTES = 16 << 10
assert _HEAD.size + _BODY.size == SEGMENT_HEADER_BYTES


class SegmentHeader(NamedTuple):
    log_id: bytes
    base_offset: int
    end_offset: int
    generation: int
    flags: int
    created: int
    appended: int = 0

    def encode(self) -> bytes:
        body = _BODY.pack(*self)
        return _HEAD.pack(_MAGIC, crc32c(body)) + body

    @classmethod
    def decode(cls, data: bytes) -> SegmentHeader:
        if len(data) < SEGMENT_HEADER_BYTES:
            raise FrameTruncated("the segment's header is cut short")
        if data[:3] == _MAGIC[:3] and data[3] != _MAGIC[3]:
            raise UnsupportedVersion(f"segment version {data[3]}; this build reads version {_MAGIC[3]}")
        if data[:4] != _MAGIC or crc32c(data[8:SEGMENT_HEADER_BYTES]) != _HEAD.unpack_from(data)[1]:
            raise UnknownMagic("the segment's header is damaged")
        return cls(*_BODY.unpack_from(data, 8))


def log_name(base_offset: int) -> str:
    return f"{base_offset:020d}.log"


def index_name(base_offset: int) -> str:
    return f"{base_offset:020d}.index"


def time_index_name(base_offset: int) -> str:
    return f"{base_offset:020d}.timeindex"


class Opened(NamedTuple):
    """A segment's file and indexes while somebody uses them."""

    file: File
    offsets: SparseIndex
    times: SparseIndex


class Found(NamedTuple):
    position: int
    info: FrameInfo


@dataclass(slots=True, eq=False)
class Segment:
    """What the log keeps in memory of a segment, sealed or active.

    Invariant: the frames in the first `size` bytes are whole, in order, and end before `next_offset`.
    `opened` is set while the segment is active; a sealed one is opened when it is read (`cache.py`).
    """

    header: SegmentHeader
    size: int
    next_offset: int
    last_append_time: int
    opened: Opened | None = None
    # Zeros behind the last frame, of an active segment: the file is longer by as much.
    room: int = 0
    # Whether the file was made shorter since the log last saw to it that this is on disk.
    is_cut: bool = False
    head_seed: int = field(init=False)

    def __post_init__(self) -> None:
        self.head_seed = head_seed(self.header.log_id)

    @property
    def base_offset(self) -> int:
        return self.header.base_offset

    @property
    def name(self) -> str:
        return log_name(self.header.base_offset)

    @property
    def is_empty(self) -> bool:
        return self.size == SEGMENT_HEADER_BYTES

    def coverage(self) -> Coverage:
        header = self.header
        return Coverage(
            header.log_id, header.base_offset, header.generation, self.size, self.next_offset, self.last_append_time
        )


def create_segment(files: Files, header: SegmentHeader, last_append_time: int) -> Segment:
    """A new file with a header, durable under its name."""
    name = log_name(header.base_offset)
    if name in files.names():
        # Left by a creation that failed, on a disk so full that it could not be removed either.
        files.remove(name)
    file = files.open(name, "create")
    try:
        file.write([header.encode()])
        file.sync()
        files.sync()
    except StorageError:
        file.close()
        with suppress(StorageError):
            files.remove(name)
        raise
    opened = Opened(file, SparseIndex(), SparseIndex())
    return Segment(header, SEGMENT_HEADER_BYTES, header.base_offset, last_append_time, opened)


def append(segment: Segment, buffers: Sequence[Buffer], infos: Sequence[FrameInfo], room: int = 0) -> None:
    """Writes whole frames at the end; all of them or, with an error raised, none. If they are small, with `room` for as
    many bytes to come: a file that does not grow is synced in two thirds of the time."""
    assert segment.opened is not None
    offsets, times = segment.opened.offsets, segment.opened.times
    try:
        _write(segment, segment.opened.file, buffers, sum([info.size for info in infos]), room)
    except TooManyOpenFiles:
        # Nothing was written.
        raise
    except StorageError:
        try:
            _cut(segment, segment.opened.file)
        except StorageError as error:
            raise DeviceFailed(f"{segment.name}: a failed write could not be undone", file=segment.name) from error
        raise
    position = segment.size
    offsets.appended(infos[0].base_offset, position)
    for info in infos:
        add_to_indexes(offsets, times, position, info)
        position += info.size
    # In this order: a reader on another thread that is told of an offset also finds its bytes.
    segment.size = position
    segment.last_append_time = infos[-1].append_time
    segment.next_offset = infos[-1].next_offset


def _write(segment: Segment, file: File, buffers: Sequence[Buffer], size: int, room: int) -> None:
    if size <= segment.room:
        file.write_at(segment.size, b"".join(buffers))
        segment.room -= size
        return
    trim(segment)
    if size > _SMALL_BYTES or not room:
        file.write(buffers)
        return
    try:
        file.write([*buffers, _ZEROS[:room]])
    except DiskFull:
        # The frames alone may fit.
        _cut(segment, file)
        file.write(buffers)
    else:
        segment.room = room


def trim(segment: Segment) -> None:
    """No room is left: the file ends where its last frame does. On disk once it is synced."""
    if segment.room:
        assert segment.opened is not None
        _cut(segment, segment.opened.file)


def _cut(segment: Segment, file: File) -> None:
    file.truncate(segment.size)
    segment.room = 0
    segment.is_cut = True


def content_end(file: File, start: int, end: int) -> int:
    """Behind the last byte between them that is not zero; `start` if there is none: then all of it is room."""
    while end > start:
        at = max(start, end - _SCAN_BYTES)
        content = file.read_at(at, end - at).rstrip(b"\0")
        if content:
            return at + len(content)
        end = at
    return start


def add_to_indexes(offsets: SparseIndex, times: SparseIndex, position: int, info: FrameInfo) -> None:
    if not offsets.positions or position - offsets.positions[-1] >= INDEX_INTERVAL_BYTES:
        offsets.add(info.base_offset, position)
        times.add(info.append_time, position)


# --- reading ------------------------------------------------------------------------------------------------


class NotCached(Exception):
    """To read this would wait for the disk."""


def read(
    segment: Segment,
    opened: Opened,
    offset: int,
    *,
    until: int,
    bytes_max: int,
    count_max: int,
    holes: bool = False,
    waits: bool = True,
) -> FrameRun | None:
    """Frames from the one that holds `offset` (or the first after it) on, up to the bounds; at least one. Those without
    messages only with `holes`. NotCached if it would wait for the disk, unless it `waits`."""
    if offset >= until:
        return None
    size = segment.size
    bytes_max = max(bytes_max, HEADER_BYTES)
    at = opened.offsets.nearest(offset) or SEGMENT_HEADER_BYTES
    if at >= size:
        return None
    # The frame may lie up to an index interval behind its entry; one read from disk should reach it. Nothing behind
    # the first entry at `until` is asked for.
    enough = opened.offsets.at_or_after(until)
    length = min(bytes_max + INDEX_INTERVAL_BYTES, (size if enough is None else min(enough, size)) - at)
    # What was appended last is in the page cache, and read most.
    is_recent = waits or (segment.opened is not None and size - at <= _RECENT_BYTES)
    if not (is_recent or opened.file.is_cached(at, length)):
        raise NotCached
    loaded_from, loaded = at, memoryview(opened.file.read_at(at, length))
    bounds: list[int] = []
    next_offset, previous, count = offset, 0, 0
    while at < size:
        start = at - loaded_from
        if start + HEADER_BYTES > len(loaded):
            if bounds:
                break
            loaded_from, loaded, start = at, memoryview(opened.file.read_at(at, min(bytes_max, size - at))), 0
        info = _look(segment, loaded, start, at)
        if info.base_offset < previous:
            raise corrupt(segment, at, info.base_offset, f"offset {info.base_offset} behind {previous}")
        previous = info.next_offset
        if info.base_offset >= until:
            break
        if info.next_offset <= offset or (info.messages == 0 and not holes):
            if bounds:
                break
            at += info.size
            continue
        if not bounds:
            if start + info.size > len(loaded):
                length = min(max(bytes_max, info.size), size - at)
                loaded_from, loaded, start = at, memoryview(opened.file.read_at(at, length)), 0
                if len(loaded) < info.size:
                    raise corrupt(segment, at, info.base_offset, "the frame runs out of the file")
            bounds.append(start)
        elif start + info.size > len(loaded) or start + info.size - bounds[0] > bytes_max:
            break
        at += info.size
        bounds.append(start + info.size)
        next_offset = info.next_offset
        count += info.messages
        if count >= count_max:
            break
    if not bounds:
        return None
    first = bounds[0]
    return FrameRun(loaded[first : bounds[-1]], [bound - first for bound in bounds], next_offset)


def find_time(segment: Segment, opened: Opened, time_us: int) -> Found | None:
    """The first frame stamped at or after `time_us`."""
    for found in headers(segment, opened.file, opened.times.before(time_us) or SEGMENT_HEADER_BYTES):
        if found.info.append_time >= time_us:
            return found
    return None


def headers(segment: Segment, file: File, at: int) -> Iterator[Found]:
    """Frame by frame, without their bodies."""
    return (found for found, _ in heads(segment, file, at))


def heads(segment: Segment, file: File, at: int) -> Iterator[tuple[Found, Frame]]:
    """Frame by frame, each cut off behind its header: good for its `facts`, not for its messages."""
    loaded_from, loaded = at, memoryview(b"")
    while at < segment.size:
        if at - loaded_from + HEADER_BYTES > len(loaded):
            loaded_from, loaded = at, memoryview(file.read_at(at, min(_WALK_BYTES, segment.size - at)))
        start = at - loaded_from
        info = _look(segment, loaded, start, at)
        yield Found(at, info), Frame(loaded[start : start + HEADER_BYTES])
        at += info.size


def scan(segment: Segment, file: File, at: int = SEGMENT_HEADER_BYTES) -> Iterator[tuple[Found, Frame]]:
    """Frame by frame with their bodies, everything checked: checksums, order, and that they follow each other.

    Raises LogCorrupt at the first frame that is not as it was written.
    """
    loaded_from, loaded = at, memoryview(b"")
    expected, last_append_time = segment.base_offset, 0
    while at < segment.size:
        if at - loaded_from + HEADER_BYTES > len(loaded):
            loaded_from, loaded = at, memoryview(file.read_at(at, min(_SCAN_BYTES, segment.size - at)))
        info = _look(segment, loaded, at - loaded_from, at, expected)
        if at - loaded_from + info.size > len(loaded):
            length = min(max(_SCAN_BYTES, info.size), segment.size - at)
            loaded_from, loaded = at, memoryview(file.read_at(at, length))
            if len(loaded) < info.size:
                raise corrupt(segment, at, expected, "the frame runs out of the file")
        start = at - loaded_from
        frame = Frame(loaded[start : start + info.size])
        try:
            frame.check_body()
        except InvalidFrame as error:
            raise corrupt(segment, at, expected, error.message) from error
        check_follows(segment, at, info, expected, last_append_time)
        yield Found(at, info), frame
        expected, last_append_time = info.next_offset, info.append_time
        at += info.size


def check_follows(segment: Segment, at: int, info: FrameInfo, expected: int, last_append_time: int) -> None:
    """That a frame goes on where the one before it ended; a rewrite may leave gaps, but never goes back."""
    is_dense = segment.header.generation == 0
    if info.base_offset != expected and (is_dense or info.base_offset < expected):
        raise corrupt(segment, at, expected, f"offset {info.base_offset} where {expected} was due")
    if info.append_time < last_append_time:
        raise corrupt(segment, at, expected, "its append time runs backwards")


def frames_behind(segment: Segment, file: File, position: int, next_offset: int) -> Iterator[Found]:
    """What reads as the header of a frame behind a damaged place, where `next_offset` was due.

    A payload may contain bytes that look like a frame, so one counts only if it could stand where it is found:
    its offset is beyond the damage and it claims no more than what lies before it.
    """
    at, size = position + 8, segment.size
    while at + HEADER_BYTES <= size:
        data = file.read_at(at, min(_SCAN_BYTES, size - at))
        last = len(data) - HEADER_BYTES
        if last < 0:
            return
        start = data.find(MAGIC)
        while 0 <= start <= last:
            if start % 8 == 0:
                info = _look_or_none(data, start, segment.head_seed)
                if info is not None and info.base_offset > next_offset and info.synced <= at + start:
                    yield Found(at + start, info)
            start = data.find(MAGIC, start + 1)
        at += last // 8 * 8 + 8


def _look_or_none(data: bytes, start: int, seed: int) -> FrameInfo | None:
    try:
        return look(memoryview(data), start, seed)
    except InvalidFrame:
        return None


def _look(segment: Segment, loaded: memoryview, start: int, at: int, offset: int | None = None) -> FrameInfo:
    try:
        return look(loaded, start, segment.head_seed)
    except UnsupportedVersion as error:
        raise UnknownFormat(f"{segment.name} at byte {at}: {error.message}", file=segment.name, position=at) from error
    except InvalidFrame as error:
        raise corrupt(segment, at, offset, error.message) from error


def corrupt(segment: Segment, position: int, offset: int | None, why: str) -> LogCorrupt:
    place = f"{segment.name} at byte {position}" + ("" if offset is None else f", offset {offset}")
    return LogCorrupt(f"{place}: {why}", file=segment.name, position=position, offset=offset)


class Scanned(NamedTuple):
    """A segment as its bytes tell it, up to the first damage or to the end."""

    opened: Opened
    size: int
    next_offset: int
    last_append_time: int
    damage: LogCorrupt | None


def scan_to_damage(segment: Segment, file: File) -> Scanned:
    offsets, times = SparseIndex(), SparseIndex()
    size, next_offset, last_append_time = SEGMENT_HEADER_BYTES, segment.base_offset, 0
    damage = None
    try:
        for (position, info), _ in scan(segment, file):
            add_to_indexes(offsets, times, position, info)
            size, next_offset, last_append_time = position + info.size, info.next_offset, info.append_time
    except LogCorrupt as error:
        damage = error
    return Scanned(Opened(file, offsets, times), size, next_offset, last_append_time, damage)


# --- indexes on disk ----------------------------------------------------------------------------------------


def write_indexes(files: Files, segment: Segment, opened: Opened) -> None:
    """Replaces both; durable when this returns. A torn one is noticed by its checksum and rebuilt."""
    base, coverage = segment.base_offset, segment.coverage()
    remove_indexes(files, base)
    for name, index, magic in (
        (index_name(base), opened.offsets, OFFSETS_MAGIC),
        (time_index_name(base), opened.times, TIMES_MAGIC),
    ):
        file = files.open(name, "create")
        try:
            file.write([index.encode(magic, coverage)])
            file.sync()
        finally:
            file.close()
    files.sync()


def remove_indexes(files: Files, base_offset: int) -> None:
    names = files.names()
    for name in (index_name(base_offset), time_index_name(base_offset)):
        if name in names:
            files.remove(name)


def read_indexes(files: Files, base_offset: int) -> tuple[SparseIndex, SparseIndex, Coverage] | None:
    """Both indexes of a segment if both are whole and speak of the same bytes."""
    offsets = _read_index(files, index_name(base_offset), OFFSETS_MAGIC)
    times = _read_index(files, time_index_name(base_offset), TIMES_MAGIC)
    if offsets is None or times is None or offsets[1] != times[1]:
        return None
    return offsets[0], times[0], offsets[1]


def _read_index(files: Files, name: str, magic: bytes) -> tuple[SparseIndex, Coverage] | None:
    try:
        file = files.open(name, "read")
    except StorageError:
        return None
    try:
        size = file.size()
        return SparseIndex.decode(magic, file.read_at(0, size)) if size <= _INDEX_BYTES_MAX else None
    finally:
        file.close()
