"""Where copies of dead letters go: to partitions of the topic that the letters are of.

A broker on its own has them all. In a cluster another node may lead the one that a copy is for: the same three steps
then go to whoever does (`server/forwarding/copies`).
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from penstock.broker.partition import Partition
from penstock.broker.topic import Topic
from penstock.broker.work import Work
from penstock.frame import Frame


class Copies(Protocol):
    async def since(self, topic: Topic, number: int) -> int:
        """Whatever is published to that partition from now on is found from this offset on."""

    async def are_there(self, topic: Topic, number: int, since: int, producer: int) -> bool:
        """Whether that producer has published something from this offset on which nobody loses any more."""

    async def publish(self, topic: Topic, number: int, frame: Frame) -> None:
        """Once, however often the same producer asks. It is safe when this returns."""


class CopiesHere:
    """NotLeader of what another node leads."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def since(self, topic: Topic, number: int) -> int:
        return topic.partition(number).messages.safe_offset

    async def are_there(self, topic: Topic, number: int, since: int, producer: int) -> bool:
        partition = topic.partition(number)
        return await self._work.on_a_reading_thread(partial(has_published, partition, since, producer))

    async def publish(self, topic: Topic, number: int, frame: Frame) -> None:
        await topic.publish_frame(frame, number)
        await topic.partition(number).synced()


def has_published(partition: Partition, since: int, producer: int) -> bool:
    log = partition.messages
    heads = log.heads(offset=max(since, log.start_offset))
    return any(head.base_offset < log.safe_offset and head.producer.id == producer for head in heads)
