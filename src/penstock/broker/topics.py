"""The topics of a broker: made, changed, and deleted with all that is in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from penstock.broker.bell import Bell
from penstock.broker.catalog import Catalog, TopicRecord
from penstock.broker.directories import Directories
from penstock.broker.names import DEAD_LETTERS, check_name
from penstock.broker.partition import Partition
from penstock.broker.recollection import Recollection
from penstock.broker.room import Room
from penstock.broker.settings import TopicSettings, check_partitions, check_room
from penstock.broker.topic import TooFew, Topic
from penstock.broker.work import Work
from penstock.clock import Clock
from penstock.errors import (
    ArchiveConflict,
    InvalidName,
    InvalidSetting,
    OffsetOutOfRange,
    PenstockError,
    TopicNotFound,
)
from penstock.limits import Limits, check_count
from penstock.storage.log import Log


class Topics:
    """Invariant: what is open is in the catalog; one that is being made is there before it is open."""

    def __init__(
        self,
        catalog: Catalog,
        directories: Directories,
        work: Work,
        *,
        clock: Clock,
        limits: Limits,
        room: Room,
        is_replicated: bool = False,
        partitions_max: int | None = None,
    ) -> None:
        """`is_replicated`: partitions come and go with `lead` and `resign`, and their directories are not ours.
        `partitions_max` bounds what is created; whatever is there is opened."""
        self._catalog = catalog
        self._directories = directories
        self._work = work
        self._clock = clock
        self._limits = limits
        self._room = room
        self.is_replicated = is_replicated
        self._partitions_max = partitions_max
        self.open: dict[str, Topic] = {}
        # Of replicated partitions: the topic, and the number in it.
        self._places: dict[str, tuple[str, int]] = {}
        # Told of a partition that another node may have led until now; of a topic whose partitions were opened; and of
        # how many partitions one has now: 0 if it is gone.
        self.taken_over: Callable[[Topic, int], None] = lambda topic, number: None
        # Called for a partition that is not served here any more: hidden, or deleted with its topic.
        self.lost: Callable[[Topic, int], None] = lambda topic, number: None
        # Called for a partition that is served here from now on.
        self.opened: Callable[[Topic, int], None] = lambda topic, number: None
        self.changed: Callable[[str, int], None] = lambda name, partitions: None
        # Of a replicated partition that is led here, by its id, and can't be shown as yet because too few replicas are
        # in sync for that.
        self.too_few: Callable[[str], TooFew | None] = lambda identity: None
        # Called before a replicated topic is looked up: hides the partitions that this node may serve no longer.
        self.hide_expired: Callable[[], None] | None = None

    @property
    def records(self) -> list[TopicRecord]:
        """Those that can be used."""
        return [record for record in self._catalog.topics if record.name in self.open]

    @property
    def partitions(self) -> list[Partition]:
        return [partition for topic in self.open.values() for partition in topic.partitions]

    def topic(self, name: str) -> Topic:
        if self.hide_expired is not None:
            self.hide_expired()
        topic = self.open.get(name) if isinstance(name, str) else None
        if topic is None:
            # Whether it could be the name of one is of interest only now.
            raise TopicNotFound.named(check_name("topic", name))
        return topic

    def get(self, name: str) -> Topic | None:
        return self.open.get(name)

    # --- as they are on disk, or in the catalog -----------------------------------------------------------

    def open_all(self) -> None:
        """On a thread; so is `close_all`."""
        for partition in self._catalog.removing:
            self._remove_partition(partition)
        for record in self._catalog.topics:
            self._open(record)

    # --- replicated: as they are in the catalog, which others change as well -----------------------------

    def follow_catalog(self) -> None:
        """On the loop, after the catalog has changed."""
        for record in self._catalog.topics:
            known = self.open.get(record.name)
            if known is not None and known.record.id != record.id:
                self._gone(known)
                known = None
            if known is None:
                self._hold(record, Bell(), {})
                self.changed(record.name, len(record.partitions))
            elif known.record != record:
                before = known.count
                known.change(record, known.here)
                if known.count != before:
                    self.changed(record.name, known.count)
        for name in [name for name in self.open if not self._catalog.has_topic(name)]:
            self._gone(self.open[name])
        self._places = {
            identity: (topic.name, number)
            for topic in self.open.values()
            for number, identity in enumerate(topic.record.partitions)
        }

    def _gone(self, topic: Topic) -> None:
        del self.open[topic.name]
        for number in topic.here:
            self.lost(topic, number)
        self.changed(topic.name, 0)
        topic.bell.ring()

    def place_of(self, identity: str) -> tuple[Topic, int] | None:
        """The topic that has this partition, and its number there."""
        name, number = self._places.get(identity, ("", 0))
        topic = self.open.get(name)
        return None if topic is None else (topic, number)

    async def lead(
        self,
        topic: Topic,
        logs: tuple[Log, Log],
        wrote: Callable[[int], None],
        recollection: Recollection | None = None,
    ) -> Partition:
        """A partition of it, over these logs. Nobody sees it before `show`."""
        partition = await self._work.on_a_thread(partial(self._directories.over, logs, topic.bell, wrote, recollection))
        if partition.groups.set_back:
            # Later starts need not know where epochs began that retention has deleted by then.
            partition.groups.snapshot_soon()
        return partition

    def show(self, topic: Topic, number: int, partition: Partition) -> None:
        topic.change(topic.record, {**topic.here, number: partition})
        self.taken_over(topic, number)
        self.opened(topic, number)

    def hide(self, topic: Topic, number: int) -> None:
        """Whoever asks for it hears that this node does not lead it."""
        if number in topic.here:
            self.lost(topic, number)
            topic.change(topic.record, {other: each for other, each in topic.here.items() if other != number})

    # --- as they are on disk -----------------------------------------------------------------------------

    def close_all(self) -> None:
        for partition in () if self.is_replicated else self.partitions:
            partition.close()
        self.open.clear()

    def _open(self, record: TopicRecord) -> Topic:
        bell = Bell()
        if self.is_replicated:
            return self.open.get(record.name) or self._hold(record, bell, {})
        partitions = self._directories.open(record.partitions, bell, record.settings)
        return self._hold(record, bell, dict(enumerate(partitions)))

    def _hold(self, record: TopicRecord, bell: Bell, partitions: Mapping[int, Partition]) -> Topic:
        topic = Topic(
            record,
            partitions,
            bell=bell,
            limits=self._limits,
            clock=self._clock,
            room=self._room,
            is_replicated=self.is_replicated,
            too_few=lambda identity: self.too_few(identity),
        )
        self.open[record.name] = topic
        for number in topic.here:
            self.opened(topic, number)
        return topic

    def _remove(self, topic: Topic, record: TopicRecord) -> None:
        if self.is_replicated:
            return
        for partition in topic.partitions:
            partition.close()
        for identity in record.partitions:
            self._remove_partition(identity)

    def _remove_partition(self, identity: str) -> None:
        self._directories.remove(identity)
        self._catalog.removed(identity)

    # --- changes -----------------------------------------------------------------------------------------

    async def create(self, name: str, partitions: int, settings: TopicSettings | None, owner: str = "") -> Topic:
        return await self._work.alone(self._create(name, partitions, settings, owner))

    async def _create(self, name: str, partitions: int, settings: TopicSettings | None, owner: str) -> Topic:
        check_name("topic", name)
        if settings is None:
            settings = TopicSettings(dead_letters=not name.endswith(DEAD_LETTERS))
        self._check_settings(name, settings)
        check_partitions(partitions)
        if not self._catalog.has_topic(name):
            self._check_room(name, partitions)
            self._check_count(name)
        record = await self._catalog.carry_out(
            self._work.on_a_thread, Catalog.create_topic, name, partitions, settings, owner
        )
        topic = await self._work.on_a_thread(partial(self._open, record))
        # There may be members who had subscribed to one of this name before it was deleted.
        self.changed(name, topic.count)
        return topic

    async def change(self, name: str, partitions: int | None, settings: TopicSettings | None) -> Topic:
        return await self._work.alone(self._change(name, partitions, settings))

    async def _change(self, name: str, partitions: int | None, settings: TopicSettings | None) -> Topic:
        topic = self.topic(name)
        if settings is not None:
            self._check_settings(name, settings)
            if self.is_replicated and settings.replicas != topic.settings.replicas:
                raise InvalidSetting(
                    f"{name} has its replicas already: `penstock cluster reassign {name} NODE,NODE…` moves them "
                    "to other nodes, more or fewer",
                    setting="replicas",
                )
        identities: tuple[str, ...] = ()
        if partitions is not None:
            identities = self._catalog.new_partitions(name, partitions)
            self._check_room(name, len(identities))
        change = partial(Catalog.change_topic, added=identities, partitions=partitions, settings=settings)
        if self.is_replicated:
            await self._catalog.carry_out(self._work.on_a_thread, change, name)
            self.follow_catalog()
            return self.topic(name)
        opening = partial(self._directories.open, identities, topic.bell, settings or topic.settings)
        added = await self._work.on_a_thread(opening)
        # A group that is there already misses nothing of what comes to the new ones: it is there before they are.
        for partition in added:
            for group in topic.partitions[0].groups.groups:
                is_replay = topic.partitions[0].groups.state(group).end is not None
                await partition.groups.start(group, 0, end=0 if is_replay else None)
        try:
            record = await self._catalog.carry_out(self._work.on_a_thread, change, name)
        except PenstockError:
            for partition in added:
                partition.close()
            raise
        before = topic.settings
        topic.change(record, {**topic.here, **dict(enumerate(added, topic.count))})
        if record.settings.sync_within_us != before.sync_within_us:
            await self._change_durability(topic)
        for number in topic.here:
            self.opened(topic, number)
        for partition in added:
            # Those that started meanwhile.
            for group in topic.partitions[0].groups.groups:
                if not partition.groups.has(group):
                    await partition.groups.start(group, 0)
        self.changed(name, topic.count)
        return topic

    async def _change_durability(self, topic: Topic) -> None:
        """What was written before is on disk when this returns."""

        def change() -> None:
            for partition in topic.partitions:
                partition.messages.sync_within(topic.settings.sync_within_us)

        try:
            await self._work.on_a_thread(change)
        except PenstockError as error:
            self._work.could_not_write(error)
            raise

    async def archived(self, name: str, topic_id: str | None, offsets: Mapping[int, int], *, lowers: bool) -> Topic:
        return await self._work.alone(self._archived(name, topic_id, offsets, lowers))

    async def _archived(self, name: str, topic_id: str | None, offsets: Mapping[int, int], lowers: bool) -> Topic:
        topic = self.topic(name)
        if topic_id not in (None, topic.record.id):
            raise ArchiveConflict(
                f"{name} has the id {topic.record.id}, not {topic_id}: it was deleted and made again, and what is "
                "archived of the old one says nothing of the new one",
                topic=name,
                id=topic.record.id,
            )
        for number, offset in offsets.items():
            end = topic.partition(number).reading.visible_offset
            if not 0 <= offset <= end:
                raise OffsetOutOfRange(
                    f"partition {number} of {name} ends at offset {end}: it can't be archived up to {offset}",
                    start=0,
                    end=end,
                )
        record = await self._catalog.carry_out(
            self._work.on_a_thread, Catalog.put_archived, name, offsets, lowers=lowers
        )
        if self.is_replicated:
            # Other leaders record their partitions at the same time: the catalog may be ahead of `record`.
            self.follow_catalog()
            return self.topic(name)
        topic.change(record, topic.here)
        return topic

    async def delete(self, name: str) -> None:
        """It is gone for everybody before the first file is removed."""
        await self._work.alone(self._delete(name))

    async def _delete(self, name: str) -> None:
        topic = self.topic(name)
        record = await self._catalog.carry_out(self._work.on_a_thread, Catalog.delete_topic, name)
        if self.open.get(name) is topic:
            self._gone(topic)
        try:
            await self._work.on_a_thread(partial(self._remove, topic, record))
        finally:
            for partition in topic.partitions:
                partition.reading.close()

    def _check_room(self, name: str, added: int) -> None:
        if self._partitions_max is None or self.is_replicated or name.endswith(DEAD_LETTERS):
            # In a cluster each node has its bound (`Placing`). Dead letters must go somewhere.
            return
        check_room(sum(topic.count for topic in self.open.values()) + added, self._partitions_max)

    def _check_count(self, name: str) -> None:
        if name.endswith(DEAD_LETTERS):
            return
        count = sum(not other.endswith(DEAD_LETTERS) for other in self.open)
        check_count("topics_max", count, self._limits, "topics", "penstock topic delete NAME")

    def _check_settings(self, name: str, settings: TopicSettings) -> None:
        _check_settings(name, settings)
        if self.is_replicated:
            if settings.durability != "fsync":
                raise InvalidSetting(
                    "in a cluster a publish is answered when it is on the disks of its replicas: durability is fsync",
                    setting="durability",
                )
            return
        for setting, value in (("replicas", settings.replicas), ("min_isr", settings.min_isr)):
            if (value or 1) > 1:
                raise InvalidSetting(
                    f"this broker is on its own: {setting} is 1, not {value}. More are for a cluster "
                    "(`penstock serve --cluster`)",
                    setting=setting,
                )


def _check_settings(name: str, settings: object) -> None:
    if not isinstance(settings, TopicSettings):
        raise InvalidSetting(f"settings of a topic are TopicSettings, not {type(settings).__name__}")
    if name.endswith(DEAD_LETTERS) and settings.durability != "fsync":
        raise InvalidSetting(
            f"{name} is for dead letters, which are all that is left of their messages: its durability is fsync",
            setting="durability",
        )
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
