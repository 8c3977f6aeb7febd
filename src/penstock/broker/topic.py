"""A topic: its partitions, and which of them a message goes to."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.batch import Batch
from penstock.broker.catalog import TopicRecord
from penstock.broker.partition import Partition
from penstock.broker.partitioner import partition_of, partitions_of, split
from penstock.codec import NONE
from penstock.errors import PartitionNotFound
from penstock.frame import Frame
from penstock.limits import Limits
from penstock.message import Message
from penstock.storage.commit import Committed


class Published(NamedTuple):
    """Where one message went. Its id is topic:partition:offset."""

    topic: str
    partition: int
    offset: int
    append_time: int

    @property
    def id(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


class PublishedBatch(NamedTuple):
    """Where the messages of a batch went: one entry a row, in the order given."""

    topic: str
    partitions: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]


class Topic:
    """Invariant: partition i of the record is partition i here."""

    def __init__(self, record: TopicRecord, partitions: list[Partition], limits: Limits) -> None:
        self._limits = limits
        self._turn = 0
        self.change(record, partitions)

    def change(self, record: TopicRecord, partitions: list[Partition]) -> None:
        assert len(partitions) == len(record.partitions)
        self.partitions = partitions
        self.record = record

    @property
    def name(self) -> str:
        return self.record.name

    def partition(self, number: int) -> Partition:
        if not isinstance(number, int) or not 0 <= number < len(self.partitions):
            raise PartitionNotFound(
                f"{self.name} has partitions 0 to {len(self.partitions) - 1}, not {number!r}", topic=self.name
            )
        return self.partitions[number]

    async def publish(self, message: Message, partition: int | None = None) -> Published:
        """One message. Those that come at the same time are written together."""
        number = self._choose(message.key) if partition is None else partition
        committed = await self.partition(number).publish(message)
        return Published(self.name, number, committed.base_offset, committed.append_time)

    async def publish_batch(self, batch: Batch, partition: int | None = None, codec: int = NONE) -> PublishedBatch:
        """Many messages, split by key. On disk in all their partitions when this returns.

        The partitions are written at the same time; if one fails, its error is raised and others may have been written.
        """
        if partition is not None:
            self.partition(partition)
            chosen = np.full(batch.count, partition, np.int64)
        else:
            chosen = partitions_of(batch, len(self.partitions), self._next_turn())
        parts = split(batch, chosen)
        frames = [Frame.of(part, codec=codec, limits=self._limits) for _, _, part in parts]
        commits = [self.partitions[number].publish(frame) for (number, _, _), frame in zip(parts, frames, strict=True)]
        offsets = np.empty(batch.count, np.int64)
        for (_, rows, _), committed in zip(parts, await _all(commits), strict=True):
            offsets[rows] = committed.base_offset + np.arange(len(rows))
        return PublishedBatch(self.name, chosen, offsets)

    async def publish_frame(self, frame: Frame, partition: int) -> Published:
        """A frame as a client made it, to the partition it was made for; recognised if it comes again."""
        committed = await self.partition(partition).publish(frame)
        return Published(self.name, partition, committed.base_offset, committed.append_time)

    def _choose(self, key: bytes | None) -> int:
        if len(self.partitions) == 1:
            return 0
        return self._next_turn() if key is None else partition_of(key, len(self.partitions))

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
