"""What an inspection tells of a log: nouns only. `as_dict` gives plain JSON values, times as RFC 3339.

damage     not as it was written, although it had been synced: refused, at the next open or when it is read
torn tail  the end of the active segment, never synced: the next open cuts it off
rebuilt    an index or the mark: the next open makes it anew
leftover   of no use any more: the next open removes it
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from penstock.clock import rfc3339
from penstock.codec import CODECS
from penstock.frame import (
    CONTROL,
    HAS_DELAYS,
    HAS_HIGH,
    HAS_LOW,
    HAS_TTL,
    MERGED,
    SPARSE,
    Frame,
)
from penstock.message import Message
from penstock.storage.mark import Mark
from penstock.storage.segment import COMPACTED, SegmentHeader, log_name
from penstock.storage.walk import Piece

_CODEC_NAMES = {codec: name for name, codec in CODECS.items()}
_FLAG_NAMES = {
    HAS_DELAYS: "delays",
    HAS_TTL: "ttl",
    HAS_HIGH: "high",
    HAS_LOW: "low",
    CONTROL: "control",
    SPARSE: "sparse",
    MERGED: "merged",
}


class Kind(StrEnum):
    DAMAGE = "damage"
    TORN_TAIL = "torn_tail"
    REBUILT = "rebuilt"
    LEFTOVER = "leftover"


class Role(StrEnum):
    SEALED = "sealed"
    ACTIVE = "active"
    LEFTOVER = "leftover"
    FOREIGN = "foreign"


class State(StrEnum):
    """Of the files beside the segments."""

    OK = "ok"
    MISSING = "missing"
    DAMAGED = "damaged"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Finding:
    """Position and offset as far as they are known."""

    kind: Kind
    file: str
    position: int | None
    offset: int | None
    sentence: str


@dataclass(slots=True)
class SegmentReport:
    """Counts and times are those of the frames that can be read. `header` is None if the file's can't be believed."""

    base_offset: int
    role: Role
    header: SegmentHeader | None
    size: int
    log_id: bytes = b""
    index: State = State.MISSING
    end_offset: int | None = None
    is_walked: bool = False
    frames: int = 0
    messages: int = 0
    append_times: tuple[int, int] | None = None
    timestamps: tuple[int, int] | None = None
    codecs: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        return log_name(self.base_offset)

    @property
    def is_compacted(self) -> bool:
        return self.header is not None and bool(self.header.flags & COMPACTED)

    def add(self, frame: Frame) -> None:
        self.frames += 1
        self.messages += frame.count
        self.codecs.add(codec_name(frame.codec))
        first, _ = self.append_times or (frame.append_time, 0)
        self.append_times = (first, frame.append_time)
        lowest, highest = frame.timestamps
        if self.timestamps is not None:
            lowest, highest = min(lowest, self.timestamps[0]), max(highest, self.timestamps[1])
        self.timestamps = (lowest, highest)

    def as_dict(self) -> dict[str, Any]:
        first, last = self.append_times or (None, None)
        lowest, highest = self.timestamps or (None, None)
        return {
            "name": self.name,
            "role": self.role,
            "log_id": self.header.log_id.hex() if self.header else None,
            "base_offset": self.base_offset,
            "end_offset": self.end_offset,
            "bytes": self.size,
            "frames": self.frames if self.is_walked else None,
            "messages": self.messages if self.is_walked else None,
            "first_append_time": shown_time(first),
            "last_append_time": shown_time(last),
            "min_timestamp": shown_time(lowest),
            "max_timestamp": shown_time(highest),
            "generation": self.header.generation if self.header else None,
            "compacted": self.is_compacted,
            "codecs": sorted(self.codecs),
            "index": self.index,
        }


@dataclass(slots=True)
class Report:
    """`log_id` is the manifest's or, if that is of no use, that of most segments."""

    is_verified: bool
    manifest: State = State.OK
    log_id: bytes | None = None
    start_offset: int | None = None
    mark: State = State.OK
    synced: Mark | None = None
    segments: list[SegmentReport] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_healthy(self) -> bool:
        return not any(finding.kind is Kind.DAMAGE for finding in self.findings)

    @property
    def chain(self) -> list[SegmentReport]:
        """The segments the log consists of, one after the other; some may turn out to be another log's."""
        return [segment for segment in self.segments if segment.role is not Role.LEFTOVER]

    @property
    def end_offset(self) -> int | None:
        ends = [s.end_offset for s in self.chain if s.role is not Role.FOREIGN and s.end_offset is not None]
        return max(ends, default=self.start_offset)

    def as_dict(self) -> dict[str, Any]:
        return {
            "healthy": self.is_healthy,
            "verified": self.is_verified,
            "log_id": self.log_id.hex() if self.log_id else None,
            "start_offset": self.start_offset,
            "end_offset": self.end_offset,
            "manifest": self.manifest,
            "mark": {"state": self.mark, "synced": self.synced._asdict() if self.synced else None},
            "segments": [segment.as_dict() for segment in self.segments],
            "findings": [asdict(finding) for finding in self.findings],
        }


@dataclass(frozen=True, slots=True)
class FrameReport:
    """One frame of a segment, or a stretch of it that is none."""

    file: str
    piece: Piece
    is_verified: bool

    @property
    def offset(self) -> int:
        """Its base offset; of a stretch that is no frame: the offset that was due there."""
        return self.piece.offset if self.piece.frame is None else self.piece.frame.base_offset

    @property
    def checksum(self) -> str:
        if not self.piece.is_whole:
            return "bad"
        return "ok" if self.is_verified else "unchecked"

    def as_dict(self) -> dict[str, Any]:
        piece, frame = self.piece, self.piece.frame
        place = {"file": self.file, "position": piece.position, "bytes": piece.size, "checksum": self.checksum}
        damage = piece.damage.message if piece.damage else None
        if frame is None:
            return {**place, "damage": damage}
        producer = frame.producer
        lowest, highest = frame.timestamps
        return {
            **place,
            "damage": damage,
            "base_offset": frame.base_offset,
            "count": frame.count,
            "span": frame.span,
            "codec": codec_name(frame.codec),
            "flags": flag_names(frame.flags),
            "leader_epoch": frame.leader_epoch,
            "append_time": shown_time(frame.append_time),
            "min_timestamp": shown_time(lowest),
            "max_timestamp": shown_time(highest),
            "producer": producer._asdict() if producer.id else None,
        }


class MessageReport(NamedTuple):
    offset: int
    append_time: int
    message: Message


def codec_name(codec: int) -> str:
    return _CODEC_NAMES.get(codec, f"unknown ({codec})")


def flag_names(flags: int) -> list[str]:
    names = [name for flag, name in _FLAG_NAMES.items() if flags & flag]
    rest = flags & ~sum(_FLAG_NAMES)
    return [*names, f"unknown ({rest:#x})"] if rest else names


def shown_time(time_us: int | None) -> str | None:
    """Also for a number that is no date: a checksum may vouch for one all the same."""
    if time_us is None:
        return None
    try:
        return rfc3339(time_us)
    except (ValueError, OverflowError, OSError):
        return f"{time_us} µs"
