"""Messages on their way to a consumer: frames as they lie on disk, or made anew if little of them is wanted; or one by
one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyroaring import BitMap64

from penstock.broker.thinning import shall_be_thinned, thinned
from penstock.client.rows import among
from penstock.client.transport import Delivery
from penstock.clock import Instant
from penstock.frame import Frame
from penstock.message import Message
from penstock.wire.runs import to_runs
from penstock.wire.words import Given


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
        if wanted == facts.messages:
            parts.append(frame.data)
        elif wanted:
            is_thinned = shall_be_thinned(frame, wanted, facts.messages)
            parts.append(thinned(frame, offsets, wanted).data if is_thinned else frame.data)
    return parts


def rows_of(frames: Sequence[Frame], offsets: BitMap64) -> Iterator[tuple[int, int, Message]]:
    """Offset, append time and message of each."""
    for frame in frames:
        columns = among(frame, offsets)
        if columns is not None:
            yield from columns.rows()
