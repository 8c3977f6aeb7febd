"""Consuming from a cluster: a poll waits at every leader, and nothing that any of them gives is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from pyroaring import BitMap64

from net.routing.fakes import QUICK, Cluster, run
from penstock.batch import Batch
from penstock.client.answers import Ack, Nack, Release
from penstock.client.client import Client
from penstock.client.placement import FindPlacement
from penstock.client.requests import ChangeTopic, CreateTopic, DeleteTopic, DescribeGroup, DescribeTopic
from penstock.client.transport import Delivery
from penstock.errors import (
    ConnectionLost,
    Forbidden,
    LeaseError,
    MemberNotFound,
    NotEnoughReplicas,
    NotLeader,
    TopicNotFound,
)
from penstock.frame import Frame
from penstock.message import Message
from penstock.net.routing.transport import RoutedTransport

SECOND = 1_000_000


async def fill(cluster: Cluster, topic: str, count: int, *, partition: int | None = None) -> None:
    """Not by way of the router."""
    for number in range(count):
        await cluster.site.publish(topic, Message(b"%d" % number), number % 3 if partition is None else partition)


async def poll(transport: RoutedTransport, count: int = 100, wait_us: int = 5 * SECOND) -> list[Delivery]:
    return list(await transport.poll("g", "me", ["t"], count=count, bytes_max=1 << 20, wait_us=wait_us))


def offsets_of(deliveries: list[Delivery]) -> set[tuple[int, int]]:
    return {(one.receipt.partition, offset) for one in deliveries for offset in one.receipt.offsets}


def looks(cluster: Cluster) -> int:
    """How often it was asked where things are."""
    return sum(isinstance(one, FindPlacement) for node in cluster.nodes.values() for one in node.requests)


async def joined(cluster: Cluster, transport: RoutedTransport, messages: int = 0) -> None:
    await transport.call(CreateTopic("t", 3, {}))
    await fill(cluster, "t", messages)
    await transport.join("g", "me", ["t"], {})


def test_messages_come_from_all_leaders_and_are_acknowledged_there() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport, 30)
        seen: set[tuple[int, int]] = set()
        while len(seen) < 30:
            for delivery in await poll(transport):
                seen |= offsets_of([delivery])
                await transport.answer("g", delivery.receipt, Ack())
        assert all(cluster.nodes[name].asked["Ack"] for name in "abc")
        assert (await transport.call(DescribeGroup("g"))).lag == {"t": [0, 0, 0]}
        await transport.leave("g", "me")

    run(work)


def test_polls_go_on_waiting_at_the_other_leaders_when_one_has_answered() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        waiting = asyncio.ensure_future(poll(transport))
        while sum(node.asked["poll"] for node in cluster.nodes.values()) < 3:
            await asyncio.sleep(0)
        await fill(cluster, "t", 1, partition=0)
        assert offsets_of(await waiting) == {(0, 0)}
        # The other two were not asked again, and what they bring between two polls is there for the next.
        await fill(cluster, "t", 1, partition=1)
        await fill(cluster, "t", 1, partition=2)
        member = transport._members["g", "me"]
        while len(member._held.nodes()) < 2:
            await asyncio.sleep(0)
        assert offsets_of(await poll(transport)) == {(1, 0), (2, 0)}
        assert [cluster.nodes[name].asked["poll"] for name in "bc"] == [1, 1]
        await transport.leave("g", "me")

    run(work)


def test_what_nobody_has_asked_for_is_given_back_when_the_consumer_leaves() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport, 30)
        (first,) = await poll(transport, count=1)
        while not all(node.asked["poll"] for node in cluster.nodes.values()):
            await asyncio.sleep(0)
        member = transport._members["g", "me"]
        while len(member._held.nodes()) < 2:
            await asyncio.sleep(0)
        await transport.leave("g", "me")
        assert sum(node.asked["Release"] for node in cluster.nodes.values()) >= 2
        await transport.join("g", "other", ["t"], {})
        found: set[tuple[int, int]] = set()
        while len(found) < 29:
            deliveries = await transport.poll("g", "other", ["t"], count=100, bytes_max=1 << 20, wait_us=SECOND)
            found |= offsets_of(list(deliveries))
        assert found.isdisjoint(offsets_of([first]))
        await transport.leave("g", "other")

    run(work)


def test_what_is_held_for_too_long_of_its_lease_is_given_back() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 3, {}))
        await fill(cluster, "t", 3)
        await transport.join("g", "me", ["t"], {"visibility_us": 50_000})
        (first,) = await poll(transport, count=1)
        while sum(node.asked["Release"] for node in cluster.nodes.values()) < 2:
            await asyncio.sleep(0)
        others = {0, 1, 2} - {first.receipt.partition}
        lag = await transport.call(DescribeGroup("g"))
        assert all(lag.lag["t"][number] == 1 for number in others)
        await transport.leave("g", "me")

    run(work)


def test_a_poll_that_is_cancelled_loses_nothing() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        waiting = asyncio.ensure_future(poll(transport))
        while sum(node.asked["poll"] for node in cluster.nodes.values()) < 3:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await fill(cluster, "t", 9)
        seen: Counter[tuple[int, int]] = Counter()
        while len(seen) < 9:
            for delivery in await poll(transport):
                seen.update(offsets_of([delivery]))
                await transport.answer("g", delivery.receipt, Ack())
        assert set(seen.values()) == {1}
        await transport.leave("g", "me")

    run(work)


def test_a_busy_leader_does_not_keep_others_from_being_heard() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        await fill(cluster, "t", 300, partition=0)
        await fill(cluster, "t", 3, partition=1)
        await fill(cluster, "t", 3, partition=2)
        asked, others = 0, 0
        while others < 6:
            asked += 1
            others += sum(number > 0 for number, _ in offsets_of(await poll(transport, count=1)))
        assert asked <= 24
        await transport.leave("g", "me")

    run(work)


def test_a_poll_that_does_not_wait_hears_of_what_is_there_and_of_nothing_else() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        assert await poll(transport, wait_us=0) == []
        await fill(cluster, "t", 1, partition=2)
        assert offsets_of(await poll(transport, wait_us=0)) == {(2, 0)}
        await transport.leave("g", "me")

    run(work)


def test_with_a_node_that_comes_back_it_is_found_out_at_once_who_looks_after_the_group() -> None:
    """It was not there when the consumer joined, and leads something of the topic: nobody waits for the next look."""

    async def work(cluster: Cluster, before: RoutedTransport) -> None:
        await before.call(CreateTopic("t", 3, {}))
        cluster.nodes["c"].kill()
        cluster.move("t", 2, "")
        transport = await cluster.transport(replace(QUICK, refresh_s=3600.0))
        await transport.join("g", "me", ["t"], {})
        waiting = asyncio.ensure_future(poll(transport, wait_us=60 * SECOND))
        while not cluster.nodes["b"].asked["poll"]:
            await asyncio.sleep(0)
        cluster.nodes["c"].is_down = False
        cluster.appoint("g", "c")
        cluster.move("t", 2, "c")
        while not cluster.nodes["c"].asked["join"]:
            await asyncio.sleep(0)
        await fill(cluster, "t", 1, partition=2)
        assert offsets_of(await waiting) == {(2, 0)}
        await transport.close()

    run(work)


def test_no_more_come_than_were_asked_for_though_an_earlier_poll_has_asked_for_more() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        assert await poll(transport, count=100, wait_us=1) == []
        waiting = asyncio.ensure_future(poll(transport, count=100))
        while sum(node.asked["poll"] for node in cluster.nodes.values()) < 6:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await cluster.site.publish_frame("t", 1, _many(50))
        sizes = []
        while sum(sizes) < 50:
            sizes.append(len(offsets_of(await poll(transport, count=20))))
        assert sizes == [20, 20, 10]
        await transport.leave("g", "me")

    run(work)


def _many(count: int) -> Frame:
    return Frame.of(Batch.from_columns([b"x"] * count, now_us=1))


def test_a_consumer_follows_leaders_that_move_and_none_of_its_acknowledgements_is_lost() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        client = Client(transport)
        consumer = client.consumer("g2", "t", name="c", prefetch=10)
        publishing = asyncio.ensure_future(fill(cluster, "t", 200))
        seen: list[str] = []
        while len(seen) < 200:
            message = await consumer.next()
            assert message is not None
            if len(seen) % 10 == 5:
                number = len(seen) // 10 % 3
                cluster.move("t", number, "abc"[len(seen) // 30 % 3])
                cluster.node("t", number).loses["Ack"] = 1
            await message.ack()
            seen.append(f"{message.partition}:{message.offset}")
        await publishing
        assert len(set(seen)) == 200
        assert (await client.group("g2")).lag == {"t": [0, 0, 0]}
        await client.close()

    run(work)


def test_a_consumer_goes_on_when_a_node_vanishes_and_its_partitions_are_led_by_others() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport, 9)
        seen: set[tuple[int, int]] = set()
        cluster.nodes["b"].kill()
        asyncio.get_running_loop().call_later(0.02, cluster.move, "t", 1, "c")
        while len(seen) < 9:
            seen |= offsets_of(await poll(transport))
        await transport.leave("g", "me")

    run(work)


def test_what_a_vanished_node_had_under_way_is_not_waited_for() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        waiting = asyncio.ensure_future(poll(transport))
        while sum(node.asked["poll"] for node in cluster.nodes.values()) < 3:
            await asyncio.sleep(0)
        cluster.nodes["b"].kill()
        cluster.move("t", 1, "a")
        await fill(cluster, "t", 1, partition=1)
        assert offsets_of(await waiting) == {(1, 0)}
        await transport.leave("g", "me")

    run(work)


def test_a_leader_that_says_that_it_is_none_any_more_is_believed_until_somebody_knows_who_is() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        waiting = asyncio.ensure_future(poll(transport))
        while sum(node.asked["poll"] for node in cluster.nodes.values()) < 3:
            await asyncio.sleep(0)
        # Nobody has heard of the move yet but those two.
        for node in cluster.nodes.values():
            node.frozen = cluster.placement([])
        cluster.move("t", 1, "c")
        refused = asyncio.ensure_future(cluster.nodes["b"].call(DescribeTopic("t", (1,))))
        with pytest.raises(NotLeader):
            await refused
        cluster.nodes["b"].refuse_waiting(NotLeader("not any more"))
        asked = cluster.nodes["a"].asked["FindPlacement"]
        while cluster.nodes["a"].asked["FindPlacement"] < asked + 3:
            await asyncio.sleep(0)
        for node in cluster.nodes.values():
            node.frozen = None
        await fill(cluster, "t", 1, partition=1)
        assert offsets_of(await waiting) == {(1, 0)}
        await transport.leave("g", "me")

    run(work, pace=replace(QUICK, refresh_s=3600.0))


def test_a_leader_that_can_give_nothing_for_now_does_not_keep_the_others_from_giving() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport, 3)

        def refuse(what: str) -> None:
            if what == "poll":
                raise NotEnoughReplicas("too few")

        cluster.nodes["b"].before = refuse
        seen: set[tuple[int, int]] = set()
        while len(seen) < 2:
            seen |= offsets_of(await poll(transport))
        assert {number for number, _ in seen} == {0, 2}
        cluster.nodes["b"].before = lambda what: None
        assert offsets_of(await poll(transport)) == {(1, 0)}
        await transport.leave("g", "me")

    run(work)


def test_what_can_not_be_mended_is_told_to_whoever_asks() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)

        def refuse(what: str) -> None:
            if what == "poll":
                raise Forbidden("not for you")

        cluster.nodes["b"].before = refuse
        with pytest.raises(Forbidden):
            await poll(transport)
        await transport.leave("g", "me")

    run(work)


def test_a_member_joins_again_at_the_coordinator_that_takes_over_and_keeps_what_it_has() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport, 3)
        (delivery, *_) = await poll(transport)
        assert cluster.nodes["a"].asked["join"] == 1
        cluster.appoint("g", "c")
        while not cluster.nodes["c"].asked["join"]:
            await asyncio.sleep(0)
        await transport.answer("g", delivery.receipt, Ack())
        await transport.leave("g", "me")
        assert cluster.nodes["c"].asked["leave"] == 1

    run(work)


def test_a_member_whose_connection_to_the_coordinator_was_lost_joins_again() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        cluster.nodes["a"].cut()
        while cluster.nodes["a"].asked["join"] < 2:
            await asyncio.sleep(0)
        await transport.leave("g", "me")

    run(work)


def test_what_a_node_has_leased_before_another_led_is_taken_as_it_is() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        b = cluster.nodes["b"]
        b.polls_heard = asyncio.Event()
        await fill(cluster, "t", 1, partition=1)
        waiting = asyncio.ensure_future(poll(transport))
        (leased,) = await b.polled.get()
        cluster.move("t", 1, "a")
        for _ in range(2):
            # It has looked, and knows.
            seen = looks(cluster)
            while looks(cluster) == seen:
                await asyncio.sleep(0)
        b.polls_heard.set()
        (delivery,) = await waiting
        assert (delivery.receipt, offsets_of([delivery])) == (leased.receipt, {(1, 0)})
        await transport.answer("g", delivery.receipt, Ack())
        await transport.leave("g", "me")

    run(work)


def test_a_member_whose_coordinator_is_gone_leaves_at_the_one_that_took_over() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        cluster.appoint("g", "c")
        cluster.nodes["a"].kill()
        await transport.leave("g", "me")
        assert cluster.nodes["c"].asked["leave"] == 1

    run(work, pace=replace(QUICK, refresh_s=60.0))


def test_a_member_leaves_as_soon_as_somebody_looks_after_the_group_again() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        cluster.nodes["a"].kill()
        leaving = asyncio.ensure_future(transport.leave("g", "me"))
        while cluster.nodes["a"].asked["leave"] < 3:
            await asyncio.sleep(0)
        cluster.appoint("g", "c")
        await leaving
        assert cluster.nodes["c"].asked["leave"] == 1

    run(work, pace=replace(QUICK, refresh_s=60.0))


def test_a_member_whose_coordinator_stays_away_leaves_all_the_same() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        cluster.nodes["a"].kill()
        await transport.leave("g", "me")
        assert cluster.nodes["a"].asked["leave"] > 1

    run(work, pace=replace(QUICK, refresh_s=60.0, leave_s=0.5))


def test_a_coordinator_that_can_not_let_somebody_join_yet_keeps_nobody_from_messages() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)

        def refuse(what: str) -> None:
            if what == "join":
                raise NotEnoughReplicas("a partition has too few replicas")

        cluster.appoint("g", "c")
        cluster.nodes["c"].before = refuse
        cluster.nodes["b"].cut()
        while not cluster.nodes["c"].asked["join"]:
            await asyncio.sleep(0)
        await fill(cluster, "t", 1, partition=0)
        assert offsets_of(await poll(transport)) == {(0, 0)}
        cluster.nodes["c"].before = lambda what: None
        await transport.leave("g", "me")

    run(work)


def test_a_member_that_leaves_while_it_joins_elsewhere_leaves_there_too() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        cluster.appoint("g", "c")
        cluster.nodes["c"].hangs = hangs = asyncio.Event()
        while not cluster.nodes["c"].asked["join"]:
            await asyncio.sleep(0)
        # It has been asked, and nobody hears what comes of it.
        leaving = asyncio.ensure_future(transport.leave("g", "me"))
        while not cluster.nodes["c"].asked["leave"]:
            await asyncio.sleep(0)
        hangs.set()
        await leaving
        assert cluster.nodes["a"].asked["leave"] == 0

    run(work)


def test_joining_waits_for_a_coordinator_and_is_repeated_until_it_is_answered() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 3, {}))
        cluster.appoint("g", "")
        asyncio.get_running_loop().call_later(0.01, cluster.appoint, "g", "b")
        cluster.nodes["b"].loses["join"] = 1
        await transport.join("g", "me", ["t"], {})
        assert cluster.nodes["b"].asked["join"] == 2
        await transport.leave("g", "me")

    run(work)


def test_a_leader_that_has_not_heard_of_a_member_yet_is_asked_again() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport, 3)
        for node in cluster.nodes.values():
            node.forgot.add("me")
        joins = cluster.nodes["a"].asked["join"]
        seen: set[tuple[int, int]] = set()
        while len(seen) < 3:
            seen |= offsets_of(await poll(transport))
        assert cluster.nodes["a"].asked["join"] > joins
        await transport.leave("g", "me")

    run(work)


def test_messages_are_leased_for_as_long_as_whoever_asks_says_though_others_had_asked_before() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        waiting = asyncio.ensure_future(poll(transport))
        while sum(node.asked["poll"] for node in cluster.nodes.values()) < 3:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await fill(cluster, "t", 3)
        seen: list[Delivery] = []
        while len(seen) < 3:
            given = await transport.poll(
                "g", "me", ["t"], count=9, bytes_max=1 << 20, wait_us=SECOND, visibility_us=600 * SECOND
            )
            seen += [one for one in given if one.deadline_us > transport.monotonic_us() + 500 * SECOND]
            for one in given:
                if one not in seen:
                    await transport.answer("g", one.receipt, Release())
        await transport.leave("g", "me")

    run(work)


def test_who_has_not_joined_or_has_left_hears_so() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        await transport.leave("g", "me")
        with pytest.raises(MemberNotFound):
            await poll(transport)
        await transport.leave("g", "me")

    run(work)


def test_a_topic_that_is_deleted_is_told_to_whoever_consumes_it() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        waiting = asyncio.ensure_future(poll(transport))
        while sum(node.asked["poll"] for node in cluster.nodes.values()) < 3:
            await asyncio.sleep(0)
        await transport.call(DeleteTopic("t"))
        with pytest.raises(TopicNotFound):
            await waiting
        await transport.leave("g", "me")

    run(work)


def test_new_partitions_are_consumed_without_anybody_being_told() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 1, {}))
        await transport.join("g", "me", ["t"], {})
        waiting = asyncio.ensure_future(poll(transport))
        while not cluster.nodes["a"].asked["poll"]:
            await asyncio.sleep(0)
        await cluster.site.call(ChangeTopic("t", 3, {}))
        cluster.revision += 1
        await fill(cluster, "t", 1, partition=2)
        assert offsets_of(await waiting) == {(2, 0)}
        await transport.leave("g", "me")

    run(work)


def test_a_cluster_that_is_gone_for_too_long_is_told_of() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport)
        for node in cluster.nodes.values():
            node.kill()
        with pytest.raises(ConnectionLost):
            while True:
                await poll(transport)
        await transport.leave("g", "me")

    run(work, pace=replace(QUICK, patience_s=0.05))


def test_an_acknowledgement_whose_answer_was_lost_is_told_again_to_the_new_leader() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport, 3)
        (delivery, *_) = await poll(transport)
        number = delivery.receipt.partition
        cluster.node("t", number).loses["Ack"] = 1
        old = cluster.leader("t", number)
        telling = asyncio.ensure_future(transport.answer("g", delivery.receipt, Ack()))
        await asyncio.sleep(0)
        cluster.move("t", number, "b" if old != "b" else "c")
        await telling
        assert (await transport.call(DescribeGroup("g"))).lag["t"][number] == 0
        await transport.leave("g", "me")

    run(work)


def test_acknowledgements_told_together_whose_answer_was_lost_are_told_again_to_the_new_leader() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport, 9)
        deliveries = [one for _ in range(9) for one in await poll(transport, count=1)]
        number = deliveries[0].receipt.partition
        mine = [one.receipt for one in deliveries if one.receipt.partition == number]
        assert len(mine) > 1
        cluster.node("t", number).loses["acks"] = 1
        old = cluster.leader("t", number)
        given = [(receipt.lease, receipt.offsets) for receipt in mine]
        telling = asyncio.ensure_future(transport.ack_all("g", "t", number, given))
        await asyncio.sleep(0)
        cluster.move("t", number, "b" if old != "b" else "c")
        assert await telling == [None] * len(mine)
        assert (await transport.call(DescribeGroup("g"))).lag["t"][number] == 0
        await transport.leave("g", "me")

    run(work)


def test_a_lease_that_came_in_parts_is_acknowledged_as_one() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 3, {}))
        await fill(cluster, "t", 12)
        client = Client(transport)
        consumer = client.consumer("g", "t", ack_linger="1h")
        got = 0
        while got < 12:
            for message in await consumer.poll(3 if not got else 2, wait="1s"):
                await message.ack()
                got += 1
        await consumer.flush()
        assert (await transport.call(DescribeGroup("g"))).lag == {"t": [0, 0, 0]}
        await consumer.close()
        await client.close()

    run(work)


def test_of_what_is_given_back_nobody_says_that_it_was_if_that_is_not_known() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport, 3)
        (delivery, *_) = await poll(transport)
        node = cluster.node("t", delivery.receipt.partition)
        node.loses["Nack"] = 1
        with pytest.raises(ConnectionLost):
            await transport.answer("g", delivery.receipt, Nack("later"))
        with pytest.raises(LeaseError):
            await transport.answer("g", delivery.receipt, Release())
        await transport.leave("g", "me")

    run(work)


def test_an_answer_follows_its_partition() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport, 3)
        (delivery, *_) = await poll(transport)
        cluster.move("t", delivery.receipt.partition, "")
        asyncio.get_running_loop().call_later(0.01, cluster.move, "t", delivery.receipt.partition, "c")
        await transport.answer("g", delivery.receipt, Nack("later", 0))
        assert cluster.nodes["c"].asked["Nack"] == 1
        await transport.leave("g", "me")

    run(work)


def test_everything_ends_with_the_transport_though_nobody_has_left() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport, 30)
        await poll(transport, count=1)
        waiting = asyncio.ensure_future(poll(transport, count=1))
        await waiting
        await transport.close()
        assert all(node.is_closed for node in cluster.nodes.values())
        held = [group for group in cluster.site.broker.topic("t").partitions if group.groups.state("g").leases]
        assert len(held) <= 2

    run(work)


def test_a_delivery_that_is_cut_in_two_is_answered_for_in_two() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 1, {}))
        await transport.join("g", "me", ["t"], {})
        await cluster.site.publish_frame("t", 0, _many(5))
        # Without an order, any part may be given by itself.
        member = transport._members["g", "me"]
        whole = await poll(transport)
        member._held.add("a", whole)
        first, second = await poll(transport, count=2), await poll(transport)
        assert [one[0].receipt.offsets for one in (first, second)] == [BitMap64([0, 1]), BitMap64([2, 3, 4])]
        await transport.answer("g", first[0].receipt, Ack())
        await transport.answer("g", second[0].receipt, Ack())
        assert (await transport.call(DescribeGroup("g"))).lag == {"t": [0]}
        await transport.leave("g", "me")

    run(work)


def test_the_time_that_is_left_is_told_by_one_clock_though_every_node_has_its_own() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport, 3)
        cluster.nodes["b"].ahead_us = 3600 * SECOND
        seen: list[Delivery] = []
        while len(seen) < 3:
            seen += await poll(transport)
        now_us = transport.monotonic_us()
        assert all(0 < delivery.deadline_us - now_us <= 30 * SECOND for delivery in seen)
        await transport.leave("g", "me")

    run(work)


def test_who_gives_up_joining_leaves_where_it_may_have_joined() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 3, {}))
        joining = asyncio.ensure_future(transport.join("g", "me", ["t"], {}))
        cluster.nodes["a"].before = lambda what: what == "join" and joining.cancel()  # type: ignore[assignment, return-value]
        with pytest.raises(asyncio.CancelledError):
            await joining
        with pytest.raises(MemberNotFound):
            await poll(transport)
        await transport.leave("g", "me")
        assert cluster.nodes["a"].asked["leave"] == 1
        # The broker goes on creating the group. Wait for that.
        await cluster.nodes["a"].broker.ensure_group("g")

    run(work)


def test_who_gives_up_leaving_has_said_so_to_the_coordinator() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await joined(cluster, transport, 3)
        # Something is held for it, and giving that back takes long.
        while not transport._members["g", "me"]._held:
            await poll(transport, count=1)
        hanging = asyncio.Event()

        async def tell(group: str, receipt: object, answer: object) -> None:
            hanging.set()
            await asyncio.Event().wait()

        transport._members["g", "me"]._tell = tell
        leaving = asyncio.ensure_future(transport.leave("g", "me"))
        await hanging.wait()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert cluster.nodes["a"].asked["leave"] == 1

    run(work)


def test_what_was_leased_together_is_extended_together_though_it_came_in_parts() -> None:
    async def work(cluster: Cluster, transport: RoutedTransport) -> None:
        await transport.call(CreateTopic("t", 3, {}))
        await fill(cluster, "t", 15)
        client = Client(transport)
        consumer = client.consumer("g", "t")
        await consumer.poll(5, "5s")
        (first,) = await consumer.poll(1, "5s")
        rest = [message for message in await consumer.poll(4, "5s") if message.partition == first.partition]
        assert rest, "the answer of another node was to be held, and to be taken in parts"
        await first.extend("10s")
        assert {message.lease.deadline_us for message in rest} == {first.lease.deadline_us}
        await client.close()

    run(work)
