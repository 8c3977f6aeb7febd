"""Changes of records that an operator asks for, when etcd does not say what became of them, or the watch is deaf."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from etcd_support import run
from penstock.client.cluster_requests import ElectLeaders
from penstock.cluster.core.election import elect_unclean, first
from penstock.cluster.core.events import Registered
from penstock.cluster.core.record import Member, PartitionRecord, encode
from penstock.cluster.elections import Elections
from penstock.cluster.etcd import view as etcd_view
from penstock.cluster.etcd.store import Put
from penstock.cluster.etcd.view import View
from penstock.cluster.keys import Keys
from penstock.cluster.partitions import Partitions
from penstock.cluster.records import Records
from penstock.errors import NotEnoughReplicas, OutcomeUnknown, StaleMetadata
from penstock.testing import FakeEtcd, ManualTime

KEYS = Keys()
LIVE = {node: Registered(f"disk-{node}", f"process-{node}") for node in ("a", "b")}
# What was in sync is dead.
RECORD = replace(
    first("t", 0, ("a", "b"), 1, LIVE),
    replicas=("dead", "a", "b"),
    isr=(Member("dead", "disk-dead"),),
    leader="dead",
)


class Here:
    def __init__(self) -> None:
        self.time = ManualTime()
        self.etcd = FakeEtcd(self.time)
        self.view = View(self.etcd.store(), KEYS.prefix, self.time)
        self.partitions = Partitions(self.view, KEYS)
        self.live = dict(LIVE)
        topic = SimpleNamespace(name="t", partitions=("p",))
        node: Any = SimpleNamespace(
            view=self.view,
            partitions=self.partitions,
            keys=KEYS,
            members=SimpleNamespace(live=self.live),
            catalog=SimpleNamespace(topics=[topic]),
        )
        self.records = Records(node, self.etcd.store())

        # By node: of what epoch its copy's last message is, and where it ends.
        self.copies = {"a": (1, 4), "b": (1, 5)}
        self.while_asked: Callable[[], None] = lambda: None

        async def replicas(identities: object, *, with_groups: bool) -> Any:
            self.while_asked()
            heard = {
                (node, "p"): SimpleNamespace(last_epoch=epoch, starts=(0, 0), ends=(end, 0), groups={}, quarantined="")
                for node, (epoch, end) in self.copies.items()
            }
            return heard, None

        survey: Any = SimpleNamespace(replicas=replicas)
        self.elections = Elections(node, self.records, survey)
        self.put(RECORD)

    def put(self, record: PartitionRecord) -> None:
        self.etcd.commit({}, [Put(KEYS.partition("p"), encode(record))], [])

    def record(self) -> PartitionRecord:
        placed = self.partitions.get("p")
        assert placed is not None
        return placed.record


def on_records(work: Callable[[Here], Awaitable[None]]) -> None:
    async def main() -> None:
        here = Here()
        await here.view.start()
        await work(here)
        await here.view.close()

    run(main)


def before_reading(here: Here, happens: Callable[[], None]) -> None:
    """What others do while this one does not know yet."""
    refresh = here.view.refresh

    async def then_read() -> None:
        happens()
        await refresh()

    here.view.refresh = then_read  # type: ignore[method-assign]


def test_a_change_that_was_carried_out_is_no_other_because_its_answer_was_lost() -> None:
    async def work(here: Here) -> None:
        here.etcd.lose_answers = 1

        def decide(record: PartitionRecord) -> PartitionRecord | None:
            return replace(record, successor="b") if record == RECORD else None

        assert await here.records.change("p", decide)
        assert here.record().successor == "b"

    on_records(work)


def test_a_change_whose_request_was_lost_is_made_once_more() -> None:
    async def work(here: Here) -> None:
        here.etcd.lose_requests = 1
        assert await here.records.change("p", lambda record: replace(record, successor="b"))
        assert here.record().successor == "b"

    on_records(work)


def test_an_unclean_election_is_told_of_also_if_its_answer_was_lost_and_the_new_leader_has_gone_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(here: Here) -> None:
        elected = elect_unclean(RECORD, "b", LIVE)

        def lose() -> None:
            here.etcd.lose_answers = 1
            before_reading(here, lambda: here.put(replace(elected, isr=(*elected.isr, Member("a", "disk-a")))))

        # The first read is that of whoever asks.
        refresh = here.view.refresh

        async def read() -> None:
            here.view.refresh = refresh  # type: ignore[method-assign]
            await refresh()
            lose()

        here.view.refresh = read  # type: ignore[method-assign]
        with caplog.at_level(logging.WARNING, "penstock.cluster"):
            (told,) = await here.elections.elect(ElectLeaders("t", 0, is_unclean=True))
        assert told.leader == "b"
        assert len(here.record().isr) == 2
        assert "unclean election: b's copy of partition 0 of t ends at offset 5" in caplog.text

    on_records(work)


@pytest.mark.parametrize("is_known", [True, False])
def test_nothing_is_given_up_if_somebody_in_sync_comes_back_meanwhile(is_known: bool) -> None:
    """Also if only etcd knows of it."""

    async def work(here: Here) -> None:
        def come_back() -> None:
            here.etcd.commit({}, [Put(KEYS.broker("dead"), b"{}")], [])
            if is_known:
                here.live["dead"] = Registered("disk-dead", "another process")

        here.while_asked = come_back
        with pytest.raises(StaleMetadata):
            await here.elections.elect(ElectLeaders("t", 0, "b", is_unclean=True))
        assert here.record() == RECORD

    on_records(work)


@pytest.mark.parametrize("who", ["dead", "b"])
def test_nothing_is_given_up_if_who_it_rests_on_was_started_again_meanwhile(who: str) -> None:
    """With another disk, maybe: the one that had everything, or the one that is to lead."""

    async def work(here: Here) -> None:
        for node in ("dead", "b"):
            here.etcd.commit({}, [Put(KEYS.broker(node), b"{}")], [])
        here.live["dead"] = Registered("an empty disk", "process-dead")
        await here.view.refresh()
        here.while_asked = lambda: here.etcd.commit({}, [Put(KEYS.broker(who), b"{}")], []) and None
        with pytest.raises(StaleMetadata):
            await here.elections.elect(ElectLeaders("t", 0, "b", is_unclean=True))
        assert here.record() == RECORD
        here.while_asked = lambda: None
        (told,) = await here.elections.elect(ElectLeaders("t", 0, "b", is_unclean=True))
        assert told.leader == here.record().leader == "b"

    on_records(work)


def test_a_copy_of_an_older_version_that_does_not_tell_its_epoch_is_not_overlooked() -> None:
    async def work(here: Here) -> None:
        here.copies["a"] = (0, 120)
        with pytest.raises(NotEnoughReplicas, match="a has not said how far its copy of partition 0 of t goes"):
            await here.elections.elect(ElectLeaders("t", 0, is_unclean=True))
        # One without anything has none.
        here.copies["a"] = (0, 0)
        (told,) = await here.elections.elect(ElectLeaders("t", 0, is_unclean=True))
        assert told.leader == "b"

    on_records(work)


def test_who_is_to_lead_and_is_gone_meanwhile_is_not_elected() -> None:
    async def work(here: Here) -> None:
        refresh = here.view.refresh

        async def read() -> None:
            await refresh()
            here.live.pop("b", None)

        # The record was changed by somebody else first: it is looked at once more.
        here.while_asked = lambda: (here.put(RECORD), setattr(here.view, "refresh", read))[0]
        with pytest.raises(StaleMetadata):
            await here.elections.elect(ElectLeaders("t", 0, is_unclean=True))
        assert here.record() == RECORD

    on_records(work)


def test_a_copy_that_nobody_has_heard_of_is_not_taken_for_none() -> None:
    async def work(here: Here) -> None:
        del here.copies["b"]
        for is_dry in (True, False):
            with pytest.raises(NotEnoughReplicas, match="b has not said how far its copy of partition 0 of t goes"):
                await here.elections.elect(ElectLeaders("t", 0, is_unclean=True, is_dry=is_dry))
        (told,) = await here.elections.elect(ElectLeaders("t", 0, "a", is_unclean=True))
        assert told.leader == here.record().leader == "a"

    on_records(work)


def test_a_copy_of_a_later_epoch_has_more_though_it_is_shorter() -> None:
    async def work(here: Here) -> None:
        here.copies = {"a": (6, 108), "b": (5, 120)}
        (told,) = await here.elections.elect(ElectLeaders("t", 0, is_unclean=True))
        assert told.leader == "a"
        assert "a's copy of partition 0 of t ends at offset 108" in told.loses

    on_records(work)


def test_an_election_that_somebody_else_was_ahead_of_is_not_taken_for_ones_own() -> None:
    async def work(here: Here) -> None:
        here.etcd.lose_requests = 1

        def decide(record: PartitionRecord) -> PartitionRecord | None:
            return elect_unclean(record, "b", LIVE) if record == RECORD else None

        before_reading(here, lambda: here.put(elect_unclean(RECORD, "a", LIVE)))
        assert not await here.records.change("p", decide)
        assert here.record().leader == "a"

    on_records(work)


def test_a_change_is_known_soon_also_if_the_watch_is_deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_view, "_WATCH_S", 0)

    async def work(here: Here) -> None:
        here.etcd.deaf = True
        assert await here.records.change("p", lambda record: replace(record, successor="b"))
        assert here.record().successor == "b"

    on_records(work)


def test_what_nobody_knows_is_not_told_as_done() -> None:
    async def work(here: Here) -> None:
        here.etcd.lose_requests = 1_000
        with pytest.raises(StaleMetadata):
            await here.records.change("p", lambda record: replace(record, successor="b"))
        here.etcd.lose_requests = 1
        with pytest.raises(OutcomeUnknown):
            await here.records.put(KEYS.throttle, b"{}")

    on_records(work)
