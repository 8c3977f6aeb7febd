"""Doors of a cluster in which nobody leads a partition: the others are told of, and that one is said to be unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

import penstock
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


def test_messages_without_a_key_reach_all_partitions_and_do_not_wait_for_those_nobody_leads(own: LocalCluster) -> None:
    own.create("orders", 6, replicas=1)
    leaders = [own.partition("orders", number).leader for number in range(6)]
    lost = leaders[1]
    door = Door(own, next(node for node in "abc" if node != lost))
    with closing(door.http), penstock.connect(own.address) as q:
        producer = q.producer("orders")
        sent = [producer.send(b"x") for _ in range(1_000)]
        producer.flush()
        assert {each.result().partition for each in sent} == set(range(6))
        sent += [producer.send(b"x") for _ in range(9_000)]
        producer.flush()
        counts = Counter(each.result().partition for each in sent)
        assert max(counts.values()) <= 2 * 10_000 / 6
        sent = [producer.send(b"x" * 11_000) for _ in range(1_000)]
        producer.flush()
        counts = Counter(each.result().partition for each in sent)
        assert len(counts) == 6
        assert max(counts.values()) <= 2 * 1_000 / 6
        door.published("orders", "x")
        own.stop(lost)
        own.until(lambda report: not found(report, "orders", 1).leader)
        led = {number for number, leader in enumerate(leaders) if leader != lost}
        for size in (1, 11_000):
            sent = [producer.send(b"x" * size) for _ in range(1_000)]
            producer.flush()
            assert {each.result().partition for each in sent} == led
        assert {q.publish("orders", b"x").partition for _ in range(20)} == led
        assert {int(each.split(":")[1]) for each in door.published("orders", *["x"] * 20)} == led
        assert set(batches_through_grpc(own, door.node, 20)) == led
        producer.close()


def test_a_grpc_client_reaches_all_partitions_with_messages_without_a_key(own: LocalCluster) -> None:
    own.create("orders", 6)
    with grpc.insecure_channel(str(own.nodes["a"].where.grpc)) as channel:
        publish = channel.unary_unary(
            "/penstock.v1.Publisher/Publish",
            request_serializer=pb.PublishRequest.SerializeToString,
            response_deserializer=pb.PublishReply.FromString,
        )
        request = pb.PublishRequest(topic="orders", message=pb.NewMessage(value=b"x"))
        counts: Counter[int] = Counter()
        for _ in range(50):
            publishing = [publish.future(request, timeout=25) for _ in range(200)]
            counts.update(each.result().partition for each in publishing)
            assert counts.total() < 1_000 or len(counts) == 6
        assert max(counts.values()) <= 2 * 10_000 / 6


def batches_through_grpc(own: LocalCluster, node: str, count: int) -> list[int]:
    """The partition of each batch, whose messages have no keys."""
    with grpc.insecure_channel(str(own.nodes[node].where.grpc)) as channel:
        publish = channel.unary_unary(
            "/penstock.v1.Publisher/PublishBatch",
            request_serializer=pb.PublishBatchRequest.SerializeToString,
            response_deserializer=pb.PublishBatchReply.FromString,
        )
        request = pb.PublishBatchRequest(topic="orders", messages=[pb.NewMessage(value=b"x")] * 2)
        replies = [publish(request, timeout=25) for _ in range(count)]
    assert all(len(set(reply.partitions)) == 1 for reply in replies)
    return [reply.partitions[0] for reply in replies]


def look(own: LocalCluster, door: Door) -> None:
    (topic,) = door.ok("GET", "/v1/topics")["topics"]
    assert ([part["number"] for part in topic["partitions"]], topic["unknown"]) == ([0, 2], [1])
    assert door.ok("GET", "/v1/topics/orders") == topic
    (group,) = door.ok("GET", "/v1/groups")["groups"]
    assert group["lag"] == {"orders": [1, None, 1]}
    assert door.ok("GET", "/v1/groups/g")["lag"] == group["lag"]
    assert door.ok("GET", "/v1/groups/g/parked-keys") == {"keys": [], "unknown": {"orders": [1]}, "next": None}
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
