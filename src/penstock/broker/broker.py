"""The broker: topics and groups in a data directory.

    data/
      catalog                 which topics, groups and schedules there are
      partitions/<id>/…       one directory a partition, named by a generated id

Every door ends in a call here. Nothing in it knows of sockets; clock, disk, threads and ids come in at `open`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from penstock.broker import trace as tracing
from penstock.broker.assignor import Part
from penstock.broker.bell import Bell
from penstock.broker.catalog import Catalog, GroupRecord, ReplayRecord, TopicRecord
from penstock.broker.dead_letters import DeadLetters
from penstock.broker.disk import Disk
from penstock.broker.frame_cache import FrameCache
from penstock.broker.group import Group, Handed
from penstock.broker.ids import MessageId
from penstock.broker.membership import Consumers
from penstock.broker.names import DEAD_LETTERS, check_name
from penstock.broker.offsets import array_of
from penstock.broker.partition import Partition
from penstock.broker.room import Room
from penstock.broker.schedules import Schedules
from penstock.broker.settings import PARTITIONS_DEFAULT, GroupSettings, TopicSettings
from penstock.broker.timers import LoopTimers, Timers
from penstock.broker.topic import Topic
from penstock.clock import TIME_MAX_US, Clock
from penstock.errors import (
    AlreadyExists,
    Fatal,
    InvalidInput,
    InvalidName,
    InvalidSetting,
    LogClosed,
    NotFound,
    Overloaded,
    PenstockError,
    SettingsConflict,
    StorageError,
    TopicNotFound,
)
from penstock.limits import DEFAULT_LIMITS, MIB, Limits
from penstock.message import Message
from penstock.storage.cache import SegmentCache
from penstock.storage.files import Files, random_id
from penstock.storage.log import LogSettings

PARTITIONS = "partitions"
WAIT_US_MAX = 300_000_000
# Members of a group name their topics; what they may lease from is looked through at every poll.
TOPICS_MAX = 1_000

T = TypeVar("T")


class Polled(NamedTuple):
    topic: str
    handed: Handed


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
        timers: Timers,
        dice: Callable[[], float] | None,
        lone_writes: bool,
    ) -> None:
        self._files = files
        self._dice = dice or self._thrown
        self._clock = clock
        self._disk = Disk(executor, lone_writes=lone_writes)
        self._limits = limits
        self._room = Room(files, clock, limits)
        self._new_id = new_id
        self._log_settings = log_settings
        self._timers = timers
        self._loop = asyncio.get_running_loop()
        self._changing = asyncio.Lock()
        self._cache = SegmentCache()
        self._frames = FrameCache()
        self._topics: dict[str, Topic] = {}
        self._groups: dict[tuple[str, str], Group] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._catalog: Catalog
        self._directory: Files
        self.consumers = Consumers(self._topics, clock)
        self.dead_letters = DeadLetters(self.topic, self._dead_letter_topic, clock, limits)
        self.schedules: Schedules
        # What a task in the background or a disk died of: the broker must not go on as if nothing had happened.
        self.failure: BaseException | None = None

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
        timers: Timers | None = None,
        dice: Callable[[], float] | None = None,
        lone_writes: bool = True,
    ) -> Broker:
        """Opens the data directory, or makes one; it is this process's until `close`.

        `dice` are numbers from 0 to 1, for the jitter of retries. For `lone_writes` see `Disk`.
        """
        broker = cls(
            files,
            clock=clock,
            executor=executor,
            limits=limits,
            new_id=new_id,
            log_settings=log_settings,
            timers=timers or LoopTimers(clock),
            dice=dice,
            lone_writes=lone_writes,
        )
        await broker._on_a_thread(broker._open)
        broker.schedules = Schedules(broker.topic, broker._catalog, broker._save, clock, limits)
        broker._take_up()
        await broker._finish_replays()
        return broker

    def _open(self) -> None:
        self._files.lock()
        try:
            self._catalog = Catalog.open(self._files, clock=self._clock, new_id=self._new_id)
            self._directory = self._files.directory(PARTITIONS)
            for partition in self._catalog.removing:
                self._remove_partition(partition)
            for record in self._catalog.topics:
                self._open_topic(record)
        except PenstockError:
            self._close()
            raise

    def _take_up(self) -> None:
        """What was under way when the broker was last closed, or crashed."""
        for name, topic in self._topics.items():
            if name.endswith(DEAD_LETTERS):
                self._in_background(self.dead_letters.settle_copied(topic))
            for number, partition in enumerate(topic.partitions):
                for group in partition.groups.groups:
                    if self._catalog.has_group(group):
                        self.group(group, name)
                    elif not group.startswith("__"):
                        # Its deletion was cut short.
                        self._in_background(partition.groups.drop(group))
                    if partition.groups.has(group) and partition.groups.state(group).dying:
                        self._mourn(name, number, group)

    # --- topics ------------------------------------------------------------------------------------------

    @property
    def topics(self) -> list[TopicRecord]:
        """Those that can be used: one that is being made is in the catalog before it is open."""
        return [record for record in self._catalog.topics if record.name in self._topics]

    def topic(self, name: str) -> Topic:
        topic = self._topics.get(name) if isinstance(name, str) else None
        if topic is None:
            # Whether it could be the name of one is of interest only now.
            raise TopicNotFound(f"there is no topic {check_name('topic', name)}", topic=name)
        return topic

    async def create_topic(
        self, name: str, partitions: int = PARTITIONS_DEFAULT, settings: TopicSettings | None = None
    ) -> Topic:
        return await self._changed(self._create_topic(name, partitions, settings))

    async def _create_topic(self, name: str, partitions: int, settings: TopicSettings | None) -> Topic:
        check_name("topic", name)
        if settings is None:
            settings = TopicSettings(dead_letters=not name.endswith(DEAD_LETTERS))
        _check_topic(name, settings)
        record = await self._on_a_thread(partial(self._catalog.create_topic, name, partitions, settings))
        topic = await self._on_a_thread(partial(self._open_topic, record))
        # There may be members who had subscribed to one of this name before it was deleted.
        self.consumers.topic_changed(name, len(topic.partitions))
        return topic

    async def change_topic(
        self, name: str, *, partitions: int | None = None, settings: TopicSettings | None = None
    ) -> Topic:
        """Other settings, or more partitions: keys spread differently from then on."""
        return await self._changed(self._change_topic(name, partitions, settings))

    async def _change_topic(self, name: str, partitions: int | None, settings: TopicSettings | None) -> Topic:
        topic = self.topic(name)
        if settings is not None:
            _check_topic(name, settings)
        identities: tuple[str, ...] = ()
        if partitions is not None:
            identities = self._catalog.new_partitions(name, partitions)
        added = await self._on_a_thread(partial(self._open_partitions, identities, topic.bell))
        # A group that is there already misses nothing of what comes to the new ones: it is there before they are.
        for partition in added:
            for group in topic.partitions[0].groups.groups:
                is_replay = topic.partitions[0].groups.state(group).end is not None
                await partition.groups.start(group, 0, end=0 if is_replay else None)
        try:
            change = partial(self._catalog.change_topic, name, added=identities, settings=settings)
            record = await self._on_a_thread(change)
        except PenstockError:
            for partition in added:
                partition.close()
            raise
        topic.change(record, [*topic.partitions, *added])
        self._wire(topic)
        for partition in added:
            # Those that started meanwhile.
            for group in topic.partitions[0].groups.groups:
                if not partition.groups.has(group):
                    await partition.groups.start(group, 0)
        self.consumers.topic_changed(name, len(topic.partitions))
        return topic

    async def delete_topic(self, name: str) -> None:
        """With its messages. It is gone for everybody before the first file is removed."""
        await self._changed(self._delete_topic(name))

    async def _delete_topic(self, name: str) -> None:
        topic = self.topic(name)
        record = await self._on_a_thread(partial(self._catalog.delete_topic, name))
        del self._topics[name]
        for key in [key for key in self._groups if key[1] == name]:
            del self._groups[key]
        self.consumers.topic_changed(name, 0)
        topic.bell.ring()
        try:
            await self._on_a_thread(partial(self._remove, topic, record))
        finally:
            for partition in topic.partitions:
                partition.reading.forget()

    def _remove(self, topic: Topic, record: TopicRecord) -> None:
        for partition in topic.partitions:
            partition.close()
        for identity in record.partitions:
            self._remove_partition(identity)

    def _open_topic(self, record: TopicRecord) -> Topic:
        bell = Bell()
        partitions = self._open_partitions(record.partitions, bell)
        topic = Topic(record, partitions, bell=bell, limits=self._limits, clock=self._clock, room=self._room)
        self._topics[record.name] = topic
        self._wire(topic)
        return topic

    def _wire(self, topic: Topic) -> None:
        for number, partition in enumerate(topic.partitions):
            partition.groups.graveyard = partial(self._graveyard, topic.name, number)
            partition.groups.mourn = partial(self._mourn, topic.name, number)

    # --- groups ------------------------------------------------------------------------------------------

    @property
    def groups(self) -> list[GroupRecord]:
        return self._catalog.groups

    async def create_group(self, name: str, settings: GroupSettings | None = None) -> GroupRecord:
        """A new one. If it is there already, it must have these settings."""
        check_name("group", name)
        if settings is not None and not isinstance(settings, GroupSettings):
            raise InvalidSetting(f"settings of a group are GroupSettings, not {type(settings).__name__}")
        known = self._known_group(name, settings)
        return known if known is not None else await self._changed(self._create_group(name, settings))

    async def _create_group(self, name: str, settings: GroupSettings | None) -> GroupRecord:
        known = self._known_group(name, settings)
        if known is not None:
            return known
        return await self._on_a_thread(partial(self._catalog.put_group, name, settings or GroupSettings()))

    def _known_group(self, name: str, settings: GroupSettings | None) -> GroupRecord | None:
        if not self._catalog.has_group(name):
            return None
        record = self._catalog.group(name)
        if settings is not None and settings != record.settings:
            raise _conflict(record, settings)
        return record

    async def ensure_group(self, name: str, **given: Any) -> GroupRecord:
        """The group as it is, or a new one. Settings that are given must be those it has."""
        self._check_held(given)
        if self._catalog.has_group(name):
            record = self._catalog.group(name)
            return await self.create_group(name, record.settings.changed(**given))
        return await self.create_group(name, GroupSettings().changed(**given))

    async def change_group(self, name: str, **changes: Any) -> GroupRecord:
        return await self._changed(self._change_group(name, changes))

    async def _change_group(self, name: str, changes: dict[str, Any]) -> GroupRecord:
        old = self._catalog.group(name).settings
        self._check_held(changes)
        settings = old.changed(**changes)
        if (settings.lanes == "none") != (old.lanes == "none"):
            raise InvalidSetting("a group that ignores lanes can't begin to mind them", setting="lanes")
        record = await self._on_a_thread(partial(self._catalog.put_group, name, settings))
        if settings.assignment != old.assignment:
            self.consumers.forget(name)
            for topic in self.group_topics(name):
                self.topic(topic).bell.ring()
        for (group, _), on_topic in self._groups.items():
            if group == name:
                on_topic.configure(self._held(settings), settings.policy(self._dice))
        return record

    def _check_held(self, given: Mapping[str, Any]) -> None:
        wanted, most = given.get("max_in_flight"), self._limits.unacked_max
        if isinstance(wanted, int) and wanted > most:
            raise InvalidSetting(
                f"max_in_flight is 1 to {most}, not {wanted}",
                setting="max_in_flight",
                lowest=1,
                highest=most,
                given=wanted,
            )

    def _held(self, settings: GroupSettings) -> GroupSettings:
        """As this broker keeps them: with no more in flight than it allows any group."""
        if settings.max_in_flight <= self._limits.unacked_max:
            return settings
        return settings.changed(max_in_flight=self._limits.unacked_max)

    async def delete_group(self, name: str) -> None:
        """With everything it knows of what it has done."""
        await self._changed(self._delete_group(name))

    async def _delete_group(self, name: str) -> None:
        self._catalog.group(name)
        await self._on_a_thread(partial(self._catalog.delete_group, name))
        self.consumers.forget(name)
        await self._drop_group(name)

    async def _drop_group(self, name: str) -> None:
        """What it has done, everywhere."""
        for key in [key for key in self._groups if key[0] == name]:
            del self._groups[key]
        for partition in self._partitions():
            await partition.groups.drop(name)

    def group(self, name: str, topic: str) -> Group:
        """A group on a topic. It must have been created."""
        record = self._catalog.group(name)
        check_name("topic", topic)
        on_topic = self._groups.get((name, topic))
        if on_topic is None:
            policy = record.settings.policy(self._dice)
            replay = record.replay if record.replay and record.replay.topic == self.topic(topic).record.id else None
            settings = self._held(record.settings)
            on_topic = Group(name, self.topic(topic), settings, policy, self._clock, replay)
            self._groups[name, topic] = on_topic
        return on_topic

    def group_topics(self, name: str) -> list[str]:
        """The topics that the group has asked for messages of."""
        self._catalog.group(name)
        return sorted(
            topic.name
            for topic in self._topics.values()
            if any(partition.groups.has(name) for partition in topic.partitions)
        )

    async def join(
        self, group: str, consumer: str, topics: Iterable[str], *, session_us: int | None = None, **given: Any
    ) -> GroupRecord:
        """A consumer becomes a member of the group, which is made if it is not there; also a heartbeat.

        Without a session the member stays until it leaves.
        """
        check_name("consumer", consumer)
        names = _names(topics)
        if session_us is not None and not (_is_int(session_us) and 1 <= session_us <= TIME_MAX_US):
            raise InvalidInput(f"a session is a positive number of microseconds, not {session_us!r}")
        for name in names:
            self.topic(name)
        record = await self.ensure_group(group, **given)
        for name in names:
            await self.group(group, name).start()
        self.consumers.join(group, record.settings, consumer, names, session_us)
        return record

    def leave(self, group: str, consumer: str) -> None:
        """Its partitions go to the others; what it leased comes back when its leases run out."""
        check_name("consumer", consumer)
        self.consumers.leave(group, self._catalog.group(group).settings, consumer)

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
    ) -> list[Polled]:
        """Messages for a member of the group, as soon as there are some; nothing if there are none for `wait_us`."""
        if not _is_int(wait_us) or not 0 <= wait_us <= WAIT_US_MAX:
            raise InvalidInput(f"wait is 0 to {WAIT_US_MAX} microseconds, not {wait_us!r}")
        names = _names(topics)
        check_name("group", group)
        check_name("consumer", consumer)
        deadline_us = self._clock.now_us() + wait_us
        while True:
            bells = [self.topic(name).bell for name in names]
            rings = [bell.wait() for bell in bells]
            try:
                polled = await self._lease(group, consumer, names, count, bytes_max, visibility_us)
                if polled or self._clock.now_us() >= deadline_us:
                    return polled
                if not await self._timers.wait(rings, min(deadline_us, self._next_due_of(group, consumer, names))):
                    return []
            finally:
                for bell, ring in zip(bells, rings, strict=True):
                    bell.leave(ring)

    async def _lease(
        self, group: str, consumer: str, topics: list[str], count: int, bytes_max: int, visibility_us: int | None
    ) -> list[Polled]:
        polled: list[Polled] = []
        failure: PenstockError | None = None
        for name in topics:
            partitions = self.consumers.leasable(group, consumer, name)
            try:
                handed = await self.group(group, name).lease(
                    consumer, count, bytes_max, visibility_us=visibility_us, partitions=partitions
                )
            except (StorageError, Overloaded) as error:
                # The others can still give something; and what is leased already must reach somebody.
                failure = error
                continue
            for some in handed:
                polled.append(Polled(name, some))
                count -= len(some.receipt.offsets)
                bytes_max -= sum(len(frame.data) for frame in some.frames)
            if count <= 0 or bytes_max <= 0:
                break
        if failure is not None and not polled:
            raise failure
        return polled

    def _next_due_of(self, group: str, consumer: str, topics: list[str]) -> int:
        """When there may be something for this member by time alone. Of what others have, a bell tells if it moves."""
        dues = []
        for name in topics:
            partitions = self.topic(name).partitions
            for number in self.consumers.leasable(group, consumer, name):
                dues.append(partitions[number].groups.next_due_of(group))
        # What is overdue stays in: its time may have come while we were asking.
        return min((due for due in dues if due is not None), default=1 << 62)

    # --- what happened -----------------------------------------------------------------------------------

    def message(self, identity: MessageId) -> Message:
        identity = MessageId.checked(identity)
        return self.topic(identity.topic).partition(identity.partition).reading.message(identity.offset).message

    async def trace(self, identity: MessageId) -> tracing.Trace:
        identity = MessageId.checked(identity)
        topic = self.topic(identity.topic)
        await topic.partition(identity.partition).groups.flushed()
        return await self._on_a_thread(lambda: tracing.trace(topic, identity))

    async def why(self, identity: MessageId, group: str) -> tracing.Why:
        check_name("group", group)
        identity = MessageId.checked(identity)
        topic = self.topic(identity.topic)
        await topic.partition(identity.partition).groups.flushed()
        is_there = self._catalog.has_group(group)
        members = self.consumers.of(group)
        owner = None
        if members is not None:
            owner = members.owner(Part(identity.topic, identity.partition)) or next(iter(members.names()), None)
        return tracing.why(topic, identity, group, now_us=self._clock.now_us(), owner=owner, is_started=is_there)

    async def state_at(self, group: str, topic: str, time_us: int) -> list[tracing.StateAt]:
        check_name("group", group)
        on_topic = self.topic(topic)
        if not _is_int(time_us) or not 0 <= time_us <= TIME_MAX_US:
            raise InvalidInput(f"a time is microseconds within 1970–9999, not {time_us!r}")
        for partition in on_topic.partitions:
            await partition.groups.flushed()
        return await self._on_a_thread(lambda: tracing.state_at(on_topic, group, time_us))

    # --- replay ------------------------------------------------------------------------------------------

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
        **given: Any,
    ) -> int:
        """A new group that gets the messages of a time, or of ranges of offsets, and nothing else: how many.

        Live groups do not notice. Without `delays`, messages that were delayed come at once; without `lanes`, all come
        in the order of the log.
        """
        ranges = self._ranges(self.topic(topic), from_us, to_us, offsets)
        self._check_held(given)
        settings = _replay_settings(lanes, given)
        await self._changed(self._replay(topic, group, settings, ranges, delays))
        return sum(last - first for first, last in ranges)

    async def _replay(
        self, topic: str, group: str, settings: GroupSettings, ranges: list[tuple[int, int]], delays: bool
    ) -> None:
        """Of all partitions or of none: once the catalog says what it is of, a start goes on where a crash cut it
        short."""
        on_topic = self.topic(topic)
        if self._catalog.has_group(group) and self.group_topics(group):
            raise AlreadyExists(f"there is a group {group} already; a replay has one of its own", group=group)
        known = self._known_group(group, settings)
        replay = ReplayRecord(on_topic.record.id, tuple(ranges), delays)
        await self._on_a_thread(partial(self._catalog.put_group, group, settings, replay))
        # Somebody may have asked for it meanwhile: it knows now what it is of.
        self._groups.pop((group, topic), None)
        try:
            await self._start_replay(self.group(group, topic), len(ranges))
        except PenstockError:
            with suppress(PenstockError):
                await self._take_back_replay(group, known)
            raise

    async def _start_replay(self, group: Group, partitions: int) -> None:
        """In all at the same time: nobody else starts the group there in between."""
        starts = [group.start_replay(number) for number in range(partitions)]
        for outcome in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _take_back_replay(self, group: str, known: GroupRecord | None) -> None:
        """A group that was there before is there again, as it was."""
        if known is None:
            await self._delete_group(group)
            return
        await self._on_a_thread(partial(self._catalog.restore_group, known))
        await self._drop_group(group)

    async def _finish_replays(self) -> None:
        """Those that a crash cut short. What can't be started now is when somebody asks for it."""
        for record in self._catalog.groups:
            for topic in self._topics.values():
                if record.replay is not None and record.replay.topic == topic.record.id:
                    start = self._in_background(self.group(record.name, topic.name).start())
                    await asyncio.wait([start])

    def _ranges(
        self, topic: Topic, from_us: int | None, to_us: int | None, offsets: dict[int, tuple[int, int]] | None
    ) -> list[tuple[int, int]]:
        """For each partition the first offset, and that behind the last one."""
        ranges = []
        if (offsets is None) == (from_us is None and to_us is None):
            raise InvalidInput("a replay is of a time or of offsets")
        for time in (from_us, to_us):
            if time is not None and not (_is_int(time) and 0 <= time <= TIME_MAX_US):
                raise InvalidInput(f"a time is microseconds within 1970–9999, not {time!r}")
        if offsets is not None and not (isinstance(offsets, Mapping) and all(map(_is_range, offsets.values()))):
            raise InvalidInput(f"offsets are pairs by partition, first and last, not {offsets!r}")
        for number, partition in enumerate(topic.partitions):
            log, end = partition.messages, partition.reading.visible_offset
            if offsets is None:
                first = log.start_offset if from_us is None else min(log.offset_at(from_us), end)
                last = end if to_us is None else min(log.offset_at(to_us), end)
            else:
                first, last = offsets.get(number, (end, end))
                if not (_is_int(first) and _is_int(last)) or not log.start_offset <= first <= last <= end:
                    raise InvalidInput(
                        f"partition {number} has offsets {log.start_offset} to {end}, not {first} to {last}"
                    )
            ranges.append((first, max(first, last)))
        if offsets is not None:
            for number in offsets:
                topic.partition(number)
        return ranges

    # --- time --------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """What time alone does. To be called now and then, by whoever owns the loop."""
        if self.failure is not None:
            raise Fatal(f"the broker has failed: {self.failure!r}") from self.failure
        self.consumers.tick()
        for topic in list(self._topics.values()):
            for number, partition in enumerate(topic.partitions):
                partition.groups.tick()
                for group in partition.groups.groups:
                    if partition.groups.state(group).dying and not partition.groups.giving_up:
                        self._mourn(topic.name, number, group)
        await self.schedules.tick()

    async def maintain(self) -> None:
        """Retention, merging, compaction: one partition after the other, on a thread."""
        for topic in list(self._topics.values()):
            for partition in topic.partitions:
                if self._topics.get(topic.name) is not topic:
                    break
                # A topic that is deleted meanwhile keeps no other from its own.
                with suppress(LogClosed):
                    await self._maintain(topic, partition)

    async def _maintain(self, topic: Topic, partition: Partition) -> None:
        graves = self._topics.get(topic.name + DEAD_LETTERS)
        if graves is not None:
            # Once a copy is deleted, nobody knows any more that its letter was redriven.
            await self.dead_letters.settle_copied(graves)
        until = partition.reading.visible_offset
        # Lanes and delays of what is deleted are known from then on from a snapshot only.
        with suppress(Overloaded, LogClosed):
            await partition.groups.snapshot_if_needed()
        protected = array_of(partition.protected())
        try:
            await self._on_a_thread(partial(partition.maintain, topic.settings, protected, until))
        finally:
            # Also if it failed half-way: something may have been deleted.
            partition.after_maintenance()

    async def settle(self) -> None:
        """Until nothing is under way in the background."""
        while self._tasks or (busy := [p for p in self._partitions() if p.groups.giving_up]):
            if self._tasks:
                await asyncio.wait(self._tasks)
                continue
            for partition in busy:
                await partition.groups.flushed()
            await asyncio.sleep(0)

    def _partitions(self) -> list[Partition]:
        return [partition for topic in self._topics.values() for partition in topic.partitions]

    # --- the end -----------------------------------------------------------------------------------------

    async def close(self) -> None:
        await self.settle()
        async with self._changing:
            for topic in self._topics.values():
                for partition in topic.partitions:
                    with suppress(PenstockError):
                        await partition.groups.close()
            await self._on_a_thread(self._close)

    def _close(self) -> None:
        try:
            for topic in self._topics.values():
                for partition in topic.partitions:
                    partition.close()
            self._topics.clear()
        finally:
            self._files.close()

    # --- dead letters ------------------------------------------------------------------------------------

    def _graveyard(self, topic: str, number: int) -> int | None:
        """Where the next dead letter of this partition would go; None if they go nowhere."""
        if topic not in self._topics or not self._topics[topic].settings.dead_letters:
            return None
        graves = self._topics.get(topic + DEAD_LETTERS)
        if graves is None or number >= len(graves.partitions):
            return 0
        return graves.partition(number).messages.synced_offset

    async def _dead_letter_topic(self, topic: Topic) -> Topic:
        name, partitions = topic.name + DEAD_LETTERS, len(topic.partitions)
        graves = self._topics.get(name)
        if graves is None:
            try:
                return await self.create_topic(name, partitions, TopicSettings(dead_letters=False))
            except AlreadyExists:
                graves = self.topic(name)
        if len(graves.partitions) < partitions:
            return await self.change_topic(name, partitions=partitions)
        return graves

    def _mourn(self, topic: str, number: int, group: str) -> None:
        if topic in self._topics:
            self._in_background(self.dead_letters.bury(self._topics[topic], number, group))

    # --- helpers -----------------------------------------------------------------------------------------

    def _thrown(self) -> float:
        return int.from_bytes(self._new_id()[:4], "big") / (1 << 32)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        # What can be tried again is, at the next tick; a topic or a broker that was closed needs nothing any more.
        passes = isinstance(error, PenstockError) and (error.retriable or isinstance(error, LogClosed | NotFound))
        if error is not None and not passes:
            self.failure = error

    def _could_not_write(self, error: PenstockError) -> None:
        """A message. A full disk passes; after anything that does not, nobody knows what is on it."""
        if isinstance(error, Fatal) and self.failure is None:
            self.failure = error

    async def _changed(self, change: Coroutine[Any, Any, T]) -> T:
        """One change of the catalog at a time, each to its end: also if whoever asked for it gives up waiting."""

        async def alone() -> T:
            async with self._changing:
                return await change

        return await asyncio.shield(self._loop.create_task(alone()))

    async def _save(self, change: Callable[[], None]) -> None:
        await self._changed(self._on_a_thread(change))

    async def _on_a_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._disk.executor, work)

    def _open_partitions(self, identities: tuple[str, ...], bell: Bell) -> list[Partition]:
        opened: list[Partition] = []
        try:
            for identity in identities:
                opened.append(self._open_partition(identity, bell))
        except PenstockError:
            for partition in opened:
                partition.close()
            raise
        return opened

    def _open_partition(self, identity: str, bell: Bell) -> Partition:
        return Partition.open(
            self._directory.directory(identity),
            clock=self._clock,
            disk=self._disk,
            loop=self._loop,
            cache=self._cache,
            new_id=self._new_id,
            limits=self._limits,
            bell=bell,
            frames=self._frames,
            failed=self._could_not_write,
            settings=self._log_settings,
        )

    def _remove_partition(self, identity: str) -> None:
        if identity in self._directory.directories():
            self._directory.remove_directory(identity)
            self._directory.sync()
        self._catalog.removed(identity)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _replay_settings(lanes: bool, given: dict[str, Any]) -> GroupSettings:
    return GroupSettings().changed(lanes="strict" if lanes else "none", is_replay=True, **given)


def _is_range(value: object) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def _names(topics: Iterable[str]) -> list[str]:
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise InvalidInput(f"topics are a list of names, not {topics!r}")
    names = list(dict.fromkeys(check_name("topic", topic) for topic in topics))
    if not names or len(names) > TOPICS_MAX:
        raise InvalidInput(f"a consumer has 1 to {TOPICS_MAX} topics, not {len(names)}")
    return names


def _check_topic(name: str, settings: object) -> None:
    if not isinstance(settings, TopicSettings):
        raise InvalidSetting(f"settings of a topic are TopicSettings, not {type(settings).__name__}")
    if not settings.dead_letters:
        return
    if name.endswith(DEAD_LETTERS):
        raise InvalidSetting(
            f"{name} is for dead letters; those that die there have nowhere to go", setting="dead_letters"
        )
    try:
        check_name("topic", name + DEAD_LETTERS)
    except InvalidName as error:
        raise InvalidName(f"{name}{DEAD_LETTERS} would be its dead-letter topic: {error.message}") from error


def _conflict(record: GroupRecord, given: GroupSettings) -> SettingsConflict:
    different = {
        name: (getattr(record.settings, name), getattr(given, name))
        for name in GroupSettings.__struct_fields__
        if getattr(record.settings, name) != getattr(given, name)
    }
    told = "; ".join(f"{name} is {has!r}, not {wanted!r}" for name, (has, wanted) in different.items())
    return SettingsConflict(
        f"group {record.name} has other settings: {told}",
        group=record.name,
        different={name: list(both) for name, both in different.items()},
    )
