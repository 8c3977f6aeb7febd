"""Delayed messages that are not due yet: to look at, cancel, move, or deliver at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from pyroaring import BitMap64

from penstock.broker.ids import MessageId
from penstock.broker.partition import Partition
from penstock.broker.reading import Stored
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
            yield _one(topic, number, partition, stored)


class Due(NamedTuple):
    """Where one of them is: messages are read for a page only. `size` is that of the message."""

    deliver_at: int
    partition: int
    offset: int
    size: int

    @property
    def place(self) -> tuple[int, int, int]:
        return self[:3]


def due(topic: Topic, numbers: Collection[int]) -> Iterator[Due]:
    """All of these partitions, as `scheduled` has them."""
    for number, partition in topic.numbered:
        if number in numbers:
            for stored in partition.reading.messages(partition.groups.delays.pending.copy()):
                yield Due(_due(partition, stored), number, stored.offset, stored.message.size)


def read(topic: Topic, found: Sequence[Due]) -> Iterator[Scheduled]:
    """The messages of these, partition by partition, without those that are gone."""
    by_partition: dict[int, BitMap64] = {}
    for one in found:
        by_partition.setdefault(one.partition, BitMap64()).add(one.offset)
    for number, offsets in by_partition.items():
        partition = topic.partition(number)
        for stored in partition.reading.messages(offsets):
            yield _one(topic, number, partition, stored)


def get(topic: Topic, identity: MessageId) -> Scheduled:
    identity = MessageId.checked(identity)
    partition = topic.partition(identity.partition)
    partition.groups.check_scheduled(identity.offset)
    stored = partition.reading.message(identity.offset)
    return _one(topic, identity.partition, partition, stored)


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


def _one(topic: Topic, number: int, partition: Partition, stored: Stored) -> Scheduled:
    return Scheduled(MessageId(topic.name, number, stored.offset), _due(partition, stored), stored.message)


def _due(partition: Partition, stored: Stored) -> int:
    return partition.groups.delays.moved.get(stored.offset, stored.message.deliver_at)
