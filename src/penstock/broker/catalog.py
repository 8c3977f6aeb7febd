"""Which topics and groups there are, in one file that is replaced as a whole.

    file "catalog": magic "PNC", version 1 (4 bytes) · CRC-32C of the rest (4 bytes) · JSON

Every change is on disk before it is told. A partition's directory is named by a generated id. Directories of deleted
topics are listed until they are gone, so that a crash in between neither leaks them nor ever makes a missing entry a
reason to delete data: a directory that nobody lists is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from penstock.broker.events import HISTORY_SHIFT, Origin
from penstock.broker.names import check_name
from penstock.broker.settings import PARTITIONS_DEFAULT, GroupSettings, TopicSettings, check_partitions
from penstock.clock import Clock
from penstock.decoding import json_decoder
from penstock.errors import (
    AlreadyExists,
    DiskFull,
    GroupNotFound,
    InvalidSetting,
    LogCorrupt,
    NotFound,
    StaleMetadata,
    TopicNotFound,
)
from penstock.message import Message
from penstock.storage.checked import read_checked, write_checked
from penstock.storage.files import Files

P = ParamSpec("P")
T = TypeVar("T")

OnAThread = Callable[[Callable[[], Any]], Awaitable[Any]]
NAME = "catalog"
_MAGIC = b"PNC\x01"


def already_exists(topic: str) -> AlreadyExists:
    return AlreadyExists(
        f'topic "{topic}" already exists. Change its settings: penstock topic set {topic}', topic=topic
    )


class TopicRecord(msgspec.Struct, frozen=True):
    id: str
    name: str
    partitions: tuple[str, ...]
    settings: TopicSettings
    created_us: int
    # Of each partition the offset below which everything is archived; the last ones may be left out while they are 0.
    archived: tuple[int, ...] = ()
    # The principal that created it, if the broker has keys: it and its messages count for the quotas of that one.
    owner: str = ""

    def archived_until(self, partition: int) -> int:
        return self.archived[partition] if partition < len(self.archived) else 0


class ReplayRecord(msgspec.Struct, frozen=True):
    """What a group was made to get again: the messages of [first, last) of each partition of the topic with this id."""

    topic: str
    ranges: tuple[tuple[int, int], ...]
    delays: bool = False


class GroupRecord(msgspec.Struct, frozen=True):
    """`generation` tells apart successive groups of the same name: it only increases, whatever the clocks say. It is 0
    for a group that an older version created."""

    name: str
    settings: GroupSettings
    created_us: int
    replay: ReplayRecord | None = None
    generation: int = 0
    # As of a topic.
    owner: str = ""


class ScheduleRecord(msgspec.Struct, frozen=True):
    """A message that is published again and again; `cron` says when.

    `producer` and `published` are what makes each occurrence recognisable: the next one lies in `partition` from offset
    `since` on, if it was published. `due_us` is when the last one published is due, and `pending` its id.
    """

    name: str
    topic: str
    cron: str
    timezone: str
    message: Message
    created_us: int
    producer: int
    partition: int = 0
    since: int = 0
    published: int = 0
    due_us: int = 0
    pending: str = ""
    owner: str = ""


class Contents(msgspec.Struct, frozen=True):
    """`generation` is that of the last group that was created; `secret` is empty if an older version wrote the file."""

    topics: tuple[TopicRecord, ...] = ()
    removing: tuple[str, ...] = ()
    groups: tuple[GroupRecord, ...] = ()
    schedules: tuple[ScheduleRecord, ...] = ()
    generation: int = 0
    secret: str = ""


_contents = json_decoder(Contents)


class Catalog:
    """Opened with `Catalog.open`. Topics are in the order of their names."""

    def __init__(self, files: Files, contents: Contents, clock: Clock, new_id: Callable[[], bytes]) -> None:
        self._files = files
        self._clock = clock
        self._new_id = new_id
        self.secret = contents.secret
        self._hold(contents)

    @classmethod
    def open(cls, files: Files, *, clock: Clock, new_id: Callable[[], bytes]) -> Catalog:
        found = _read(files)
        contents = found or Contents()
        if contents.secret:
            return cls(files, contents, clock, new_id)
        catalog = cls(files, msgspec.structs.replace(contents, secret=new_id().hex()), clock, new_id)
        # A broker also starts while its disk is full; the secret is then written with the next change.
        with nullcontext() if found is None else suppress(DiskFull):
            catalog._save(catalog._contents)
        return catalog

    async def carry_out(
        self,
        on_a_thread: OnAThread,
        change: Callable[Concatenate[Catalog, P], T],
        *given: P.args,
        **named: P.kwargs,
    ) -> T:
        """Decide a change, one of the methods of this class, and save it. One at a time."""
        decided: T = await on_a_thread(partial(change, self, *given, **named))
        return decided

    @property
    def topics(self) -> list[TopicRecord]:
        return sorted(self._contents.topics, key=lambda topic: topic.name)

    @property
    def groups(self) -> list[GroupRecord]:
        return sorted(self._contents.groups, key=lambda group: group.name)

    @property
    def schedules(self) -> list[ScheduleRecord]:
        return sorted(self._contents.schedules, key=lambda schedule: schedule.name)

    def schedule(self, name: str) -> ScheduleRecord | None:
        return self._schedules.get(name)

    @property
    def schedule_count(self) -> int:
        return len(self._contents.schedules)

    def owned(self, kind: str, owner: str) -> int:
        """How many topics, groups or schedules this principal has created."""
        # In this order: a thread may be changing the catalog, and counts of old contents go with the old dictionary.
        owned, contents = self._owned, self._contents
        if kind not in owned:
            owned[kind] = Counter(record.owner for record in getattr(contents, kind))
        return owned[kind][owner]

    @property
    def removing(self) -> tuple[str, ...]:
        """Directories of partitions of deleted topics that may still be there."""
        return self._contents.removing

    def topic(self, name: str) -> TopicRecord:
        record = self._topics.get(check_name("topic", name))
        if record is None:
            raise TopicNotFound.named(name)
        return record

    def has_topic(self, name: str) -> bool:
        return isinstance(name, str) and name in self._topics

    # --- topics ------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = PARTITIONS_DEFAULT,
        settings: TopicSettings | None = None,
        owner: str = "",
    ) -> TopicRecord:
        check_name("topic", name)
        check_partitions(partitions)
        if self.has_topic(name):
            raise already_exists(name)
        record = TopicRecord(
            id=self._id(),
            name=name,
            partitions=tuple(self._id() for _ in range(partitions)),
            settings=settings or TopicSettings(),
            created_us=self._clock.now_us(),
            owner=owner,
        )
        self._put(record)
        return record

    def new_partitions(self, name: str, partitions: int) -> tuple[str, ...]:
        """Ids for those that a topic would need to have so many. Nobody knows of them before `change_topic`."""
        record = self.topic(name)
        check_partitions(partitions)
        if partitions < len(record.partitions):
            raise InvalidSetting(
                f"{name} has {len(record.partitions)} partitions; they can grow, not shrink", setting="partitions"
            )
        return tuple(self._id() for _ in range(partitions - len(record.partitions)))

    def change_topic(
        self,
        name: str,
        *,
        added: tuple[str, ...] = (),
        partitions: int | None = None,
        settings: TopicSettings | None = None,
    ) -> TopicRecord:
        """Other settings, or more partitions. Keys then spread differently; what is stored stays where it is.

        `partitions` is how many there are to be with those that are added: StaleMetadata if somebody else has added
        some since their number was looked at.
        """
        record = self.topic(name)
        if partitions is not None and len(record.partitions) + len(added) != partitions:
            raise StaleMetadata(
                f"{name} has got other partitions at the same time, and has {len(record.partitions)} now; try again",
                topic=name,
            )
        record = msgspec.structs.replace(record, partitions=record.partitions + added)
        if settings is not None:
            record = msgspec.structs.replace(record, settings=settings)
        self._put(record)
        return record

    def put_archived(self, name: str, offsets: Mapping[int, int], *, lowers: bool = False) -> TopicRecord:
        """These of its partitions are archived so far. What was archived before stays so, unless this lowers it."""
        record = self.topic(name)
        before = [record.archived_until(number) for number in range(len(record.partitions))]
        reached = [
            offsets.get(number, known) if lowers else max(known, offsets.get(number, 0))
            for number, known in enumerate(before)
        ]
        if tuple(reached) != record.archived:
            record = msgspec.structs.replace(record, archived=tuple(reached))
            self._put(record)
        return record

    def delete_topic(self, name: str) -> TopicRecord:
        """Its directories are listed in `removing` until `removed` is told."""
        record = self.topic(name)
        self._change(
            topics=_without(self._contents.topics, name),
            schedules=tuple(other for other in self._contents.schedules if other.topic != name),
            removing=(*self._contents.removing, *record.partitions),
        )
        return record

    def removed(self, partition: str) -> None:
        self._change(removing=tuple(other for other in self._contents.removing if other != partition))

    def _put(self, record: TopicRecord) -> None:
        self._change(topics=(*_without(self._contents.topics, record.name), record))

    # --- groups ------------------------------------------------------------------------------------------

    def group(self, name: str) -> GroupRecord:
        record = self._groups.get(check_name("group", name))
        if record is None:
            raise GroupNotFound.named(name)
        return record

    @property
    def group_names(self) -> Collection[str]:
        return self._groups.keys()

    def has_group(self, name: str) -> bool:
        return isinstance(name, str) and name in self._groups

    def put_group(
        self, name: str, settings: GroupSettings, replay: ReplayRecord | None = None, owner: str = ""
    ) -> GroupRecord:
        """A new one, which is this owner's, or other settings for one that is there."""
        check_name("group", name)
        generation = self._contents.generation
        if self.has_group(name):
            known = self.group(name)
            record = msgspec.structs.replace(known, settings=settings, replay=replay or known.replay)
        else:
            generation += 1
            record = GroupRecord(name, settings, self._clock.now_us(), replay, generation, owner)
        self._change(groups=(*_without(self._contents.groups, name), record), generation=generation)
        return record

    def origin(self, group: str) -> Origin:
        """Nothing is known of one that is not there."""
        if not self.has_group(group):
            return Origin()
        record = self.group(group)
        return Origin(record.created_us, record.generation)

    @property
    def history(self) -> int:
        """How often it was restored from a backup."""
        return self._contents.generation >> HISTORY_SHIFT

    def restore_group(self, record: GroupRecord) -> None:
        """As it was."""
        self._change(groups=(*_without(self._contents.groups, record.name), record))

    def delete_group(self, name: str) -> None:
        self.group(name)
        self._change(groups=_without(self._contents.groups, name))

    # --- schedules ---------------------------------------------------------------------------------------

    def put_schedule(self, record: ScheduleRecord, known: ScheduleRecord | None = None) -> None:
        """Replace `known`, or create the schedule if `known` is None."""
        check_name("schedule", record.name)
        if known is not None:
            self._check_schedule(known)
        elif any(other.name == record.name for other in self._contents.schedules):
            raise AlreadyExists(
                f'schedule "{record.name}" already exists. Delete it first: penstock schedule delete {record.name}',
                schedule=record.name,
            )
        self._change(schedules=(*_without(self._contents.schedules, record.name), record))

    def delete_schedule(self, known: ScheduleRecord) -> None:
        self._check_schedule(known)
        self._change(schedules=_without(self._contents.schedules, known.name))

    def _check_schedule(self, known: ScheduleRecord) -> None:
        """In a cluster another node may have published the next occurrence, or have deleted the schedule, meanwhile."""
        found = next((other for other in self._contents.schedules if other.name == known.name), None)
        if found is None or found.producer != known.producer:
            raise NotFound(
                f'schedule "{known.name}" does not exist. List them: penstock schedule list', schedule=known.name
            )
        if found.published != known.published:
            raise StaleMetadata(
                f"schedule {known.name} has published an occurrence at the same time; try again", schedule=known.name
            )

    # --- the file ----------------------------------------------------------------------------------------

    def _id(self) -> str:
        return self._new_id().hex()

    def _change(self, **changes: Any) -> None:
        self._save(msgspec.structs.replace(self._contents, **changes))

    def _save(self, contents: Contents) -> None:
        """Memory follows the disk, never the other way round."""
        body = msgspec.json.encode(contents)
        write_checked(self._files, NAME, _MAGIC, body)
        self._hold(contents)

    def _hold(self, contents: Contents) -> None:
        self._contents = contents
        # Every poll and every answer asks for a group by its name, and there may be thousands.
        self._topics = {record.name: record for record in contents.topics}
        self._groups = {record.name: record for record in contents.groups}
        self._schedules = {record.name: record for record in contents.schedules}
        # By kind and owner, once somebody has asked since the last change.
        self._owned: dict[str, Counter[str]] = {}


class _Named(Protocol):
    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=_Named)


def _without(records: tuple[R, ...], name: str) -> tuple[R, ...]:
    return tuple(record for record in records if record.name != name)


def _read(files: Files) -> Contents | None:
    body = read_checked(files, NAME, _MAGIC, "catalog")
    if body is None:
        # Partitions are made after the catalog that lists them.
        if files.directories():
            raise LogCorrupt("the catalog is missing, but there are partitions", file=NAME, position=0)
        return None
    return _contents.decode(body)
