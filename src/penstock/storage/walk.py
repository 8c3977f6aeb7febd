"""A segment frame by frame, also over damage: where `scan` stops at the first bad frame, a walk goes on behind it.

Behind a frame whose header is whole, the next one starts where it ends. Behind a header that is damaged, the next
place is looked for at which a frame could stand. What it can't tell apart: a payload that itself holds whole
frames, of later offsets, behind a damaged header.

Holds 4 MiB of the segment at a time, or one frame if that is larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import InvalidFrame, LogCorrupt, UnknownFormat, UnsupportedVersion
from penstock.frame import HEADER_BYTES, Frame, FrameInfo, look
from penstock.limits import KIB, MIB
from penstock.storage.files import File
from penstock.storage.segment import SEGMENT_HEADER_BYTES, Segment, check_follows, content_end, corrupt, frames_behind

_BODIES_BYTES = 4 * MIB
_HEADERS_BYTES = 16 * KIB


class Piece(NamedTuple):
    """A frame, or a stretch of bytes that is none: then `frame` is None. Without verification, frames are headers only.

    `offset` is what was due here, `next_offset` what is due behind it: None if nothing readable follows.
    """

    position: int
    size: int
    offset: int
    next_offset: int | None
    frame: Frame | None
    is_whole: bool
    damage: LogCorrupt | UnknownFormat | None


def walk(segment: Segment, file: File, *, verify: bool = True, is_active: bool = False) -> Iterator[Piece]:
    """Every byte behind the segment's header is in exactly one piece. Without `verify`, bodies are not read.

    Room at the end of an active segment is in none, and when the walk is over `size` is without it. Where the segment
    may be in use, no place is called damaged before it was read again: a frame may have come there meanwhile.
    """
    window = _Window(file, _BODIES_BYTES if verify else _HEADERS_BYTES)
    at, expected, last_append_time = SEGMENT_HEADER_BYTES, segment.base_offset, 0
    end, read_again_at = segment.size, 0
    while at < end:
        piece = _piece_at(segment, file, window, at, expected, last_append_time, verify)
        if is_active and piece.damage is not None:
            if content_end(file, at, segment.size) == at:
                segment.size = at
                return
            if read_again_at != at:
                read_again_at = at
                # The frame that came may be longer than the room it came into.
                segment.size = max(end, file.size())
                window.forget()
                continue
        yield piece
        at += piece.size
        if piece.next_offset is not None:
            expected = piece.next_offset
        if piece.frame is not None:
            last_append_time = piece.frame.append_time
    segment.size = at


def _piece_at(
    segment: Segment, file: File, window: _Window, at: int, expected: int, last_append_time: int, verify: bool
) -> Piece:
    try:
        info, frame = _frame_at(segment, window, at, expected, verify)
    except (LogCorrupt, UnknownFormat) as error:
        found = next(frames_behind(segment, file, at, expected), None)
        end, next_offset = (found.position, found.info.base_offset) if found else (segment.size, None)
        return Piece(at, end - at, expected, next_offset, None, False, error)
    body_damage = _body_damage(segment, at, frame, expected) if verify else None
    damage = body_damage or _order_damage(segment, at, info, expected, last_append_time)
    return Piece(at, info.size, expected, info.next_offset, frame, body_damage is None, damage)


def _frame_at(segment: Segment, window: _Window, at: int, expected: int, verify: bool) -> tuple[FrameInfo, Frame]:
    try:
        info = look(window.view(at, min(HEADER_BYTES, segment.size - at)), 0, segment.head_seed)
    except UnsupportedVersion as error:
        why = f"{segment.name} at byte {at}, offset {expected}: {error.message}"
        raise UnknownFormat(why, file=segment.name, position=at, offset=expected) from error
    except InvalidFrame as error:
        raise corrupt(segment, at, expected, error.message) from error
    if at + info.size > segment.size:
        raise corrupt(segment, at, expected, "the frame runs out of the file")
    size = info.size if verify else HEADER_BYTES
    data = window.view(at, size)
    if len(data) < size:
        raise corrupt(segment, at, expected, "the file has become shorter meanwhile")
    return info, Frame(data)


def _body_damage(segment: Segment, at: int, frame: Frame, expected: int) -> LogCorrupt | None:
    try:
        frame.check_body()
    except InvalidFrame as error:
        return corrupt(segment, at, expected, error.message)
    return None


def _order_damage(
    segment: Segment, at: int, info: FrameInfo, expected: int, last_append_time: int
) -> LogCorrupt | None:
    try:
        check_follows(segment, at, info, expected, last_append_time)
    except LogCorrupt as damage:
        return damage
    return None


class _Window:
    """The part of a file that is in memory."""

    def __init__(self, file: File, read_bytes: int) -> None:
        self._file = file
        self._read_bytes = read_bytes
        self._start = 0
        self._data = memoryview(b"")

    def forget(self) -> None:
        """What was read before may not be what is there now."""
        self._data = memoryview(b"")

    def view(self, at: int, length: int) -> memoryview:
        if not self._start <= at <= at + length <= self._start + len(self._data):
            self._start, self._data = at, memoryview(self._file.read_at(at, max(self._read_bytes, length)))
        start = at - self._start
        return self._data[start : start + length]
