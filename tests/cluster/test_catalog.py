"""The catalog of a cluster on an etcd in memory: changes at the same time, and what `min_isr` of a topic does to the
records of its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from etcd_support import run
from penstock.broker.catalog import Catalog, ScheduleRecord, TopicRecord
from penstock.broker.settings import GroupSettings, TopicSettings
from penstock.cluster.catalog import ClusterCatalog
from penstock.cluster.core.election import first
from penstock.cluster.core.events import Registered
from penstock.cluster.core.record import PartitionRecord, decode, encode
from penstock.cluster.etcd.store import Lost, Put, Won
from penstock.cluster.etcd.view import View
from penstock.cluster.keys import Keys
from penstock.cluster.tombstones import KEPT_US, Tombstones
from penstock.environment import random_id
from penstock.errors import InvalidSetting, OutcomeUnknown, StaleMetadata
from penstock.message import Message
from penstock.testing import FakeEtcd, ManualClock, ManualTime

LIVE = {node: Registered(f"disk-{node}", f"process-{node}") for node in ("a", "b", "c")}
KEYS = Keys()


class Here:
    def __init__(self) -> None:
        self.time = ManualTime()
        self.etcd = FakeEtcd(self.time)
        self.view = View(self.etcd.store(), KEYS.prefix, self.time)
        self.commits: list[int] = []
        self.before_commit: Callable[[], None] = lambda: None
        self.catalog = ClusterCatalog(
            self.view, _Counting(self), KEYS, self._place, clock=ManualClock(), new_id=random_id
        )

    def _place(self, record: TopicRecord, added: Mapping[str, int]) -> dict[str, PartitionRecord]:
        return {identity: first(record.name, number, ("a", "b", "c"), 2, LIVE) for identity, number in added.items()}

    def records(self, topic: TopicRecord) -> list[PartitionRecord]:
        """As they are in etcd."""
        found = self.etcd.read(KEYS.partitions).items
        return [decode(found[KEYS.partition(identity)].value) for identity in topic.partitions]

    def shrink(self, topic: TopicRecord, number: int) -> None:
        """As the leader of a partition would."""
        record = self.records(topic)[number]
        if len(record.isr) > 1:
            self.put(topic, number, replace(record, isr=record.isr[:-1]))

    def put(self, topic: TopicRecord, number: int, record: PartitionRecord) -> None:
        self.etcd.commit({}, [Put(KEYS.partition(topic.partitions[number]), encode(record))], [])

    async def create(self, partitions: int) -> TopicRecord:
        return await self.catalog.carry_out(
            asyncio.to_thread, Catalog.create_topic, "orders", partitions, TopicSettings()
        )

    async def change(self, min_isr: int | None) -> TopicRecord:
        settings = TopicSettings(min_isr=min_isr)
        return await self.catalog.carry_out(asyncio.to_thread, Catalog.change_topic, "orders", settings=settings)


class _Counting:
    """A store that tells how many keys each commit puts, and lets somebody else be faster."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self._store = here.etcd.store()

    async def commit(self, guards: Mapping[str, int], puts: list[Put], deletes: list[str]) -> Won | Lost:
        self._here.before_commit()
        self._here.commits.append(max(len(guards), len(puts), len(deletes)))
        return await self._store.commit(guards, puts, deletes)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def on_catalog(work: Callable[[Here], Awaitable[None]]) -> None:
    async def main() -> None:
        here = Here()
        await here.view.start()
        try:
            await work(here)
        finally:
            await here.view.close()

    run(main)


def test_partitions_are_placed_with_all_nodes_in_view_that_have_joined_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cluster.etcd.view._WATCH_S", 0)

    async def work(here: Here) -> None:
        in_view = []

        def place(record: TopicRecord, added: Mapping[str, int]) -> dict[str, PartitionRecord]:
            in_view.append(here.view.get(KEYS.broker("c")))
            return here._place(record, added)

        here.catalog._place = place
        # The watch does not tell of it.
        here.etcd.deaf = True
        here.etcd.commit({}, [Put(KEYS.broker("c"), b"{}")], [])
        await here.create(1)
        (joined,) = in_view
        assert joined is not None

    on_catalog(work)


def test_what_others_make_while_a_change_is_decided_stays() -> None:
    async def work(here: Here) -> None:
        await here.create(1)
        theirs = TopicRecord("ff", "theirs", ("ee",), TopicSettings(), 1)

        async def meanwhile(decide: Callable[[], Any]) -> Any:
            here.etcd.commit({}, [Put(KEYS.topics + "theirs", msgspec.json.encode(theirs))], [])
            await here.view.refresh()
            return decide()

        compacted = TopicSettings(cleanup="compact")
        await here.catalog.carry_out(meanwhile, Catalog.change_topic, "orders", settings=compacted)
        assert here.catalog.topic("theirs") == theirs
        assert here.catalog.topic("orders").settings.cleanup == "compact"

    on_catalog(work)


def test_what_others_change_while_a_change_is_decided_is_not_overwritten() -> None:
    async def work(here: Here) -> None:
        topic = await here.create(1)
        changes: list[Callable[[Catalog], TopicRecord]] = [
            lambda catalog: catalog.change_topic("orders", settings=TopicSettings(cleanup="compact")),
            lambda catalog: catalog.delete_topic("orders"),
        ]
        for number, change in enumerate(changes):
            grown = replace(topic, partitions=(*topic.partitions, f"e{number}"))

            async def meanwhile(decide: Callable[[], Any], grown: TopicRecord = grown) -> Any:
                here.etcd.commit({}, [Put(KEYS.topics + "orders", msgspec.json.encode(grown))], [])
                await here.view.refresh()
                return decide()

            with pytest.raises(StaleMetadata, match="somebody else has changed orders at the same time"):
                await here.catalog.carry_out(meanwhile, change)
        assert here.catalog.topic("orders") == grown
        await here.catalog.carry_out(asyncio.to_thread, Catalog.delete_topic, "orders")
        assert not here.catalog.has_topic("orders")

    on_catalog(work)


def test_a_change_that_changes_nothing_is_none() -> None:
    async def work(here: Here) -> None:
        topic = await here.create(2)
        commits = len(here.commits)
        assert await here.catalog.carry_out(asyncio.to_thread, Catalog.change_topic, "orders", partitions=2) == topic
        assert len(here.commits) == commits

    on_catalog(work)


def test_partitions_that_others_added_since_are_not_added_once_more() -> None:
    async def work(here: Here) -> None:
        topic = await here.create(1)
        added = here.catalog.new_partitions("orders", 2)
        grown = replace(topic, partitions=(*topic.partitions, "ee"))
        here.etcd.commit({}, [Put(KEYS.topics + "orders", msgspec.json.encode(grown))], [])
        await here.view.refresh()
        await asyncio.sleep(0)
        with pytest.raises(StaleMetadata, match="orders has got other partitions at the same time, and has 2 now"):
            await here.catalog.carry_out(asyncio.to_thread, Catalog.change_topic, "orders", added=added, partitions=2)
        assert here.catalog.topic("orders") == grown

    on_catalog(work)


@pytest.mark.parametrize(
    ("said", "replicas", "min_isr", "shown"),
    [
        ((None, None), 3, 2, (None, None)),
        ((None, None), 3, None, (None, None)),
        ((None, None), 2, 2, (2, 2)),
        ((None, None), 2, 1, (2, None)),
        ((None, 1), 3, 1, (None, 1)),
        ((2, None), 3, 1, (3, 1)),
        ((2, None), 3, None, (3, None)),
        ((3, 2), 2, 2, (2, 2)),
    ],
)
def test_settings_say_how_many_replicas_there_are_if_they_would_not_mean_it_otherwise(
    said: tuple[int | None, int | None], replicas: int, min_isr: int | None, shown: tuple[int | None, int | None]
) -> None:
    async def work(here: Here) -> None:
        settings = TopicSettings(replicas=said[0], min_isr=said[1], cleanup="compact")
        await here.catalog.carry_out(asyncio.to_thread, Catalog.create_topic, "orders", 1, settings)
        commits = len(here.commits)
        await here.catalog.put_replicas(asyncio.to_thread, "orders", replicas, min_isr, 4)
        now = here.catalog.topic("orders").settings
        assert (now.replicas, now.min_isr, now.cleanup) == (*shown, "compact")
        assert (len(here.commits) == commits) == (shown == said)

    on_catalog(work)


def test_another_min_isr_reaches_every_partition_of_the_topic_and_nothing_else_of_their_records_changes() -> None:
    async def work(here: Here) -> None:
        topic = await here.create(3)
        before = here.records(topic)
        changed = await here.change(1)
        assert changed.settings.min_isr == 1
        assert here.records(topic) == [replace(record, min_isr=1) for record in before]
        await here.change(None)
        assert here.records(topic) == before

    on_catalog(work)


def test_a_topic_of_many_partitions_is_changed_a_hundred_at_a_time() -> None:
    async def work(here: Here) -> None:
        topic = await here.create(250)
        here.commits.clear()
        await here.change(3)
        assert {record.min_isr for record in here.records(topic)} == {3}
        assert here.commits == [101, 101, 51, 1]

    on_catalog(work)


def test_a_leader_that_changes_its_record_meanwhile_keeps_its_change() -> None:
    async def work(here: Here) -> None:
        topic = await here.create(2)
        here.before_commit = lambda: here.shrink(topic, 1)
        await here.change(1)
        assert [record.min_isr for record in here.records(topic)] == [1, 1]
        assert [len(record.isr) for record in here.records(topic)] == [3, 1]

    on_catalog(work)


def test_a_topic_that_somebody_else_changes_meanwhile_is_left_as_they_have_it() -> None:
    async def work(here: Here) -> None:
        topic = await here.create(2)
        theirs = here.etcd.read(KEYS.topics).items[KEYS.topics + "orders"].value

        def overtake() -> None:
            here.before_commit = lambda: None
            here.etcd.commit({}, [Put(KEYS.topics + "orders", theirs)], [])

        here.before_commit = overtake
        with pytest.raises(StaleMetadata):
            await here.change(1)
        assert [record.min_isr for record in here.records(topic)] == [2, 2]
        await here.change(1)
        assert [record.min_isr for record in here.records(topic)] == [1, 1]

    on_catalog(work)


def test_who_does_not_know_how_a_change_ended_asks_again_and_it_is_done_in_full() -> None:
    async def work(here: Here) -> None:
        topic = await here.create(150)

        def lose() -> None:
            here.etcd.lose_requests = 1 if len(here.commits) == 1 else 0

        here.commits.clear()
        here.before_commit = lose
        with pytest.raises(OutcomeUnknown):
            await here.change(1)
        assert here.catalog.topic("orders").settings.min_isr is None
        assert {record.min_isr for record in here.records(topic)} == {1, 2}
        await here.change(1)
        assert {record.min_isr for record in here.records(topic)} == {1}
        assert here.catalog.topic("orders").settings.min_isr == 1

    on_catalog(work)


def test_a_min_isr_that_a_partition_could_not_have_is_refused_before_anything_is_changed() -> None:
    async def work(here: Here) -> None:
        topic = await here.create(2)
        here.put(topic, 1, replace(here.records(topic)[1], target=("a", "b")))
        await here.view.refresh()
        before = here.etcd.revision
        with pytest.raises(InvalidSetting, match="min_isr is at most the number of replicas, 2, not 3"):
            await here.change(3)
        assert here.etcd.revision == before

    on_catalog(work)


def test_whatever_is_changed_what_a_newer_build_has_written_stays() -> None:
    """In each record of the catalog, in its settings, and in the records of partitions."""

    async def work(here: Here) -> None:
        catalog, message = here.catalog, Message(b"v")
        topic = await here.create(2)
        schedule = ScheduleRecord("s", "orders", "@daily", "UTC", message, 1, 2)
        await catalog.carry_out(asyncio.to_thread, Catalog.put_group, "g", GroupSettings())
        await catalog.carry_out(asyncio.to_thread, Catalog.put_schedule, schedule)
        puts = []
        for key, item in here.etcd.read(KEYS.prefix).items.items():
            value = msgspec.json.decode(item.value)
            for each in (value, value.get("settings"), value.get("message")):
                if each is not None:
                    each["newer"] = [1]
            puts.append(Put(key, msgspec.json.encode(value)))
        here.etcd.commit({}, puts, [])
        await here.view.refresh()
        await asyncio.sleep(0)
        assert catalog.topic("orders") == topic, "this build reads what it knows"
        await here.change(1)
        await catalog.carry_out(asyncio.to_thread, Catalog.put_archived, "orders", {1: 0}, lowers=True)
        await catalog.carry_out(asyncio.to_thread, Catalog.put_group, "g", GroupSettings(max_retries=7))
        await catalog.carry_out(asyncio.to_thread, Catalog.put_schedule, replace(schedule, published=1), schedule)
        left = {key: item.value for key, item in here.etcd.read(KEYS.prefix).items.items()}
        assert {key: value.count(b'"newer":[1]') for key, value in left.items()} == {
            put.key: put.value.count(b'"newer":[1]') for put in puts
        }
        assert (here.records(topic)[0].min_isr, catalog.group("g").settings.max_retries) == (1, 7)

    on_catalog(work)


def test_a_deleted_topic_leaves_a_tombstone_of_its_partitions() -> None:
    async def work(here: Here) -> None:
        topic = await here.create(150)
        now_us = deleted_us = here.catalog._clock.now_us()
        tombstones = Tombstones(here.etcd.store(), here.view, KEYS, lambda: now_us)
        assert not any(identity in tombstones for identity in topic.partitions)
        await here.catalog.carry_out(asyncio.to_thread, Catalog.delete_topic, "orders")
        assert all(identity in tombstones for identity in topic.partitions)
        for passed_us, is_there in ((KEPT_US, True), (KEPT_US + 1, False)):
            now_us = deleted_us + passed_us
            await tombstones.clear()
            await here.view.refresh()
            assert all((identity in tombstones) is is_there for identity in topic.partitions)
        assert not here.etcd.read(KEYS.deleted).items

    on_catalog(work)
