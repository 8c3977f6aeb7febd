"""Where the messages of an identity are, found in the log itself: each frame carries who made it.

A frame that was merged with others or compacted still covers the numbers it had, one for each of its offsets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.client.requests import FindOffsets
from penstock.client.transport import Transport
from penstock.columns import Ints
from penstock.limits import MIB

_BYTES = 4 * MIB
# So many offsets are looked at first, going back from the end of a log, then twice as many, and so on.
_BACK = 20_000


class Placed(NamedTuple):
    """So many messages, which were put as `number` and those that follow it, have `offset` and those that follow it."""

    number: int
    messages: int
    offset: int


class Kept(NamedTuple):
    """Messages that are in the log now, and the numbers they were put as."""

    numbers: Ints
    rows: pa.RecordBatch


async def find_places(
    transport: Transport, topic: str, partition: int, identity: tuple[int, int], since: int
) -> list[Placed]:
    """Those of a producer's id and epoch that are in the log now, at the offset `since` or behind it.

    For this no columns are sent, only the heads of frames.
    """
    start, end = await _ends(transport, topic, partition)
    return await _between(transport, topic, partition, identity, max(since, start), end)


async def find_places_from(
    transport: Transport, topic: str, partition: int, identity: tuple[int, int], number: int
) -> list[Placed]:
    """Those that were put as `number` or later; there may be earlier ones among them.

    They are looked for from the end of the log: work that is done again was mostly done a short while ago.
    """
    start, end = await _ends(transport, topic, partition)
    found: dict[int, Placed] = {}
    back = _BACK
    while end > start and not any(place.number <= number for place in found.values()):
        since = max(start, end - back)
        # A frame that lies over the border is seen from both sides of it.
        found |= {place.offset: place for place in await _between(transport, topic, partition, identity, since, end)}
        end, back = since, 2 * back
    return [found[offset] for offset in sorted(found)]


async def read_kept(
    transport: Transport, topic: str, partition: int, identity: tuple[int, int], place: Placed
) -> list[Kept]:
    """What retention and compaction have left of those."""
    start, _ = await _ends(transport, topic, partition)
    offset, until = max(place.offset, start), place.offset + place.messages
    found = []
    while offset < until:
        page = await transport.read(topic, partition, offset, until, _BYTES)
        for frame in page.frames:
            facts = frame.facts()
            if (facts.producer.id, facts.producer.epoch) != identity:
                continue
            batch = frame.batch()
            offsets = frame.offsets(batch)
            first, last = np.searchsorted(offsets, (offset, until))
            if first < last:
                numbers = offsets[first:last] - facts.base_offset + facts.producer.sequence
                found.append(Kept(numbers, batch.slice(int(first), int(last)).to_arrow()))
        if not page.frames:
            break
        offset = page.next_offset
    return found


async def _ends(transport: Transport, topic: str, partition: int) -> tuple[int, int]:
    starts, ends = [await transport.call(FindOffsets(topic, at)) for at in ("earliest", "latest")]
    return starts[partition], ends[partition]


async def _between(
    transport: Transport, topic: str, partition: int, identity: tuple[int, int], offset: int, until: int
) -> list[Placed]:
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
