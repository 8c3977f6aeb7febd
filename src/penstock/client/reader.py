"""The log of a topic as it was written: a stretch of it, in columns or message by message.

No group is involved: nothing is leased or acknowledged, and delayed messages are seen like all others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Literal

import pyarrow as pa

from penstock.client.requests import FindOffsets
from penstock.client.rows import Columns, StoredMessage, between
from penstock.client.transport import Transport
from penstock.client.words import Time, time_of
from penstock.clock import rfc3339
from penstock.errors import InvalidInput, OffsetOutOfRange, PartitionNotFound
from penstock.limits import MIB

End = Literal["earliest", "latest"]
Offset = int | End
Offsets = Offset | Mapping[int, Offset]


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
        bytes_max: int = MIB,
    ) -> None:
        self.topic = topic
        self._transport = transport
        self._start = _Bound("from", from_time, from_offset, "earliest")
        self._end = _Bound("to", to_time, to_offset, "latest")
        self._partitions = None if partitions is None else _numbers(partitions)
        self._bytes_max = bytes_max

    def __repr__(self) -> str:
        some = "" if self._partitions is None else f" partitions {self._partitions}"
        return f"<{type(self).__name__} of {self.topic}{some} from {self._start} to {self._end}>"

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """With the columns partition, offset, append_time and those of a message."""
        async for partition, columns in self.columns():
            yield columns.arrow(partition)

    async def __aiter__(self) -> AsyncIterator[StoredMessage]:
        async for partition, columns in self.columns():
            for message in columns.messages(self.topic, partition):
                yield message

    async def offsets(self) -> dict[int, tuple[int, int]]:
        """What would be read now: for each partition the first offset, and the one after the last."""
        first, last = [await self._transport.call(FindOffsets(self.topic, at)) for at in ("earliest", "latest")]
        numbers = range(len(first)) if self._partitions is None else self._partitions
        for number in numbers:
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(first):
                raise PartitionNotFound(
                    f"{self.topic} has partitions 0 to {len(first) - 1}, not {number!r}", topic=self.topic
                )
        ends = list(zip(first, last, strict=True))
        starts, stops = [await self._found(bound, ends) for bound in (self._start, self._end)]
        found = {}
        for number in numbers:
            start, stop = starts[number], min(stops[number], last[number])
            if not first[number] <= start <= last[number]:
                raise OffsetOutOfRange(
                    f"partition {number} has offsets {first[number]} to {last[number]}, not {start}",
                    start=first[number],
                    end=last[number],
                )
            found[number] = (start, max(start, stop))
        return found

    async def _found(self, bound: _Bound, ends: list[tuple[int, int]]) -> list[int]:
        if bound.time_us is not None:
            return await self._transport.call(FindOffsets(self.topic, bound.time_us))
        return bound.offsets(ends)

    async def columns(self) -> AsyncIterator[tuple[int, Columns]]:
        """Some messages of one partition at a time, as they come from the broker."""
        for partition, (offset, until) in (await self.offsets()).items():
            while offset < until:
                page = await self._transport.read(self.topic, partition, offset, until, self._bytes_max)
                for frame in page.frames:
                    columns = between(frame, offset, until)
                    if columns is not None:
                        yield partition, columns
                if not page.frames:
                    break
                assert page.next_offset > offset, "a read must get on"
                offset = page.next_offset


def _numbers(partitions: Iterable[int]) -> list[int]:
    # Of text and bytes, too, there are parts; nobody means those.
    if isinstance(partitions, str | bytes) or not isinstance(partitions, Iterable):
        raise InvalidInput(f"partitions are a list of numbers, as in [0, 1], not {partitions!r}")
    return list(partitions)


class _Bound:
    """One end of what is read: a time, or an offset for all or for each of the partitions."""

    def __init__(self, name: str, time: Time | None, offset: Offsets | None, default: End) -> None:
        if time is not None and offset is not None:
            raise InvalidInput(f"{name}_time or {name}_offset, not both")
        self.time_us = None if time is None else time_of(f"{name}_time", time)
        given = default if offset is None else offset
        self._by_partition = given if isinstance(given, Mapping) else {}
        self._else: Offset = default if isinstance(given, Mapping) else given
        for each in [self._else, *self._by_partition.values()]:
            if each not in ("earliest", "latest") and (not isinstance(each, int) or isinstance(each, bool)):
                raise InvalidInput(f"{name}_offset is earliest, latest or a number, not {each!r}")
            if isinstance(each, int) and each < 0:
                raise OffsetOutOfRange(f"{name}_offset is 0 or more, not {each}")

    def __str__(self) -> str:
        return rfc3339(self.time_us) if self.time_us is not None else str(self._by_partition or self._else)

    def offsets(self, ends: list[tuple[int, int]]) -> list[int]:
        unknown = [number for number in self._by_partition if number not in range(len(ends))]
        if unknown:
            raise PartitionNotFound(f"there are partitions 0 to {len(ends) - 1}, not {unknown[0]!r}")
        offsets = []
        for number, (first, last) in enumerate(ends):
            wanted = self._by_partition.get(number, self._else)
            offsets.append(first if wanted == "earliest" else last if wanted == "latest" else int(wanted))
        return offsets
