"""Copies of dead letters, to whoever leads the partition that they are for: this node, or another one.

Everything here may be asked again, of the next leader as well: a copy has a producer of its own, by which it is found.
"""

from __future__ import annotations

from penstock.broker.topic import Topic
from penstock.client.placement import FindPublished
from penstock.client.requests import FindOffsets
from penstock.frame import Frame
from penstock.net.routing.leading import Leading


class RoutedCopies:
    """Belongs to one event loop."""

    def __init__(self, leading: Leading) -> None:
        self._leading = leading

    async def since(self, topic: Topic, number: int) -> int:
        request = FindOffsets(topic.name, "latest", (number,))
        (end,) = await self._leading.ask(topic.name, number, lambda way: way.call(request), is_repeatable=True)
        return end

    async def are_there(self, topic: Topic, number: int, since: int, producer: int) -> bool:
        request = FindPublished(topic.name, number, since, producer)
        return await self._leading.ask(topic.name, number, lambda way: way.call(request), is_repeatable=True)

    async def publish(self, topic: Topic, number: int, frame: Frame) -> None:
        assert frame.producer.id
        await self._leading.ask(
            topic.name, number, lambda way: way.publish_frame(topic.name, number, frame), is_repeatable=True
        )
