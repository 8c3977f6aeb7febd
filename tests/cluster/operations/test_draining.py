"""A node that is to lead nothing: for a restart, or for good."""

from __future__ import annotations

import pytest

import penstock
from cluster_nodes import LocalCluster, found
from penstock.client.cluster_requests import ClusterReport, DrainNode, ElectLeaders, Reassign, UndrainNode
from penstock.cluster.moves import Moves
from penstock.errors import InvalidInput, InvalidSetting, NodeNotFound, NotEnoughReplicas


def leaders(report: ClusterReport, node: str) -> int:
    return sum(each.leader == node for each in report.partitions)


def test_a_drained_node_leads_nothing_and_gets_nothing_until_that_is_undone(cluster: LocalCluster) -> None:
    cluster.create("orders", 6)
    assert leaders(cluster.report(), "b") == 2
    assert cluster.call(DrainNode("b")) == []
    report = cluster.until(lambda report: not leaders(report, "b"))
    assert all("b" in each.in_sync for each in report.partitions)
    assert [node.is_draining for node in report.nodes] == [False, True, False]
    cluster.create("more", 2, replicas=2)
    assert all("b" not in found(cluster.report(), "more", number).replicas for number in range(2))
    for request in (Reassign("more", 0, ("a", "b")), ElectLeaders("orders", 0, "b")):
        with pytest.raises(InvalidInput, match="drained"):
            cluster.call(request)
    with pytest.raises(NotEnoughReplicas):
        cluster.create("three", 1, replicas=3)
    # It stays so when the node was started again.
    cluster.stop("b")
    cluster.start("b")
    report = cluster.until(lambda report: all(len(each.in_sync) == len(each.replicas) for each in report.partitions))
    assert not leaders(report, "b")
    cluster.call(UndrainNode("b"))
    cluster.call(ElectLeaders(None))
    cluster.until(lambda report: leaders(report, "b") == 2)


def test_publishing_and_consuming_go_on_while_a_node_is_drained(cluster: LocalCluster) -> None:
    cluster.create("orders", 6)
    with penstock.connect(cluster.address) as q, q.consumer("g", "orders", start="earliest") as consumer:
        sent = {q.publish("orders", f"{number}").id for number in range(20)}
        cluster.call(DrainNode("a"))
        cluster.until(lambda report: not leaders(report, "a"))
        sent |= {q.publish("orders", f"{number}").id for number in range(20)}
        got: set[str] = set()
        while got != sent:
            for message in consumer.poll(100, wait="100ms"):
                got.add(message.id)
                message.ack()


def test_with_moves_its_replicas_go_elsewhere_if_there_are_nodes_for_them(cluster: LocalCluster) -> None:
    cluster.create("orders", 3)
    with pytest.raises(NotEnoughReplicas):
        cluster.call(DrainNode("c", moves=True))
    assert not any(node.is_draining for node in cluster.report().nodes)
    cluster.start("d")
    moves = cluster.call(DrainNode("c", moves=True))
    assert [move.number for move in moves] == [0, 1, 2]
    report = cluster.until(lambda report: not any("c" in each.replicas for each in report.partitions))
    assert all(sorted(each.replicas) == ["a", "b", "d"] for each in report.partitions)


def test_dead_letters_that_stayed_behind_leave_a_drained_node(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create("orders", 1)
    with penstock.connect(cluster.address) as q, q.consumer("g", "orders", start="earliest", max_retries=0) as consumer:
        q.publish("orders", "bad")
        consumer.poll(1, wait="30s")[0].reject("bad")
    cluster.until(lambda report: any(each.topic == "orders.dlq" for each in report.partitions))
    with monkeypatch.context() as patch:
        # As if the topic of the dead letters were created just after the moves were decided.
        patch.setattr(Moves, "_taken_along", lambda self, wanted: wanted)
        cluster.call(Reassign("orders", 0, ("a", "b")))
    # The controller may have moved them after their partition by now.
    cluster.until(lambda report: len(found(report, "orders", 0).replicas) == 2)
    cluster.call(DrainNode("c", moves=True))
    cluster.until(lambda report: not any("c" in each.replicas for each in report.partitions))


def test_dead_letters_of_partitions_that_are_gone_leave_a_drained_node(cluster: LocalCluster) -> None:
    cluster.create("orders", 3)
    with penstock.connect(cluster.address) as q, q.consumer("g", "orders", start="earliest", max_retries=0) as consumer:
        q.publish("orders", "bad", partition=2)
        consumer.poll(1, wait="30s")[0].reject("bad")
        cluster.until(lambda report: any(each.topic == "orders.dlq" for each in report.partitions))
        q.delete_topic("orders")
        q.create_topic("orders", partitions=1, replicas=2)
    cluster.start("d")
    cluster.call(DrainNode("c", moves=True))
    report = cluster.until(lambda report: not any("c" in each.replicas for each in report.partitions))
    assert set(found(report, "orders.dlq", 2).replicas) == {"a", "b", "d"}


def test_a_node_that_is_gone_for_good_is_emptied_too(cluster: LocalCluster) -> None:
    cluster.create("orders", 3)
    cluster.stop("c")
    cluster.start("d")
    cluster.call(DrainNode("c", moves=True))
    report = cluster.until(lambda report: all("d" in each.in_sync and not each.target for each in report.partitions))
    assert [(node.id, node.is_alive) for node in report.nodes if node.replicas] == [
        ("a", True),
        ("b", True),
        ("d", True),
    ]


def test_what_can_not_be_drained_is_refused(cluster: LocalCluster) -> None:
    with pytest.raises(NodeNotFound):
        cluster.call(DrainNode("x"))
    with pytest.raises(InvalidSetting):
        cluster.call(DrainNode("../controller"))
    with pytest.raises(InvalidInput):
        cluster.call(UndrainNode("a"))
    cluster.call(DrainNode("a"))
    cluster.call(DrainNode("b"))
    with pytest.raises(NotEnoughReplicas):
        cluster.call(DrainNode("c"))
