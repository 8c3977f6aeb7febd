"""The controller: what the dead led is led by those who lead least, and goes back to preferred leaders in a calm."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from etcd_support import run
from penstock.cluster.controller import PREFER_AFTER_US, PREFER_AT_ONCE, RESTORED_US, Chosen, Controller
from penstock.cluster.core.election import Copy
from penstock.cluster.core.events import Registered
from penstock.cluster.core.record import Member, PartitionRecord, decode, encode
from penstock.cluster.etcd.session import Session
from penstock.cluster.etcd.store import Put
from penstock.cluster.etcd.view import View
from penstock.cluster.keys import Keys
from penstock.cluster.levels import Levels
from penstock.cluster.members import Members
from penstock.cluster.partitions import Partitions
from penstock.cluster.registration import Broker
from penstock.cluster.tally import Tally
from penstock.cluster.tombstones import Tombstones
from penstock.cluster.unclaimed import Unclaimed
from penstock.testing import FakeEtcd, ManualTime

KEYS = Keys()
LIVE = {node: Registered(f"d{node}", f"{node}1") for node in "abcd"}


class Here:
    """A controller, the records of partitions, and nodes of which only etcd knows."""

    def __init__(self) -> None:
        self.time = ManualTime()
        self.etcd = FakeEtcd(self.time)
        self._store = self.etcd.store()
        self.view = View(self._store, KEYS.prefix, self.time)
        self._session: Session | None = None
        members, partitions = Members(self.view, KEYS), Partitions(self.view, KEYS)
        self.controller = Controller(
            Chosen("a", "a1"),
            self._store,
            self.view,
            KEYS,
            members,
            partitions,
            lambda: self._session,
            Tally(),
            Unclaimed(self._store, self.view, KEYS, self.time.now_us, self.time.now_us),
            Tombstones(self._store, self.view, KEYS, self.time.now_us),
            Levels(self._store, self.view, KEYS, members, partitions),
            self.time.now_us,
        )

    async def start(self, *nodes: str) -> None:
        # For as long as the test lasts.
        self._session = await self._store.session(3_600)
        for node in nodes:
            self.joins(node)
        await self.rounds(0)

    def joins(self, node: str) -> None:
        self.put(KEYS.broker(node), Broker(LIVE[node].disk, LIVE[node].incarnation, f"127.0.0.1:{ord(node)}"))

    def put(self, key: str, value: Any) -> None:
        self.etcd.commit({}, [Put(key, msgspec.json.encode(value))], [])

    def partition(self, identity: str, leader: str, replicas: str = "abc", isr: str = "abc", **more: Any) -> None:
        """Of topic t, or of its dead letters if it begins with d."""
        members = tuple(Member(node, LIVE[node].disk) for node in isr)
        topic, number = {"p": "t", "d": "t.dlq"}[identity[0]], int(identity[1:])
        record = PartitionRecord(
            topic, number, tuple(replicas), 2, members, leader, LIVE[leader].incarnation, 7, **more
        )
        self.etcd.commit({}, [Put(KEYS.partition(identity), encode(record))], [])

    def record(self, identity: str) -> PartitionRecord:
        key = KEYS.partition(identity)
        return decode(self.etcd.read(key).items[key].value)

    async def rounds(self, us: int) -> None:
        """One now, and one when so much time has gone by."""
        for passed_us in (0, us):
            self.time.advance_us(passed_us)
            await self.view.refresh()
            await self.controller.round()

    async def close(self) -> None:
        assert self._session is not None
        await self._session.close()
        await self._store.close()


def played(play: Callable[[Here], Awaitable[None]]) -> None:
    async def main() -> None:
        here = Here()
        try:
            await play(here)
        finally:
            await here.close()

    run(main)


def test_a_preferred_leader_that_is_back_gets_its_partition_when_no_leader_has_changed_for_long() -> None:
    async def play(here: Here) -> None:
        await here.start("a", "b", "c")
        here.partition("p0", "b")
        await here.rounds(PREFER_AFTER_US)
        assert here.record("p0").successor is None, "not yet"
        await here.rounds(1)
        assert (here.record("p0").leader, here.record("p0").successor) == ("b", "a")

    played(play)


def test_after_a_restore_of_etcd_the_controller_waits_for_all_replicas_and_says_so_if_it_did_in_vain() -> None:
    async def play(here: Here) -> None:
        told = {"a": Copy(7, (10, 4)), "c": Copy(7, (12, 4))}

        async def ask(ids: tuple[str, ...]) -> dict[str, dict[str, Copy]]:
            return {"p0": dict(told)}

        await here.start("a", "b", "c")
        here.controller.ask_for_copies = ask
        here.partition("p0", "a")
        here.etcd.commit({}, [Put(KEYS.partition("p0"), encode(here.record("p0").fenced(1)))], [])
        await here.rounds(RESTORED_US - 1)
        assert here.record("p0").leader is None
        await here.rounds(1)
        elected = here.record("p0")
        assert (elected.leader, elected.unclean) == ("c", (elected.epoch,))
        # With all of them, at once.
        here.etcd.commit({}, [Put(KEYS.partition("p0"), encode(here.record("p0").fenced(2)))], [])
        told["b"] = Copy(7, (11, 4))
        await here.rounds(0)
        assert (here.record("p0").leader, here.record("p0").unclean) == ("c", elected.unclean)
        # One that has died since it told does not count.
        here.etcd.commit({}, [Put(KEYS.partition("p0"), encode(here.record("p0").fenced(3)))], [KEYS.broker("c")])
        await here.rounds(0)
        assert here.record("p0").leader is None

    played(play)


def test_after_a_restore_of_etcd_no_process_is_elected_for_what_the_one_before_it_has_reported() -> None:
    async def play(here: Here) -> None:
        async def ask(ids: tuple[str, ...]) -> dict[str, dict[str, Copy]]:
            # c is back with an empty disk while others are still asked.
            here.put(KEYS.broker("c"), Broker("another", "c2", "127.0.0.1:99"))
            await here.view.refresh()
            return {"p0": {"a": Copy(7, (10, 4)), "c": Copy(7, (12, 4))}}

        await here.start("a", "c")
        here.controller.ask_for_copies = ask
        here.partition("p0", "a", "ac", "ac")
        here.etcd.commit({}, [Put(KEYS.partition("p0"), encode(here.record("p0").fenced(1)))], [])
        await here.view.refresh()
        await here.controller.round()
        assert here.record("p0").leader is None

    played(play)


def test_an_election_elsewhere_begins_the_time_anew() -> None:
    async def play(here: Here) -> None:
        await here.start("a", "b", "c")
        here.partition("p0", "b")
        await here.rounds(PREFER_AFTER_US)
        # Its epoch counts as well as one that has become another.
        here.partition("p1", "a")
        await here.rounds(PREFER_AFTER_US)
        assert here.record("p0").successor is None
        await here.rounds(1)
        assert here.record("p0").successor == "a"

    played(play)


def test_one_that_is_not_in_sync_gone_or_drained_and_a_partition_that_moves_are_left_as_they_are() -> None:
    async def play(here: Here) -> None:
        await here.start("a", "b", "d")
        here.put(KEYS.drained("d"), {})
        here.partition("p0", "b", isr="bc")
        here.partition("p1", "a", replicas="cab")
        here.partition("p2", "a", replicas="dab", isr="dab")
        here.partition("p3", "b", target=("b", "a"))
        await here.rounds(2 * PREFER_AFTER_US)
        await here.rounds(2 * PREFER_AFTER_US)
        assert [here.record(f"p{number}").successor for number in range(4)] == [None] * 4

    played(play)


def test_so_many_at_a_time_are_asked_for_and_the_others_after_the_same_time_again() -> None:
    async def play(here: Here) -> None:
        await here.start("a", "b", "c")
        for number in range(PREFER_AT_ONCE + 5):
            here.partition(f"p{number}", "b")

        def asked() -> int:
            return sum(here.record(f"p{number}").successor == "a" for number in range(PREFER_AT_ONCE + 5))

        await here.rounds(PREFER_AFTER_US + 1)
        assert asked() == PREFER_AT_ONCE
        await here.rounds(PREFER_AFTER_US)
        assert asked() == PREFER_AT_ONCE
        await here.rounds(1)
        assert asked() == PREFER_AT_ONCE + 5

    played(play)


def test_what_a_dead_node_led_goes_to_those_who_lead_least() -> None:
    async def play(here: Here) -> None:
        await here.start("b", "c")
        for number in range(4):
            here.partition(f"p{number}", "a")
        here.partition("p4", "b", replicas="bca")
        here.partition("p5", "b", replicas="bca")
        await here.rounds(0)
        assert [here.record(f"p{number}").leader for number in range(6)] == ["c", "c", "b", "c", "b", "b"]

    played(play)


def test_dead_letters_go_to_whoever_leads_their_messages_then() -> None:
    async def play(here: Here) -> None:
        await here.start("b", "c")
        # Known ahead of what they are the letters of.
        for number in range(3):
            here.partition(f"d{number}", "a")
        for number in range(3):
            here.partition(f"p{number}", "a")
        await here.rounds(0)
        leaders = [here.record(f"p{number}").leader for number in range(3)]
        assert leaders == ["b", "c", "b"]
        assert [here.record(f"d{number}").leader for number in range(3)] == leaders

    played(play)


def test_what_a_drained_node_leads_goes_to_the_others_by_turns_and_is_asked_for_once() -> None:
    async def play(here: Here) -> None:
        await here.start("a", "b", "c")
        here.put(KEYS.drained("a"), {})
        for number in range(4):
            here.partition(f"p{number}", "a")
        await here.rounds(0)
        asked = [here.record(f"p{number}") for number in range(4)]
        assert [record.successor for record in asked] == ["b", "c", "b", "c"]
        # One has handed over; the others are still at it.
        here.partition("p0", "b")
        await here.rounds(0)
        assert [here.record(f"p{number}").successor for number in range(4)] == [None, "c", "b", "c"]

    played(play)
