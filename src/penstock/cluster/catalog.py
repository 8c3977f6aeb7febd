"""The catalog of a cluster: the same records as a broker's own, each under a key of its own in etcd.

What is known here follows the view. A change is decided as in any catalog, on a thread, by what was known at one
moment, and then put into etcd by the loop, guarded by the revisions of that moment: who was slower hears
`StaleMetadata`, and decides anew. It counts once the view has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

import msgspec
from msgspec.structs import replace

from penstock.broker.catalog import Catalog, Contents, GroupRecord, OnAThread, ScheduleRecord, TopicRecord
from penstock.broker.events import HISTORY_SHIFT
from penstock.clock import Clock
from penstock.cluster.core import unknown_fields
from penstock.cluster.core.record import PartitionRecord, decode, encode
from penstock.cluster.core.unknown_fields import Unknown
from penstock.cluster.etcd.store import ABSENT, Lost, Put, Store
from penstock.cluster.etcd.view import Known, View
from penstock.cluster.keys import Keys
from penstock.cluster.placing import check_min_isr, min_isr_of, replicas_of
from penstock.cluster.restored import generation_in
from penstock.cluster.tombstones import tombstone
from penstock.cluster.unclaimed import written
from penstock.errors import LogCorrupt, OutcomeUnknown, StaleMetadata

Record = TopicRecord | GroupRecord | ScheduleRecord
P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", TopicRecord, GroupRecord, ScheduleRecord)
# New partitions of a topic, by their ids: where they are to be.
Place = Callable[[TopicRecord, Mapping[str, int]], Mapping[str, PartitionRecord]]
# etcd takes 128 keys at once, and the topic's own goes along.
_AT_ONCE = 100
# Records of partitions that their leaders change again and again are caught in between.
_TRIES = 20


class _Held(NamedTuple):
    """What was known at one moment, and of each key then its revision."""

    contents: Contents
    revisions: Mapping[str, int]
    # Fields that this build does not know.
    unknown: Mapping[str, Unknown]


class _Draft(Catalog):
    """A change is decided here: what is known goes on changing meanwhile, on the loop, and this does not."""

    def __init__(self, contents: Contents, clock: Clock, new_id: Callable[[], bytes]) -> None:
        self._clock = clock
        self._new_id = new_id
        self._hold(contents)

    @property
    def contents(self) -> Contents:
        return self._contents

    def _save(self, contents: Contents) -> None:
        self._hold(contents)


class _Changes(NamedTuple):
    """By key. `before` is what all keys had."""

    puts: dict[str, Record]
    gone: list[str]
    before: dict[str, Record]


class ClusterCatalog(Catalog):
    """Made before the view is started: it hears of everything that is there."""

    def __init__(
        self, view: View, store: Store, keys: Keys, place: Place, *, clock: Clock, new_id: Callable[[], bytes]
    ) -> None:
        self._clock = clock
        self._new_id = new_id
        self._view = view
        self._store = store
        self._keys = keys
        self._place = place
        self._loop = asyncio.get_running_loop()
        # Told on the loop when something is different.
        self.changed: Callable[[], None] = lambda: None
        # Raises, ahead of a change, what keeps it from being made.
        self.check: Callable[[], None] = lambda: None
        self._records: dict[str, Record] = {}
        self._revisions: dict[str, int] = {}
        self._unknown: dict[str, Unknown] = {}
        self._is_stale = False
        # Replaced as a whole: changes are decided on other threads.
        # The cluster's, as soon as the node knows it.
        self.secret = ""
        self._held = _Held(Contents(), {}, {})
        self._hold(self._held.contents)
        for prefix, kind in self._kinds():
            view.on_change(prefix, self._follow(kind))
        view.on_change(keys.restored, lambda known: self._changed())

    def _kinds(self) -> list[tuple[str, type[Record]]]:
        return [
            (self._keys.topics, TopicRecord),
            (self._keys.groups, GroupRecord),
            (self._keys.schedules, ScheduleRecord),
        ]

    def _follow(self, kind: type[Record]) -> Callable[[Known], None]:
        def follow(known: Known) -> None:
            if known.now is None:
                self._records.pop(known.key, None)
                self._revisions.pop(known.key, None)
                self._unknown.pop(known.key, None)
            else:
                self._revisions[known.key] = known.now.revision
                try:
                    record, unknown = unknown_fields.decode(known.now.value, kind)
                except msgspec.MsgspecError as error:
                    raise LogCorrupt(f"{known.key} in etcd can't be read: {error}") from error
                if isinstance(record, GroupRecord):
                    # The order in which etcd created the groups. It depends on no clock and on no stale view.
                    history = record.generation >> HISTORY_SHIFT
                    record = replace(record, generation=(history << HISTORY_SHIFT) + known.now.created)
                self._records[known.key], self._unknown[known.key] = record, unknown
            self._changed()

        return follow

    def _changed(self) -> None:
        if not self._is_stale:
            # Once for all that changed together.
            self._is_stale = True
            self._loop.call_soon(self._refresh)

    def _refresh(self) -> None:
        if self._is_stale:
            self._is_stale = False
            generation = generation_in(self._view, self._keys) << HISTORY_SHIFT
            contents = Contents(self._of(TopicRecord), (), self._of(GroupRecord), self._of(ScheduleRecord), generation)
            self._held = _Held(contents, dict(self._revisions), dict(self._unknown))
            self._hold(contents)
            self.changed()

    def _of(self, kind: type[R]) -> tuple[R, ...]:
        return tuple(record for record in self._records.values() if isinstance(record, kind))

    # --- changes -----------------------------------------------------------------------------------------

    async def carry_out(
        self,
        on_a_thread: OnAThread,
        change: Callable[Concatenate[Catalog, P], T],
        *given: P.args,
        **named: P.kwargs,
    ) -> T:
        held = self._held

        def decide() -> tuple[T, _Changes]:
            draft = _Draft(held.contents, self._clock, self._new_id)
            decided = change(draft, *given, **named)
            before, after = self._keyed(held.contents), self._keyed(draft.contents)
            puts = {key: record for key, record in after.items() if before.get(key) != record}
            return decided, _Changes(puts, [key for key in before if key not in after], before)

        decided: T
        decided, changes = await on_a_thread(decide)
        if changes.puts or changes.gone:
            await self._commit(held, changes)
        return decided

    async def put_replicas(
        self, on_a_thread: OnAThread, name: str, replicas: int, min_isr: int | None, nodes: int
    ) -> None:
        """So many the partitions of a topic have, all of them, and such a `min_isr`, or different ones: its settings
        say so, unless they mean the same in a cluster of so many nodes."""
        settings = self.topic(name).settings
        is_said = replicas_of(settings, nodes) == replicas
        is_same = min_isr is None or min_isr_of(settings, replicas) == min_isr
        changed = replace(
            settings,
            replicas=settings.replicas if is_said else replicas,
            min_isr=settings.min_isr if is_same else min_isr,
        )
        if changed != settings:
            await self.carry_out(on_a_thread, Catalog.change_topic, name, settings=changed)

    def _keyed(self, contents: Contents) -> dict[str, Record]:
        found: dict[str, Record] = {}
        for prefix, records in (
            (self._keys.topics, contents.topics),
            (self._keys.groups, contents.groups),
            (self._keys.schedules, contents.schedules),
        ):
            found.update({prefix + record.name: record for record in records})
        return found

    async def _commit(self, held: _Held, changes: _Changes) -> None:
        puts, gone, before = changes
        guards = {key: held.revisions.get(key, ABSENT) for key in (*puts, *gone)}
        encoded = {key: unknown_fields.encode(record, held.unknown.get(key, ())) for key, record in puts.items()}
        self.check()
        partitions: dict[str, PartitionRecord] = {}
        for key, record in puts.items():
            if isinstance(record, TopicRecord):
                partitions.update(await self._new_partitions(record, before.get(key)))
                await self._put_min_isr(record, before.get(key), {key: guards[key]})
        # A topic is there with its partitions, or not at all: those of a large one come first, and are nobody's until
        # the topic is there. If it never is, the controller deletes them (`unclaimed`).
        items = [(self._keys.partition(identity), encode(record)) for identity, record in partitions.items()]
        unclaimed = self._keys.unclaimed + self._new_id().hex()
        claim: dict[str, int] = {}
        if len(items) > _AT_ONCE:
            claim = await self._write_down(unclaimed, partitions)
        while len(items) > _AT_ONCE:
            some, items = items[:_AT_ONCE], items[_AT_ONCE:]
            await self._committed({**claim, **{key: ABSENT for key, _ in some}}, [Put(*item) for item in some], [])
        deletes, now_us = [*gone, *self._old_partitions(gone, before)], self._clock.now_us()
        deletes, rest = deletes[:_AT_ONCE], deletes[_AT_ONCE:]
        left = [Put(unclaimed, written(map(self._keys.name, rest)))] if rest else []
        left += [tombstone(self._keys, topic.id, topic.partitions, now_us) for topic in _topics(gone, before)]
        await self._committed(
            {**guards, **claim, **{key: ABSENT for key, _ in items}},
            [
                *(Put(key, value) for key, value in encoded.items()),
                *(Put(*item) for item in items),
                *left,
            ],
            [*deletes, *claim],
        )
        while rest:
            some_keys, rest = rest[:_AT_ONCE], rest[_AT_ONCE:]
            await self._committed({}, [], some_keys if rest else [*some_keys, unclaimed])

    async def _write_down(self, unclaimed: str, partitions: Mapping[str, PartitionRecord]) -> dict[str, int]:
        """What holds for as long as the controller has not given them up."""
        value = written(partitions)
        await self._committed({unclaimed: ABSENT}, [Put(unclaimed, value)], [])
        item = self._view.get(unclaimed)
        if item is None or item.value != value:
            raise StaleMetadata("this took so long that it was given up for dead; try again")
        return {unclaimed: item.revision}

    async def _new_partitions(self, record: TopicRecord, before: Record | None) -> Mapping[str, PartitionRecord]:
        known = before.partitions if isinstance(before, TopicRecord) else ()
        added = {identity: number for number, identity in enumerate(record.partitions) if identity not in known}
        if not added:
            return {}
        # They get replicas on a node that has joined just now, too, though the watch may not have told of it here.
        await self._view.knows(self._keys.brokers)
        return self._place(record, added)

    async def _put_min_isr(self, record: TopicRecord, before: Record | None, guards: dict[str, int]) -> None:
        """To the records of its partitions, ahead of the topic's own: whoever was interrupted, and asks for the same
        again, goes on where it ended."""
        if not isinstance(before, TopicRecord) or before.settings.min_isr == record.settings.min_isr:
            return
        keys = [self._keys.partition(identity) for identity in before.partitions]
        for placed in self._placed(keys).values():
            check_min_isr(record.settings, min(len(placed.replicas), len(placed.target or placed.replicas)))
        for at in range(0, len(keys), _AT_ONCE):
            for _ in range(_TRIES):
                some = self._placed(keys[at : at + _AT_ONCE])
                wanted = {key: min_isr_of(record.settings, len(placed.replicas)) for key, placed in some.items()}
                changed = {key: replace(some[key], min_isr=least) for key, least in wanted.items()}
                changed = {key: placed for key, placed in changed.items() if placed != some[key]}
                if not changed:
                    break
                revisions = {key: self._revision(key) for key in changed}
                try:
                    puts = [Put(key, encode(placed)) for key, placed in changed.items()]
                    await self._committed({**guards, **revisions}, puts, [])
                except StaleMetadata:
                    # A leader may have changed the record of its partition; the topic must still be what it was.
                    if any(self._revision(key) != revision for key, revision in guards.items()):
                        raise
            else:
                raise _stale(guards)

    def _placed(self, keys: Sequence[str]) -> dict[str, PartitionRecord]:
        return {key: decode(item.value) for key in keys if (item := self._view.get(key)) is not None}

    def _old_partitions(self, gone: list[str], before: dict[str, Record]) -> list[str]:
        return [self._keys.partition(identity) for topic in _topics(gone, before) for identity in topic.partitions]

    def _revision(self, key: str) -> int:
        item = self._view.get(key)
        return ABSENT if item is None else item.revision

    async def _committed(self, guards: dict[str, int], puts: list[Put], deletes: list[str]) -> None:
        """In the view, when this returns."""
        try:
            outcome = await self._store.commit(guards, puts, deletes)
        except OutcomeUnknown:
            await self._view.refresh()
            if not self._is_carried_out(puts, deletes):
                raise
        else:
            if isinstance(outcome, Lost):
                await self._view.refresh()
                self._refresh()
                raise _stale(guards)
            await self._view.shows(outcome.revision)
        self._refresh()

    def _is_carried_out(self, puts: list[Put], deletes: list[str]) -> bool:
        for put in puts:
            item = self._view.get(put.key)
            if item is None or item.value != put.value:
                return False
        return all(self._view.get(key) is None for key in deletes)


def _topics(gone: list[str], before: dict[str, Record]) -> list[TopicRecord]:
    return [record for key in gone if isinstance(record := before[key], TopicRecord)]


def _stale(guards: Mapping[str, int]) -> StaleMetadata:
    named = [key for key in guards if "/catalog/" in key] or list(guards)
    names = ", ".join(sorted(key.rpartition("/")[2] for key in named))
    return StaleMetadata(f"somebody else has changed {names} at the same time; try again")
