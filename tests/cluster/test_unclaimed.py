"""Large topics come and go in several steps. What is left of one that was interrupted does not stay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from etcd_support import run
from penstock.broker.catalog import Catalog, TopicRecord
from penstock.broker.settings import TopicSettings
from penstock.cluster.catalog import ClusterCatalog
from penstock.cluster.core.election import first
from penstock.cluster.core.events import Registered
from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.etcd.store import Lost, Put, Won
from penstock.cluster.etcd.view import View
from penstock.cluster.keys import Keys
from penstock.cluster.unclaimed import AFTER_US, Unclaimed
from penstock.environment import random_id
from penstock.errors import EtcdUnavailable, OutcomeUnknown, PenstockError, StaleMetadata
from penstock.testing import FakeEtcd, ManualClock, ManualTime

KEYS = Keys()
TOPIC = KEYS.topics + "orders"
THEIRS = msgspec.json.encode(TopicRecord("ff", "orders", ("ee",), TopicSettings(), 1))


class Here:
    def __init__(self) -> None:
        self.time = ManualTime()
        self.etcd = FakeEtcd(self.time)
        self.view = View(self.etcd.store(), KEYS.prefix, self.time)
        self._store = self.etcd.store()
        store: Any = self
        self.catalog = ClusterCatalog(self.view, store, KEYS, _place, clock=ManualClock(), new_id=random_id)
        self.unclaimed = Unclaimed(self.etcd.store(), self.view, KEYS, self.time.now_us, self.time.now_us)
        # Called before each commit of the catalog, with its number.
        self.before_commit: Callable[[int], None] = lambda number: None
        self.before_last_commit: Callable[[], Awaitable[None]] | None = None
        self._commits = 0

    async def commit(self, guards: Mapping[str, int], puts: Sequence[Put], deletes: Sequence[str]) -> Won | Lost:
        self._commits += 1
        self.before_commit(self._commits)
        if self.before_last_commit is not None and any(put.key == TOPIC for put in puts):
            wait, self.before_last_commit = self.before_last_commit, None
            await wait()
        return await self._store.commit(guards, puts, deletes)

    async def create(self) -> None:
        await self.catalog.carry_out(asyncio.to_thread, Catalog.create_topic, "orders", 250, TopicSettings())

    async def delete(self) -> None:
        await self.catalog.carry_out(asyncio.to_thread, Catalog.delete_topic, "orders")

    async def a_while_later(self) -> None:
        """As the controller does it."""
        self.etcd.down = False
        await self.view.refresh()
        await self.time.pass_us(AFTER_US)
        await self.unclaimed.clear()
        await self.time.pass_us(0)

    def count(self, prefix: str) -> int:
        """Without tombstones."""
        return sum(not key.startswith(KEYS.deleted) for key in self.etcd.read(prefix).items)

    def lose_the_race(self) -> None:
        self.etcd.commit({}, [Put(TOPIC, THEIRS)], [])

    def go_away(self) -> None:
        self.etcd.down = True

    def lose_request(self) -> None:
        self.etcd.lose_requests = 1


def _place(record: TopicRecord, added: Mapping[str, int]) -> dict[str, PartitionRecord]:
    live = {"a": Registered("disk", "process")}
    return {identity: first(record.name, number, ("a",), 1, live) for identity, number in added.items()}


def on_catalog(work: Callable[[Here], Awaitable[None]]) -> None:
    async def main() -> None:
        here = Here()
        await here.view.start()
        try:
            await work(here)
        finally:
            await here.view.close()

    run(main)


def test_of_a_large_topic_that_was_made_and_deleted_nothing_is_left() -> None:
    async def work(here: Here) -> None:
        await here.create()
        assert (here.count(KEYS.partitions), here.count(KEYS.unclaimed)) == (250, 0)
        await here.a_while_later()
        assert here.count(KEYS.partitions) == 250
        await here.delete()
        assert here.count(KEYS.prefix) == 0

    on_catalog(work)


@pytest.mark.parametrize("at", [2, 3, 4])
@pytest.mark.parametrize(
    ("happens", "error"),
    [
        (Here.lose_the_race, StaleMetadata),
        (Here.go_away, EtcdUnavailable),
        (Here.lose_request, OutcomeUnknown),
    ],
)
def test_records_of_a_topic_that_was_never_made_are_deleted_after_a_while(
    happens: Callable[[Here], None], error: type[PenstockError], at: int
) -> None:
    async def work(here: Here) -> None:
        here.before_commit = lambda number: happens(here) if number == at else None
        with pytest.raises(error):
            await here.create()
        topics, records = here.count(KEYS.topics), here.count(KEYS.partitions)
        assert records == (200 if happens is Here.lose_the_race else 100 * (at - 2))
        await here.unclaimed.clear()
        assert here.count(KEYS.partitions) == records, "somebody may be at it"
        await here.a_while_later()
        assert (here.count(KEYS.partitions), here.count(KEYS.unclaimed), here.count(KEYS.topics)) == (0, 0, topics)

    on_catalog(work)


def test_who_is_so_slow_that_its_records_were_given_up_does_not_make_a_topic_without_them() -> None:
    async def work(here: Here) -> None:
        here.before_last_commit = here.a_while_later
        with pytest.raises(StaleMetadata, match="somebody else has changed orders at the same time"):
            await here.create()
        assert here.count(KEYS.prefix) == 0
        await here.create()
        assert (here.count(KEYS.partitions), here.count(KEYS.unclaimed)) == (250, 0)

    on_catalog(work)


def test_records_that_are_left_of_a_deleted_topic_are_deleted_after_a_while() -> None:
    async def work(here: Here) -> None:
        await here.create()
        commits = here._commits
        here.before_commit = lambda number: here.go_away() if number == commits + 2 else None
        with pytest.raises(EtcdUnavailable):
            await here.delete()
        assert here.count(KEYS.topics) == 0
        assert here.count(KEYS.partitions) == 151
        await here.a_while_later()
        assert here.count(KEYS.prefix) == 0

    on_catalog(work)


def test_records_whose_topic_is_missing_for_another_reason_stay() -> None:
    async def work(here: Here) -> None:
        await here.create()
        here.etcd.commit({}, [], [TOPIC])
        await here.a_while_later()
        assert here.count(KEYS.partitions) == 250

    on_catalog(work)


def test_a_deletion_of_what_was_given_up_goes_on_where_it_was_interrupted() -> None:
    async def work(here: Here) -> None:
        here.before_commit = lambda number: here.go_away() if number == 4 else None
        with pytest.raises(EtcdUnavailable):
            await here.create()
        here.etcd.down = False
        await here.time.pass_us(AFTER_US)
        here.etcd.lose_answers = 1
        with pytest.raises(OutcomeUnknown):
            await here.unclaimed.clear()
        await here.a_while_later()
        assert here.count(KEYS.prefix) == 0

    on_catalog(work)
