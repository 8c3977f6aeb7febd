"""Messages on their way to a consumer: frames as they lie on disk, or made anew if little of them is wanted; or one by
one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from pyroaring import BitMap64

from penstock.broker.offsets import mask_of, run_from
from penstock.client.rows import among
from penstock.client.transport import Delivery
from penstock.clock import Instant
from penstock.errors import InvalidFrame, LogCorrupt
from penstock.frame import MERGED, SPARSE, Frame, cut, rewrite
from penstock.limits import KIB
from penstock.message import Message
from penstock.wire.runs import to_runs
from penstock.wire.words import Given

# Of a frame that is mostly wanted, what is not is sent along: to take it out would cost more.
_WASTE_MAX = 16 * KIB


def given(delivery: Delivery, asked_us: int, now: Instant) -> tuple[Given, list[memoryview]]:
    """The word, and what belongs into the payload. `asked_us`: when the request came, on the monotonic clock."""
    receipt = delivery.receipt
    parts = wanted_of(delivery.frames, receipt.offsets)
    attempts = [number for pair in delivery.attempts.items() for number in pair]
    word = Given(
        receipt.topic,
        receipt.partition,
        receipt.lease,
        to_runs(receipt.offsets),
        sum(map(len, parts)),
        attempts,
        now.to_wall(delivery.deadline_us),
        *delivery.terms,
        delivery.deadline_us - asked_us,
    )
    return word, parts


def wanted_of(frames: Sequence[Frame], offsets: BitMap64) -> list[memoryview]:
    parts = []
    for frame in frames:
        facts = frame.facts()
        wanted = offsets.range_cardinality(facts.base_offset, facts.base_offset + facts.span)
        if wanted == facts.messages or (wanted and _waste(frame, wanted, facts.messages) <= _WASTE_MAX):
            parts.append(frame.data)
        elif wanted:
            # What was compressed may be larger without what is not wanted: clients need not accept that.
            parts.append(min(_thinned(frame, offsets, wanted).data, frame.data, key=len))
    return parts


def rows_of(frames: Sequence[Frame], offsets: BitMap64) -> Iterator[tuple[int, int, Message]]:
    """Offset, append time and message of each."""
    for frame in frames:
        columns = among(frame, offsets)
        if columns is not None:
            yield from columns.rows()


def _waste(frame: Frame, wanted: int, messages: int) -> int:
    """Bytes that are sent in vain with the whole frame, if all messages have the same size."""
    return len(frame.data) - frame.raw_length * wanted // max(messages, 1)


def _thinned(frame: Frame, offsets: BitMap64, wanted: int) -> Frame:
    """With the same offsets and times. Its head is not that of a log any more, which nobody but a log looks at."""
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
