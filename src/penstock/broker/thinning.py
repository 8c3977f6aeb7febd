"""Frames with only those of their messages that a consumer gets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pyroaring import BitMap64

from penstock.broker.offsets import mask_of, run_from
from penstock.errors import InvalidFrame, LogCorrupt
from penstock.frame import MERGED, SPARSE, Frame, cut, rewrite, takes_long
from penstock.limits import KIB

# Of a frame that is mostly wanted, what is not is sent along: to take it out would cost more.
_WASTE_MAX = 16 * KIB
# A smaller frame is decompressed within a millisecond.
LARGE_BYTES_MIN = 4 * KIB


def shall_be_thinned(frame: Frame, wanted: int, messages: int) -> bool:
    """`wanted`: how many of its `messages` the consumer gets. Sent in vain, if all have the same size, are the bytes by
    which the frame is larger than the wanted messages without compression."""
    return 0 < wanted < messages and len(frame.data) - frame.raw_length * wanted // messages > _WASTE_MAX


def thinned(frame: Frame, offsets: BitMap64, wanted: int) -> Frame:
    """Return the frame with these messages only, at the same offsets and times, or the frame itself if it is smaller:
    clients need not accept a part of a frame that is larger than the frame. Only a log looks at the part of the header
    that is not kept."""
    return min(_without_others(frame, offsets, wanted), frame, key=_size)


def _size(frame: Frame) -> int:
    return len(frame.data)


def _without_others(frame: Frame, offsets: BitMap64, wanted: int) -> Frame:
    try:
        batch = frame.batch()
    except InvalidFrame as error:
        where = frame.base_offset
        raise LogCorrupt(f"the frame at offset {where} is damaged: {error.message}", offset=where) from error
    first = offsets.next_set_bit(frame.base_offset)
    stop = run_from(offsets, first)
    if not frame.flags & (SPARSE | MERGED) and wanted == min(stop, frame.next_offset) - first:
        return cut(frame, batch, first - frame.base_offset, first - frame.base_offset + wanted)
    kept = mask_of(frame.offsets(batch), offsets)
    return rewrite(frame, batch.take(np.asarray(kept)), frame.span, frame.append_time, 0)


def is_long_work(frames: Sequence[Frame], offsets: BitMap64) -> bool:
    """Whether some of these must be decompressed to be thinned, and are too large for the event loop."""
    return any(takes_long(frame.data) and shall_be_thinned(frame, *_counts(frame, offsets)) for frame in frames)


def thin(frames: Sequence[Frame], offsets: BitMap64) -> list[Frame]:
    """Those that are too large for the event loop, thinned; the others as they are. On a thread."""
    return [
        thinned(frame, offsets, _counts(frame, offsets)[0]) if is_long_work([frame], offsets) else frame
        for frame in frames
    ]


def _counts(frame: Frame, offsets: BitMap64) -> tuple[int, int]:
    return offsets.range_cardinality(frame.base_offset, frame.next_offset), frame.count
