"""Where the dead letters of each topic go: to a topic that is made with the first of them.

What a group gives up is buried in the background, and again at the next tick if that could not be done.
"""

from __future__ import annotations

from functools import partial

from penstock.broker.dead_letters import DeadLetters
from penstock.broker.names import DEAD_LETTERS
from penstock.broker.settings import TopicSettings
from penstock.broker.topic import Topic
from penstock.broker.topics import Topics
from penstock.broker.work import Work
from penstock.clock import Clock
from penstock.errors import AlreadyExists
from penstock.limits import Limits


class Graveyards:
    def __init__(self, topics: Topics, work: Work, clock: Clock, limits: Limits) -> None:
        self._topics = topics
        self._work = work
        self.letters = DeadLetters(topics.topic, self._ensure, clock, limits)

    def watch(self, topic: Topic) -> None:
        """Its partitions ask where their dead letters go, and tell when there are some."""
        for number, partition in enumerate(topic.partitions):
            partition.groups.graveyard = partial(self._next_offset, topic.name, number)
            partition.groups.mourn = partial(self.mourn, topic.name, number)

    def mourn(self, topic: str, number: int, group: str) -> None:
        on_topic = self._topics.get(topic)
        if on_topic is not None:
            self._work.in_background(self.letters.bury(on_topic, number, group))

    def of(self, topic: str) -> Topic | None:
        return self._topics.get(topic + DEAD_LETTERS)

    def _next_offset(self, topic: str, number: int) -> int | None:
        """Where the next dead letter of this partition would go; None if they go nowhere."""
        on_topic = self._topics.get(topic)
        if on_topic is None or not on_topic.settings.dead_letters:
            return None
        graves = self.of(topic)
        if graves is None or number >= len(graves.partitions):
            return 0
        return graves.partition(number).messages.synced_offset

    async def _ensure(self, topic: Topic) -> Topic:
        name, partitions = topic.name + DEAD_LETTERS, len(topic.partitions)
        graves = self._topics.get(name)
        if graves is None:
            try:
                return await self._topics.create(name, partitions, TopicSettings(dead_letters=False))
            except AlreadyExists:
                graves = self._topics.topic(name)
        if len(graves.partitions) < partitions:
            return await self._topics.change(name, partitions, None)
        return graves
