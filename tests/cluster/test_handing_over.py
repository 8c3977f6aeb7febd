"""A node that is stopped hands over what it leads: to somebody who stays, if anybody does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from etcd_support import run
from penstock.cluster import handing_over
from penstock.cluster.core.election import first
from penstock.cluster.core.record import PartitionRecord, decode, encode
from penstock.cluster.etcd.session import Session
from penstock.cluster.etcd.store import Put
from penstock.cluster.etcd.view import View
from penstock.cluster.handing_over import hand_over
from penstock.cluster.keys import Keys
from penstock.cluster.members import Members
from penstock.cluster.node import Node
from penstock.cluster.partitions import Partitions
from penstock.cluster.registration import Broker
from penstock.testing import FakeEtcd, ManualTime

KEYS = Keys()
IDS = ["00" * 16, "11" * 16]


class Here:
    """Nodes a, b and c, and two partitions that a leads."""

    def __init__(self) -> None:
        self.etcd = FakeEtcd(ManualTime())
        self.store = self.etcd.store()
        self.view = View(self.store, KEYS.prefix, ManualTime())
        self.members = Members(self.view, KEYS)
        self.partitions = Partitions(self.view, KEYS)
        self.session: Session

    async def start(self) -> None:
        self.session = await self.store.session(6)
        await self.view.start()
        for node in "abc":
            self.put(KEYS.broker(node), msgspec.json.encode(Broker(f"disk-{node}", f"process-{node}", "")))
        await self.view.refresh()
        for number, identity in enumerate(IDS):
            self.put(KEYS.partition(identity), encode(first("t", number, ("a", "b", "c"), 2, self.members.live)))
        await self.view.refresh()

    def put(self, key: str, value: bytes) -> None:
        self.etcd.commit({}, [Put(key, value)], [])

    def records(self) -> list[PartitionRecord]:
        found = self.etcd.read(KEYS.partitions).items
        return [decode(found[KEYS.partition(identity)].value) for identity in IDS]

    async def hand_over(self) -> None:
        await hand_over("a", self.session, self.store, self.view, KEYS, self.members, self.partitions)


def on_three_nodes(work: Callable[[Here], Awaitable[None]]) -> None:
    async def main() -> None:
        here = Here()
        await here.start()
        await work(here)
        await here.session.close()
        await here.view.close()

    run(main)


def test_a_node_that_is_being_stopped_itself_is_not_asked_to_lead() -> None:
    async def work(here: Here) -> None:
        here.put(KEYS.leaving + "b", b"{}")
        handing = asyncio.create_task(here.hand_over())
        while any(record.successor is None for record in here.records()):
            await asyncio.sleep(0)
        assert [record.successor for record in here.records()] == ["c", "c"]
        assert list(here.etcd.read(KEYS.leaving).items) == [KEYS.leaving + "a", KEYS.leaving + "b"]
        handing.cancel()
        await asyncio.wait([handing])

    on_three_nodes(work)


def test_what_it_led_goes_to_the_others_by_turns() -> None:
    async def work(here: Here) -> None:
        handing = asyncio.create_task(here.hand_over())
        while any(record.successor is None for record in here.records()):
            await asyncio.sleep(0)
        assert [record.successor for record in here.records()] == ["b", "c"]
        handing.cancel()
        await asyncio.wait([handing])

    on_three_nodes(work)


@pytest.mark.parametrize(("drained", "asked"), [("c", ["b", "b"]), ("bc", ["b", "c"])])
def test_one_that_is_being_drained_is_asked_only_if_there_is_nobody_else(drained: str, asked: list[str]) -> None:
    async def work(here: Here) -> None:
        for node in drained:
            here.put(KEYS.drained(node), b"{}")
        handing = asyncio.create_task(here.hand_over())
        while any(record.successor is None for record in here.records()):
            await asyncio.sleep(0)
        assert [record.successor for record in here.records()] == asked
        handing.cancel()
        await asyncio.wait([handing])

    on_three_nodes(work)


def test_if_all_are_being_stopped_nobody_hands_over_to_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing_over, "_PATIENCE_S", 3_600.0)

    async def work(here: Here) -> None:
        for node in "bc":
            here.put(KEYS.leaving + node, b"{}")
        await here.hand_over()
        assert [record.successor for record in here.records()] == [None, None]

    on_three_nodes(work)


def test_who_is_stopped_is_not_known_as_leaving_when_it_is_back() -> None:
    async def work(here: Here) -> None:
        for node in "bc":
            here.put(KEYS.leaving + node, b"{}")
        await here.hand_over()
        assert here.members.leaving == {"a", "b", "c"}
        await here.session.close()
        await here.view.refresh()
        assert here.members.leaving == {"b", "c"}

    on_three_nodes(work)


@pytest.mark.parametrize(
    ("known", "live", "leaving", "is_alone"),
    [("a", "a", "a", False), ("abc", "abc", "ac", False), ("abc", "abc", "abc", True), ("abc", "a", "a", True)],
)
def test_a_node_is_left_alone_if_all_others_are_stopped_or_gone(
    known: str, live: str, leaving: str, is_alone: bool
) -> None:
    members = SimpleNamespace(known=frozenset(known), live=dict.fromkeys(live), leaving=frozenset(leaving))
    node: Any = SimpleNamespace(name="a", members=members)
    assert Node.is_left_alone.fget(node) is is_alone  # type: ignore[attr-defined]
