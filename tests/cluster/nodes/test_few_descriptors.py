"""Nodes that may have fewer files open than they have logs."""

from __future__ import annotations

import pytest

import penstock
from cluster_nodes import LocalCluster
from penstock.client.blocking import Client
from penstock.client.cluster_requests import Reassign
from penstock.errors import TooManyPartitions
from penstock.server import server

DESCRIPTORS = 6
PARTITIONS = 12


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ahead of `cluster`, of each of its nodes."""
    monkeypatch.setattr(server, "shares", lambda limit, connections: (DESCRIPTORS, connections))


def publish_to_all(q: Client, value: bytes) -> None:
    with q.producer("t") as producer:
        for partition in range(PARTITIONS):
            producer.send(value, partition=partition)


def test_a_cluster_with_more_logs_than_descriptors_works_and_its_nodes_start_again(
    few: None, cluster: LocalCluster
) -> None:
    cluster.create("t", PARTITIONS)
    with penstock.connect(cluster.address) as q:
        publish_to_all(q, b"first")
        cluster.stop("c")
        publish_to_all(q, b"second")
        cluster.start("c")
        cluster.until(lambda report: all(len(each.in_sync) == 3 for each in report.partitions))
        cluster.stop("a")
        publish_to_all(q, b"third")
        values = sorted(message.value or b"" for message in q.reader("t"))
        assert values == sorted([b"first", b"second", b"third"] * PARTITIONS)
        got = 0
        with q.consumer("g", "t") as consumer:
            while got < 3 * PARTITIONS:
                for message in consumer.poll(max=100, wait="10s"):
                    message.ack()
                    got += 1
        cluster.start("a")
        cluster.until(lambda report: all(len(each.in_sync) == 3 for each in report.partitions))
    assert not any(node.task.done() for node in cluster.nodes.values())


def test_more_replicas_than_go_with_a_nodes_descriptors_are_refused(few: None, cluster: LocalCluster) -> None:
    cluster.create("t", 2)
    with penstock.connect(cluster.address) as q:
        with pytest.raises(TooManyPartitions, match=r"node [abc] would have") as caught:
            q.create_topic("large", partitions=100)
        assert caught.value.details == {"partitions": 102, "partitions_max": 8 * DESCRIPTORS}
        assert [topic.name for topic in q.topics()] == ["t"]


def test_a_move_that_a_nodes_descriptors_do_not_allow_is_refused_and_moves_nothing(
    few: None, cluster: LocalCluster
) -> None:
    cluster.create("t", 60, replicas=1)
    before = [each.replicas for each in cluster.report().partitions]
    with pytest.raises(TooManyPartitions, match="node a would have 60 partitions"):
        cluster.call(Reassign("t", None, ("a",)))
    assert [each.replicas for each in cluster.report().partitions] == before
