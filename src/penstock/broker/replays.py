"""Replays: new groups that get the messages of a time, or of ranges of offsets, and nothing else.

Of all partitions or of none: once the catalog says what a replay is of, a start goes on where a crash cut it short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from penstock.broker.catalog import Catalog, GroupRecord, ReplayRecord
from penstock.broker.checks import check_time, is_int
from penstock.broker.group import Delays, Group, find_delays
from penstock.broker.groups import Groups
from penstock.broker.partition import Partition
from penstock.broker.settings import GroupSettings
from penstock.broker.topic import Topic
from penstock.broker.topics import Topics
from penstock.broker.work import Work, to_its_end
from penstock.errors import AlreadyExists, InvalidInput, OffsetOutOfRange, PenstockError

# For each partition the first offset, and that behind the last one.
Ranges = list[tuple[int, int]]
Count = Callable[[str, Ranges], Awaitable[int]]


class Replays:
    def __init__(self, catalog: Catalog, topics: Topics, groups: Groups, work: Work) -> None:
        self._catalog = catalog
        self._topics = topics
        self._groups = groups
        self._work = work

    async def begin(
        self,
        topic: str,
        group: str,
        *,
        from_us: int | None,
        to_us: int | None,
        offsets: dict[int, tuple[int, int]] | None,
        delays: bool,
        lanes: bool,
        owner: str,
        given: Mapping[str, Any],
        count: Count | None = None,
    ) -> int:
        """How many messages it is of. In a cluster, `count` asks whoever leads the partitions."""
        on_topic = self._topics.topic(topic)
        ranges = await self._work.scan(_ranges(on_topic, from_us, to_us, offsets))
        self._groups.check_held(given)
        settings = GroupSettings().changed(lanes="strict" if lanes else "none", is_replay=True, **given)
        # Ahead of it: once it has begun, it has not failed.
        messages = _count(on_topic, ranges) if count is None else await count(topic, ranges)
        found = await self._delays(on_topic, ranges) if delays else None
        known, starting = await self._work.alone(self._begin(topic, group, settings, ranges, found, owner))
        # In a cluster this waits for other nodes, and nobody's change may wait for them meanwhile.
        await to_its_end(self._begun(group, known, starting))
        return messages

    async def _delays(self, topic: Topic, ranges: Ranges) -> dict[int, Delays]:
        """By partition, of those that are led here."""
        found: dict[int, Delays] = {}
        for number, partition in topic.numbered:
            if number < len(ranges):
                await self._work.scan(find_delays(partition, *ranges[number], found.setdefault(number, {})))
        return found

    async def _begun(self, group: str, known: GroupRecord | None, starting: Awaitable[None]) -> None:
        """In all partitions, or in none."""
        try:
            await starting
        except PenstockError:
            with suppress(PenstockError):
                await (await self._work.alone(self._take_back(group, known)))
            raise

    async def _begin(
        self,
        topic: str,
        group: str,
        settings: GroupSettings,
        ranges: Ranges,
        delays: dict[int, Delays] | None,
        owner: str,
    ) -> tuple[GroupRecord | None, Awaitable[None]]:
        on_topic = self._topics.topic(topic)
        if self._catalog.has_group(group) and self._groups.topics_of(group):
            raise AlreadyExists(
                f'group "{group}" already exists, and a replay needs a group of its own. Name another one, or '
                f"delete it: penstock group delete {group}",
                group=group,
            )
        known = self._groups.known(group, settings)
        if known is None:
            self._groups.check_count()
        replay = ReplayRecord(on_topic.record.id, tuple(ranges), delays is not None)
        await self._catalog.carry_out(self._work.on_a_thread, Catalog.put_group, group, settings, replay, owner)
        # Somebody may have asked for it meanwhile: it knows now what it is of.
        self._groups.forget(group=group, topic=topic)
        starting = asyncio.ensure_future(_start(self._groups.on(group, topic), delays or {}))
        # A turn for the task, and one for those it makes: then it has begun everywhere, if it is not on disk yet.
        for _ in range(2):
            await asyncio.sleep(0)
        return known, starting

    async def _take_back(self, group: str, known: GroupRecord | None) -> Awaitable[None]:
        """A group that was there before is there again, as it was."""
        if known is None:
            return await self._groups.delete_in_turn(group)
        await self._catalog.carry_out(self._work.on_a_thread, Catalog.restore_group, known)
        return self._groups.drop(group)

    async def finish(self) -> None:
        """Those that a crash cut short. What can't be started now is when somebody asks for it."""
        for record in self._catalog.groups:
            # A copy: the first dead letter may bring a new topic meanwhile.
            for topic in list(self._topics.open.values()):
                if record.replay is not None and record.replay.topic == topic.record.id:
                    start = self._work.in_background(self._groups.on(record.name, topic.name).start())
                    await asyncio.wait([start])


async def _start(group: Group, delays: Mapping[int, Delays]) -> None:
    """In all at the same time: nobody else starts the group there in between. In a cluster, in all that are led here;
    elsewhere whoever looks after groups sees to it."""
    starts = [group.start_replay(number, delays.get(number)) for number in group.topic.here]
    for outcome in await asyncio.gather(*starts, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _ranges(
    topic: Topic, from_us: int | None, to_us: int | None, offsets: dict[int, tuple[int, int]] | None
) -> Iterator[tuple[int, int]]:
    """Of each partition. For `Work.scan`."""
    if (offsets is None) == (from_us is None and to_us is None):
        raise InvalidInput("a replay takes either from_time and to_time (one may be left out), or offsets")
    if offsets is None:
        for time_us in (from_us, to_us):
            if time_us is not None:
                check_time(time_us)
        for number in range(topic.count):
            yield _range_of_time(topic.partition(number), from_us, to_us)
        return
    if not isinstance(offsets, Mapping) or not all(map(_is_pair, offsets.values())):
        raise InvalidInput(f"offsets are pairs by partition, first and last, not {offsets!r}")
    for number in range(topic.count):
        yield _range_of_offsets(topic, number, offsets)
    for number in offsets:
        if number not in range(topic.count):
            topic.partition(number)


def _range_of_time(partition: Partition, from_us: int | None, to_us: int | None) -> tuple[int, int]:
    log, end = partition.messages, partition.reading.visible_offset
    first = log.start_offset if from_us is None else min(log.offset_at(from_us), end)
    last = end if to_us is None else min(log.offset_at(to_us), end)
    return first, max(first, last)


def _range_of_offsets(topic: Topic, number: int, offsets: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    if number in offsets and number not in topic.here:
        # In a cluster: what whoever leads it has, was found out by whoever asks.
        first, last = offsets[number]
        if not (is_int(first) and is_int(last)) or not 0 <= first <= last:
            raise InvalidInput(f"partition {number} has no offsets {first} to {last}")
        return first, last
    partition = topic.partition(number)
    start, end = partition.messages.start_offset, partition.reading.visible_offset
    first, last = offsets.get(number, (end, end))
    if not (is_int(first) and is_int(last)) or not start <= first <= last <= end:
        raise OffsetOutOfRange(
            f"partition {number} has offsets {start} to {end}, not {first} to {last} (the last one is exclusive)",
            start=start,
            end=end,
        )
    return first, last


def _count(topic: Topic, ranges: Ranges) -> int:
    return sum(topic.partition(number).reading.count(*bounds) for number, bounds in enumerate(ranges))


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2
