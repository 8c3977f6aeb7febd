"""Identities for frames that come without one: with it a frame is found where it was stored, and so can be sent again.

A producer counts what it sends, and what comes after a gap is refused. Many callers are behind a door, and the frame of
one must not fail because that of another did. So an identity has one frame under way at a time, and as many are made as
are needed at once: leaders remember each of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.client.transport import Stored
from penstock.environment import random_id
from penstock.errors import SequenceGap
from penstock.frame import Frame, Producer, identified

Publish = Callable[[str, int, Frame, str], Awaitable[Stored]]
# A frame has them up to 2³¹, and comes nowhere near the difference with what it holds.
_SEQUENCE_MAX = 1 << 30


class Identities:
    """Belongs to one event loop."""

    def __init__(self, publish: Publish, new_id: Callable[[], bytes] = random_id) -> None:
        self._publish = publish
        self._new_id = new_id
        # By topic and partition, those that have nothing under way. Only of partitions that have stored something:
        # names come from outside.
        self._free: dict[tuple[str, int], list[Producer]] = {}

    async def publish(self, topic: str, partition: int, frame: Frame, acks: str) -> Stored:
        free = self._free.get((topic, partition))
        producer = free.pop() if free else self._new()
        try:
            stored = await self._publish(topic, partition, identified(frame, producer), acks)
        except SequenceGap:
            # Something of it was lost with its leader. So this one is not stored anywhere, under that name.
            producer = self._new()
            stored = await self._publish(topic, partition, identified(frame, producer), acks)
        # If it fails, nobody knows what this producer has sent, and it is not used again.
        following = producer._replace(sequence=producer.sequence + frame.count)
        if following.sequence < _SEQUENCE_MAX:
            self._free.setdefault((topic, partition), []).append(following)
        return stored

    def _new(self) -> Producer:
        return Producer((int.from_bytes(self._new_id()[:8], "little") >> 2) + 1, 0, 0)
