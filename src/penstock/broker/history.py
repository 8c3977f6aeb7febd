"""What happened to a message, what keeps it, and where a group was at some time. Read by `trace.py`."""

from __future__ import annotations

from functools import partial

from penstock.broker import trace as tracing
from penstock.broker.assignor import Part
from penstock.broker.catalog import Catalog
from penstock.broker.checks import check_time
from penstock.broker.ids import MessageId
from penstock.broker.membership import Consumers
from penstock.broker.names import check_name
from penstock.broker.topics import Topics
from penstock.broker.work import Work
from penstock.clock import Clock, Instant
from penstock.message import Message


class History:
    """Looks at the logs as soon as all that happened before the question is written."""

    def __init__(self, catalog: Catalog, topics: Topics, consumers: Consumers, work: Work, clock: Clock) -> None:
        self._catalog = catalog
        self._topics = topics
        self._consumers = consumers
        self._work = work
        self._clock = clock

    def message(self, identity: MessageId) -> Message:
        identity = MessageId.checked(identity)
        topic = self._topics.topic(identity.topic)
        return topic.partition(identity.partition).reading.message(identity.offset).message

    async def trace(self, identity: MessageId) -> tracing.Trace:
        identity = MessageId.checked(identity)
        topic = self._topics.topic(identity.topic)
        partition = topic.partition(identity.partition)
        await partition.groups.flushed()
        stored = await self._work.on_a_reading_thread(partial(partition.reading.message, identity.offset))
        story = await self._work.scan(tracing.story(partition, identity, stored.append_time))
        return tracing.trace(topic, identity, stored, story)

    async def why(self, identity: MessageId, group: str) -> tracing.Why:
        check_name("group", group)
        identity = MessageId.checked(identity)
        topic = self._topics.topic(identity.topic)
        partition = topic.partition(identity.partition)
        await partition.groups.flushed()
        is_there = self._catalog.has_group(group)
        members = self._consumers.of(group)
        owner = None
        if members is not None:
            owner = members.owner(Part(identity.topic, identity.partition)) or next(iter(members.names()), None)
        found = tracing.why(topic, identity, group, now=Instant.of(self._clock), owner=owner, is_started=is_there)
        if found is not None:
            return found
        start = partition.groups.state(group).start
        stored = await self._work.on_a_reading_thread(partial(partition.reading.message, identity.offset))
        story = await self._work.scan(tracing.story(partition, identity, stored.append_time))
        return tracing.how_done(story, identity, group, start)

    async def state_at(self, group: str, topic: str, time_us: int) -> list[tracing.StateAt]:
        check_name("group", group)
        on_topic = self._topics.topic(topic)
        check_time(time_us)
        for partition in on_topic.partitions:
            await partition.groups.flushed()
        return await self._work.scan(tracing.states_at(on_topic, group, time_us))
