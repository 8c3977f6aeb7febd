"""Routes about the broker itself, and the cluster that it may be a node of."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import UNSET

import penstock
from penstock.client.placement import ClusterInfo, DescribeCluster, FindPlacement
from penstock.client.requests import ListGroups, ListTopics
from penstock.clock import rfc3339
from penstock.errors import EtcdError, StorageError, TopicNotFound
from penstock.server.http import shapes
from penstock.server.http.desk import AnyAsked, Asked, Desk
from penstock.server.http.routes import Route

# Of a broker on its own.
NAME = "penstock"


async def health(desk: Desk, asked: Asked[None, Any]) -> shapes.Status:
    return shapes.Status(status="ok")


async def ready(desk: Desk, asked: Asked[None, Any]) -> shapes.Status:
    desk.check_ready()
    info = await desk.site.call(DescribeCluster())
    return shapes.Status(status="ready", etcd="unreachable" if info.is_cut_off else UNSET)


async def cluster(desk: Desk, asked: Asked[None, Any]) -> shapes.Cluster:
    """Of what there is, as much as one may know of."""
    info = await asked.site.call(DescribeCluster())
    with asked.site.slow():
        groups, placed = await asked.site.visible(ListGroups()), await _placed(desk, asked, info)
    return shapes.Cluster(
        mode="cluster" if info.nodes else "single",
        node=info.node or NAME,
        nodes=_nodes(desk, info, placed),
        topics=len({one.topic for one in placed}),
        partitions=len(placed),
        groups=len(groups),
        id=info.id or UNSET,
        controller=info.controller or UNSET,
        etcd=("unreachable" if info.is_cut_off else "reachable") if info.nodes else UNSET,
        without_leader=sum(one.leader is None for one in placed),
        under_replicated=sum(map(_is_under_replicated, placed)),
        under_min_isr=sum(map(_is_under_min_isr, placed)),
    )


def _nodes(desk: Desk, info: ClusterInfo, placed: list[shapes.PlacedPartition]) -> list[shapes.Node]:
    """Those that are there, and those that others miss."""
    leads = Counter(one.leader for one in placed)
    replicas = Counter(node for one in placed for node in one.replicas)
    known = {node.id: node for node in info.nodes}
    found = []
    for name in sorted({*known, *replicas, info.node or NAME}):
        node, is_here = known.get(name), name == (info.node or NAME)
        found.append(
            shapes.Node(
                name=name,
                version=penstock.__version__ if is_here else (node.version if node is not None else "") or UNSET,
                started_at=rfc3339(desk.started_us) if is_here else UNSET,
                now=rfc3339(desk.site.now_us()) if is_here else UNSET,
                is_alive=is_here or node is not None,
                leads=leads[name],
                replicas=replicas[name],
                native=(node.native if node is not None else "") or UNSET,
                http=(node.http if node is not None else "") or UNSET,
                grpc=(node.grpc if node is not None else "") or UNSET,
                rack=(node.rack if node is not None else "") or UNSET,
            )
        )
    return found


async def placement(desk: Desk, asked: Asked[None, shapes.PlacementQuery]) -> shapes.Placement:
    query = asked.query
    info = await asked.site.call(DescribeCluster())
    with asked.site.slow():
        found = await _placed(desk, asked, info, query.topic)
    if query.topic is not None and not found:
        raise TopicNotFound.named(query.topic)
    if query.under_replicated:
        found = [one for one in found if _is_under_replicated(one)]
    if query.under_min_isr:
        found = [one for one in found if _is_under_min_isr(one)]
    return shapes.Placement(partitions=found)


async def _placed(
    desk: Desk, asked: AnyAsked, info: ClusterInfo, topic: str | None = None
) -> list[shapes.PlacedPartition]:
    """By topic and number. Of a broker on its own, which has everything, all is there."""
    if not info.nodes:
        broker = desk.site.broker
        names = [name for name in await asked.site.visible(ListTopics()) if topic in (None, name)]
        return await broker.walk(
            shapes.PlacedPartition(name, number, NAME, 0, [NAME], [NAME], 1)
            for name in names
            if broker.has_topic(name)
            for number in range(broker.topic(name).count)
        )
    alive = {node.id for node in info.nodes}
    found = await asked.site.call(FindPlacement(() if topic is None else (topic,)))
    return [
        shapes.PlacedPartition(
            one.name,
            part.number,
            part.leader or None,
            part.epoch,
            list(part.replicas),
            [node for node in part.in_sync if node in alive],
            part.min_isr,
        )
        for one in sorted(found.topics, key=lambda one: one.name)
        for part in one.partitions
    ]


def _is_under_replicated(one: shapes.PlacedPartition) -> bool:
    return not set(one.replicas) <= set(one.in_sync)


def _is_under_min_isr(one: shapes.PlacedPartition) -> bool:
    return len(one.in_sync) < one.min_isr


_PLACED_EXAMPLE = {
    "topic": "orders",
    "partition": 0,
    "leader": "a",
    "epoch": 3,
    "replicas": ["a", "b", "c"],
    "in_sync": ["a", "c"],
    "min_isr": 2,
}
ROUTES = (
    Route("GET", "/health", health, "The process is there.", reply=shapes.Status, is_open=True),
    Route(
        "GET",
        "/ready",
        ready,
        "The broker takes and gives messages. A node of a cluster has joined it, and serves what it leads; "
        "without etcd, as long as it has its followers.",
        reply=shapes.Status,
        errors=(StorageError, EtcdError),
        is_open=True,
    ),
    Route("GET", "/v1/cluster", cluster, "The nodes, and how much there is.", reply=shapes.Cluster),
    Route(
        "GET",
        "/v1/cluster/partitions",
        placement,
        "Which node leads which partition, and which have a copy.",
        query=shapes.PlacementQuery,
        reply=shapes.Placement,
        errors=(TopicNotFound,),
        reply_example={"partitions": [_PLACED_EXAMPLE]},
    ),
)
