"""A group of consumers: what it leases from the partitions of a topic, and answers for.

Any consumer may lease from any partition; messages are delivered in no promised order, and a slow one blocks nobody.
Members, ordering by key, lanes, delays and dead-letter topics are not there yet: a message that was tried too often is
marked exhausted in the deliveries log and stays readable in the log of messages.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec
from pyroaring import BitMap64

from penstock.broker.deliveries import offsets_of
from penstock.broker.names import check_name
from penstock.broker.partition import Partition
from penstock.broker.retries import SECOND_US, RetryPolicy
from penstock.broker.topic import Topic
from penstock.errors import InvalidInput, InvalidSetting
from penstock.frame import Frame, FrameRun
from penstock.limits import MIB

COUNT_MAX = 10_000


class GroupSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """SQS hides a message for 30 s by default; RabbitMQ's consumers hold as many as they like."""

    start: Literal["earliest", "latest"] = "earliest"
    visibility_us: int = 30 * SECOND_US
    max_in_flight: int = 20_000

    def __post_init__(self) -> None:
        if self.start not in ("earliest", "latest"):
            raise InvalidSetting(f"start is earliest or latest, not {self.start!r}", setting="start")
        for name in ("visibility_us", "max_in_flight"):
            if getattr(self, name) < 1:
                raise InvalidSetting(f"{name} must be positive, not {getattr(self, name)}", setting=name)


class Receipt(NamedTuple):
    """What a consumer answers with: some messages of one lease."""

    partition: int
    lease: int
    offsets: BitMap64


class Handed(NamedTuple):
    """Messages leased from one partition: those of `frames` whose offsets are in the receipt."""

    receipt: Receipt
    frames: list[Frame]


class Group:
    """One group on one topic."""

    def __init__(self, name: str, topic: Topic, settings: GroupSettings, policy: RetryPolicy) -> None:
        self.name = check_name("group", name)
        self.settings = settings
        self.policy = policy
        self._topic = topic
        self._turn = 0

    async def lease(self, consumer: str, count: int, bytes_max: int = MIB) -> list[Handed]:
        """Up to `count` messages of about `bytes_max` bytes, from as many partitions as it takes."""
        if not isinstance(count, int) or not 1 <= count <= COUNT_MAX:
            raise InvalidInput(f"count must be 1 to {COUNT_MAX}, not {count!r}")
        check_name("consumer", consumer)
        handed: list[Handed] = []
        partitions = len(self._topic.partitions)
        for step in range(partitions):
            number = (self._turn + step) % partitions
            some = await self._lease(number, consumer, count, bytes_max)
            if some is None:
                continue
            handed.append(some)
            count -= len(some.receipt.offsets)
            bytes_max -= sum(len(frame.data) for frame in some.frames)
            if count <= 0 or bytes_max <= 0:
                break
        self._turn = (self._turn + 1) % partitions
        return handed

    async def _lease(self, number: int, consumer: str, count: int, bytes_max: int) -> Handed | None:
        partition = await self._started(number)
        fresh = self._fresh(partition, count, bytes_max)
        leased = partition.groups.lease(
            self.name,
            consumer=consumer,
            count=count,
            end_offset=fresh.next_offset,
            visibility_us=self.settings.visibility_us,
            in_flight_max=self.settings.max_in_flight,
            policy=self.policy,
        )
        if leased is None:
            return None
        offsets = offsets_of(leased)
        frames, there = partition.frames_of(offsets, fresh)
        if there != offsets:
            await partition.groups.reject(self.name, leased.lease, offsets - there, "no longer in the log")
        return Handed(Receipt(number, leased.lease, there), frames) if there else None

    def _fresh(self, partition: Partition, count: int, bytes_max: int) -> FrameRun:
        """What the group has not seen yet, no more than `bytes_max`; a frame at least."""
        cursor, log = partition.groups.state(self.name).cursor, partition.messages
        if cursor >= log.synced_offset:
            return FrameRun(memoryview(b""), [], cursor)
        start = max(cursor, log.start_offset)
        return log.read(start, bytes_max=bytes_max, until=min(start + count, log.synced_offset))

    async def ack(self, receipt: Receipt) -> None:
        """On disk when this returns: these messages never come to this group again."""
        await self._partition(receipt).groups.ack(self.name, receipt.lease, receipt.offsets)

    async def nack(self, receipt: Receipt, *, reason: str = "", delay_us: int | None = None) -> None:
        """To be tried again: after `delay_us`, or by the group's back-off."""
        if delay_us is not None and not (isinstance(delay_us, int) and delay_us >= 0):
            raise InvalidInput(f"a delay is a whole number of microseconds, not {delay_us!r}")
        await self._partition(receipt).groups.nack(
            self.name, receipt.lease, receipt.offsets, policy=self.policy, reason=reason, delay_us=delay_us
        )

    async def reject(self, receipt: Receipt, reason: str) -> None:
        """Never to be tried again."""
        await self._partition(receipt).groups.reject(self.name, receipt.lease, receipt.offsets, reason)

    async def release(self, receipt: Receipt) -> None:
        """Given back unseen: ready at once, and this delivery does not count."""
        await self._partition(receipt).groups.release(self.name, receipt.lease, receipt.offsets)

    async def extend(self, receipt: Receipt, visibility_us: int | None = None) -> None:
        """More time for the whole lease, from now on."""
        visibility = self.settings.visibility_us if visibility_us is None else visibility_us
        if not isinstance(visibility, int) or visibility < 1:
            raise InvalidInput(f"visibility is a positive number of microseconds, not {visibility_us!r}")
        await self._partition(receipt).groups.extend(self.name, receipt.lease, visibility)

    async def seek(self, to: Literal["earliest", "latest"] | int, partition: int | None = None) -> None:
        """Moves the group: to the start, to the end, or to a time in microseconds. What it had leased is let go."""
        numbers = range(len(self._topic.partitions)) if partition is None else [partition]
        for number in numbers:
            log = self._topic.partition(number).messages
            if to == "earliest":
                offset = log.start_offset
            elif to == "latest":
                offset = log.synced_offset
            elif isinstance(to, int):
                offset = min(log.offset_at(to), log.synced_offset)
            else:
                raise InvalidInput(f"seek to earliest, latest or a time in microseconds, not {to!r}")
            await self._topic.partition(number).groups.start(self.name, offset)

    def lag(self) -> list[int]:
        """Messages not done, for each partition."""
        lags = []
        for partition in self._topic.partitions:
            log = partition.messages
            if partition.groups.has(self.name):
                lags.append(partition.groups.state(self.name).lag(log.synced_offset))
            else:
                lags.append(log.synced_offset - self._first_offset(partition))
        return lags

    def attempt(self, receipt: Receipt, offset: int) -> int:
        """How often that message has been delivered, this time included."""
        return self._partition(receipt).groups.state(self.name).attempt(offset)

    def _first_offset(self, partition: Partition) -> int:
        log = partition.messages
        return log.start_offset if self.settings.start == "earliest" else log.synced_offset

    async def _started(self, number: int) -> Partition:
        partition = self._topic.partition(number)
        if not partition.groups.has(self.name):
            await partition.groups.start(self.name, self._first_offset(partition))
        return partition

    def _partition(self, receipt: Receipt) -> Partition:
        return self._topic.partition(receipt.partition)
