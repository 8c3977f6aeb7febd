"""Who looks after a group, and what becomes of what it decides: with leaders that are asked by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from etcd_support import run
from led_broker import Leading, run_led
from penstock.broker.bell import Bell
from penstock.broker.settings import GroupSettings
from penstock.client.cluster_requests import FindGroups, GroupsIn
from penstock.client.placement import AssignPartition, FindOwners, Owner, StartGroup
from penstock.cluster.consumers import ClusterConsumers
from penstock.cluster.coordination import Coordination
from penstock.errors import (
    InternalError,
    LogFollows,
    MemberNotFound,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeader,
    Overloaded,
    PenstockError,
)
from penstock.testing import ManualClock

TERM = 7


class Cluster:
    """This node and the only other one, which leads the only partition there is."""

    name = "me"

    def __init__(self, count: int = 1) -> None:
        self.now_term = TERM
        # Partitions that nobody leads, and in which groups were to begin.
        self.leaderless: set[int] = set()
        self.started: asyncio.Queue[StartGroup] = asyncio.Queue()
        self.begun_in: set[int] = set()
        # Partitions whose leader does not answer to that, and those whose leader may not say what is in them.
        self.stuck: set[int] = set()
        self.mute: set[int] = set()
        self.alive = ["me"]
        self.owners: list[Owner] = []
        self.while_owners_are_asked: Callable[[], None] = lambda: None
        # What the leader answers to assignments, one after the other; then it takes them.
        self.answers: list[Exception | bool] = []
        self.told: asyncio.Queue[AssignPartition] = asyncio.Queue()
        self.can_refresh = True
        self.while_refreshed: Callable[[], None] = lambda: None
        self.broken: asyncio.Queue[PenstockError] = asyncio.Queue()
        topic = SimpleNamespace(
            count=count, numbered=[], record=SimpleNamespace(id="t1", partitions=("p",)), bell=Bell()
        )
        other = SimpleNamespace(
            count=2, numbered=[], record=SimpleNamespace(id="u1", partitions=("q", "r")), bell=Bell()
        )
        topics: dict[str, Any] = {"t": topic, "u": other}
        self.record = record = SimpleNamespace(
            settings=GroupSettings(), created_us=ManualClock().now_us(), generation=1
        )

        async def ensure_group(name: str, **given: Any) -> Any:
            return record

        broker: Any = SimpleNamespace(
            checked_topics=list,
            ensure_group=ensure_group,
            topic=topics.__getitem__,
            group_record=lambda name: record,
            has_group=lambda name: name == "g",
            replicated=SimpleNamespace(get=topics.get, open=topics),
        )
        catalog: Any = SimpleNamespace(group=lambda name: record)
        self.consumers = ClusterConsumers(topics, ManualClock(), catalog)
        self.coordination = Coordination(self, broker, self.consumers)

    def term(self) -> int:
        return self.now_term

    def version(self) -> int:
        return self.now_term

    def candidates(self) -> list[str]:
        return self.alive

    def nodes(self) -> list[str]:
        return ["leader"]

    def leader(self, topic: str, partition: int) -> str | None:
        return None if partition in self.leaderless else "leader"

    def transport(self, node: str) -> Any:
        return SimpleNamespace(call=self._call)

    async def refreshed(self) -> bool:
        self.while_refreshed()
        return self.can_refresh

    def broke(self, error: PenstockError) -> None:
        self.broken.put_nowait(error)

    async def _call(self, request: Any) -> Any:
        await asyncio.sleep(0)
        match request:
            case FindGroups():
                if request.partition in self.mute:
                    raise NotEnoughReplicas("it has a new leader")
                return GroupsIn(("g",) if request.partition in self.begun_in else (), 100 + request.partition)
            case StartGroup():
                while set(request.partitions) & self.stuck:
                    await asyncio.sleep(0.001)
                self.started.put_nowait(request)
                return None
            case FindOwners():
                self.while_owners_are_asked()
                return self.owners
            case AssignPartition():
                answer = self.answers.pop(0) if self.answers else True
                if isinstance(answer, Exception):
                    raise answer
                self.told.put_nowait(request)
                return answer

    async def join(self) -> None:
        await self.coordination.join("g", "m1", ["t"], 1_000_000, {})

    def change_nodes(self, *alive: str) -> None:
        """As the node tells it."""
        self.alive, self.now_term = list(alive), self.now_term + 1
        self.coordination.nodes_changed()


def on_cluster(work: Callable[[Cluster], Awaitable[None]], count: int = 1) -> None:
    async def main() -> None:
        cluster = Cluster(count)
        try:
            await work(cluster)
        finally:
            await cluster.coordination.close()
        assert cluster.broken.empty()

    run(main)


@pytest.mark.parametrize("answer", [LogFollows("it steps down"), Overloaded("busy"), InternalError("a bug there")])
def test_a_leader_is_told_again_until_it_has_heard(answer: PenstockError) -> None:
    async def work(cluster: Cluster) -> None:
        cluster.answers = [answer]
        await cluster.join()
        told = await cluster.told.get()
        assert (told.member, told.partition) == ("m1", 0)

    on_cluster(work)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cluster.beginnings.BRIEF_S", 0.5)
    monkeypatch.setattr("penstock.cluster.beginnings.PATIENCE_S", 0.6)
    monkeypatch.setattr("penstock.cluster.beginnings.RETRY_S_MAX", 0.001)


async def started(cluster: Cluster, count: int) -> dict[int, StartGroup]:
    requests = [await cluster.started.get() for _ in range(count)]
    return {request.partitions[0]: request for request in requests}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("is_earlier", [False, True])
@pytest.mark.parametrize("leaderless", [0, 1])
def test_a_partition_that_nobody_leads_keeps_no_group_from_the_others_and_it_begins_there_later(
    leaderless: int, is_earlier: bool
) -> None:
    async def work(cluster: Cluster) -> None:
        cluster.leaderless = {leaderless}
        cluster.begun_in = {0, 1, 2} if is_earlier else set()
        await cluster.join()
        at_once = await started(cluster, 2)
        assert sorted(at_once) == sorted({0, 1, 2} - {leaderless})
        since_us = 0 if is_earlier else ManualClock().now_us()
        assert {(one.is_earlier, one.since_us) for one in at_once.values()} == {(is_earlier, since_us)}
        # Where they ended then, however late that is heard.
        assert all(one.at == (None if is_earlier else 100 + number) for number, one in at_once.items())
        cluster.begun_in = {0, 1, 2}
        cluster.leaderless.clear()
        (later,) = (await started(cluster, 1)).values()
        # As if it had begun when it was to.
        assert (later.partitions, later.is_earlier) == ((leaderless,), is_earlier)
        assert (later.since_us, later.at) == (since_us, None)
        assert {(await cluster.told.get()).partition for _ in range(3)} == {0, 1, 2}

    on_cluster(work, count=3)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("unheard", ["leaderless", "mute"])
def test_a_group_is_taken_for_a_new_one_only_if_all_partitions_say_so_or_it_was_made_just_now(
    unheard: str, is_old: bool
) -> None:
    """It may have begun in the one that does not say, and what was published to the others since then is not past."""

    async def work(cluster: Cluster) -> None:
        cluster.record.created_us -= 2_000_000 if is_old else 0
        setattr(cluster, unheard, {1})
        await cluster.join()
        (one,) = (await started(cluster, 1)).values()
        assert (one.partitions, one.is_earlier, one.at) == ((0,), is_old, None if is_old else 100)

    on_cluster(work, count=2)


@pytest.mark.parametrize("unheard", ["leaderless", "mute"])
@pytest.mark.parametrize("is_begun", [False, True])
def test_an_old_group_that_is_new_to_a_topic_begins_at_its_end_once_all_partitions_have_said_so(
    unheard: str, is_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as an election takes, those that do not say are waited for."""
    monkeypatch.setattr("penstock.cluster.beginnings.BRIEF_S", 20.0)

    async def work(cluster: Cluster) -> None:
        cluster.record.created_us -= 2_000_000
        cluster.begun_in = {1} if is_begun else set()
        setattr(cluster, unheard, {1})
        asyncio.get_running_loop().call_later(0.1, getattr(cluster, unheard).clear)
        await cluster.join()
        at = {number: (one.is_earlier, one.at) for number, one in (await started(cluster, 2)).items()}
        assert at == ({0: (True, None), 1: (True, None)} if is_begun else {0: (False, 100), 1: (False, 101)})

    on_cluster(work, count=2)


def test_a_group_that_is_made_anew_while_it_joins_begins_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cluster.beginnings.BRIEF_S", 20.0)

    async def work(cluster: Cluster) -> None:
        cluster.stuck = {0}
        first = asyncio.ensure_future(cluster.join())
        await started(cluster, 1)
        cluster.record.created_us += 1
        cluster.record.generation += 1
        cluster.coordination._beginnings.forget("g")
        second = asyncio.ensure_future(cluster.join())
        assert list(await started(cluster, 1)) == [1]
        cluster.stuck.clear()
        made = [await cluster.started.get() for _ in range(2)]
        assert cluster.record.created_us in [one.created_us for one in made]
        await asyncio.gather(first, second)

    on_cluster(work, count=2)


@pytest.mark.usefixtures("impatient")
def test_a_replay_that_can_not_begin_everywhere_now_is_not_refused_and_begins_when_a_member_joins() -> None:
    """Its group is in the catalog: whoever repeated a refused replay would hear that it exists already."""

    async def work(cluster: Cluster) -> None:
        cluster.leaderless = {1}
        await cluster.coordination.begin("g", "t")
        assert sorted(await started(cluster, 2)) == [0, 2]
        cluster.leaderless.clear()
        await cluster.join()
        assert 1 in await started(cluster, 3)

    on_cluster(work, count=3)


@pytest.mark.usefixtures("impatient")
def test_a_topic_of_which_nobody_leads_anything_can_not_be_begun() -> None:
    async def work(cluster: Cluster) -> None:
        cluster.leaderless = {0, 1}
        with pytest.raises(NotLeader, match="nobody leads"):
            await cluster.join()
        assert cluster.consumers.coordinated == []

    on_cluster(work, count=2)


@pytest.mark.parametrize("begun_in", [{1}, {2}, {0}])
def test_a_group_has_begun_before_if_it_has_in_any_partition(begun_in: set[int]) -> None:
    """Nobody may have led the others then, and the first of them as well."""

    async def work(cluster: Cluster) -> None:
        cluster.begun_in = begun_in
        await cluster.join()
        assert {number: one.is_earlier for number, one in (await started(cluster, 3)).items()} == dict.fromkeys(
            range(3), True
        )

    on_cluster(work, count=3)


@pytest.mark.usefixtures("impatient")
def test_a_leader_that_can_not_write_keeps_no_group_from_the_others_and_it_begins_there_later() -> None:
    async def work(cluster: Cluster) -> None:
        cluster.stuck = {0, 2}
        await cluster.join()
        assert list(await started(cluster, 1)) == [1]
        assert (await cluster.told.get()).partition == 1
        cluster.stuck.clear()
        later = await started(cluster, 2)
        assert {number: one.at for number, one in later.items()} == {0: 100, 2: 102}
        assert {(await cluster.told.get()).partition for _ in range(2)} == {0, 2}

    on_cluster(work, count=3)


def test_a_partition_of_a_topic_that_only_others_have_is_begun_before_it_is_given_to_them() -> None:
    async def work(cluster: Cluster) -> None:
        cluster.owners = [Owner("t", 0, "m1", 5 << 24, True), Owner("u", 0, "m2", 5 << 24, True)]
        cluster.begun_in = {0}
        await cluster.join()
        told = await cluster.told.get()
        # By whom the other partition is asked for is known from those who lead; in which it has begun is not.
        assert (told.topic, told.partition, told.member) == ("u", 1, "m2")
        began = [await cluster.started.get() for _ in range(3)]
        assert ("u", (1,), True) in [(one.topic, one.partitions, one.is_earlier) for one in began]

    on_cluster(work)


def test_what_is_known_of_where_a_group_has_begun_is_gone_with_it() -> None:
    async def work(cluster: Cluster) -> None:
        await cluster.join()
        cluster.consumers.forget("g")
        await cluster.join()
        assert len(await started(cluster, 1)) == 1
        await cluster.coordination.begin("g", "t")
        cluster.change_nodes("other")
        assert not cluster.coordination._beginnings.groups

    on_cluster(work)


OWNED = [Owner("t", 0, "gone", 5 << 24, True)]


def test_who_has_left_before_anybody_joined_here_is_not_taken_for_a_member_because_leaders_speak_of_it() -> None:
    async def work(cluster: Cluster) -> None:
        cluster.owners = OWNED
        cluster.coordination.leave("g", ["gone"])
        await cluster.join()
        assert (await cluster.told.get()).member == "m1"

    on_cluster(work)


def test_who_leaves_while_leaders_are_asked_for_owners_is_not_taken_for_a_member_either() -> None:
    async def work(cluster: Cluster) -> None:
        cluster.owners = OWNED
        cluster.while_owners_are_asked = lambda: cluster.coordination.leave("g", ["gone"])
        await cluster.join()
        assert (await cluster.told.get()).member == "m1"

    on_cluster(work)


def test_a_member_that_leaves_while_it_joins_does_not_become_one() -> None:
    async def work(cluster: Cluster) -> None:
        cluster.while_owners_are_asked = lambda: cluster.coordination.leave("g", ["m1"])
        with pytest.raises(MemberNotFound, match="left group g while it was joining"):
            await cluster.join()
        members = cluster.consumers.of("g")
        assert members is not None
        assert members.names() == []
        cluster.while_owners_are_asked = lambda: None
        await cluster.join()
        assert members.names() == ["m1"]

    on_cluster(work)


def test_a_leave_invalidates_a_join_also_while_another_node_is_the_coordinator() -> None:
    async def work(cluster: Cluster) -> None:
        def leave() -> None:
            cluster.change_nodes("other")
            with pytest.raises(NotCoordinator):
                cluster.coordination.leave("g", ["m1"])
            cluster.change_nodes("me")

        cluster.while_owners_are_asked = leave
        with pytest.raises(MemberNotFound):
            await cluster.join()

    on_cluster(work)


def test_what_is_remembered_of_those_who_leave_has_a_bound() -> None:
    async def work(cluster: Cluster) -> None:
        for number in range(1_200):
            cluster.coordination.leave("g", [f"m{number}"])
            cluster.coordination.leave(f"none-{number}", ["m1"])
        assert {group: len(left) for group, left in cluster.coordination._left.items()} == {"g": 1_000}

    on_cluster(work)


def test_who_left_when_another_node_was_the_coordinator_in_between_may_be_back() -> None:
    async def work(cluster: Cluster) -> None:
        cluster.owners = OWNED
        cluster.coordination.leave("g", ["gone"])
        cluster.change_nodes("other")
        cluster.change_nodes("me")
        await cluster.join()
        for _ in range(100):
            await asyncio.sleep(0)
        assert cluster.told.empty()

    on_cluster(work)


def test_a_node_that_ceases_to_be_the_coordinator_while_it_asks_for_owners_begins_nothing() -> None:
    async def work(cluster: Cluster) -> None:
        cluster.while_owners_are_asked = lambda: cluster.change_nodes("other")
        with pytest.raises(NotCoordinator):
            await cluster.join()
        assert cluster.consumers.coordinated == []
        assert cluster.told.empty()

    on_cluster(work)


def test_a_node_that_stays_the_coordinator_while_it_asks_for_owners_begins_in_the_term_of_then() -> None:
    async def work(cluster: Cluster) -> None:
        cluster.while_owners_are_asked = lambda: cluster.change_nodes("me")
        await cluster.join()
        assert (await cluster.told.get()).generation >> 24 == TERM + 1

    on_cluster(work)


def test_a_coordinator_that_is_not_heard_forgets_the_group_and_its_members_join_in_a_later_term() -> None:
    async def work(cluster: Cluster) -> None:
        has_looked = asyncio.Event()

        def look() -> None:
            cluster.now_term = TERM + 3
            has_looked.set()

        cluster.while_refreshed = look
        cluster.answers = [False]
        await cluster.join()
        assert (await cluster.told.get()).generation >> 24 == TERM
        await has_looked.wait()
        with pytest.raises(NotCoordinator):
            cluster.consumers.heartbeat("g", "m1")
        await cluster.join()
        told = await cluster.told.get()
        assert (told.member, told.generation >> 24) == ("m1", TERM + 3)

    on_cluster(work)


def test_a_coordinator_that_begins_again_in_the_same_term_goes_on_behind_what_it_has_decided() -> None:
    async def work(cluster: Cluster) -> None:
        # Nobody has it any more, and so it is not restored.
        cluster.owners = [Owner("t", 0, None, (TERM << 24) + 9, False)]
        await cluster.join()
        assert (await cluster.told.get()).generation == (TERM << 24) + 10

    on_cluster(work)


def test_who_knows_older_nodes_than_whoever_decided_looks_at_etcd_before_it_begins() -> None:
    async def work(cluster: Cluster) -> None:
        cluster.owners = [Owner("t", 0, "m1", (TERM + 1) << 24, True)]
        cluster.while_refreshed = lambda: cluster.change_nodes("other")
        with pytest.raises(NotCoordinator, match="other looks after"):
            await cluster.join()
        assert cluster.consumers.coordinated == []

    on_cluster(work)


def test_who_can_not_look_at_etcd_does_not_take_over_from_who_knew_later_nodes() -> None:
    async def work(cluster: Cluster) -> None:
        cluster.owners = [Owner("t", 0, None, (TERM + 1) << 24, False)]
        cluster.can_refresh = False
        with pytest.raises(NotCoordinator, match="etcd does not answer"):
            await cluster.join()
        assert cluster.consumers.coordinated == []
        # It knows as much by then, and is still the coordinator.
        cluster.can_refresh = True
        await cluster.join()
        assert (await cluster.told.get()).generation > (TERM + 1) << 24

    on_cluster(work)


def test_a_bug_in_what_tells_leaders_is_not_silent() -> None:
    async def work(cluster: Cluster) -> None:
        cluster.answers = [ZeroDivisionError("a bug")]
        await cluster.join()
        assert isinstance((await cluster.broken.get()).__cause__, ZeroDivisionError)

    on_cluster(work)


def test_no_group_begins_where_too_few_replicas_are_in_sync_and_nobody_waits_for_them() -> None:
    async def work(led: Leading) -> None:
        (partition,) = await led.create("t", 1)
        await led.broker.create_group("g")
        node: Any = SimpleNamespace()
        coordination = Coordination(node, led.broker, Cluster().consumers)
        led.away.add(partition)
        partition.too_few = (1, 2)
        with pytest.raises(NotEnoughReplicas, match="no group begins there"):
            await coordination.start_group(StartGroup("g", "t", (0,)))
        assert not partition.groups.has("g")
        partition.too_few = None
        led.come_back(partition)
        await coordination.start_group(StartGroup("g", "t", (0,)))
        assert partition.groups.has("g")

    run_led(work)
