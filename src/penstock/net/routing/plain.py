"""Frames of producers who do not wait for answers: one without an identity is sent once, unless it is known that it did
not arrive.

Those of a partition keep their order. One that the wrong node has refused is sent again ahead of all that come after
it; if one of those is stored already, it is not.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from penstock.client.transport import Stored
from penstock.errors import PenstockError
from penstock.frame import Frame
from penstock.net.routing.atlas import Atlas
from penstock.net.routing.failures import is_behind, is_misplaced, is_unknown
from penstock.net.routing.leading import Leading


class _Lane:
    def __init__(self) -> None:
        self.sent = 0
        # The last one that is known to be stored.
        self.stored = 0
        self.turn = asyncio.Lock()
        self.queued = 0


class Plain:
    """Belongs to one event loop."""

    def __init__(self, atlas: Atlas, leading: Leading) -> None:
        self._atlas = atlas
        self._leading = leading
        self._lanes: defaultdict[tuple[str, int], _Lane] = defaultdict(_Lane)

    async def publish(self, topic: str, partition: int, frame: Frame, acks: str) -> Stored:
        lane = self._lanes[topic, partition]
        lane.sent += 1
        number, refused = lane.sent, None
        is_repeatable = bool(frame.producer.id)
        if not lane.queued:
            try:
                placed = await self._atlas.placed(topic, partition, None)
                if placed.leader:
                    stored = await self._leading.ask_once(
                        topic, placed, lambda transport: transport.publish_frame(topic, partition, frame, acks)
                    )
                    lane.stored = max(lane.stored, number)
                    return stored
            except PenstockError as error:
                if not (is_misplaced(error) or is_behind(error) or (is_repeatable and is_unknown(error))):
                    raise
                refused = error
        lane.queued += 1
        try:
            async with lane.turn:
                if refused is not None and lane.stored > number:
                    raise refused
                stored = await self._leading.ask(
                    topic,
                    partition,
                    lambda transport: transport.publish_frame(topic, partition, frame, acks),
                    is_repeatable=is_repeatable,
                )
                lane.stored = max(lane.stored, number)
                return stored
        finally:
            lane.queued -= 1
