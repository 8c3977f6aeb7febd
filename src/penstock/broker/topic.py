"""A topic: its partitions, and which of them a message goes to."""

from __future__ import annotations

import asyncio

import numpy as np

from penstock.batch import Batch
from penstock.broker.bell import Bell
from penstock.broker.catalog import TopicRecord
from penstock.broker.partition import Partition
from penstock.broker.room import Room
from penstock.broker.settings import TopicSettings
from penstock.clock import TIME_MAX_US, Clock, rfc3339
from penstock.codec import NONE
from penstock.durations import duration_text
from penstock.errors import DiskFull, InvalidMessage, PartitionNotFound
from penstock.frame import HAS_DELAYS, Frame
from penstock.limits import Limits
from penstock.message import Message
from penstock.partitioner import partition_of, partitions_of, split
from penstock.published import Published, PublishedBatch
from penstock.storage.commit import Committed

# A producer's clock may be a little behind, and a message a little on its way.
PAST_US_MAX = 10_000_000


class Topic:
    """Invariant: partition i of the record is partition i here."""

    def __init__(
        self, record: TopicRecord, partitions: list[Partition], *, bell: Bell, limits: Limits, clock: Clock, room: Room
    ) -> None:
        self.bell = bell
        self.room = room
        self._limits = limits
        self._clock = clock
        self._turn = 0
        self.change(record, partitions)

    def change(self, record: TopicRecord, partitions: list[Partition]) -> None:
        assert len(partitions) == len(record.partitions)
        self.partitions = partitions
        self.record = record

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def settings(self) -> TopicSettings:
        return self.record.settings

    def keep_from(self, number: int) -> int:
        """What is at or behind that offset of a partition must not be deleted, however old it is."""
        visible = self.partitions[number].reading.visible_offset
        return visible if self.settings.archive == "none" else min(visible, self.record.archived_until(number))

    def not_archived(self, number: int) -> int:
        """How many offsets of a partition nobody has said to be archived."""
        log = self.partitions[number].messages
        return log.end_offset - max(log.start_offset, self.record.archived_until(number))

    def partition(self, number: int) -> Partition:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(self.partitions):
            raise PartitionNotFound(
                f"{self.name} has partitions 0 to {len(self.partitions) - 1}, not {number!r}", topic=self.name
            )
        return self.partitions[number]

    def has_nothing(self, group: str, now_us: int) -> bool:
        """A lease would surely find nothing here."""
        return all(partition.groups.has_nothing(group, now_us) for partition in self.partitions)

    async def publish(self, message: Message, partition: int | None = None) -> Published:
        """One message. Those that come at the same time are written together."""
        if not isinstance(message, Message):
            raise InvalidMessage(f"not a Message but {type(message).__name__}")
        if message.deliver_at:
            # Its times are looked at here, before anybody else has looked.
            message.check()
        number = self.choose(message.key) if partition is None else partition
        chosen = self.partition(number)
        if message.deliver_at:
            self.check_times(message.deliver_at, message.deliver_at)
        self.room.check()
        committed = await chosen.publish(message)
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
            chosen = partitions_of(batch, len(self.partitions), self._next_turn())
        if batch.deliver_at is not None:
            times = batch.deliver_at[batch.start : batch.start + batch.count]
            self.check_times(int(times[times > 0].min(initial=TIME_MAX_US)), int(times.max()))
        self.room.check()
        parts = split(batch, chosen)
        frames = [Frame.of(part, codec=codec, limits=self._limits) for _, _, part in parts]
        commits = [self.partitions[number].publish(frame) for (number, _, _), frame in zip(parts, frames, strict=True)]
        offsets = np.empty(batch.count, np.int64)
        for (_, rows, _), committed in zip(parts, await _all(commits), strict=True):
            offsets[rows] = committed.base_offset + np.arange(len(rows))
        return PublishedBatch(self.name, chosen, offsets)

    async def publish_frame(self, frame: Frame, partition: int) -> Published:
        """A frame as a client made it, to the partition it was made for; recognised if it comes again."""
        committed = await asyncio.shield(self.storing(frame, partition))
        return Published(self.name, partition, committed.base_offset, committed.append_time)

    def storing(self, frame: Frame, partition: int) -> asyncio.Future[Committed]:
        """The same for a caller that never gives up: this must not be cancelled."""
        chosen = self.partition(partition)
        if not isinstance(frame, Frame):
            raise InvalidMessage(f"not a Frame but {type(frame).__name__}")
        if frame.flags & HAS_DELAYS:
            # It may be late because it was sent again: a time that has passed since means at once.
            self.check_times(TIME_MAX_US, frame.batch(verify=False).latest_delivery)
        try:
            self.room.check()
        except DiskFull:
            # Whoever sends again what is there already must not hear that it is not.
            if not chosen.has_stored(frame):
                raise
        return chosen.storing(frame)

    def check_times(self, earliest_us: int, latest_us: int) -> None:
        """Of messages to be delivered later."""
        now, longest = self._clock.now_us(), self.settings.max_delay_us
        if latest_us > now + longest:
            raise InvalidMessage(
                f"deliver_at is {duration_text(latest_us - now)} from now, {self.name} allows {duration_text(longest)}",
                field="deliver_at",
            )
        if earliest_us < now - PAST_US_MAX:
            raise InvalidMessage(f"deliver_at is in the past: {rfc3339(earliest_us)}", field="deliver_at")

    def choose(self, key: bytes | None) -> int:
        if len(self.partitions) == 1:
            return 0
        if key is None:
            # One after the other; but those that come together go together, and are one write.
            return self._turn if self.partitions[self._turn].is_gathering else self._next_turn()
        if not isinstance(key, bytes):
            raise InvalidMessage(f"key must be bytes or None, not {type(key).__name__}", field="key")
        return partition_of(key, len(self.partitions))

    def _next_turn(self) -> int:
        self._turn = (self._turn + 1) % len(self.partitions)
        return self._turn


async def _all(commits: list[asyncio.Future[Committed]]) -> list[Committed]:
    """Waits for all of them, also if one fails: nobody shall still be writing when the error is told."""
    committed = []
    for outcome in await asyncio.gather(*commits, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        committed.append(outcome)
    return committed
