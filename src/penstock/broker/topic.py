"""A topic: its partitions, and which of them a message goes to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from penstock.acks import ALL, check_acks
from penstock.batch import Batch
from penstock.broker.bell import Bell
from penstock.broker.catalog import TopicRecord
from penstock.broker.partition import Partition
from penstock.broker.room import Room
from penstock.broker.settings import TopicSettings
from penstock.clock import Clock
from penstock.codec import NONE
from penstock.durations import duration_text
from penstock.errors import (
    DiskFull,
    InvalidMessage,
    NotEnoughReplicas,
    NotLeader,
    PartitionNotFound,
    PenstockError,
    QuotaExceeded,
)
from penstock.frame import HAS_DELAYS, Frame
from penstock.limits import Limits
from penstock.message import Message
from penstock.partitioner import UNKEYED_RUN, partition_of, partitions_of, split
from penstock.published import Published, PublishedBatch
from penstock.storage.commit import Committed


class TooFew(NamedTuple):
    """Replicas of a partition in sync, and how many have to be before its new leader serves it. `is_awaited`: as many
    nodes are up, and about to be."""

    in_sync: int
    min_isr: int
    is_awaited: bool


class Topic:
    """Invariant: `numbered` are partitions of the record, ascending: all of them, or in a cluster those led here."""

    def __init__(
        self,
        record: TopicRecord,
        partitions: Mapping[int, Partition],
        *,
        bell: Bell,
        limits: Limits,
        clock: Clock,
        room: Room,
        is_replicated: bool = False,
        too_few: Callable[[str], TooFew | None] = lambda identity: None,
    ) -> None:
        """`too_few` tells, of a partition by its id, what keeps this node from serving it, if that is so."""
        self.bell = bell
        self.room = room
        self._limits = limits
        self._clock = clock
        # The partition of the last message without a key, and how many it got in a row. Any partition is the first one:
        # a broker may be opened for a message or two.
        self._turn, self._run = clock.now_us(), 0
        # Also while none of its partitions is led here.
        self.is_replicated = is_replicated
        self._too_few = too_few
        # Why nothing is to be published to it for now: its owner has used up its storage.
        self.refusal: Callable[[], QuotaExceeded] | None = None
        self.change(record, partitions)

    def change(self, record: TopicRecord, partitions: Mapping[int, Partition]) -> None:
        self.numbered = sorted(partitions.items())
        self.partitions = [partition for _, partition in self.numbered]
        self.here = dict(self.numbered)
        self.led = frozenset(self.here)
        # Wherever they are.
        self.count = len(record.partitions)
        assert all(number < self.count for number in self.here)
        self.record = record
        # Whoever waits does so at the partitions there were.
        self.bell.ring()

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def settings(self) -> TopicSettings:
        return self.record.settings

    def keep_from(self, number: int) -> int:
        """What is at or behind that offset of a partition must not be deleted, however old it is."""
        visible = self.partition(number).reading.visible_offset
        return visible if self.settings.archive == "none" else min(visible, self.record.archived_until(number))

    def not_archived(self, number: int) -> int:
        """How many offsets of a partition nobody has said to be archived."""
        log = self.partition(number).messages
        return log.end_offset - max(log.start_offset, self.record.archived_until(number))

    def partition(self, number: int) -> Partition:
        found = self.here.get(number) if isinstance(number, int) and not isinstance(number, bool) else None
        if found is None:
            raise self._not_here(number)
        return found

    def _not_here(self, number: object) -> PenstockError:
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < self.count:
            too_few = self._too_few(self.record.partitions[number])
            if too_few is not None:
                return self._not_begun(number, too_few)
            what = f"this node does not lead partition {number} of {self.name}, or not any more"
            return NotLeader(what, topic=self.name, partition=number)
        return PartitionNotFound(
            f"{self.name} has partitions 0 to {self.count - 1}, not {number!r}", topic=self.name, partitions=self.count
        )

    def _not_begun(self, number: int, too_few: TooFew) -> PenstockError:
        in_sync, min_isr, is_awaited = too_few
        error = NotLeader if is_awaited else NotEnoughReplicas
        return error(
            f"partition {number} of {self.name} has a new leader, and {in_sync} of the {min_isr} replicas in sync that "
            "its min_isr demands: nothing is stored or read, whatever acks, before so many have what the leader begins "
            f"with. {'They are catching up' if is_awaited else 'Try again when more nodes are up'}",
            topic=self.name,
            partition=number,
            in_sync=in_sync,
            min_isr=min_isr,
        )

    def has_nothing(self, group: str, monotonic_us: int) -> bool:
        """A lease would surely find nothing here."""
        return all(partition.groups.has_nothing(group, monotonic_us) for partition in self.partitions)

    async def publish(self, message: Message, partition: int | None = None, acks: str = ALL) -> Published:
        """One message. Those that come at the same time are written together."""
        check_acks(acks)
        if not isinstance(message, Message):
            raise InvalidMessage(f"not a Message but {type(message).__name__}")
        if message.deliver_at:
            # Its times are looked at here, before anybody else has looked.
            message.check()
        number = self.choose(message.key) if partition is None else partition
        chosen = self.partition(number)
        if message.deliver_at:
            self.check_delay(message.deliver_at)
        self._check_room()
        self._check_replicas(number, chosen, acks)
        committed = await chosen.publish(message, acks)
        return Published(self.name, number, committed.base_offset, committed.append_time)

    async def publish_batch(self, batch: Batch, partition: int | None = None, codec: int = NONE) -> PublishedBatch:
        """Many messages, split by key. On disk in all their partitions when this returns.

        The partitions are written at the same time; if one fails, its error is raised and others may have been written.
        """
        if not isinstance(batch, Batch):
            raise InvalidMessage(f"not a Batch but {type(batch).__name__}")
        if partition is not None:
            self.partition(partition)
            chosen = np.full(batch.count, partition, np.int64)
        else:
            chosen = partitions_of(batch, self.count, self._next_turn())
        if batch.deliver_at is not None:
            self.check_delay(batch.latest_delivery)
        self._check_room()
        parts = split(batch, chosen)
        for number, _, _ in parts:
            self._check_replicas(number, self.partition(number), ALL)
        frames = [Frame.of(part, codec=codec, limits=self._limits) for _, _, part in parts]
        commits = [self.partition(number).publish(frame) for (number, _, _), frame in zip(parts, frames, strict=True)]
        offsets = np.empty(batch.count, np.int64)
        for (_, rows, _), committed in zip(parts, await _all(commits), strict=True):
            offsets[rows] = committed.base_offset + np.arange(len(rows))
        return PublishedBatch(self.name, chosen, offsets)

    async def publish_frame(self, frame: Frame, partition: int, acks: str = ALL) -> Published:
        """A frame as a client made it, to the partition it was made for; recognised if it comes again."""
        storing = self.storing(frame, partition, acks)
        committed = storing if isinstance(storing, Committed) else await asyncio.shield(storing)
        return Published(self.name, partition, committed.base_offset, committed.append_time)

    def storing(
        self, frame: Frame, partition: int, acks: str = ALL, *, is_alone: bool = False
    ) -> Committed | asyncio.Future[Committed]:
        """The same for a caller that never gives up: the future must not be cancelled. What comes alone may be on disk
        when this returns."""
        if acks != ALL:
            check_acks(acks)
        chosen = self.partition(partition)
        if not isinstance(frame, Frame):
            raise InvalidMessage(f"not a Frame but {type(frame).__name__}")
        facts = frame.facts()
        if facts.flags & HAS_DELAYS:
            self.check_delay(frame.batch(verify=False).latest_delivery)
        try:
            self._check_room()
            if chosen.too_few is not None:
                self._check_replicas(partition, chosen, acks)
        except (DiskFull, NotEnoughReplicas, QuotaExceeded):
            # Whoever sends again what is there already must not hear that it is not.
            if not chosen.has_stored(frame):
                raise
        return (is_alone and chosen.store_alone(frame, facts)) or chosen.storing(frame, acks)

    def _check_room(self) -> None:
        self.room.check()
        if self.refusal is not None:
            raise self.refusal()

    def _check_replicas(self, number: int, chosen: Partition, acks: str) -> None:
        """What is refused is not appended; what was, before they were too few, is stored when they are enough again."""
        if acks == ALL:
            what = 'not stored. Try again when more nodes are up; acks="leader" is stored by the leader alone'
            self.check_in_sync(number, chosen, what)

    def check_in_sync(self, number: int, partition: Partition, what: str) -> None:
        """`what` comes of it if too few replicas are."""
        if partition.too_few is not None:
            in_sync, min_isr = partition.too_few
            raise NotEnoughReplicas(
                f"partition {number} of {self.name} has {in_sync} of the {min_isr} replicas in sync that its min_isr "
                f"demands: {what}",
                topic=self.name,
                partition=number,
                in_sync=in_sync,
                min_isr=min_isr,
            )

    def check_delay(self, latest_us: int) -> None:
        """`latest_us`: the last time at which one of the messages is to be delivered.

        A time that has passed means at once: a frame may be sent again, and a copy has the time of its original.
        """
        delay_us, longest_us = latest_us - self._clock.now_us(), self.settings.max_delay_us
        if delay_us > longest_us:
            raise InvalidMessage(
                f"a delay of {duration_text(delay_us)} is longer than the {duration_text(longest_us)} that "
                f"topic {self.name} allows. Allow more: penstock topic set {self.name} --max-delay DURATION",
                field="deliver_at",
            )

    def choose(self, key: bytes | None) -> int:
        if self.count == 1:
            return 0
        if key is None:
            # One after the other; but those that come together go together, up to a number, and are one write.
            turn = self._turn % self.count
            if self._run < UNKEYED_RUN and turn in self.here and self.here[turn].is_gathering:
                self._run += 1
                return turn
            return self._next_turn()
        if not isinstance(key, bytes):
            raise InvalidMessage(f"key must be bytes or None, not {type(key).__name__}", field="key")
        return partition_of(key, self.count)

    def _next_turn(self) -> int:
        self._turn, self._run = (self._turn + 1) % self.count, 1
        return self._turn


async def _all(commits: list[asyncio.Future[Committed]]) -> list[Committed]:
    """Waits for all of them, also if one fails: nobody shall still be writing when the error is told."""
    committed = []
    for outcome in await asyncio.gather(*commits, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        committed.append(outcome)
    return committed
