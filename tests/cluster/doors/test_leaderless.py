"""Doors of a cluster in which nobody leads a partition: the others are told of, and that one is said to be unknown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from cluster_doors import Door
from cluster_nodes import LocalCluster, found
from penstock.server.config import Address
from penstock.server.grpc import penstock_pb2 as pb

ANY_PORT = Address("127.0.0.1", 0)


@pytest.fixture
def own(tmp_path: Path, etcd: str) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path, etcd)
    try:
        cluster.start("a", "b", "c", http=ANY_PORT, grpc=ANY_PORT)
        yield cluster
    finally:
        cluster.close()


def test_topics_and_groups_are_told_of_without_what_nobody_leads(own: LocalCluster) -> None:
    own.create("orders", 3, replicas=1)
    lost = own.partition("orders", 1).leader
    door = Door(own, next(node for node in "abc" if node != lost))
    for number in range(3):
        door.published("orders", "x", partition=number)
    for message in door.polled_all("orders", 3):
        door.answered("release", [message])
    own.stop(lost)
    own.until(lambda report: not found(report, "orders", 1).leader)
    with closing(door.http):
        look(own, door)


def look(own: LocalCluster, door: Door) -> None:
    (topic,) = door.ok("GET", "/v1/topics")["topics"]
    assert ([part["number"] for part in topic["partitions"]], topic["unknown"]) == ([0, 2], [1])
    assert door.ok("GET", "/v1/topics/orders") == topic
    (group,) = door.ok("GET", "/v1/groups")["groups"]
    assert group["lag"] == {"orders": [1, None, 1]}
    assert door.ok("GET", "/v1/groups/g")["lag"] == group["lag"]
    assert door.ok("GET", "/v1/groups/g/parked-keys") == {"keys": [], "unknown": {"orders": [1]}}
    assert door.ok("PATCH", "/v1/groups/g", {"max_retries": 3})["settings"]["max_retries"] == 3
    cluster = door.ok("GET", "/v1/cluster")
    assert (cluster["groups"], cluster["without_leader"]) == (1, 1)

    with grpc.insecure_channel(str(own.nodes[door.node].where.grpc)) as channel:
        get = channel.unary_unary(
            "/penstock.v1.Topics/GetTopic",
            request_serializer=pb.GetTopicRequest.SerializeToString,
            response_deserializer=pb.Topic.FromString,
        )
        told = get(pb.GetTopicRequest(name="orders"), timeout=25)
        assert ([part.number for part in told.partitions], list(told.unknown)) == ([0, 2], [1])
        listed = channel.unary_unary(
            "/penstock.v1.Groups/ListGroups",
            request_serializer=pb.ListGroupsRequest.SerializeToString,
            response_deserializer=pb.ListGroupsReply.FromString,
        )
        (lag,) = listed(pb.ListGroupsRequest(), timeout=25).groups[0].lag
        assert list(lag.messages) == [1, -1, 1]
