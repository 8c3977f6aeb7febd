"""Replacing sealed segments by a rewritten one, so that a crash at any point leaves either or both.

    write "<base>.log.rewrite", sync it          a crash leaves the old segments and a temporary file
    rename it to "<base>.log", sync the directory  … the new segment, and old ones it says it replaces
    write its indexes, remove the old segments   … the same, fewer of them

The new header's end offset says up to where it replaces; its generation tells its indexes from the old ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from penstock.errors import DiskFull, PenstockError, StorageError
from penstock.frame import Frame, head_seed, look, rewrite
from penstock.limits import MIB
from penstock.storage.files import Buffer, File, Files
from penstock.storage.index import SparseIndex
from penstock.storage.segment import (
    SEGMENT_HEADER_BYTES,
    Opened,
    Segment,
    SegmentHeader,
    add_to_indexes,
    headers,
    log_name,
    scan,
    write_indexes,
)

REWRITE_SUFFIX = ".rewrite"
_WRITE_BYTES = 1 * MIB


class Rewritten(NamedTuple):
    """A segment written under a temporary name, synced, not yet in the log."""

    name: str
    header: SegmentHeader
    opened: Opened
    size: int
    next_offset: int
    last_append_time: int

    def discard(self, files: Files) -> None:
        self.opened.file.close()
        files.remove(self.name)


def write_rewritten(files: Files, header: SegmentHeader, frames: Iterable[Frame]) -> Rewritten:
    name = log_name(header.base_offset) + REWRITE_SUFFIX
    if name in files.names():
        files.remove(name)
    file = files.open(name, "create")
    try:
        return _write(name, file, header, frames)
    except PenstockError:
        file.close()
        with suppress(StorageError):
            files.remove(name)
        raise


def _write(name: str, file: File, header: SegmentHeader, frames: Iterable[Frame]) -> Rewritten:
    offsets, times = SparseIndex(), SparseIndex()
    position, next_offset, last_append_time = SEGMENT_HEADER_BYTES, header.base_offset, 0
    buffers: list[Buffer] = [header.encode()]
    seed = head_seed(header.log_id)
    waiting = 0
    for frame in frames:
        info = look(frame.data, 0, seed)
        add_to_indexes(offsets, times, position, info)
        buffers.append(frame.data)
        position += info.size
        waiting += info.size
        next_offset, last_append_time = info.next_offset, info.append_time
        if waiting >= _WRITE_BYTES:
            file.write(buffers)
            buffers, waiting = [], 0
    if buffers:
        file.write(buffers)
    file.sync()
    opened = Opened(file, offsets, times)
    return Rewritten(name, header, opened, position, header.end_offset or next_offset, last_append_time)


def replace_segments(files: Files, old: Sequence[Segment], rewritten: Rewritten) -> Segment:
    """Puts it under its name. The old segments behind the first are the caller's to remove."""
    assert rewritten.header.base_offset == old[0].base_offset
    files.rename(rewritten.name, log_name(rewritten.header.base_offset))
    files.sync()
    segment = Segment(rewritten.header, rewritten.size, rewritten.next_offset, rewritten.last_append_time)
    with suppress(DiskFull):
        # The old ones are of another generation and are not believed; new ones can be made later.
        write_indexes(files, segment, rewritten.opened)
    return segment


def truncated_in_place(files: Files, segment: Segment, opened: Opened, offset: int, position: int) -> Segment:
    """The segment cut at a frame's start, open for appending."""
    file = files.open(segment.name, "append")
    file.truncate(position)
    file.sync()
    opened = Opened(file, opened.offsets.cut(position), opened.times.cut(position))
    shortened = Segment(segment.header, position, offset, 0, opened)
    if opened.offsets.positions:
        # Copies of another log keep its times, so the time of what was cut off must not stand in their way.
        *_, last = headers(shortened, file, opened.offsets.positions[-1])
        shortened.last_append_time = last.info.append_time
    return shortened


def truncated_by_rewrite(files: Files, segment: Segment, opened: Opened, offset: int, position: int) -> Segment:
    """The segment up to `offset`, inside a frame or in a gap: sealed, since no frame may say where it ends."""
    header = segment.header._replace(end_offset=offset, generation=segment.header.generation + 1)
    frames = _frames_before(segment, opened, _frame_across(segment, opened, offset, position), offset, position)
    return replace_segments(files, [segment], write_rewritten(files, header, frames))


def must_rewrite(segment: Segment, opened: Opened, offset: int, position: int) -> bool:
    """Whether cutting the file is not enough.

    A segment that was rewritten says up to where it replaces others, and a frame may hold messages on both sides.
    """
    return bool(segment.header.end_offset) or _frame_across(segment, opened, offset, position) is not None


def _frame_across(segment: Segment, opened: Opened, offset: int, position: int) -> Frame | None:
    """The frame at `position` if it starts before `offset`."""
    for found in headers(segment, opened.file, position):
        if found.info.base_offset < offset:
            return Frame(memoryview(opened.file.read_at(found.position, found.info.size)))
        return None
    return None


def _frames_before(
    segment: Segment, opened: Opened, across: Frame | None, offset: int, position: int
) -> Iterator[Frame]:
    for found, frame in scan(segment, opened.file):
        if found.position == position:
            break
        yield frame
    if across is not None:
        batch = across.batch()
        rows = int(across.offsets(batch).searchsorted(offset))
        if rows:
            times = across.append_times(batch)
            yield rewrite(
                across, batch.slice(0, rows), offset - across.base_offset, int(times[rows - 1]), segment.head_seed
            )
