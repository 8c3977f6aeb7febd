"""The broker: topics in a data directory.

    data/
      catalog                 which topics there are
      partitions/<id>/…       one directory a partition, named by a generated id

Every door ends in a call here. Nothing in it knows of sockets; clock, disk, threads and ids come in at `open`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from penstock.broker.catalog import Catalog, TopicRecord
from penstock.broker.group import Group, GroupSettings
from penstock.broker.names import check_name
from penstock.broker.partition import Partition
from penstock.broker.retries import RetryPolicy
from penstock.broker.settings import PARTITIONS_DEFAULT, TopicSettings
from penstock.broker.topic import Topic
from penstock.clock import Clock
from penstock.errors import PenstockError, TopicNotFound
from penstock.limits import DEFAULT_LIMITS, Limits
from penstock.storage.cache import SegmentCache
from penstock.storage.files import Files, random_id
from penstock.storage.log import LogSettings

PARTITIONS = "partitions"

T = TypeVar("T")


class Broker:
    """Belongs to the event loop it is opened on. What changes the catalog is done one at a time, on a thread."""

    def __init__(
        self,
        files: Files,
        *,
        clock: Clock,
        executor: Executor,
        limits: Limits,
        new_id: Callable[[], bytes],
        log_settings: LogSettings | None,
    ) -> None:
        self._files = files
        self._clock = clock
        self._executor = executor
        self._limits = limits
        self._new_id = new_id
        self._log_settings = log_settings
        self._loop = asyncio.get_running_loop()
        self._changing = asyncio.Lock()
        self._cache = SegmentCache()
        self._topics: dict[str, Topic] = {}
        self._catalog: Catalog
        self._directory: Files

    @classmethod
    async def open(
        cls,
        files: Files,
        *,
        clock: Clock,
        executor: Executor,
        limits: Limits = DEFAULT_LIMITS,
        new_id: Callable[[], bytes] = random_id,
        log_settings: LogSettings | None = None,
    ) -> Broker:
        """Opens the data directory, or makes one; it is this process's until `close`."""
        broker = cls(files, clock=clock, executor=executor, limits=limits, new_id=new_id, log_settings=log_settings)
        await broker._on_a_thread(broker._open)
        return broker

    def _open(self) -> None:
        self._files.lock()
        try:
            self._catalog = Catalog.open(self._files, clock=self._clock, new_id=self._new_id)
            self._directory = self._files.directory(PARTITIONS)
            for partition in self._catalog.removing:
                self._remove_partition(partition)
            for record in self._catalog.topics:
                self._topics[record.name] = Topic(record, self._open_partitions(record.partitions), self._limits)
        except PenstockError:
            self._close()
            raise

    # --- topics ------------------------------------------------------------------------------------------

    @property
    def topics(self) -> list[TopicRecord]:
        return self._catalog.topics

    def topic(self, name: str) -> Topic:
        topic = self._topics.get(check_name("topic", name))
        if topic is None:
            raise TopicNotFound(f"there is no topic {name}", topic=name)
        return topic

    async def create_topic(
        self, name: str, partitions: int = PARTITIONS_DEFAULT, settings: TopicSettings | None = None
    ) -> Topic:
        async with self._changing:
            return await self._on_a_thread(partial(self._create_topic, name, partitions, settings))

    def _create_topic(self, name: str, partitions: int, settings: TopicSettings | None) -> Topic:
        record = self._catalog.create_topic(name, partitions, settings)
        topic = self._topics[name] = Topic(record, self._open_partitions(record.partitions), self._limits)
        return topic

    async def change_topic(
        self, name: str, *, partitions: int | None = None, settings: TopicSettings | None = None
    ) -> Topic:
        """Other settings, or more partitions: keys spread differently from then on."""
        async with self._changing:
            return await self._on_a_thread(partial(self._change_topic, name, partitions, settings))

    def _change_topic(self, name: str, partitions: int | None, settings: TopicSettings | None) -> Topic:
        topic = self.topic(name)
        record = self._catalog.change_topic(name, partitions=partitions, settings=settings)
        added = self._open_partitions(record.partitions[len(topic.partitions) :])
        topic.change(record, [*topic.partitions, *added])
        return topic

    async def delete_topic(self, name: str) -> None:
        """With its messages. It is gone for everybody before the first file is removed."""
        async with self._changing:
            await self._on_a_thread(partial(self._delete_topic, name))

    def _delete_topic(self, name: str) -> None:
        topic = self.topic(name)
        record = self._catalog.delete_topic(name)
        del self._topics[name]
        for partition in topic.partitions:
            partition.close()
        for identity in record.partitions:
            self._remove_partition(identity)

    # --- groups ------------------------------------------------------------------------------------------

    def group(
        self, name: str, topic: str, settings: GroupSettings | None = None, policy: RetryPolicy | None = None
    ) -> Group:
        """A group on a topic. Where it is in each partition is on disk; its settings are the caller's, each time."""
        return Group(name, self.topic(topic), settings or GroupSettings(), policy or RetryPolicy())

    # --- the end -----------------------------------------------------------------------------------------

    async def close(self) -> None:
        async with self._changing:
            await self._on_a_thread(self._close)

    def _close(self) -> None:
        try:
            for topic in self._topics.values():
                for partition in topic.partitions:
                    partition.close()
            self._topics.clear()
        finally:
            self._files.close()

    # --- helpers -----------------------------------------------------------------------------------------

    async def _on_a_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._executor, work)

    def _open_partitions(self, identities: tuple[str, ...]) -> list[Partition]:
        opened: list[Partition] = []
        try:
            for identity in identities:
                opened.append(self._open_partition(identity))
        except PenstockError:
            for partition in opened:
                partition.close()
            raise
        return opened

    def _open_partition(self, identity: str) -> Partition:
        return Partition.open(
            self._directory.directory(identity),
            clock=self._clock,
            executor=self._executor,
            loop=self._loop,
            cache=self._cache,
            new_id=self._new_id,
            limits=self._limits,
            settings=self._log_settings,
        )

    def _remove_partition(self, identity: str) -> None:
        if identity in self._directory.directories():
            self._directory.remove_directory(identity)
            self._directory.sync()
        self._catalog.removed(identity)
