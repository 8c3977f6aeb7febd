"""The groups of a broker: made, changed, and deleted with all they have done; and each of them on each topic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from typing import Any

from penstock.broker.catalog import Catalog, GroupRecord
from penstock.broker.deliveries import Deliveries
from penstock.broker.events import Origin
from penstock.broker.group import Group
from penstock.broker.journal import ROOM_S
from penstock.broker.membership import Consumers
from penstock.broker.names import check_name
from penstock.broker.settings import GroupSettings
from penstock.broker.topics import Topics
from penstock.broker.work import Work
from penstock.clock import Clock
from penstock.errors import DiskFull, InvalidSetting, Overloaded, PenstockError, SettingsConflict
from penstock.limits import Limits, check_count
from penstock.storage.commit import Committed


class Groups:
    def __init__(
        self,
        catalog: Catalog,
        topics: Topics,
        consumers: Consumers,
        work: Work,
        *,
        clock: Clock,
        limits: Limits,
        dice: Callable[[], float],
    ) -> None:
        self._catalog = catalog
        self._topics = topics
        self._consumers = consumers
        self._work = work
        self._clock = clock
        self._limits = limits
        self._dice = dice
        # By group and topic. Made when somebody asks: all that lasts is in the catalog and in the partitions.
        self._on_topics: dict[tuple[str, str], Group] = {}

    def on(self, name: str, topic: str) -> Group:
        """A group on a topic. It must have been created."""
        record = self._catalog.group(name)
        check_name("topic", topic)
        on_topic = self._on_topics.get((name, topic))
        if on_topic is None:
            policy = record.settings.policy(self._dice)
            there = self._topics.topic(topic)
            replay = record.replay if record.replay and record.replay.topic == there.record.id else None
            on_topic = Group(name, there, self._held(record.settings), policy, self._clock, self._work, replay)
            self._on_topics[name, topic] = on_topic
        return on_topic

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """That group, or all on that topic, or that group on that topic: made anew when somebody asks."""
        for key in list(self._on_topics):
            if group in (None, key[0]) and topic in (None, key[1]):
                del self._on_topics[key]

    def topics_of(self, name: str) -> list[str]:
        """The topics that the group has asked for messages of."""
        self._catalog.group(name)
        return sorted(
            topic.name
            for topic in self._topics.open.values()
            if any(partition.groups.has(name) for partition in topic.partitions)
        )

    def topics_of_each(self, names: Collection[str]) -> Iterator[tuple[str, str] | None]:
        """Pairs of a group and a topic that it has asked for messages of, by topic; with None for each partition."""
        wanted = frozenset(names)
        for topic in sorted(self._topics.open):
            found: set[str] = set()
            on_topic = self._topics.open.get(topic)
            for partition in () if on_topic is None else on_topic.partitions:
                found |= partition.groups.common(wanted)
                yield None
            for group in found:
                yield group, topic

    # --- changes -----------------------------------------------------------------------------------------

    async def create(self, name: str, settings: GroupSettings | None, owner: str = "") -> GroupRecord:
        check_name("group", name)
        if settings is not None and not isinstance(settings, GroupSettings):
            raise InvalidSetting(f"settings of a group are GroupSettings, not {type(settings).__name__}")
        known = self.known(name, settings)
        return known if known is not None else await self._work.alone(self._create(name, settings, owner))

    async def _create(self, name: str, settings: GroupSettings | None, owner: str) -> GroupRecord:
        known = self.known(name, settings)
        if known is not None:
            return known
        self.check_count()
        return await self._catalog.carry_out(
            self._work.on_a_thread, Catalog.put_group, name, settings or GroupSettings(), owner=owner
        )

    def check_count(self) -> None:
        """LimitReached if another group may not be created."""
        count = len(self._catalog.group_names)
        check_count("groups_max", count, self._limits, "groups", "penstock group delete NAME")

    def known(self, name: str, settings: GroupSettings | None) -> GroupRecord | None:
        """If it is there; it must have these settings then."""
        if not self._catalog.has_group(name):
            return None
        record = self._catalog.group(name)
        if settings is not None and settings != record.settings:
            raise _conflict(record, settings)
        return record

    async def ensure(self, name: str, given: Mapping[str, Any], owner: str = "") -> GroupRecord:
        self.check_held(given)
        if self._catalog.has_group(name):
            record = self._catalog.group(name)
            return await self.create(name, record.settings.changed(**given))
        return await self.create(name, GroupSettings().changed(**given), owner)

    async def change(self, name: str, changes: Mapping[str, Any]) -> GroupRecord:
        return await self._work.alone(self._change(name, changes))

    async def _change(self, name: str, changes: Mapping[str, Any]) -> GroupRecord:
        old = self._catalog.group(name).settings
        self.check_held(changes)
        settings = old.changed(**changes)
        if (settings.lanes == "none") != (old.lanes == "none"):
            raise InvalidSetting("a group that ignores lanes can't begin to mind them", setting="lanes")
        record = await self._catalog.carry_out(self._work.on_a_thread, Catalog.put_group, name, settings)
        if settings.assignment != old.assignment:
            self._consumers.forget(name)
        for (group, _), on_topic in self._on_topics.items():
            if group == name:
                on_topic.configure(self._held(settings), settings.policy(self._dice))
        for topic in self.topics_of(name):
            self._topics.topic(topic).bell.ring(name)
        return record

    async def delete(self, name: str) -> None:
        await (await self._work.alone(self.delete_in_turn(name)))

    async def delete_in_turn(self, name: str) -> Awaitable[None]:
        """By whoever is changing the catalog already. In a cluster, whoever wants to know waits for other nodes, and
        nobody's change waits for them meanwhile; otherwise it is on disk before another of that name is made."""
        self._catalog.group(name)
        await self._catalog.carry_out(self._work.on_a_thread, Catalog.delete_group, name)
        self._consumers.forget(name)
        dropping = asyncio.ensure_future(self.drop(name))
        if not self._topics.is_replicated:
            await dropping
        return dropping

    def drop(self, name: str) -> Coroutine[Any, Any, None]:
        """What the group that is there now has done, everywhere: another one of that name may begin. Awaited, it is on
        disk."""
        self.forget(group=name)
        groups = [partition.groups for partition in self._topics.partitions if partition.groups.has(name)]
        return self._drop(name, [(each, each.state(name).origin) for each in groups])

    async def _drop(self, name: str, groups: Sequence[tuple[Deliveries, Origin]]) -> None:
        written: list[Awaitable[Committed | None]] = []
        failed: PenstockError | None = None

        def drops() -> Iterator[None]:
            nonlocal failed
            for each, origin in groups:
                if each.has(name) and each.state(name).origin == origin:
                    try:
                        drop = each.drop(name)
                    except (Overloaded, DiskFull):
                        # Later, and not by the caller: the catalog does not have the group any more, so a repetition
                        # would fail with GroupNotFound, and the next group of that name would go on where this one
                        # ended.
                        written.append(asyncio.ensure_future(drop_later(each, name, origin)))
                    except PenstockError as error:
                        failed = error
                    else:
                        written.extend([] if drop is None else [drop])
                yield

        await self._work.walk(drops(), at_once=True)
        for outcome in await asyncio.gather(*written, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        if failed is not None:
            raise failed

    def follow_catalog(self) -> None:
        """In a cluster others change it as well: what is here goes by what it says now."""
        for (name, _), on_topic in list(self._on_topics.items()):
            if not self._catalog.has_group(name):
                self.forget(group=name)
                on_topic.topic.bell.ring(name)
                continue
            settings = self._held(self._catalog.group(name).settings)
            if settings != on_topic.settings:
                on_topic.configure(settings, settings.policy(self._dice))
                on_topic.topic.bell.ring(name)

    # --- how many in flight ------------------------------------------------------------------------------

    def check_held(self, given: Mapping[str, Any]) -> None:
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


async def drop_later(groups: Deliveries, name: str, origin: Origin) -> None:
    """Drop the group of that origin as soon as the disk and the queue of the deliveries log have room, unless another
    group of that name has started by then."""
    while groups.has(name) and groups.state(name).origin == origin:
        try:
            drop = groups.drop(name)
        except Overloaded:
            await groups.settled()
            continue
        except DiskFull:
            await asyncio.sleep(ROOM_S)
            continue
        if drop is not None:
            await drop
        return


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
