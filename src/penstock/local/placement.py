"""Where things are: asked of any node of a cluster, or of a broker on its own, which has everything."""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap64

from penstock.broker.broker import Broker
from penstock.broker.copies import has_published
from penstock.client.placement import (
    AssignPartition,
    ClusterInfo,
    Coordinator,
    CountMessages,
    DescribeCluster,
    FindCoordinator,
    FindLeft,
    FindOwners,
    FindPlacement,
    FindPublished,
    KeepAlive,
    Owner,
    Placement,
    StartGroup,
)
from penstock.errors import PenstockError, Unsupported
from penstock.local.handlers import Cluster, Site, handles


@handles(DescribeCluster)
async def describe_cluster(site: Site, request: DescribeCluster) -> ClusterInfo:
    return ClusterInfo() if site.cluster is None else site.cluster.describe()


@handles(FindPlacement)
async def find_placement(site: Site, request: FindPlacement) -> Placement:
    return await cluster_of(site).placement(request.topics, site.broker.walk)


@handles(FindCoordinator)
async def find_coordinator(site: Site, request: FindCoordinator) -> Coordinator:
    return cluster_of(site).coordinator(request.group)


@handles(StartGroup, awaits_replicas=True)
async def start_group(site: Site, request: StartGroup) -> None:
    await cluster_of(site).start_group(request)


@handles(AssignPartition, awaits_replicas=True)
async def assign_partition(site: Site, request: AssignPartition) -> bool:
    return await cluster_of(site).assign(request)


@handles(FindOwners)
async def find_owners(site: Site, request: FindOwners) -> list[Owner]:
    return cluster_of(site).owners(request)


@handles(KeepAlive)
async def keep_alive(site: Site, request: KeepAlive) -> list[bool]:
    return [_is_alive(site.broker, *member) for member in request.members]


def _is_alive(broker: Broker, group: str, consumer: str) -> bool:
    try:
        broker.consumers.heartbeat(group, consumer)
    except PenstockError:
        return False
    return True


@handles(FindLeft)
async def find_left(site: Site, request: FindLeft) -> list[BitMap64]:
    return left_of(site.broker, request.group, request.topic, request.partition, request.leases)


@handles(FindPublished)
async def find_published(site: Site, request: FindPublished) -> bool:
    partition = site.broker.topic(request.topic).partition(request.partition)
    return await site.broker.on_a_reading_thread(lambda: has_published(partition, request.since, request.producer))


@handles(CountMessages)
async def count_messages(site: Site, request: CountMessages) -> int:
    partition = site.broker.topic(request.topic).partition(request.partition)
    return partition.reading.count(request.first, request.last)


def left_of(broker: Broker, group: str, topic: str, partition: int, leases: Sequence[int]) -> list[BitMap64]:
    groups = broker.topic(topic).partition(partition).groups
    held = groups.state(group).leases if groups.has(group) else {}
    return [BitMap64() if (lease := held.get(number)) is None else lease.offsets for number in leases]


def cluster_of(site: Site) -> Cluster:
    if site.cluster is None:
        raise Unsupported("this broker is on its own, in no cluster")
    return site.cluster
