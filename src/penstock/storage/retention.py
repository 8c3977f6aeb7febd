"""Which segments have had their time. Whole segments only, from the oldest on, never the active one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from penstock.errors import DiskFull, InvalidInput, StorageError
from penstock.frame import Frame, rewrite
from penstock.storage.log import Log
from penstock.storage.segment import Segment

Protected = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]


# What was appended ahead of the clock stays so much longer than its age: the clock may have been behind, and not ahead.
_STEP_US = 4 * 3_600_000_000


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
    # One that was just begun holds nothing that could be kept instead of another.
    size = sum(segment.size for segment in segments if not segment.is_empty)
    count = 0
    # When each was sealed, at the latest: the clock may have been ahead for longer than one segment.
    sealed = list(accumulate((segment.header.created for segment in reversed(segments[1:])), min))[::-1]
    for segment, sealed_us in zip(segments[:-1], sealed, strict=True):
        too_old = _is_too_old(segment, retention, now_us, sealed_us)
        too_much = retention.bytes_max is not None and size - segment.size >= retention.bytes_max
        if segment.next_offset > keep_from or not (too_old or too_much):
            break
        size -= segment.size
        count += 1
    return count


def _is_too_large(active: Segment, retention: Retention) -> bool:
    return retention.bytes_max is not None and active.size > retention.bytes_max // 2


def _is_too_long(active: Segment, retention: Retention, now_us: int) -> bool:
    return retention.age_us_max is not None and abs(now_us - active.header.created) > retention.age_us_max // 4


def _is_too_old(segment: Segment, retention: Retention, now_us: int, sealed_us: int | None = None) -> bool:
    """Append times never go back. If one is ahead of the clock, so is every later one: what was appended while the
    clock was wrong must not keep all that follows. Then what counts is when the segment was sealed."""
    if retention.age_us_max is None:
        return False
    newest_us = segment.last_append_time
    if sealed_us is not None and newest_us > now_us:
        # If the clock was set back by less than this, and forward again, the append times were right.
        newest_us = min(newest_us, sealed_us + _STEP_US)
    return newest_us < now_us - retention.age_us_max


def apply_retention(
    log: Log,
    retention: Retention,
    *,
    now_us: int,
    keep_from: int | None = None,
    protected: Protected | None = None,
    delete_prefix: Callable[[int], None] | None = None,
) -> int:
    """Deletes what is expired and returns the new start offset.

    `delete_prefix` is called instead of the log's own, for a log that must not begin later than its copies.

    `keep_from` is the oldest offset still needed, with everything behind it (an archive not yet written). `protected`
    tells single messages that must stay (delayed ones that are not due): segments that hold such are rewritten without
    the others, so that one message for next year does not keep a year of messages.
    An active segment that has wholly expired is sealed first: a log that nobody writes to empties all the same. So is
    one that holds more, or has been written for longer, than a part of what is to be kept: only whole segments go.
    """
    active = log.segments[-1]
    is_coarse = _is_too_large(active, retention) or _is_too_long(active, retention, now_us)
    if (is_coarse or _is_too_old(active, retention, now_us)) and not active.is_empty:
        with suppress(DiskFull):
            # No room for a new segment yet; the older ones can go all the same.
            log.roll()
    segments = log.segments
    # What is held back from readers may still be truncated: the log must not start behind it.
    keep = log.committed_offset if keep_from is None else min(keep_from, log.committed_offset)
    count = expired(segments, retention, now_us=now_us, keep_from=keep)
    bare = count if protected is None else _first_with(log, segments[:count], protected)
    if bare:
        (delete_prefix or log.delete_prefix)(max(segments[bare].base_offset, log.start_offset))
    if bare < count and protected is not None:
        _thin(log, segments[bare:count], protected)
    return log.start_offset


def _first_with(log: Log, segments: Sequence[Segment], protected: Protected) -> int:
    """How many segments there are before the first that holds a protected message."""
    for number, segment in enumerate(segments):
        if protected(np.arange(segment.base_offset, segment.next_offset)).any():
            return number
    return len(segments)


def _thin(log: Log, segments: Sequence[Segment], protected: Protected) -> None:
    """One segment with what is protected instead of these, if that is less than half of what they hold."""
    truncations = log.truncations
    try:
        stored = sum(head.count for segment in segments for head in log.heads_of(segment))
        kept = sum(int(protected(np.arange(s.base_offset, s.next_offset)).sum()) for s in segments)
        if 2 * kept < stored:
            frames = protected_frames(log, segments, protected)
            log.rewrite(segments, frames, truncations=truncations, is_loss=True)
    except StorageError as error:
        if not log.lost_to_others(error, segments):
            raise


def protected_frames(log: Log, segments: Sequence[Segment], protected: Protected) -> Iterator[Frame]:
    """What stays of these segments. Frames without messages do: epochs begin with them."""
    for segment in segments:
        for frame in log.scan(segment):
            batch = frame.batch(verify=False)
            stays = protected(frame.offsets(batch))
            if stays.all():
                yield frame
            elif stays.any():
                yield rewrite(frame, batch.take(stays), frame.span, frame.append_time, segment.head_seed)
