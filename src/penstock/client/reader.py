"""The log of a topic as it was written: a stretch of it, in columns or message by message.

No group is involved: nothing is leased or acknowledged, and delayed messages are seen like all others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

from penstock.client import forks
from penstock.client.bounds import Bound, End, Offsets, chosen, numbers_of, stretches_of, within
from penstock.client.requests import FindOffsets
from penstock.client.rows import LOG_SCHEMA, Columns, StoredMessage, between, log_schema
from penstock.client.transport import Page, Transport
from penstock.client.words import Time
from penstock.columns import SCHEMA
from penstock.errors import InvalidInput, LogTruncated, OffsetOutOfRange
from penstock.frame import Frame
from penstock.limits import MIB

if TYPE_CHECKING:
    from penstock.archive.archive import Archive


class Some(Protocol):
    """Some messages of one partition."""

    def batches(self) -> Iterator[pa.RecordBatch]: ...

    def messages(self) -> Iterator[StoredMessage]: ...


class Stretch(NamedTuple):
    """The messages with offsets in [first, until) of some frames of a partition; decoded when they are asked for."""

    topic: str
    partition: int
    frames: Sequence[Frame]
    first: int
    until: int
    schema: pa.Schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        return (columns.arrow(self.partition, self.schema) for columns in self._columns())

    def messages(self) -> Iterator[StoredMessage]:
        return chain.from_iterable(columns.messages(self.topic, self.partition) for columns in self._columns())

    def _columns(self) -> Iterator[Columns]:
        for frame in self.frames:
            columns = between(frame, self.first, self.until)
            if columns is not None:
                yield columns


class Reader:
    """Made by `Client.reader`. From `from_*` on, up to but without `to_*`, partition by partition.

    Where that is, is found out when the reading starts: what is published later is not read. Times are those at which
    messages were appended to the log.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        *,
        from_time: Time | None = None,
        to_time: Time | None = None,
        from_offset: Offsets | None = None,
        to_offset: Offsets | None = None,
        partitions: Iterable[int] | None = None,
        columns: Iterable[str] | None = None,
        epochs: Mapping[int, int] | None = None,
        bytes_max: int = MIB,
    ) -> None:
        self.topic = topic
        # By partition: of an earlier reader and of this one, and where this one ends.
        self._kept = _kept_of(epochs)
        self._epochs = dict(self._kept)
        self._ends: dict[int, int] = {}
        self._transport = transport
        self._start = Bound("from", from_time, from_offset, "earliest")
        self._end = Bound("to", to_time, to_offset, "latest")
        self._partitions = None if partitions is None else numbers_of(partitions)
        self._schema = LOG_SCHEMA if columns is None else log_schema(_names(columns))
        # Where a message is comes in any case.
        self._columns = None if columns is None else [name for name in self._schema.names if name in SCHEMA.names]
        self._bytes_max = bytes_max

    def __repr__(self) -> str:
        some = "" if self._partitions is None else f" partitions {self._partitions}"
        return f"<{type(self).__name__} of {self.topic}{some} from {self._start} to {self._end}>"

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """With the columns partition, offset, append_time and those of a message, or those of them that are wanted."""
        async for stretch in self.stretches():
            for batch in forks.checked(stretch.batches(), self._transport):
                yield batch

    async def __aiter__(self) -> AsyncIterator[StoredMessage]:
        self.check_whole()
        async for stretch in self.stretches():
            for message in forks.checked(stretch.messages(), self._transport):
                yield message

    @property
    def archive(self) -> Archive | None:
        """The one that it reads from, once it has opened it."""
        return None

    async def epochs(self) -> dict[int, int]:
        """Of each partition, the epoch of whoever led it when it was read. For the next reader, which goes on there."""
        forks.check(self._transport)
        for number, end in self._ends.items():
            if number not in self._epochs:
                # Of which nothing came, or nothing from the log.
                page = await self._transport.read(self.topic, number, end, end, 1, [])
                self._epochs[number] = page.epoch
        return dict(self._epochs)

    def check_whole(self) -> None:
        """A message without some of what it has would look as if it had none."""
        if self._columns is not None:
            raise InvalidInput("a reader of some columns has no messages: take its batches()", argument="columns")

    async def offsets(self) -> dict[int, tuple[int, int]]:
        """What would be read now: for each partition the first offset, and the one after the last."""
        ends = await self._log_ends()
        numbers = self._numbers(len(ends))
        starts, stops = [await self._found(bound, ends) for bound in (self._start, self._end)]
        for number in numbers:
            if starts[number] > ends[number][1]:
                await self._check_not_cut(number, starts[number])
        found = stretches_of(numbers, ends, starts, stops)
        self._ends = {number: stop for number, (_, stop) in found.items()}
        return found

    async def _check_not_cut(self, number: int, start: int) -> None:
        """LogTruncated if something was given up that an earlier reader had, whose epoch was kept."""
        kept = self._kept.get(number, 0)
        try:
            if kept:
                await self._transport.read(self.topic, number, start, start + 1, 1, [], kept)
        except OffsetOutOfRange:
            pass
        except LogTruncated as error:
            if error.details["end"] < start:
                raise

    def _numbers(self, count: int) -> Sequence[int]:
        """Of the partitions that are wanted, of so many that there are."""
        return chosen(self.topic, self._partitions, count)

    async def _found(self, bound: Bound, ends: list[tuple[int, int]]) -> list[int]:
        if bound.time_us is not None:
            return within(ends, await self._at(bound.time_us))
        return bound.offsets(ends)

    async def _log_ends(self) -> list[tuple[int, int]]:
        """By partition. Those that are added while this is asked are left out."""
        first, last = await self._at("earliest"), await self._at("latest")
        return list(zip(first, last, strict=False))

    async def _at(self, at: End | int) -> list[int]:
        """By partition. Only those are asked for that it is about, since others may have no leader: they have a 0."""
        if self._partitions is None:
            return await self._transport.call(FindOffsets(self.topic, at))
        named = [*self._partitions, *self._start.partitions, *self._end.partitions]
        if not named or not all(type(number) is int and 0 <= number < 1 << 31 for number in named):
            # Nothing is to be read, or nothing of that kind is there; how many there are says which.
            return await self._transport.call(FindOffsets(self.topic, at))
        wanted = tuple(sorted(set(named)))
        found = await self._transport.call(FindOffsets(self.topic, at, wanted))
        by_number = dict(zip(wanted, found, strict=True))
        return [by_number.get(number, 0) for number in range(wanted[-1] + 1)]

    async def stretches(self) -> AsyncIterator[Some]:
        """Some messages of one partition at a time, as they come from the broker."""
        for partition, (offset, until) in (await self.offsets()).items():
            epoch, kept = 0, self._kept.get(partition, 0)
            while offset < until:
                page = await self._page(partition, offset, until, epoch, kept)
                kept = 0
                yield Stretch(self.topic, partition, page.frames, offset, until, self._schema)
                if not page.frames:
                    break
                assert page.next_offset > offset, "a read must get on"
                offset, epoch = page.next_offset, page.epoch

    async def _page(self, partition: int, offset: int, until: int, epoch: int, kept: int = 0) -> Page:
        """`epoch` is that of the page before, `kept` that of an earlier reader, which had what is in front of it."""
        read = partial(self._transport.read, self.topic, partition, offset, until, self._bytes_max, self._columns)
        try:
            page = await read(epoch or kept)
        except LogTruncated as error:
            if not kept or error.details["end"] < offset:
                raise
            # All that the earlier one had is there.
            page = await read(0)
        self._epochs[partition] = page.epoch
        return page


def _kept_of(given: Mapping[int, int] | None) -> dict[int, int]:
    found = {} if given is None else given
    if not isinstance(found, Mapping) or not all(
        type(number) is type(epoch) is int and epoch >= 0 for number, epoch in found.items()
    ):
        raise InvalidInput(
            f"epochs are by partition, as an earlier reader tells them, not {given!r}", argument="epochs"
        )
    return dict(found)


def _names(columns: Iterable[str]) -> list[str]:
    if isinstance(columns, str | bytes) or not isinstance(columns, Iterable):
        raise InvalidInput(f'columns are a list of names, as in ["key", "value"], not {columns!r}', argument="columns")
    names = list(columns)
    for name in names:
        if name not in LOG_SCHEMA.names:
            raise InvalidInput(f"there are the columns {', '.join(LOG_SCHEMA.names)}, not {name!r}", argument="columns")
    return names
