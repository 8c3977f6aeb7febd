"""What a broker does without being asked: what time alone does, what was left undone, and what keeps the logs small."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from weakref import WeakKeyDictionary

from pyroaring import BitMap64

from penstock.broker.catalog import Catalog
from penstock.broker.dead_letters import not_letters, settle_others, unsettled
from penstock.broker.graveyards import Graveyards
from penstock.broker.groups import Groups, drop_later
from penstock.broker.names import DEAD_LETTERS
from penstock.broker.offsets import array_of, from_on
from penstock.broker.partition import Partition
from penstock.broker.topic import Topic
from penstock.broker.topics import Topics
from penstock.broker.work import Work
from penstock.errors import ClusterError, DiskFull, LogClosed, LogCorrupt, Overloaded

log = logging.getLogger("penstock.broker")


class Upkeep:
    def __init__(self, catalog: Catalog, topics: Topics, groups: Groups, graveyards: Graveyards, work: Work) -> None:
        self._catalog = catalog
        self._topics = topics
        self._groups = groups
        self._graveyards = graveyards
        self._work = work
        self._maintaining: set[Partition] = set()
        # Whoever holds it has the disk for what takes long.
        self._tidying = asyncio.Lock()
        self._is_asking = False
        self._is_ticking = False
        # Of partitions with dead letters: below this offset all messages have been looked at.
        self._looked_at: WeakKeyDictionary[Partition, int] = WeakKeyDictionary()

    def take_up(self) -> None:
        """What was under way when the broker was last closed, or crashed."""
        for name, topic in self._topics.open.items():
            if name.endswith(DEAD_LETTERS):
                self._work.in_background(self._graveyards.letters.settle_copied(topic))
            for number, _ in topic.numbered:
                self.take_up_one(topic, number)

    def take_up_one(self, topic: Topic, number: int) -> None:
        partition, history = topic.partition(number), self._catalog.history
        for group in partition.groups.groups:
            if self._catalog.has_group(group) and not self._is_older(partition, group):
                self._groups.on(group, topic.name).configure_here(number)
            elif group.startswith("__"):
                pass
            elif not self._catalog.has_group(group) and partition.groups.state(group).origin.history < history:
                log.warning(
                    "partition %d of %s has the acknowledgements of group %s, which a restored catalog does not have: "
                    "they are kept, and a group that is created with this name goes on from there",
                    number,
                    topic.name,
                    group,
                )
            else:
                # Its deletion was cut short, or nobody led the partition then.
                self._work.in_background(drop_later(partition.groups, group, partition.groups.state(group).origin))
            if partition.groups.has(group) and partition.groups.state(group).dying:
                self._graveyards.mourn(topic.name, number, group)

    def _is_older(self, partition: Partition, group: str) -> bool:
        """Of a group that was deleted, and one of the same name was made since."""
        return partition.groups.state(group).origin.is_before(self._catalog.origin(group))

    async def tick(self) -> None:
        """Delays that are due, leases that have run out, and what could not be buried so far. If an earlier call is
        under way, nothing happens."""
        if self._is_ticking:
            return
        self._is_ticking = True
        try:
            await self._work.walk(self._ticks(), at_once=True)
        finally:
            self._is_ticking = False

    def _ticks(self) -> Iterator[None]:
        for topic in list(self._topics.open.values()):
            for number, partition in topic.numbered:
                if not self._is_here(topic, number, partition):
                    continue
                try:
                    for _ in partition.groups.ticks():
                        yield
                        if not self._is_here(topic, number, partition):
                            break
                    else:
                        for group in partition.groups.dying() if not partition.groups.giving_up else ():
                            self._graveyards.mourn(topic.name, number, group)
                except (Overloaded, DiskFull):
                    # That passes, and no other partition waits for it.
                    continue

    async def maintain(self) -> None:
        for topic in list(self._topics.open.values()):
            for number, partition in topic.numbered:
                # Whatever is written where too few replicas are in sync would be waited for.
                if partition in self._maintaining or partition.too_few is not None:
                    continue
                self._maintaining.add(partition)
                try:
                    # A topic that is deleted meanwhile or led elsewhere, or a full disk, keeps no other from its own.
                    with suppress(LogClosed, ClusterError, DiskFull):
                        await self._maintain(topic, number, partition)
                finally:
                    self._maintaining.discard(partition)
        if not self._is_asking:
            self._is_asking = True
            try:
                await self._settle_copied_elsewhere()
            finally:
                self._is_asking = False

    async def _settle_copied_elsewhere(self) -> None:
        """Last: other nodes may not answer for long."""
        for name, graves in list(self._topics.open.items()):
            if name.endswith(DEAD_LETTERS):
                with suppress(LogClosed, ClusterError):
                    await self._graveyards.letters.settle_copied_elsewhere(graves)

    def _is_here(self, topic: Topic, number: int, partition: Partition) -> bool:
        return self._topics.get(topic.name) is topic and topic.here.get(number) is partition

    async def _maintain(self, topic: Topic, number: int, partition: Partition) -> None:
        if not self._is_here(topic, number, partition):
            return
        graves = self._graveyards.of(topic.name)
        if graves is not None:
            # Once a copy is deleted, nobody knows any more that its letter was redriven.
            await self._graveyards.letters.settle_copied(graves)
        until = topic.keep_from(number)
        # Lanes and delays of what is deleted are known from then on from a snapshot only.
        with suppress(Overloaded, LogClosed):
            await self._work.walk(partition.groups.encode_states())
            await partition.groups.snapshot_if_needed()
        if self._has_letters(topic):
            # A message that can't be read may be a dead letter.
            with suppress(Overloaded, LogCorrupt):
                await self._settle_others(partition)
        protected = self._protected(topic, partition)
        # Wait for the rows that end the protection of messages. If they were lost in a crash or an election, messages
        # that are deleted here would be protected again.
        with suppress(Overloaded):
            await partition.groups.flushed()
            await self._tidy(topic, number, partition, protected, until)

    def _protected(self, topic: Topic, partition: Partition) -> BitMap64:
        """What retention and compaction must leave. Of a dead-letter topic, every letter that is not settled."""
        offsets = partition.protected()
        if self._has_letters(topic):
            offsets |= unsettled(partition)
        return offsets

    def _has_letters(self, topic: Topic) -> bool:
        of = topic.name.removesuffix(DEAD_LETTERS)
        return of != topic.name and self._catalog.has_topic(of)

    async def _settle_others(self, partition: Partition) -> None:
        """Of messages that have come since the last time. Retention decides about those that are no dead letters."""
        new = from_on(unsettled(partition), self._looked_at.get(partition, 0))
        if not new:
            return
        others = BitMap64(await self._work.scan(not_letters(partition, new)))
        if others:
            await settle_others(partition, others)
        self._looked_at[partition] = new.max() + 1

    async def _tidy(self, topic: Topic, number: int, partition: Partition, known: BitMap64, until: int) -> None:
        async with self._tidying:
            if not self._is_here(topic, number, partition):
                return
            protected = array_of(known | self._protected(topic, partition))
            due_times = partition.groups.delays.times()
            try:
                await self._work.on_a_thread(partial(partition.maintain, topic.settings, protected, until, due_times))
            finally:
                # Also if it failed half-way: something may have been deleted.
                partition.after_maintenance()

    async def settle(self) -> None:
        """Until nothing is under way in the background."""
        tasks = self._work.tasks
        while tasks or (busy := [one for one in self._topics.partitions if one.groups.giving_up]):
            if tasks:
                await asyncio.wait(tasks)
                continue
            for partition in busy:
                await partition.groups.flushed()
            await asyncio.sleep(0)
