"""Where the messages of an identity are, found in the log itself: each frame carries who made it.

A frame that was merged with others or compacted still covers the numbers it had, one for each of its offsets.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.client.requests import FindOffsets
from penstock.client.transport import Transport
from penstock.limits import MIB

_BYTES = 4 * MIB


class Placed(NamedTuple):
    """So many messages, which were put as `number` and those that follow it, have `offset` and those that follow it."""

    number: int
    messages: int
    offset: int


async def find_places(
    transport: Transport, topic: str, partition: int, identity: tuple[int, int], since: int
) -> list[Placed]:
    """Those of a producer's id and epoch that are in the log now, at the offset `since` or behind it.

    For this no columns are sent, only the heads of frames.
    """
    starts, ends = [await transport.call(FindOffsets(topic, at)) for at in ("earliest", "latest")]
    offset, until = max(since, starts[partition]), ends[partition]
    found = []
    while offset < until:
        page = await transport.read(topic, partition, offset, until, _BYTES, ())
        for frame in page.frames:
            facts = frame.facts()
            if (facts.producer.id, facts.producer.epoch) == identity:
                found.append(Placed(facts.producer.sequence, facts.span, facts.base_offset))
        if not page.frames:
            break
        offset = page.next_offset
    return found
