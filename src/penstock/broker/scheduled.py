"""Delayed messages that are not due yet: to look at, cancel, move, or deliver at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.broker.ids import MessageId
from penstock.broker.partition import Partition
from penstock.broker.topic import Topic
from penstock.clock import TIME_MAX_US, Clock
from penstock.errors import InvalidInput
from penstock.message import Message


class Scheduled(NamedTuple):
    id: MessageId
    deliver_at: int
    message: Message


def scheduled(topic: Topic, limit: int | None = None) -> Iterator[Scheduled]:
    """Partition by partition, in the order of publishing; of each partition `limit` at the most."""
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise InvalidInput(f"limit is a number of messages, not {limit!r}")
    for number, partition in topic.numbered:
        pending = partition.groups.delays.pending
        for stored in partition.reading.messages(pending.copy() if limit is None else pending[:limit]):
            yield _one(topic, number, partition, stored.offset, stored.message)


def get(topic: Topic, identity: MessageId) -> Scheduled:
    identity = MessageId.checked(identity)
    partition = topic.partition(identity.partition)
    partition.groups.check_scheduled(identity.offset)
    stored = partition.reading.message(identity.offset)
    return _one(topic, identity.partition, partition, stored.offset, stored.message)


async def cancel(topic: Topic, identity: MessageId) -> None:
    """It never appears; raw readers of the log still see it."""
    identity = MessageId.checked(identity)
    await topic.partition(identity.partition).groups.cancel(identity.offset)


async def reschedule(topic: Topic, identity: MessageId, deliver_at: int, clock: Clock) -> None:
    """A time that has come means at once."""
    identity = MessageId.checked(identity)
    is_time = isinstance(deliver_at, int) and not isinstance(deliver_at, bool) and 0 <= deliver_at <= TIME_MAX_US
    if not is_time or deliver_at > clock.now_us() + topic.settings.max_delay_us:
        raise InvalidInput(f"deliver_at must be a time within the topic's longest delay, not {deliver_at!r}")
    await topic.partition(identity.partition).groups.reschedule(identity.offset, deliver_at)


def count(topic: Topic) -> int:
    return sum(len(partition.groups.delays.pending) for partition in topic.partitions)


def _one(topic: Topic, number: int, partition: Partition, offset: int, message: Message) -> Scheduled:
    due = partition.groups.delays.moved.get(offset, message.deliver_at)
    return Scheduled(MessageId(topic.name, number, offset), due, message)
