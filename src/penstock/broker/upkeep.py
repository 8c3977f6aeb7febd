"""What a broker does without being asked: what time alone does, what was left undone, and what keeps the logs small."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from penstock.broker.catalog import Catalog
from penstock.broker.graveyards import Graveyards
from penstock.broker.groups import Groups
from penstock.broker.names import DEAD_LETTERS
from penstock.broker.offsets import array_of
from penstock.broker.partition import Partition
from penstock.broker.topic import Topic
from penstock.broker.topics import Topics
from penstock.broker.work import Work
from penstock.errors import ClusterError, LogClosed, Overloaded


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

    def take_up(self) -> None:
        """What was under way when the broker was last closed, or crashed."""
        for name, topic in self._topics.open.items():
            if name.endswith(DEAD_LETTERS):
                self._work.in_background(self._graveyards.letters.settle_copied(topic))
            for number, _ in topic.numbered:
                self.take_up_one(topic, number)

    def take_up_one(self, topic: Topic, number: int) -> None:
        partition = topic.partition(number)
        for group in partition.groups.groups:
            if self._catalog.has_group(group) and not self._is_older(partition, group):
                self._groups.on(group, topic.name).configure_here(number)
            elif not group.startswith("__"):
                # Its deletion was cut short, or nobody led the partition then.
                self._work.in_background(_drop(partition, group))
            if partition.groups.has(group) and partition.groups.state(group).dying:
                self._graveyards.mourn(topic.name, number, group)

    def _is_older(self, partition: Partition, group: str) -> bool:
        """Of a group that was deleted, and one of the same name was made since."""
        return 0 < partition.groups.state(group).made_us < self._catalog.made_us(group)

    def tick(self) -> None:
        """Delays that are due, leases that have run out, and what could not be buried so far."""
        for topic in list(self._topics.open.values()):
            for number, partition in topic.numbered:
                partition.groups.tick()
                for group in partition.groups.groups:
                    if partition.groups.state(group).dying and not partition.groups.giving_up:
                        self._graveyards.mourn(topic.name, number, group)

    async def maintain(self) -> None:
        for topic in list(self._topics.open.values()):
            for number, partition in topic.numbered:
                # Whatever is written where too few replicas are in sync would be waited for.
                if partition in self._maintaining or partition.too_few is not None:
                    continue
                self._maintaining.add(partition)
                try:
                    # A topic that is deleted meanwhile, or led elsewhere, keeps no other from its own.
                    with suppress(LogClosed, ClusterError):
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
            await partition.groups.snapshot_if_needed()
        async with self._tidying:
            if not self._is_here(topic, number, partition):
                return
            protected = array_of(partition.protected())
            try:
                await self._work.on_a_thread(partial(partition.maintain, topic.settings, protected, until))
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


async def _drop(partition: Partition, group: str) -> None:
    dropping = partition.groups.drop(group)
    if dropping is not None:
        await dropping
