"""From the files of a log to its state, after a clean stop, a crash or a power loss.

What is trusted, and why:
- A sealed segment was synced before the next one was created, so it is whole or damaged; never torn.
- The active segment may end in a torn tail: bytes written but not synced reach the disk in any order, or not at
  all. The tail is cut at the first frame that is not whole, provided nothing says that this place had been synced:
  neither the mark, nor an index, nor any later frame (each records how far its segment was synced when it was
  written). If anything does, it is damage, and the log is refused with the place named.
- Behind its last whole frame the active segment may have room, nothing but zeros: that is cut, and nothing is said.
- Nothing is removed because something else is missing. Removed are: temporary files, segments below the start
  offset, segments that a rewritten one says it replaces, and a last segment whose creation was cut short.

Reads whole segments only if they were not sealed or closed cleanly, or if their indexes are damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

from penstock.errors import DiskFull, InvalidFrame, LogCorrupt, UnknownFormat, UnsupportedVersion
from penstock.storage.files import File, Files
from penstock.storage.index import Coverage
from penstock.storage.manifest import Manifest, read_manifest
from penstock.storage.mark import NAME as MARK_NAME
from penstock.storage.mark import Mark, read_mark
from penstock.storage.rewrite import REWRITE_SUFFIX
from penstock.storage.segment import (
    SEGMENT_HEADER_BYTES,
    Opened,
    Segment,
    SegmentHeader,
    content_end,
    corrupt,
    frames_behind,
    log_name,
    read_indexes,
    remove_indexes,
    scan_to_damage,
    write_indexes,
)


@dataclass
class Recovered:
    """The segments in order, the last one open for appending; empty for a log that was never written to."""

    manifest: Manifest
    segments: list[Segment]
    notes: list[str] = field(default_factory=list)
    is_clean: bool = True


def recover(files: Files) -> Recovered | None:
    """None when there is no log here. Mends what a crash may leave; raises LogCorrupt for anything else."""
    # A process that was killed may have left names that are not on disk yet; what is done below relies on them.
    files.sync()
    manifest = read_manifest(files)
    bases = segment_bases(files)
    if manifest is None:
        if not _was_being_made(files, bases):
            raise LogCorrupt("the manifest is missing, but the log is there", file="manifest", position=0)
        # In the other order than they were made: a mark is never without its segment.
        for name in [MARK_NAME, *map(log_name, bases)]:
            if name in files.names():
                files.remove(name)
                files.sync()
        return None
    found = Recovered(manifest, [])
    mark = read_mark(files, manifest.log_id)
    _remove_temporary_files(files, found)
    headers = _read_headers(files, bases, manifest, mark, found)
    headers = _remove_replaced(files, headers, found)
    headers = _remove_below(files, headers, manifest.start_offset, found)
    for damage in missing_segments(headers, manifest.start_offset, mark):
        raise damage
    for header, following in pairwise(headers):
        found.segments.append(_sealed(files, header, following.base_offset, found))
    if headers:
        found.segments.append(_active(files, headers[-1], mark, found))
        # Append times never run backwards, also when the active segment is still empty, or is all there is.
        found.segments[-1].last_append_time = max(
            headers[-1].appended, *(segment.last_append_time for segment in found.segments)
        )
        if mark is None:
            found.notes.append("the mark was missing or damaged and is made anew")
    _remove_orphaned_indexes(files, found)
    return found


def _was_being_made(files: Files, bases: list[int]) -> bool:
    """The manifest is the last file of a new log: before it there is at most an empty first segment and a mark."""
    if bases not in ([], [0]) or any(name.endswith("index") for name in files.names()):
        return False
    if not bases:
        return MARK_NAME not in files.names()
    file = files.open(log_name(0), "read")
    size = file.size()
    file.close()
    return size <= SEGMENT_HEADER_BYTES


def segment_bases(files: Files) -> list[int]:
    """Base offsets by file name; files with other names are none of ours and are left alone."""
    stems = [name.removesuffix(".log") for name in files.names() if name.endswith(".log")]
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isascii() and stem.isdecimal())


def _remove_temporary_files(files: Files, found: Recovered) -> None:
    for name in files.names():
        if is_rewrite(name):
            files.remove(name)
            found.notes.append(f"removed {name}, a rewrite that was not finished")


def _read_headers(
    files: Files, bases: list[int], manifest: Manifest, mark: Mark | None, found: Recovered
) -> list[SegmentHeader]:
    headers = []
    for base in bases:
        try:
            header = read_header(files, base)
        except LogCorrupt:
            if base == bases[-1] and was_cut_short(_size(files, base), base, mark):
                files.remove(log_name(base))
                files.sync()
                found.notes.append(f"removed {log_name(base)}, whose creation was cut short")
                found.is_clean = False
                continue
            raise
        check_belongs(header, base, manifest.log_id)
        headers.append(header)
    return headers


def read_header(files: Files, base: int) -> SegmentHeader:
    """LogCorrupt when it can't be believed."""
    name = log_name(base)
    file = files.open(name, "read")
    data = file.read_at(0, SEGMENT_HEADER_BYTES)
    file.close()
    try:
        return SegmentHeader.decode(data)
    except UnsupportedVersion as error:
        raise UnknownFormat(f"{name}: {error.message}", file=name, position=0) from error
    except InvalidFrame as error:
        raise LogCorrupt(f"{name}: {error.message}", file=name, position=0, offset=base) from error


def _size(files: Files, base: int) -> int:
    file = files.open(log_name(base), "read")
    size = file.size()
    file.close()
    return size


def was_cut_short(size: int, base: int, mark: Mark | None) -> bool:
    """Whether the last segment, whose header is not whole, may never have been synced."""
    # Frames are written only after the header was synced, and the mark moves only after that.
    return size <= SEGMENT_HEADER_BYTES and (mark is None or mark.base_offset < base)


def check_belongs(header: SegmentHeader, base: int, log_id: bytes) -> None:
    """That the file named by `base` is that segment, of that log."""
    name = log_name(base)
    if header.log_id != log_id:
        raise LogCorrupt(f"{name} belongs to another log", file=name, position=8, offset=base)
    if header.base_offset != base:
        why = f"{name} is the segment of offset {header.base_offset}, renamed"
        raise LogCorrupt(why, file=name, position=24, offset=base)


def _remove_replaced(files: Files, headers: list[SegmentHeader], found: Recovered) -> list[SegmentHeader]:
    gone = replaced(headers)
    for header in gone:
        _remove_segment(files, header.base_offset)
        found.notes.append(f"removed {log_name(header.base_offset)}, replaced by a rewritten segment")
    return [header for header in headers if header not in gone]


def replaced(headers: list[SegmentHeader]) -> list[SegmentHeader]:
    """Those that a rewritten segment ahead of them says it replaces."""
    gone: list[SegmentHeader] = []
    end_offset = 0
    for header in headers:
        if header.base_offset < end_offset:
            gone.append(header)
        else:
            end_offset = header.end_offset
    return gone


def _remove_below(
    files: Files, headers: list[SegmentHeader], start_offset: int, found: Recovered
) -> list[SegmentHeader]:
    gone = below(headers, start_offset)
    for header in gone:
        _remove_segment(files, header.base_offset)
        found.notes.append(f"removed {log_name(header.base_offset)}, below the start offset {start_offset}")
    return headers[len(gone) :]


def below(headers: list[SegmentHeader], start_offset: int) -> list[SegmentHeader]:
    """The first ones, as far as they hold nothing from `start_offset` on."""
    return [header for header, following in pairwise(headers) if following.base_offset <= start_offset]


def _remove_segment(files: Files, base_offset: int) -> None:
    remove_indexes(files, base_offset)
    files.remove(log_name(base_offset))


def missing_segments(headers: list[SegmentHeader], start_offset: int, mark: Mark | None) -> Iterator[LogCorrupt]:
    """Missing at the front and at the end; `gap` finds those in between."""
    if not headers and mark is None:
        # Segments come before the manifest. Only a truncation to nothing may leave none, and the mark says so.
        name = log_name(start_offset)
        yield LogCorrupt("every segment is missing", file=name, position=0, offset=start_offset)
    if headers and headers[0].base_offset > start_offset:
        name = log_name(headers[0].base_offset)
        why = f"segments are missing before {name}: the log starts at offset {start_offset}"
        yield LogCorrupt(why, file=name, position=0, offset=start_offset)
    last = headers[-1].base_offset if headers else -1
    if mark is not None and mark.base_offset > last:
        name = log_name(mark.base_offset)
        yield LogCorrupt(f"{name} is missing", file=name, position=0, offset=mark.base_offset)


def _sealed(files: Files, header: SegmentHeader, following: int, found: Recovered) -> Segment:
    name = log_name(header.base_offset)
    file = files.open(name, "read")
    segment = Segment(header, file.size(), following, 0)
    indexes = read_indexes(files, header.base_offset)
    if indexes is not None:
        coverage = indexes[2]
        segment.next_offset, segment.last_append_time = coverage.next_offset, coverage.last_append_time
    if indexes is None or indexes[2] != segment.coverage():
        claimed = _claimed(header, None, indexes[2] if indexes else None)
        scanned = scan_to_damage(segment, file)
        if scanned.damage is not None:
            raise scanned.damage
        if claimed > scanned.size:
            raise synced_but_gone(segment, scanned.size, scanned.next_offset, claimed)
        segment.next_offset = max(scanned.next_offset, header.end_offset)
        segment.last_append_time = scanned.last_append_time
        found.notes.append(f"rebuilt the indexes of {name}")
        with suppress(DiskFull):
            # Without them the segment is read through each time it is opened, until there is room.
            write_indexes(files, segment, scanned.opened)
    damage = gap(segment, following)
    if damage is not None:
        raise damage
    return segment


def gap(segment: Segment, following: int) -> LogCorrupt | None:
    """What is wrong if the segment does not end where the `following` one starts."""
    end = segment.next_offset
    if end == following:
        return None
    missing = log_name(end)
    why = f"{missing} is missing: {segment.name} ends at offset {end}, the next segment starts at {following}"
    return LogCorrupt(why, file=missing, position=0, offset=end)


def _active(files: Files, header: SegmentHeader, mark: Mark | None, found: Recovered) -> Segment:
    file = files.open(log_name(header.base_offset), "append")
    segment = Segment(header, file.size(), header.base_offset, 0)
    indexes = read_indexes(files, header.base_offset)
    coverage = indexes[2] if indexes else None
    if indexes is not None:
        segment.next_offset, segment.last_append_time = indexes[2].next_offset, indexes[2].last_append_time
        if coverage == segment.coverage() and _claimed(header, mark, coverage) <= segment.size:
            segment.opened = Opened(file, indexes[0], indexes[1])
            return segment
        segment.next_offset = header.base_offset
    found.is_clean = False
    # What a crash left in the operating system's cache must be on disk before it counts; and what a failed sync left
    # there never will be.
    file.drop_cache()
    if file.read_at(0, SEGMENT_HEADER_BYTES) != header.encode():
        file.write_at(0, header.encode())
    segment.size = file.size()
    found.notes.append(f"checked {segment.name} frame by frame: it was not closed cleanly, or its indexes are damaged")
    scanned = scan_to_damage(segment, file)
    synced = synced_size(segment, file, mark, coverage, scanned.damage)
    if synced > scanned.size:
        raise scanned.damage or synced_but_gone(segment, scanned.size, scanned.next_offset, synced)
    if scanned.size < segment.size:
        torn = content_end(file, scanned.size, segment.size) - scanned.size
        if torn:
            found.notes.append(f"cut a torn tail of {torn} bytes off {segment.name}")
        file.truncate(scanned.size)
    file.sync()
    segment.size, segment.opened = scanned.size, scanned.opened
    segment.next_offset = max(scanned.next_offset, header.end_offset)
    segment.last_append_time = scanned.last_append_time
    return segment


def synced_size(
    segment: Segment, file: File, mark: Mark | None, index: Coverage | None, damage: LogCorrupt | None
) -> int:
    """How many bytes of the segment had been synced, by all there is to ask.

    What is not whole from here on is a torn tail, what is not whole before is damage.
    """
    claimed = _claimed(segment.header, mark, index)
    if damage is None:
        return claimed
    position, next_offset = damage.details["position"], damage.details["offset"]
    later = (found.info.synced for found in frames_behind(segment, file, position, next_offset))
    return max(claimed, max(later, default=0))


def synced_but_gone(segment: Segment, size: int, next_offset: int, synced: int) -> LogCorrupt:
    return corrupt(segment, size, next_offset, f"bytes up to {synced} had been synced and are gone")


def _claimed(header: SegmentHeader, mark: Mark | None, index: Coverage | None) -> int:
    """How many bytes of the segment had been synced, by what stands beside it."""
    claimed = SEGMENT_HEADER_BYTES
    if mark is not None and mark.base_offset == header.base_offset:
        claimed = max(claimed, mark.position)
    identity = (header.log_id, header.base_offset, header.generation)
    if index is not None and (index.log_id, index.base_offset, index.generation) == identity:
        claimed = max(claimed, index.size)
    return claimed


def is_rewrite(name: str) -> bool:
    stem = name.removesuffix(".log" + REWRITE_SUFFIX)
    return len(stem) == 20 and len(name) > 20 and stem.isascii() and stem.isdecimal()


def orphaned_indexes(files: Files, bases: list[int]) -> Iterator[str]:
    """Indexes of segments that are not there."""
    for name in files.names():
        stem, _, suffix = name.partition(".")
        is_ours = suffix in ("index", "timeindex") and len(stem) == 20 and stem.isascii() and stem.isdecimal()
        if is_ours and int(stem) not in bases:
            yield name


def missing_by_index(files: Files, name: str, log_id: bytes, end_offset: int) -> LogCorrupt | None:
    """An index without its segment is left by a removal that was cut short; but not if it is of what comes last."""
    base = int(name.partition(".")[0])
    indexes = read_indexes(files, base)
    if indexes is None or indexes[2].log_id != log_id or indexes[2].next_offset <= end_offset:
        return None
    return LogCorrupt(f"{log_name(base)} is missing: its index is there", file=log_name(base), position=0, offset=base)


def _remove_orphaned_indexes(files: Files, found: Recovered) -> None:
    end_offset = found.segments[-1].next_offset if found.segments else found.manifest.start_offset
    orphans = list(orphaned_indexes(files, [segment.base_offset for segment in found.segments]))
    for name in orphans:
        damage = missing_by_index(files, name, found.manifest.log_id, end_offset)
        if damage is not None:
            raise damage
    for name in orphans:
        files.remove(name)
