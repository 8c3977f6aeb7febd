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
        self.letters = DeadLetters(topics.topic, self._ensure, work, clock, limits)

    def watch(self, topic: Topic, number: int) -> None:
        """The partition asks where its dead letters go, and tells when there are some."""
        groups = topic.here[number].groups
        groups.graveyard = partial(self._next_offset, topic.name, number)
        groups.mourn = partial(self.mourn, topic.name, number)

    def mourn(self, topic: str, number: int, group: str) -> None:
        on_topic = self._topics.get(topic)
        # Whoever is at it goes on until nothing is left.
        if on_topic is not None and not self.letters.is_burying(on_topic, number, group):
            self._work.in_background(self._bury(on_topic, number, group))

    async def _bury(self, topic: Topic, number: int, group: str) -> None:
        groups = topic.partition(number).groups
        while groups.has(group) and groups.state(group).dying:
            await self.letters.bury(topic, number, group)

    def of(self, topic: str) -> Topic | None:
        return self._topics.get(topic + DEAD_LETTERS)

    def _next_offset(self, topic: str, number: int) -> int | None:
        """Where the next dead letter of this partition would go; None if they go nowhere."""
        on_topic = self._topics.get(topic)
        if on_topic is None or not on_topic.settings.dead_letters:
            return None
        graves = self.of(topic)
        if graves is None or number >= graves.count:
            return 0
        # In a cluster it may be led elsewhere for a moment; then all of it is looked through.
        return graves.here[number].messages.safe_offset if number in graves.here else 0

    async def _ensure(self, topic: Topic) -> Topic:
        name, partitions = topic.name + DEAD_LETTERS, topic.count
        graves = self._topics.get(name)
        if graves is None:
            try:
                return await self._topics.create(name, partitions, _settings(topic.settings))
            except AlreadyExists:
                graves = self._topics.topic(name)
        if graves.count < partitions:
            return await self._topics.change(name, partitions, None)
        return graves


def _settings(of: TopicSettings) -> TopicSettings:
    """Dead letters are all that is left of their messages: on as many disks as those were."""
    return TopicSettings(dead_letters=False, replicas=of.replicas, min_isr=of.min_isr)
