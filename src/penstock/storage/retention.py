"""Which segments have had their time. Whole segments only, from the oldest on, never the active one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.errors import DiskFull, InvalidInput
from penstock.storage.log import Log
from penstock.storage.segment import Segment


@dataclass(frozen=True, slots=True)
class Retention:
    """None keeps without that bound. A segment goes when either bound says so."""

    age_us_max: int | None = None
    bytes_max: int | None = None

    def __post_init__(self) -> None:
        for name in ("age_us_max", "bytes_max"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"retention {name} must be positive, not {value}", setting=name)


def expired(segments: Sequence[Segment], retention: Retention, *, now_us: int, keep_from: int) -> int:
    """How many of the oldest segments may go; none that holds an offset of `keep_from` or later."""
    size = sum(segment.size for segment in segments)
    count = 0
    for segment in segments[:-1]:
        too_old = _is_too_old(segment, retention, now_us)
        too_much = retention.bytes_max is not None and size - segment.size >= retention.bytes_max
        if segment.next_offset > keep_from or not (too_old or too_much):
            break
        size -= segment.size
        count += 1
    return count


def _is_too_old(segment: Segment, retention: Retention, now_us: int) -> bool:
    return retention.age_us_max is not None and segment.last_append_time < now_us - retention.age_us_max


def apply_retention(log: Log, retention: Retention, *, now_us: int, keep_from: int | None = None) -> int:
    """Deletes what is expired and returns the new start offset.

    `keep_from` is the oldest offset still needed (a delayed message not yet delivered, an archive not yet written).
    An active segment that has wholly expired is sealed first: a log that nobody writes to empties all the same.
    """
    active = log.segments[-1]
    if _is_too_old(active, retention, now_us) and not active.is_empty:
        with suppress(DiskFull):
            # No room for a new segment yet; the older ones can go all the same.
            log.roll()
    segments = log.segments
    keep = log.end_offset if keep_from is None else keep_from
    count = expired(segments, retention, now_us=now_us, keep_from=keep)
    if count:
        log.delete_prefix(max(segments[count].base_offset, log.start_offset))
    return log.start_offset
