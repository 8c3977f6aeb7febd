"""A reader that also reads what the log no longer has, from an archive, and goes over into the log.

What the archive covers is read from there, the rest from the log: so what compaction or retention took out of the
middle is there as well. The boundary is an offset, for each partition by itself. While the archive is read, the log may
lose its beginning, or all but a few messages of it: whatever is missing there when its turn comes is looked for in the
archive once more. What neither of them has is an error that says which offsets those are, never a gap.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa

from penstock.archive.archive import Archive
from penstock.archive.ledger import Ledger, Since
from penstock.batch import Batch
from penstock.client.reader import Reader, Some, Stretch
from penstock.client.requests import ArchiveInfo, FindArchive, FindOffsets
from penstock.client.rows import StoredMessage, between
from penstock.client.transport import Page, Transport
from penstock.columns import SCHEMA
from penstock.errors import ArchiveNotFound, MessagesMissing, OffsetOutOfRange, TopicNotFound


class Recalled(NamedTuple):
    """Messages of one partition as the archive has them."""

    topic: str
    partition: int
    data: pa.RecordBatch
    schema: pa.Schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield self.data.select(self.schema.names)

    def messages(self) -> Iterator[StoredMessage]:
        times = self.data.column("append_time").cast(pa.int64()).to_numpy()
        # A column that the file did not have is that of messages that have nothing there.
        names = [name for name in SCHEMA.names if name == "value" or self.data.column(name).null_count < len(times)]
        batch = Batch.from_arrow(self.data.select(names), now_us=int(times[0]))
        offsets = self.data.column("offset").to_pylist()
        for offset, time, message in zip(offsets, times.tolist(), batch.messages(), strict=True):
            yield StoredMessage(self.topic, self.partition, offset, time, message)


class Replay(Reader):
    """Made by `Client.reader` with an archive, or with `whole`."""

    def __init__(
        self,
        transport: Transport,
        topic: str,
        *,
        archive: Archive | str | os.PathLike[str] | bool,
        **bounds: Any,
    ) -> None:
        """`archive` is one that is open, or where it is; True for the one that the broker names, False for none."""
        super().__init__(transport, topic, **bounds)
        self._given = archive
        self._archive: Archive | None = None
        self._topic_id = ""
        self._whole_from: tuple[int, ...] = ()

    @property
    def archive(self) -> Archive | None:
        """The one that it reads from, once it has opened it."""
        return self._archive

    # --- where it starts and ends ------------------------------------------------------------------------

    async def offsets(self) -> dict[int, tuple[int, int]]:
        """What would be read now: for each partition the first offset, and the one after the last."""
        ledger = await self._opened(await self._asked())
        ends = await self._log_ends()
        numbers = self._numbers(len(ends))
        edges = [(self._earliest(ledger, number, first), last) for number, (first, last) in enumerate(ends)]
        starts = [await self._start_at(ledger, number, edges, ends) for number in numbers]
        stops = [await self._stop_at(ledger, number, edges) for number in numbers]
        found = {}
        for number, start, stop in zip(numbers, starts, stops, strict=True):
            first, last = ends[number]
            if start > last:
                await self._check_not_cut(number, start)
                raise OffsetOutOfRange(
                    f"partition {number} has offsets up to {last}, not {start}", start=edges[number][0], end=last
                )
            stop = max(start, min(stop, last))
            self._check_gaps(ledger, number, (start, stop), first)
            found[number] = (start, stop)
        await self._asked_again(self._topic_id)
        self._ends = {number: stop for number, (_, stop) in found.items()}
        return found

    def _check_gaps(self, ledger: Ledger, number: int, wanted: tuple[int, int], log_start: int) -> None:
        """Before anything is read: the archive, and behind it the log, must have all of it."""
        log_start = self._whole(number, log_start)
        offset, stop = wanted
        while offset < min(stop, log_start):
            covered = ledger.covered_until(self._topic_id, number, offset)
            if covered == offset:
                self._miss(ledger, number, offset, min(stop, log_start))
            offset = covered

    async def _asked(self) -> ArchiveInfo:
        info: ArchiveInfo = await self._transport.call(FindArchive(self.topic))
        self._topic_id, self._whole_from = info.topic_id, info.whole_from
        return info

    async def _asked_again(self, topic_id: str) -> ArchiveInfo:
        """Offsets that were found in one topic say nothing of another one with its name."""
        info = await self._asked()
        if info.topic_id != topic_id:
            raise TopicNotFound(
                f"the topic {self.topic} was deleted while it was read, and another one of that name was made: begin "
                "again to read that one",
                topic=self.topic,
            )
        return info

    def _whole(self, number: int, log_start: int) -> int:
        """From where on the log has everything: older brokers say only where it starts."""
        return max(log_start, self._whole_from[number]) if number < len(self._whole_from) else log_start

    async def _opened(self, info: ArchiveInfo) -> Ledger:
        """The archive as it is now."""
        if self._archive is None:
            self._archive = await self._open(info)
        else:
            await asyncio.to_thread(self._archive.refresh)
        return self._archive.ledger if self._archive is not None else Ledger()

    async def _open(self, info: ArchiveInfo) -> Archive | None:
        if isinstance(self._given, Archive):
            await asyncio.to_thread(self._given.refresh)
            return self._given
        place = info.place if self._given is True else self._given
        if place is False:
            return None
        if place is None:
            raise ArchiveNotFound(
                "the broker does not say where its archive is (its setting archive_dir); name one: --archive DIR, or "
                "archive= in Python"
            )
        try:
            return await asyncio.to_thread(Archive.open, place)
        except ArchiveNotFound as error:
            if self._given is not True:
                raise
            raise ArchiveNotFound(
                f"the broker's archive is in {place}, and not on this machine: name it, or read through HTTP",
                **error.details,
            ) from error

    def _earliest(self, ledger: Ledger, number: int, log_start: int) -> int:
        files = ledger.of_partition(self._topic_id, number)
        return min(files[0].first_offset, log_start) if files else log_start

    async def _start_at(
        self, ledger: Ledger, number: int, edges: list[tuple[int, int]], ends: list[tuple[int, int]]
    ) -> int:
        time_us = self._start.time_us
        if time_us is None:
            return self._start.offsets(edges)[number]
        since = ledger.since(self._topic_id, number, time_us)
        archived = await self._in_archive(since, time_us)
        if since.is_certain:
            assert archived is not None
            return archived
        # The archive is not sure where that is: there may be more in front of what it has, or behind all it has.
        found = (await self._transport.call(FindOffsets(self.topic, time_us)))[number]
        log_start, log_end = self._whole(number, ends[number][0]), ends[number][1]
        if log_start > since.offset and not await self._has_older(number, log_start, found):
            end = log_start if archived is None else min(log_start, archived)
            self._miss(ledger, number, since.offset, end)
        # What was appended since the ends were found is older than that time, and not read.
        found = min(found, log_end)
        return found if archived is None else min(found, archived)

    async def _stop_at(self, ledger: Ledger, number: int, edges: list[tuple[int, int]]) -> int:
        time_us = self._end.time_us
        if time_us is None:
            return self._end.offsets(edges)[number]
        archived = await self._in_archive(ledger.since(self._topic_id, number, time_us), time_us)
        found = (await self._transport.call(FindOffsets(self.topic, time_us)))[number]
        return found if archived is None else min(found, archived)

    async def _in_archive(self, since: Since, time_us: int) -> int | None:
        if since.entry is None:
            return None
        assert self._archive is not None
        return await asyncio.to_thread(self._archive.offset_at, since.entry, time_us)

    async def _has_older(self, number: int, first: int, until: int) -> bool:
        """Whether the log has a message in front of `until`. Then all that was deleted before it is older still."""
        if first >= until:
            return False
        page = await self._transport.read(self.topic, number, first, until, 1, [])
        return any(between(frame, first, until) is not None for frame in page.frames)

    # --- reading -----------------------------------------------------------------------------------------

    async def stretches(self) -> AsyncIterator[Some]:
        """Some messages of one partition at a time, from the archive as long as it has them."""
        found = await self.offsets()
        topic_id = self._topic_id
        for partition, (offset, until) in found.items():
            epoch = 0
            if offset < until:
                # The archive does not know.
                await self._check_not_cut(partition, offset)
            while offset < until:
                ledger = self._archive.ledger if self._archive is not None else Ledger()
                end = min(until, ledger.covered_until(topic_id, partition, offset))
                if end > offset:
                    async for some in self._recalled(topic_id, partition, offset, end):
                        yield some
                    offset = end
                    continue
                # Up to where the archive has something again, if it has a gap here.
                behind = ledger.next_first(topic_id, partition, offset)
                bound = until if behind is None else min(until, behind)
                try:
                    page = await self._page(partition, offset, bound, epoch)
                except OffsetOutOfRange:
                    await self._look_again(topic_id, partition, offset)
                    continue
                # Behind the read, not before it: whatever was missing then is known by now.
                await self._asked_again(topic_id)
                if offset < self._whole(partition, 0) and not _is_dense(page, offset, bound):
                    await self._look_again(topic_id, partition, offset)
                    continue
                yield Stretch(self.topic, partition, page.frames, offset, bound, self._schema)
                # An empty page: there is nothing any more in front of the bound.
                offset, epoch = min(bound, page.next_offset) if page.frames else bound, page.epoch

    async def _recalled(self, topic_id: str, partition: int, first: int, until: int) -> AsyncIterator[Recalled]:
        assert self._archive is not None
        batches = self._archive.read(topic_id, partition, first, until, self._schema.names)
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield Recalled(self.topic, partition, batch, self._schema)

    async def _look_again(self, topic_id: str, partition: int, offset: int) -> None:
        """The log has lost its beginning meanwhile. Raises unless the archive has it now."""
        ledger = await self._opened(await self._asked_again(topic_id))
        if ledger.at(topic_id, partition, offset) is None:
            first, _ = (await self._log_ends())[partition]
            self._miss(ledger, partition, offset, max(self._whole(partition, first), offset + 1))

    def _miss(self, ledger: Ledger, partition: int, first: int, end: int) -> NoReturn:
        behind = ledger.next_first(self._topic_id, partition, first)
        end = end if behind is None else min(end, behind)
        if self._archive is None:
            advice = "they were deleted; only an archive may have them"
        else:
            others = [each for each, name in self._archive.topics().items() if name == self.topic]
            is_other = bool(others) and self._topic_id not in others
            advice = f"neither the log nor the archive {self._archive.place.uri} has them"
            advice += ", which is of a topic of that name that was deleted" if is_other else ""
        raise MessagesMissing(
            f"offsets {first} to {end} of {self.topic} partition {partition} are missing: {advice}",
            topic=self.topic,
            partition=partition,
            first=first,
            end=end,
        )


def _is_dense(page: Page, first: int, until: int) -> bool:
    """Whether every offset from `first` on, up to where the page ends, has its message."""
    at = first
    for frame in page.frames:
        if frame.base_offset > at or frame.count < frame.span:
            return False
        at = frame.next_offset
    return at >= min(until, page.next_offset)
