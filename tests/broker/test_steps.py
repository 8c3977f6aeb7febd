"""Work on thousands of groups or partitions is done in steps, between which others get on."""

from __future__ import annotations

import asyncio

import pytest

from broker_support import clock_of, run
from penstock.broker import snapshot
from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog
from penstock.broker.deliveries import Deliveries
from penstock.broker.delivery import Delivery
from penstock.broker.work import SLICE_ROWS
from penstock.clock import Instant
from penstock.message import Message
from penstock.testing import MemoryDisk, MemoryFiles


class Turns:
    """Of the event loop, so far."""

    def __init__(self) -> None:
        self.count = 0
        self._next()

    def _next(self) -> None:
        self.count += 1
        self._handle = asyncio.get_running_loop().call_soon(self._next)

    def stop(self) -> None:
        self._handle.cancel()


def test_a_group_is_dropped_from_many_partitions_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 2 * SLICE_ROWS + 50)
        await broker.create_group("g")
        await broker.group("g", "t").start()
        turns, dropped = Turns(), list[int]()
        drop = Deliveries.drop

        def noted(groups: Deliveries, name: str) -> object:
            dropped.append(turns.count)
            return drop(groups, name)

        monkeypatch.setattr(Deliveries, "drop", noted)
        await broker.delete_group("g")
        turns.stop()
        assert len(dropped) == topic.count
        # The first two steps come without a turn in between.
        assert max(map(dropped.count, dropped)) <= 2 * SLICE_ROWS
        assert not any(partition.groups.has("g") for partition in topic.partitions)

    run(work)


def test_dropping_a_group_in_steps_leaves_the_next_one_of_its_name_alone() -> None:
    async def work(broker: Broker) -> None:
        topic = await broker.create_topic("t", 2)
        await broker.create_group("g")
        await broker.group("g", "t").start()
        broker._catalog.delete_group("g")
        dropping = broker._groups.drop("g")
        await broker.create_group("g")
        await broker.group("g", "t").start_in([0])
        await dropping
        assert [partition.groups.has("g") for partition in topic.partitions] == [True, False]

    run(work)


def test_a_snapshot_of_many_groups_is_encoded_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()

    async def before(broker: Broker) -> None:
        (partition,) = (await broker.create_topic("t", 1)).partitions
        await broker.create_group("g")
        await broker.group("g", "t").start()
        for number in range(300):
            await partition.groups.start(f"g{number}", 0)
        for _ in range(3):
            await broker.topic("t").publish(Message(b"x"))
        turns, encoded = Turns(), list[tuple[str, int]]()
        encode = snapshot.encoded

        def noted(group: Delivery, now: Instant) -> bytes:
            encoded.append((group.group, turns.count))
            return encode(group, now)

        monkeypatch.setattr(snapshot, "encoded", noted)
        walk = broker._work.walk(partition.groups.encode_states())
        (handed,) = (await asyncio.gather(walk, broker.group("g", "t").lease("c", 2)))[1]
        await broker.group("g", "t").ack(handed.receipt)
        assert len(encoded) >= 301
        encoded.clear()
        await partition.groups.snapshot_if_needed()
        # It has changed since.
        assert [name for name, _ in encoded] == ["g"]
        await broker.maintain()
        clock_of(broker).advance_us(60_000_000)
        for number in range(300):
            await partition.groups.start(f"g{number}", 1)
        encoded.clear()
        await broker.maintain()
        turns.stop()
        at = [turn for _, turn in encoded]
        assert len(at) == 301
        assert max(map(at.count, at)) <= SLICE_ROWS

    async def after(broker: Broker) -> None:
        (partition,) = broker.topic("t").partitions
        assert partition.groups.state("g").floor == 2
        assert {partition.groups.state(f"g{number}").floor for number in range(300)} == {1}

    run(before, MemoryFiles(disk))
    run(after, MemoryFiles(disk))


def test_owners_are_counted_once_for_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(broker: Broker) -> None:
        catalog = broker._catalog
        for number in range(3):
            await broker._groups.create(f"g{number}", None, "team")
        assert broker.owned("groups", "team") == 3
        looked_at = list[Catalog]()
        contents = catalog._contents

        class Counted:
            def __getattr__(self, kind: str) -> object:
                looked_at.append(catalog)
                return getattr(contents, kind)

        monkeypatch.setattr(catalog, "_contents", Counted())
        assert [broker.owned("groups", f"team{number}") for number in range(100)] == [0] * 100
        assert not looked_at
        monkeypatch.undo()
        await broker._groups.create("g3", None, "team")
        assert broker.owned("groups", "team") == 4
        await broker.delete_group("g0")
        assert broker.owned("groups", "team") == 3

    run(work)
