"""The broker: topics and groups in a data directory.

    data/
      catalog                 which topics, groups and schedules there are
      partitions/<id>/…       one directory a partition, named by a generated id

Every door ends in a call here, which says what it means and hands it to the module that does it. Nothing in it knows of
sockets; clock, disk, threads and ids come in at `open`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from penstock.broker.catalog import Catalog, GroupRecord, TopicRecord
from penstock.broker.chronicle import Chronicle
from penstock.broker.directories import Directories
from penstock.broker.disk import Disk
from penstock.broker.frame_cache import FrameCache
from penstock.broker.graveyards import Graveyards
from penstock.broker.group import Group
from penstock.broker.groups import Groups
from penstock.broker.history import History
from penstock.broker.ids import MessageId
from penstock.broker.membership import Consumers
from penstock.broker.polling import Polled, Polling, ReplyMemory
from penstock.broker.replays import Replays
from penstock.broker.room import Room
from penstock.broker.schedules import Schedules
from penstock.broker.settings import PARTITIONS_DEFAULT, GroupSettings, TopicSettings
from penstock.broker.timers import LoopTimers, Timers
from penstock.broker.topic import Topic
from penstock.broker.topics import Topics
from penstock.broker.trace import StateAt, Trace, Why
from penstock.broker.upkeep import Upkeep
from penstock.broker.work import Work
from penstock.clock import Clock
from penstock.environment import random_id
from penstock.errors import PenstockError
from penstock.limits import DEFAULT_LIMITS, MIB, Limits
from penstock.message import Message
from penstock.storage.files import Files
from penstock.storage.kernel_syncs import Syncs
from penstock.storage.log import LogSettings

PARTITIONS = "partitions"
T = TypeVar("T")


class Coordinating(Protocol):
    async def join(
        self, group: str, consumer: str, topics: Iterable[str], session_us: int | None, given: Mapping[str, Any]
    ) -> GroupRecord: ...

    def leave(self, group: str, consumers: Sequence[str]) -> None: ...

    async def begin(self, group: str, topic: str) -> None:
        """Start the group in every partition. A partition without a leader follows when a member joins."""

    async def count(self, topic: str, ranges: Sequence[tuple[int, int]]) -> int:
        """The messages of these offsets, of each partition."""


class Broker:
    """Belongs to the event loop it is opened on. What changes the catalog is done one at a time, on a thread."""

    def __init__(
        self,
        files: Files,
        directory: Files,
        catalog: Catalog,
        work: Work,
        *,
        clock: Clock,
        disk: Disk,
        limits: Limits,
        new_id: Callable[[], bytes],
        log_settings: LogSettings | None,
        timers: Timers,
        dice: Callable[[], float],
        is_replicated: bool,
        partitions_max: int | None,
        consumers: Callable[[Mapping[str, Topic], Clock], Consumers],
    ) -> None:
        """`directory` is that of the partitions."""
        self._files = files
        self._catalog = catalog
        self._work = work
        self._clock = clock
        self.disk = disk
        self._frames = FrameCache()
        self.directories = directories = Directories(
            directory,
            work,
            clock=clock,
            disk=disk,
            frames=self._frames,
            limits=limits,
            new_id=new_id,
            log_settings=log_settings,
        )
        room = Room(files, clock, limits)
        self._topics = Topics(
            catalog,
            directories,
            work,
            clock=clock,
            limits=limits,
            room=room,
            is_replicated=is_replicated,
            partitions_max=partitions_max,
        )
        graveyards = Graveyards(self._topics, work, clock, limits)
        self._topics.opened = partial(_opened, catalog, graveyards)
        self._topics.changed = self._topic_changed
        self._topics.taken_over = self._taken_over
        self._topics.lost = self._lost
        self.consumers = consumers(self._topics.open, clock)
        self.consumers.limits = limits
        # In a cluster: whoever looks after the members of groups, of which those here know only what concerns them.
        self.coordination: Coordinating | None = None
        self.dead_letters = graveyards.letters
        self.schedules = Schedules(self._topics.topic, catalog, work, clock, limits)
        self._groups = Groups(catalog, self._topics, self.consumers, work, clock=clock, limits=limits, dice=dice)
        self._polling = Polling(catalog, self._topics, self._groups, self.consumers, clock, timers)
        self._replays = Replays(catalog, self._topics, self._groups, work)
        self.chronicle = Chronicle(work)
        self._history = History(catalog, self._topics, self.consumers, work, clock)
        self._upkeep = Upkeep(catalog, self._topics, self._groups, graveyards, work)

    @classmethod
    async def open(
        cls,
        files: Files,
        *,
        clock: Clock,
        executor: Executor,
        readers: Executor | None = None,
        limits: Limits = DEFAULT_LIMITS,
        new_id: Callable[[], bytes] = random_id,
        log_settings: LogSettings | None = None,
        timers: Timers | None = None,
        dice: Callable[[], float] | None = None,
        lone_writes: bool = True,
        syncs: Syncs | None = None,
        catalog: Catalog | None = None,
        consumers: Callable[[Mapping[str, Topic], Clock], Consumers] = Consumers,
        partitions_max: int | None = None,
    ) -> Broker:
        """Opens the data directory, or makes one; it is this process's until `close`.

        `dice` are numbers from 0 to 1, for the jitter of retries. For `lone_writes` and `syncs` see `Disk`, for
        `readers` `Work`.
        With a `catalog`, which is a cluster's, the directory is locked already, and partitions come by `replicated`.
        `partitions_max`: no more are created, by all topics together.
        """
        work, disk = Work(executor, readers, clock.monotonic_us), Disk(executor, lone_writes=lone_writes, syncs=syncs)

        def opened() -> Broker:
            own, directory = _locked(files, clock, new_id, catalog)
            broker = cls(
                files,
                directory,
                own,
                work,
                clock=clock,
                disk=disk,
                limits=limits,
                new_id=new_id,
                log_settings=log_settings,
                timers=timers or LoopTimers(clock),
                dice=dice or partial(_thrown, new_id),
                is_replicated=catalog is not None,
                partitions_max=partitions_max,
                consumers=consumers,
            )
            broker._open()
            return broker

        broker = await work.on_a_thread(opened)
        broker._upkeep.take_up()
        await broker._replays.finish()
        return broker

    def _open(self) -> None:
        try:
            self._topics.open_all()
        except PenstockError:
            self._close()
            raise

    @property
    def replicated(self) -> Topics:
        """For a cluster, which says what is led here."""
        return self._topics

    async def on_a_thread(self, work: Callable[[], T]) -> T:
        return await self._work.on_a_thread(work)

    async def on_a_reading_thread(self, work: Callable[[], T]) -> T:
        return await self._work.on_a_reading_thread(work)

    async def scan(self, rows: Iterator[T | None]) -> list[T]:
        return await self._work.scan(rows)

    async def walk(self, rows: Iterator[T | None]) -> list[T]:
        return await self._work.walk(rows)

    def follow_catalog(self) -> None:
        """In a cluster, after it has changed."""
        self._topics.follow_catalog()
        self._groups.follow_catalog()

    def drop_here(self, group: str) -> None:
        """What a group that was deleted has done in the partitions led here, and who its members were."""
        self.consumers.forget(group)
        self.dead_letters.forget(group)
        self._work.in_background(self._groups.drop(group))

    def take_up(self, topic: Topic, number: int) -> None:
        """What was under way in a partition when it was last led, here or elsewhere."""
        self._upkeep.take_up_one(topic, number)

    @property
    def failure(self) -> BaseException | None:
        """What a task in the background or a disk died of."""
        return self._work.failure

    # --- topics ------------------------------------------------------------------------------------------

    @property
    def topics(self) -> list[TopicRecord]:
        """Those that can be used: one that is being made is in the catalog before it is open."""
        return self._topics.records

    def topic_names(self) -> Collection[str]:
        return self._topics.open.keys()

    def has_topic(self, name: str) -> bool:
        return name in self._topics.open

    def topic(self, name: str) -> Topic:
        return self._topics.topic(name)

    async def create_topic(
        self,
        name: str,
        partitions: int = PARTITIONS_DEFAULT,
        settings: TopicSettings | None = None,
        owner: str = "",
    ) -> Topic:
        return await self._topics.create(name, partitions, settings, owner)

    async def change_topic(
        self, name: str, *, partitions: int | None = None, settings: TopicSettings | None = None
    ) -> Topic:
        """Other settings, or more partitions: keys spread differently from then on."""
        return await self._topics.change(name, partitions, settings)

    async def archived(
        self, name: str, topic_id: str | None, offsets: Mapping[int, int], *, lowers: bool = False
    ) -> Topic:
        """Below these offsets everything is in an archive, and may be deleted when its time has come.

        On disk when this returns. An offset that is lower than one told before changes nothing, unless it `lowers`.
        """
        return await self._topics.archived(name, topic_id, offsets, lowers=lowers)

    async def delete_topic(self, name: str) -> None:
        """With its messages."""
        await self._topics.delete(name)

    def _taken_over(self, topic: Topic, number: int) -> None:
        """Before anything is done in it: a tick may come ahead of `take_up`."""
        self.dead_letters.doubt(topic, number)
        self.schedules.doubt(topic, number)

    def _lost(self, topic: Topic, number: int) -> None:
        """Keep nothing of a partition that another node may serve, or that is gone."""
        self.dead_letters.doubt(topic, number)
        self.schedules.doubt(topic, number)
        self.chronicle.forget(topic.partition(number))

    def _topic_changed(self, name: str, partitions: int) -> None:
        if not partitions:
            self._groups.forget(topic=name)
        self.consumers.topic_changed(name, partitions)

    # --- groups ------------------------------------------------------------------------------------------

    @property
    def secret(self) -> str:
        """Known to no client, the same at all nodes of a cluster and after a restart."""
        assert self._catalog.secret
        return self._catalog.secret

    @property
    def groups(self) -> list[GroupRecord]:
        return self._catalog.groups

    def group(self, name: str, topic: str) -> Group:
        """A group on a topic. It must have been created."""
        return self._groups.on(name, topic)

    def owned(self, kind: str, owner: str) -> int:
        """How many topics, groups or schedules this principal has created."""
        return self._catalog.owned(kind, owner)

    def group_names(self) -> Collection[str]:
        return self._catalog.group_names

    def has_group(self, name: str) -> bool:
        return self._catalog.has_group(name)

    def group_record(self, name: str) -> GroupRecord:
        return self._catalog.group(name)

    def group_topics(self, name: str) -> list[str]:
        """The topics that the group has asked for messages of."""
        return self._groups.topics_of(name)

    def topics_of(self, groups: Collection[str]) -> Iterator[tuple[str, str] | None]:
        """For `walk`: the same of each of these groups."""
        return self._groups.topics_of_each(groups)

    async def create_group(self, name: str, settings: GroupSettings | None = None) -> GroupRecord:
        """A new one. If it is there already, it must have these settings."""
        return await self._groups.create(name, settings)

    async def ensure_group(self, name: str, owner: str = "", /, **given: Any) -> GroupRecord:
        """The group as it is, or a new one of this owner. Settings that are given must be those it has."""
        return await self._groups.ensure(name, given, owner)

    async def change_group(self, name: str, /, **changes: Any) -> GroupRecord:
        return await self._groups.change(name, changes)

    async def delete_group(self, name: str) -> None:
        """With everything it knows of what it has done."""
        await self._groups.delete(name)
        self.dead_letters.forget(name)

    async def replay(
        self,
        topic: str,
        group: str,
        *,
        from_us: int | None = None,
        to_us: int | None = None,
        offsets: dict[int, tuple[int, int]] | None = None,
        delays: bool = False,
        lanes: bool = False,
        owner: str = "",
        **given: Any,
    ) -> int:
        """A new group that gets the messages of a time, or of ranges of offsets, and nothing else: how many.

        Live groups do not notice. Without `delays`, messages that were delayed come at once; without `lanes`, all come
        in the order of the log.
        """
        count = await self._replays.begin(
            topic,
            group,
            from_us=from_us,
            to_us=to_us,
            offsets=offsets,
            delays=delays,
            lanes=lanes,
            owner=owner,
            given=given,
            count=None if self.coordination is None else self.coordination.count,
        )
        if self.coordination is not None:
            await self.coordination.begin(group, topic)
        return count

    # --- members of groups -------------------------------------------------------------------------------

    async def join(
        self, group: str, consumer: str, topics: Iterable[str], *, session_us: int | None = None, **given: Any
    ) -> GroupRecord:
        """A consumer becomes a member of the group, which is made if it is not there; also a heartbeat.

        Without a session the member stays until it leaves.
        """
        if self.coordination is not None:
            return await self.coordination.join(group, consumer, topics, session_us, given)
        return await self._polling.join(group, consumer, topics, session_us, given)

    def leave(self, group: str, *consumers: str) -> None:
        """Their partitions go to the others; what they leased comes back when their leases run out."""
        if self.coordination is not None:
            self.coordination.leave(group, consumers)
        else:
            self._polling.leave(group, consumers)

    def checked_topics(self, topics: Iterable[str]) -> list[str]:
        """Names of topics that are there, as a consumer may ask for them."""
        names = self._polling.names(topics)
        for name in names:
            self.topic(name)
        return names

    async def poll(
        self,
        group: str,
        consumer: str,
        topics: Iterable[str],
        *,
        count: int = 100,
        bytes_max: int = MIB,
        wait_us: int = 0,
        visibility_us: int | None = None,
        memory: ReplyMemory | None = None,
    ) -> list[Polled]:
        """Messages for a member of the group, as soon as there are some; nothing if there are none for `wait_us`."""
        return await self._polling.poll(
            group,
            consumer,
            topics,
            count=count,
            bytes_max=bytes_max,
            wait_us=wait_us,
            visibility_us=visibility_us,
            memory=memory,
        )

    # --- what happened -----------------------------------------------------------------------------------

    def message(self, identity: MessageId) -> Message:
        return self._history.message(identity)

    async def trace(self, identity: MessageId) -> Trace:
        return await self._history.trace(identity)

    async def why(self, identity: MessageId, group: str) -> Why:
        return await self._history.why(identity, group)

    async def state_at(self, group: str, topic: str, time_us: int) -> list[StateAt]:
        return await self._history.state_at(group, topic, time_us)

    # --- time --------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """What time alone does. To be called now and then, by whoever owns the loop.

        It may wait for a partition that can't commit, and so may `maintain`. Who does not wait for it calls it again:
        that is passed over.
        """
        self._work.check()
        self.consumers.tick()
        await self._upkeep.tick()
        await self.schedules.tick()

    async def maintain(self) -> None:
        """Retention, merging, compaction: one partition after the other, on a thread."""
        await self._upkeep.maintain()

    async def settle(self) -> None:
        """Until nothing is under way in the background."""
        await self._upkeep.settle()

    # --- the end -----------------------------------------------------------------------------------------

    async def close(self) -> None:
        try:
            for partition in self._topics.partitions:
                partition.groups.end_wait()
            await self.settle()
            async with self._work.changing:
                for partition in self._topics.partitions:
                    with suppress(PenstockError):
                        await partition.groups.close()
                    await partition.stop()
                await self._work.on_a_thread(self._close)
        finally:
            self.disk.close()

    def disown(self) -> None:
        """Let go of the directory and leave its files alone: the process from which this one was forked goes on."""
        self._files.close()

    def _close(self) -> None:
        try:
            self._topics.close_all()
        finally:
            self._files.close()


def _locked(files: Files, clock: Clock, new_id: Callable[[], bytes], catalog: Catalog | None) -> tuple[Catalog, Files]:
    """The catalog and the directory of the partitions, of a data directory that is ours from now on."""
    if catalog is not None:
        return catalog, files.directory(PARTITIONS)
    files.lock()
    try:
        return Catalog.open(files, clock=clock, new_id=new_id), files.directory(PARTITIONS)
    except PenstockError:
        files.close()
        raise


def _opened(catalog: Catalog, graveyards: Graveyards, topic: Topic, number: int) -> None:
    graveyards.watch(topic, number)
    topic.here[number].groups.origin = catalog.origin


def _thrown(new_id: Callable[[], bytes]) -> float:
    return int.from_bytes(new_id()[:4], "big") / (1 << 32)


__all__ = ["Broker", "Polled"]
