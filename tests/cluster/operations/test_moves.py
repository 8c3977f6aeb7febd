"""Partitions move to other nodes: by catching up first, and without losing anything."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

import penstock
from cluster_nodes import WITHIN_S, LocalCluster, found
from penstock.client.cluster_requests import CancelMoves, Move, Reassign, Rebalance
from penstock.client.requests import ChangeTopic, DescribeTopic
from penstock.errors import InvalidInput, NodeNotFound, PartitionNotFound, TopicNotFound
from penstock.limits import KIB


def copies(directory: Path, node: str, identity: str) -> bool:
    return (directory / node / "partitions" / identity).exists()


def placed(cluster: LocalCluster) -> list[tuple[object, ...]]:
    """What a command could change. How far each copy has come changes by itself."""
    return [
        (each.topic, each.number, each.id, each.leader, each.epoch, each.replicas, each.target)
        for each in cluster.report().partitions
    ]


def test_a_partition_moves_with_its_messages_and_the_old_copy_is_deleted(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.create("orders", 1, replicas=2)
    with penstock.connect(cluster.address) as q:
        sent = [q.publish("orders", f"{number}").id for number in range(20)]
        before = cluster.partition("orders", 0)
        (new,) = set("abc") - set(before.replicas)
        target = (new, before.replicas[1])
        moves = cluster.call(Reassign("orders", 0, target))
        assert moves == [Move("orders", 0, before.replicas, target)]
        now = found(cluster.until(lambda report: found(report, "orders", 0).replicas == target), "orders", 0)
        assert now.target == ()
        assert now.epoch > before.epoch
        assert sorted(now.in_sync) == sorted(target)
        sent.append(q.publish("orders", "to the new leader").id)
        with q.consumer("g", "orders", start="earliest") as consumer:
            got: list[str] = []
            while len(got) < len(sent):
                for message in consumer.poll(100, wait="100ms"):
                    got.append(message.id)
                    message.ack()
        assert got == sent
    cluster.until(lambda report: not copies(tmp_path, before.replicas[0], before.id))
    assert copies(tmp_path, new, before.id)


def test_partitions_of_a_topic_take_turns_in_who_is_preferred(cluster: LocalCluster) -> None:
    cluster.create("orders", 3, replicas=1)
    cluster.call(Reassign("orders", None, ("a", "b", "c")))
    report = cluster.until(lambda report: all(len(each.replicas) == 3 for each in report.partitions))
    assert [each.replicas for each in report.partitions] == [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")]


def test_what_can_not_be_moved_is_refused_and_nothing_is_changed(cluster: LocalCluster) -> None:
    cluster.create("orders", 2)
    cluster.start("d")
    cluster.stop("d")
    before = placed(cluster)
    for request, error in (
        (Reassign("nothing", None, ("a", "b")), TopicNotFound),
        (Reassign("orders", 2, ("a", "b")), PartitionNotFound),
        (Reassign("orders", -1, ("a", "b")), PartitionNotFound),
        (Reassign("orders", 0, ("a", "x")), NodeNotFound),
        (Reassign("orders", 0, ("a", "d")), NodeNotFound),
        (Reassign("orders", 0, ("a",)), InvalidInput),
        (Reassign("orders", 0, ()), InvalidInput),
        (Reassign("orders", 0, ("a", "a", "b")), InvalidInput),
        (Reassign("orders", 0, ("a", "b"), throttle=1), InvalidInput),
        (CancelMoves("orders", None), InvalidInput),
    ):
        with pytest.raises(error):
            cluster.call(request)
    assert placed(cluster) == before


def test_a_move_whose_new_node_leaves_waits_for_it_and_can_be_called_off(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.start("d")
    cluster.create("orders", 1, replicas=2)
    before = cluster.partition("orders", 0)
    new = next(node for node in "abcd" if node not in before.replicas)
    with penstock.connect(cluster.address) as q:
        for _ in range(8):
            q.publish("orders", bytes(200 * KIB))
        # It would take a quarter of a minute.
        cluster.call(Reassign("orders", 0, (before.replicas[0], new), throttle=100 * KIB))
        report = cluster.until(lambda report: report.throttle == 100 * KIB)
        assert found(report, "orders", 0).target == (before.replicas[0], new)
        cluster.stop(new)
        now = found(cluster.until(lambda report: new not in found(report, "orders", 0).in_sync), "orders", 0)
        assert (now.replicas, now.target) == (before.replicas, (before.replicas[0], new))
        q.publish("orders", "while it waits")
        cluster.call(CancelMoves("orders", 0))
        report = cluster.until(lambda report: not found(report, "orders", 0).target)
        assert found(report, "orders", 0).replicas == before.replicas
    # With the last move goes the throttle.
    cluster.until(lambda report: not report.throttle)
    cluster.start(new)
    cluster.until(lambda report: not copies(tmp_path, new, before.id))


def test_a_throttle_holds_back_what_is_moved_and_nothing_else(cluster: LocalCluster) -> None:
    cluster.create("slow", 1, replicas=1)
    cluster.create("quick", 1, replicas=3)
    slow = cluster.partition("slow", 0)
    (other, _) = sorted(set("abc") - set(slow.replicas))
    with penstock.connect(cluster.address) as q:
        for _ in range(20):
            q.publish("slow", bytes(200 * KIB))
        cluster.call(Reassign("slow", 0, (slow.leader, other), throttle=64 * KIB))
        cluster.until(lambda report: any(each.messages_behind > 0 for each in found(report, "slow", 0).followers))
        for _ in range(20):
            q.publish("quick", bytes(200 * KIB))
        report = cluster.report()
        assert len(found(report, "quick", 0).in_sync) == 3
        # 4 MiB at 64 KiB/s take a minute.
        assert found(report, "slow", 0).target == (slow.leader, other)
        assert cluster.call(Reassign("slow", 0, (slow.leader, other), throttle=0)) == []
        report = cluster.until(lambda report: not found(report, "slow", 0).target)
        assert report.throttle == 0
        assert sorted(found(report, "slow", 0).in_sync) == sorted((slow.leader, other))


def test_a_new_node_gets_partitions_by_rebalancing_and_dead_letters_go_along(cluster: LocalCluster) -> None:
    cluster.create("orders", 4, replicas=2)
    with penstock.connect(cluster.address) as q, q.consumer("g", "orders", start="earliest", max_retries=0) as consumer:
        for number in range(4):
            q.publish("orders", "bad", partition=number)
        left = 4
        while left:
            for message in consumer.poll(10, wait="5s"):
                message.reject("bad")
                left -= 1
    cluster.until(lambda report: sum(each.topic == "orders.dlq" for each in report.partitions) == 4)
    cluster.start("d")
    plan = cluster.call(Rebalance(is_dry=True))
    assert plan.moves
    assert {move.topic for move in plan.moves} == {"orders", "orders.dlq"}
    assert not any(each.target for each in cluster.report().partitions)
    assert cluster.call(Rebalance(is_dry=False)) == plan
    report = cluster.until(lambda report: not any(each.target for each in report.partitions))
    load = Counter(node for each in report.partitions if each.topic == "orders" for node in each.replicas)
    assert load == Counter(dict.fromkeys("abcd", 2))
    for number in range(4):
        assert set(found(report, "orders.dlq", number).replicas) == set(found(report, "orders", number).replicas)
    assert cluster.call(Rebalance(is_dry=False)).moves == []


def test_dead_letters_are_not_moved_on_their_own(cluster: LocalCluster) -> None:
    cluster.create("orders", 1)
    with penstock.connect(cluster.address) as q, q.consumer("g", "orders", start="earliest", max_retries=0) as consumer:
        q.publish("orders", "bad")
        consumer.poll(1, wait="30s")[0].reject("bad")
    cluster.until(lambda report: any(each.topic == "orders.dlq" for each in report.partitions))
    with pytest.raises(InvalidInput, match="goes where orders goes"):
        cluster.call(Reassign("orders.dlq", 0, ("a", "b")))


def test_dead_letters_go_to_where_their_topic_was_created_again(cluster: LocalCluster) -> None:
    cluster.create("orders", 1, replicas=1)
    with penstock.connect(cluster.address) as q:
        for value in ("first", "second"):
            with q.consumer("g", "orders", start="earliest", max_retries=0) as consumer:
                q.publish("orders", value)
                consumer.poll(1, wait="30s")[0].reject(value)
            until = time.monotonic() + WITHIN_S
            while value not in {letter.reason for letter in q.dead_letters.list("orders")}:
                assert time.monotonic() < until, f"{value} is buried nowhere"
            if value == "first":
                before = found(cluster.report(), "orders", 0).leader
                q.delete_topic("orders")
                cluster.create("orders", 1, replicas=1)
                # There it would have less to do.
                assert found(cluster.report(), "orders", 0).leader != before
    report = cluster.until(lambda report: not any(each.target for each in report.partitions))
    assert found(report, "orders.dlq", 0).leader == found(report, "orders", 0).leader


def test_partitions_with_a_replica_on_a_node_that_is_gone_are_left_alone(cluster: LocalCluster) -> None:
    cluster.create("orders", 2)
    cluster.stop("c")
    plan = cluster.call(Rebalance(is_dry=True))
    assert (plan.moves, plan.skipped) == ([], 2)


def test_two_who_move_the_same_at_the_same_time_do_not_spoil_it(cluster: LocalCluster) -> None:
    cluster.create("orders", 3)

    async def both() -> None:
        await asyncio.gather(
            cluster._call(Reassign("orders", None, ("a", "b"))), cluster._call(Reassign("orders", None, ("b", "c")))
        )

    cluster.run(both())
    report = cluster.until(lambda report: not any(each.target for each in report.partitions))
    assert all(set(each.replicas) in ({"a", "b"}, {"b", "c"}) for each in report.partitions)


def settings_of(cluster: LocalCluster, topic: str) -> tuple[int | None, int | None]:
    settings = cluster.call(DescribeTopic(topic)).settings
    return settings["replicas"], settings["min_isr"]


def until_set(cluster: LocalCluster, topic: str, *wanted: int) -> None:
    """Whoever leads its first partition may hear of it a moment later."""
    until = time.monotonic() + WITHIN_S
    while (found := settings_of(cluster, topic)) != wanted and time.monotonic() < until:
        pass
    assert found == wanted


def test_the_setting_follows_when_a_topic_is_moved_to_more_or_fewer_nodes(cluster: LocalCluster) -> None:
    cluster.create("orders", 2, replicas=1)
    with penstock.connect(cluster.address) as q, q.consumer("g", "orders", start="earliest", max_retries=0) as consumer:
        q.publish("orders", "bad", partition=0)
        consumer.poll(1, wait="30s")[0].reject("bad")
    cluster.until(lambda report: any(each.topic == "orders.dlq" for each in report.partitions))
    cluster.call(Reassign("orders", None, ("a", "b", "c")))
    # Those that are there may still be published to while only one is in sync, and so may new ones.
    until_set(cluster, "orders", 3, 1)
    until_set(cluster, "orders.dlq", 3, 1)
    cluster.call(ChangeTopic("orders", 3, {}))
    report = cluster.until(lambda report: all(len(each.replicas) == 3 for each in report.partitions))
    assert {each.min_isr for each in report.partitions} == {1}
    cluster.call(Reassign("orders", None, ("a", "b")))
    until_set(cluster, "orders", 2, 1)
    report = cluster.until(lambda report: all(len(each.replicas) == 2 for each in report.partitions))
    cluster.call(ChangeTopic("orders", 4, {"min_isr": 2}))
    report = cluster.until(lambda report: sum(each.topic == "orders" for each in report.partitions) == 4)
    assert {(len(each.replicas), each.min_isr) for each in report.partitions if each.topic == "orders"} == {(2, 2)}


def test_the_setting_stays_while_partitions_of_a_topic_differ_and_goes_back_with_a_move(cluster: LocalCluster) -> None:
    cluster.create("orders", 2)
    cluster.call(Reassign("orders", 0, ("a", "b")))
    assert settings_of(cluster, "orders") == (None, None)
    cluster.call(Reassign("orders", 1, ("b", "c")))
    until_set(cluster, "orders", 2, 2)
    cluster.until(lambda report: not any(each.target for each in report.partitions))
    cluster.start("d")
    with penstock.connect(cluster.address) as q:
        for number in [0, 1] * 5:
            q.publish("orders", bytes(200 * KIB), partition=number)
    # It would take a while: the first frame of each goes, and is paid for before the next.
    cluster.call(Reassign("orders", None, ("a", "b", "d"), throttle=64 * KIB))
    until_set(cluster, "orders", 3, 2)
    cluster.call(CancelMoves("orders", None))
    until_set(cluster, "orders", 2, 2)


def test_a_partition_is_on_no_more_nodes_than_a_topic_may_ask_for(cluster: LocalCluster) -> None:
    cluster.create("orders", 1)
    with pytest.raises(InvalidInput, match="at most 9 replicas, not 10"):
        cluster.call(Reassign("orders", None, tuple(f"n{number}" for number in range(10))))
