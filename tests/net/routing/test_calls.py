"""Requests to a cluster are answered as a single broker would, whoever leads what, and whatever moves meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest

from net.routing.fakes import QUICK, Cluster, FakeNode, run
from penstock.broker.group import Group
from penstock.client import requests as r
from penstock.client.answers import Nack, Reject
from penstock.client.cluster_requests import SurveyCluster
from penstock.client.placement import DescribeCluster, FindCoordinator, FindPlacement
from penstock.client.requests import Request, Where
from penstock.clock import SystemClock
from penstock.errors import (
    ArchiveConflict,
    ConnectionLost,
    EtcdUnavailable,
    GroupNotFound,
    InvalidInput,
    NotFound,
    NotLeader,
    NotScheduled,
    OffsetOutOfRange,
    PartitionNotFound,
    TopicNotFound,
)
from penstock.message import Message
from penstock.net.routing.table import ROUTES
from penstock.net.routing.transport import RoutedTransport

HOUR_US = 3_600_000_000
NOW_US = SystemClock().now_us()


async def furnish(cluster: Cluster) -> None:
    """Messages, delayed ones, dead letters and parked keys in each of three partitions, and two groups."""
    site = cluster.site
    await site.call(r.CreateTopic("t", 3, {}))
    await site.call(r.CreateTopic("u", 2, {}))
    for number in range(12):
        key = b"k%d" % (number % 3)
        await site.publish("t", Message(b"%d" % number, key=key), number % 3)
    for number in range(6):
        later = Message(b"later", deliver_at=NOW_US + HOUR_US * (6 - number))
        await site.publish("t", later, number % 3)
    await site.join("g", "me", ["t"], {"ordering": "key", "on_poison": "park"})
    await site.join("h", "other", ["u"], {})
    for number in range(3):
        deliveries = await site.poll("g", "me", ["t"], count=1, bytes_max=1 << 20, wait_us=0)
        for delivery in deliveries:
            await site.answer("g", delivery.receipt, Reject(f"bad {number}"))
    await site.broker.settle()
    assert len(site.broker.topic("t.dlq").partitions) == 3


LOOKING: list[Request[Any]] = [
    r.DescribeTopic("t"),
    r.DescribeTopic("u"),
    r.ListTopics(),
    r.FindOffsets("t", "earliest"),
    r.FindOffsets("t", "latest"),
    r.FindOffsets("t", NOW_US + HOUR_US),
    r.FindArchive("t"),
    r.DescribeGroup("g"),
    r.DescribeGroup("h"),
    r.ListGroups(),
    r.ListParkedKeys("g"),
    r.ListParkedKeys("h"),
    r.ListScheduled("t", 100),
    r.ListScheduled("t", 2),
    r.GetScheduled("t:1:4"),
    r.ListSchedules(),
    r.ListDeadLetters("t", Where(), False, 100),
    r.ListDeadLetters("t", Where(), True, 2),
    r.ListDeadLetters("u", Where(), False, 100),
    r.GetDeadLetter("t.dlq:2:0"),
    r.GetMessage("t:2:1"),
    r.GetTrace("t:0:0"),
    r.FindDeliveries("t"),
    r.ReadDeliveries("t", 1, 0, 1 << 40, 1 << 20),
    r.AskWhy("t:1:1", "g"),
    r.GetStateAt("g", "t", NOW_US + HOUR_US),
    r.Redrive("t", Where(), True, None),
    r.Redrive("t", Where(reason_contains="bad 1"), True, 100.0),
]


def test_every_request_that_only_looks_is_looked_at_here() -> None:
    looked_at = {type(request) for request in LOOKING}
    # Of the cluster itself; and what may be said twice though it changes something.
    others = {DescribeCluster, FindPlacement, FindCoordinator, SurveyCluster, r.Archived}
    assert looked_at >= {kind for kind, route in ROUTES.items() if route.is_repeatable and kind not in others}


def in_some_order(reply: Any) -> Any:
    """What is redriven together is so in an order only within a partition."""
    if not isinstance(reply, r.Redriven):
        return reply
    return [sorted(ids) for ids in (reply.in_place, reply.copied, reply.refused, reply.already)]


@pytest.mark.parametrize("trouble", ["none", "a move", "a lost answer", "a node that vanished", "all led by one"])
def test_it_is_answered_as_by_a_single_broker(trouble: str) -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await furnish(cluster)
        cluster.appoint("g", "b")
        if trouble == "all led by one":
            for topic, number in [(one, number) for one in ("t", "t.dlq", "u") for number in range(3)]:
                cluster.move(topic, number, "c")
        for request in LOOKING:
            disturb(cluster, trouble, type(request).__name__)
            expected = await cluster.site.call(request)
            assert in_some_order(await transport.call(request)) == in_some_order(expected), request
            mend(cluster)

    run(work)


def disturb(cluster: Cluster, trouble: str, kind: str) -> None:
    """What is told of a partition just before must not be merged with what is told of it after."""
    if trouble == "a move":
        moves = iter([("t", 0, "b"), ("t.dlq", 0, "b"), ("t", 1, "c"), ("u", 0, "c")])

        def move(what: str) -> None:
            if what == kind and (one := next(moves, None)) is not None:
                cluster.move(*one)

        for node in cluster.nodes.values():
            node.before = move
    elif trouble == "a lost answer":
        for node in cluster.nodes.values():
            node.loses[kind] = ROUTES[_kind(kind)].is_repeatable
    elif trouble == "a node that vanished":
        cluster.nodes["c"].kill()
        for topic in ("t", "t.dlq"):
            cluster.move(topic, 2, "a")


def mend(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.is_down = False
        node.before = lambda what: None
        node.loses.clear()
    for topic in ("t", "t.dlq", "u"):
        for number in range(3):
            cluster.move(topic, number, "abc"[number])


def _kind(name: str) -> type[Request[Any]]:
    (kind,) = [one for one in ROUTES if one.__name__ == name]
    return kind


# --- changing -----------------------------------------------------------------------------------------------


def test_what_changes_the_catalog_is_done_by_any_node_and_told_of_as_a_whole() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        cluster.nodes["a"].kill()
        made = await transport.call(r.CreateTopic("t", 3, {}))
        assert [one.number for one in made.partitions] == [0, 1, 2]
        changed = await transport.call(r.ChangeTopic("t", 5, {}))
        assert [one.number for one in changed.partitions] == [0, 1, 2, 3, 4]
        archived = await transport.call(r.Archived("t", None, {0: 0}))
        assert len(archived.partitions) == 5
        group = await transport.call(r.CreateGroup("g", {}))
        assert group == await cluster.site.call(r.DescribeGroup("g"))
        changed_group = await transport.call(r.ChangeGroup("g", {"max_retries": 9}))
        assert changed_group.settings["max_retries"] == 9
        schedule = r.CreateSchedule("s", "t", "@daily", "UTC", Message(b"x"))
        assert (await transport.call(schedule)).name == "s"
        await transport.call(r.DeleteSchedule("s"))
        await transport.call(r.DeleteGroup("g"))
        await transport.call(r.DeleteTopic("t"))
        with pytest.raises(TopicNotFound):
            await transport.call(r.DescribeTopic("t"))
        with pytest.raises(GroupNotFound):
            await transport.call(r.DescribeGroup("g"))

    run(work)


def test_settings_are_told_as_they_were_changed_though_others_have_not_heard_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old: dict[type[Request[Any]], dict[str, Any]] = {}
    answer = FakeNode._call

    async def late(self: FakeNode, request: Request[Any]) -> Any:
        reply = await answer(self, request)
        kind = type(request)
        return msgspec.structs.replace(reply, settings=old[kind]) if kind in old else reply

    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        old[r.DescribeTopic] = (await transport.call(r.CreateTopic("t", 3, {}))).settings
        old[r.DescribeGroup] = (await transport.call(r.CreateGroup("g", {}))).settings
        topic = await transport.call(r.ChangeTopic("t", None, {"max_delay_us": 7_000_000}))
        assert (topic.settings["max_delay_us"], len(topic.partitions)) == (7_000_000, 3)
        assert (await transport.call(r.ChangeGroup("g", {"max_retries": 9}))).settings["max_retries"] == 9

    monkeypatch.setattr(FakeNode, "_call", late)
    run(work)


def test_a_change_whose_answer_was_lost_is_not_made_twice() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        cluster.nodes["a"].loses["CreateTopic"] = 1
        with pytest.raises(ConnectionLost):
            await transport.call(r.CreateTopic("t", 3, {}))
        assert sum(node.asked["CreateTopic"] for node in cluster.nodes.values()) == 1
        assert len((await transport.call(r.DescribeTopic("t"))).partitions) == 3

    run(work)


def test_a_change_waits_for_etcd_no_longer_than_it_was_told_to_whatever_nodes_are_gone() -> None:
    def refuse(what: str) -> None:
        if what == "CreateTopic":
            raise EtcdUnavailable("etcd does not answer")

    def gone(what: str) -> None:
        if what == "CreateTopic":
            raise ConnectionLost("nobody is there", was_sent=False)

    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        cluster.nodes["a"].before = cluster.nodes["b"].before = refuse
        cluster.nodes["c"].before = gone
        with pytest.raises(EtcdUnavailable):
            await transport.call(r.CreateTopic("t", 3, {}))
        assert [node.asked["CreateTopic"] for node in cluster.nodes.values()] == [1, 1, 1]

    run(work, pace=replace(QUICK, etcd_s=0))


def test_a_seek_reaches_all_leaders_and_a_part_that_was_refused_is_asked_again() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await furnish(cluster)
        await cluster.site.call(r.Seek("h", "u", "latest", None, None, None))
        moved = False

        def move(what: str) -> None:
            nonlocal moved
            if what == "Seek" and not moved:
                moved = True
                cluster.move("t", 0, "c")

        cluster.nodes["a"].before = move
        await transport.call(r.Seek("g", "t", "latest", None, None, None))
        assert moved
        # What is not due yet is still to come.
        assert (await transport.call(r.DescribeGroup("g"))).lag == {"t": [2, 2, 2]}
        await transport.call(r.Seek("g", "t", None, None, 1, 2))
        assert (await transport.call(r.DescribeGroup("g"))).lag == {"t": [2, 2, 5]}
        with pytest.raises(InvalidInput, match="say which"):
            await transport.call(r.Seek("g", "t", None, None, 1, None))
        with pytest.raises(InvalidInput):
            await transport.call(r.Seek("g", "t", None, None, None, None))
        with pytest.raises(PartitionNotFound):
            await transport.call(r.Seek("g", "t", "latest", None, None, 7))

    run(work)


def test_a_change_of_which_one_part_is_not_known_to_be_done_says_so_and_is_not_repeated() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await furnish(cluster)
        cluster.nodes["b"].loses["Seek"] = 1
        with pytest.raises(ConnectionLost):
            await transport.call(r.Seek("g", "t", "latest", None, None, None))
        assert [cluster.nodes[name].asked["Seek"] for name in "abc"] == [1, 1, 1]

    run(work)


def test_a_parked_key_is_released_wherever_it_is() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await furnish(cluster)
        parked = await transport.call(r.ListParkedKeys("g"))
        assert {(key.partition, key.key) for key in parked} == {(0, b"k0"), (1, b"k1"), (2, b"k2")}
        assert await transport.call(r.ReleaseKey("g", "t", b"k1", None)) == 1
        with pytest.raises(NotFound):
            await transport.call(r.ReleaseKey("g", "t", b"k1", None))
        assert await transport.call(r.ReleaseKey("g", "t", b"k2", 2)) == 1
        assert [key.key for key in await transport.call(r.ListParkedKeys("g"))] == [b"k0"]

    run(work)


def test_a_key_released_before_the_leader_of_another_partition_changes_counts_as_released() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await furnish(cluster)
        for number in range(3):
            cluster.move("t", number, "c")
        release = Group.release_key
        moves = iter([("t", 2, "a")])

        async def released(group: Group, key: bytes | None, partition: int | None = None) -> int:
            """As a leader does that loses the last partition meanwhile."""
            if partition == 2 and (one := next(moves, None)) is not None:
                cluster.move(*one)
                raise NotLeader("this node does not lead partition 2 of t, or not any more")
            return await release(group, key, partition)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Group, "release_key", released)
            assert await transport.call(r.ReleaseKey("g", "t", b"k0", None)) == 1
        assert [key.key for key in await transport.call(r.ListParkedKeys("g"))] == [b"k1", b"k2"]

    run(work)


def test_what_is_archived_is_recorded_by_the_leader_of_each_partition() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await furnish(cluster)
        cluster.nodes["b"].loses["Archived"] = 1
        cluster.nodes["a"].before = lambda what: cluster.move("t", 0, "c") if what == "Archived" else None
        info = await transport.call(r.Archived("t", None, {0: 1, 1: 2, 2: 3}))
        assert [(one.number, one.archived) for one in info.partitions] == [(0, 1), (1, 2), (2, 3)]
        info = await transport.call(r.Archived("t", info.id, {1: 1}, lowers=True))
        assert [one.archived for one in info.partitions] == [1, 1, 3]
        assert await transport.call(r.Archived("t", info.id, {})) == info
        for offsets in ({}, {0: 1}):
            with pytest.raises(ArchiveConflict):
                await transport.call(r.Archived("t", "another", offsets))
        with pytest.raises(OffsetOutOfRange):
            await transport.call(r.Archived("t", None, {0: 1, 2: 1_000}))
        with pytest.raises(PartitionNotFound):
            await transport.call(r.Archived("t", None, {3: 0}))

    run(work)


def test_dead_letters_are_redriven_and_discarded_by_all_leaders_together() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await furnish(cluster)
        where = Where(reason_contains="bad 0")
        done = await transport.call(r.Redrive("t", where, False, None))
        assert len(done.in_place) == len(set(done.in_place)) == 1
        assert await transport.call(r.Discard("t", Where())) == 2
        assert await transport.call(r.ListDeadLetters("t", Where(), False, 100)) == []
        assert await transport.call(r.Discard("u", Where())) == 0
        with pytest.raises(TopicNotFound):
            await transport.call(r.Discard("nowhere", Where()))
        with pytest.raises(InvalidInput):
            await transport.call(r.Redrive("u", Where(), False, -1.0))

    run(work)


def test_letters_that_are_being_written_are_told_of_though_they_are_the_first() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(r.CreateTopic("t", 3, {}))
        await cluster.site.publish("t", Message(b"x"), 1)
        await transport.join("g", "me", ["t"], {})
        (delivery,) = await transport.poll("g", "me", ["t"], count=1, bytes_max=1 << 20, wait_us=1_000_000)
        await transport.answer("g", delivery.receipt, Reject("bad"))
        (letter,) = await transport.call(r.ListDeadLetters("t", Where(), False, 100))
        assert letter.original == "t:1:0"
        await transport.leave("g", "me")

    run(work)


def test_all_nodes_together_redrive_no_faster_than_was_asked_for() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await furnish(cluster)
        cluster.move("t.dlq", 1, "a")
        await transport.call(r.Redrive("t", Where(), True, 90.0))
        rates = {
            name: [one.rate for one in node.requests if isinstance(one, r.Redrive)]
            for name, node in cluster.nodes.items()
        }
        assert rates == {"a": [60.0], "b": [], "c": [30.0]}

    run(work)


@pytest.mark.parametrize("request_", [r.DescribeGroup("g"), r.ListGroups()], ids=["one", "all"])
def test_a_lag_that_a_leader_does_not_tell_by_itself_is_asked_for(request_: Request[Any]) -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await furnish(cluster)
        cluster.nodes["b"].omits.add("t")
        assert await transport.call(request_) == await cluster.site.call(request_)
        assert r.DescribeGroup("g", {"t": (1,)}) in cluster.nodes["b"].requests

    run(work)


def test_delayed_messages_are_moved_and_cancelled_by_their_leader() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await furnish(cluster)
        (first, *_) = await transport.call(r.ListScheduled("t", 1))
        await transport.call(r.Reschedule(first.id, NOW_US + 9 * HOUR_US))
        (*_, last) = await transport.call(r.ListScheduled("t", 100))
        assert last.id == first.id
        await transport.call(r.CancelScheduled(first.id))
        with pytest.raises(NotScheduled):
            await transport.call(r.GetScheduled(first.id))
        with pytest.raises(InvalidInput, match="message id"):
            await transport.call(r.GetScheduled("nonsense"))
        with pytest.raises(PartitionNotFound):
            await transport.call(r.GetMessage("t:9:0"))

    run(work)


def test_a_replay_of_a_time_or_of_offsets_is_of_all_partitions() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await furnish(cluster)
        ends = await transport.call(r.FindOffsets("t", "latest"))

        async def replayed(group: str, **bounds: Any) -> int:
            of = {"from_us": None, "to_us": None, "offsets": None} | bounds
            return await transport.call(r.Replay("t", group, **of, delays=False, lanes=False, settings={}))

        assert await replayed("all", from_us=0) == sum(ends)
        assert await replayed("none", from_us=NOW_US + HOUR_US) == 0
        assert await replayed("some", offsets={1: (0, 2), 2: (1, 2)}) == 3
        assert (await transport.call(r.DescribeGroup("some"))).lag["t"] == [0, 2, 1]
        with pytest.raises(OffsetOutOfRange, match="partition 1 has offsets"):
            await replayed("bad", offsets={1: (0, 1_000)})
        with pytest.raises(PartitionNotFound):
            await replayed("bad", offsets={7: (0, 1)})
        with pytest.raises(InvalidInput, match="takes either from_time and to_time"):
            await replayed("bad")
        with pytest.raises(InvalidInput, match="a time is"):
            await replayed("bad", from_us=-1)

    run(work)


def test_what_makes_no_sense_is_refused_before_anybody_is_asked() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        asked = sum(node.asked.total() for node in cluster.nodes.values())
        with pytest.raises(InvalidInput, match="topic is text"):
            await transport.call(r.FindOffsets(5, "latest"))  # type: ignore[arg-type]
        assert sum(node.asked.total() for node in cluster.nodes.values()) == asked

    run(work)


def test_a_partition_without_a_leader_is_waited_for_by_what_is_about_all() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await furnish(cluster)
        cluster.move("t", 1, "")
        asyncio.get_running_loop().call_later(0.01, cluster.move, "t", 1, "c")
        assert await transport.call(r.FindOffsets("t", "latest")) == [6, 6, 6]
        cluster.move("t", 1, "")
        impatient = await cluster.transport(replace(QUICK, patience_s=0.02))
        with pytest.raises(NotLeader, match="nobody leads partition 1 of t"):
            await impatient.call(r.DescribeTopic("t"))
        await impatient.close()

    run(work)


def test_reading_follows_the_leader_of_a_partition() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await furnish(cluster)
        page = await transport.read("t", 2, 0, 4, 1 << 20)
        cluster.move("t", 2, "a")
        cluster.nodes["a"].loses["read"] = 1
        again = await transport.read("t", 2, 0, 4, 1 << 20)
        assert [bytes(one.data) for one in again.frames] == [bytes(one.data) for one in page.frames]
        with pytest.raises(PartitionNotFound):
            await transport.read("t", 3, 0, 4, 1 << 20)

    run(work)


def test_a_leader_that_is_behind_and_knows_a_topic_less_is_asked_again() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await furnish(cluster)
        asked = 0

        def behind(what: str) -> None:
            nonlocal asked
            if what == "read" and (asked := asked + 1) < 3:
                raise TopicNotFound("not here yet")

        cluster.nodes["b"].before = behind
        assert (await transport.read("t", 1, 0, 4, 1 << 20)).frames
        assert asked == 3

    run(work)


def test_a_message_that_is_tried_again_is_answered_for_at_the_leader() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await furnish(cluster)
        await transport.call(r.ReleaseKey("g", "t", b"k0", 0))
        await transport.join("g", "me", ["t"], {})
        deliveries = await transport.poll("g", "me", ["t"], count=1, bytes_max=1 << 20, wait_us=1_000_000)
        await transport.answer("g", deliveries[0].receipt, Nack("again", 0))
        assert cluster.nodes["a"].asked["Nack"] == 1
        await transport.leave("g", "me")

    run(work)


@pytest.mark.parametrize("kind", [partial(r.DescribeGroup, "g"), r.ListGroups], ids=["one", "all"])
def test_a_topic_without_a_leader_is_never_reported_as_a_lag_of_zero(kind: Callable[..., Request[Any]]) -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        for topic in ("u", "without"):
            await cluster.site.call(r.CreateTopic(topic, 1, {}))
            await cluster.site.publish(topic, Message(b"x"), 0)
        await cluster.site.join("g", "m", ["u", "without"], {})
        await cluster.site.leave("g", "m")
        cluster.move("without", 0, "")
        told = await transport.call(kind(partial=True))
        (info,) = told if isinstance(told, list) else [told]
        assert (info.lag, info.unknown) == ({"u": [1]}, {"without": [0]})
        asked = [one for node in cluster.nodes.values() for one in node.requests if type(one) is type(kind())]
        assert len(asked) == len(cluster.nodes), "each node is asked once"
        with pytest.raises(NotLeader, match="without"):
            await transport.call(kind())

    run(work, pace=replace(QUICK, patience_s=0.3))


@pytest.mark.parametrize("request_", [r.DescribeGroup("g"), r.ListGroups()], ids=["one", "all"])
def test_a_topic_that_moves_while_nodes_are_asked_is_not_left_out_of_a_lag(request_: Request[Any]) -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await cluster.site.call(r.CreateTopic("u", 1, {}))
        await cluster.site.publish("u", Message(b"x"), 0)
        await cluster.site.join("g", "m", ["u"], {})
        await cluster.site.leave("g", "m")
        cluster.move("u", 0, "c")
        # Asked before it leads, the one; after that, the other.
        late, early = cluster.nodes["c"], cluster.nodes["a"]
        late.hangs = asyncio.Event()
        asking = asyncio.ensure_future(transport.call(request_))
        while not any(type(one) is type(request_) for one in early.requests):
            await asyncio.sleep(0)
        while early._deaths:
            await asyncio.sleep(0)
        cluster.move("u", 0, "a")
        late.hangs.set()
        late.hangs = None
        told = await asking
        (info,) = told if isinstance(told, list) else [told]
        assert info.lag == {"u": [1]}

    run(work)


def test_a_client_waits_for_a_node_that_has_not_joined_its_cluster_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        infos, early = cluster.infos, iter([(), ()])
        monkeypatch.setattr(cluster, "infos", lambda: next(early, None) or infos())
        routed = await cluster.transport()
        assert routed._nodes.ids
        await routed.close()
        monkeypatch.setattr(cluster, "infos", tuple)
        with pytest.raises(ConnectionLost, match="has not joined"):
            await cluster.transport(replace(QUICK, patience_s=0.05))

    run(work)
