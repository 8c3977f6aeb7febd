"""What an operator asks of a cluster, at any node; and what nodes ask each other for it."""

from __future__ import annotations

from penstock.client.cluster_requests import (
    CancelMoves,
    ClusterReport,
    DescribeReplicas,
    DiscardCopy,
    DrainNode,
    Elected,
    ElectLeaders,
    FindGroups,
    GroupsIn,
    Move,
    Plan,
    Reassign,
    Rebalance,
    ReplicaReport,
    SurveyCluster,
    UndrainNode,
)
from penstock.local.handlers import Site, handles
from penstock.local.placement import cluster_of


@handles(SurveyCluster)
async def survey_cluster(site: Site, request: SurveyCluster) -> ClusterReport:
    return await cluster_of(site).operations.survey(request)


@handles(Reassign)
async def reassign(site: Site, request: Reassign) -> list[Move]:
    return await cluster_of(site).operations.reassign(request)


@handles(CancelMoves)
async def cancel_moves(site: Site, request: CancelMoves) -> list[Move]:
    return await cluster_of(site).operations.cancel(request)


@handles(Rebalance)
async def rebalance(site: Site, request: Rebalance) -> Plan:
    return await cluster_of(site).operations.rebalance(request)


@handles(ElectLeaders)
async def elect_leaders(site: Site, request: ElectLeaders) -> list[Elected]:
    return await cluster_of(site).operations.elect(request)


@handles(DrainNode)
async def drain_node(site: Site, request: DrainNode) -> list[Move]:
    return await cluster_of(site).operations.drain(request)


@handles(UndrainNode)
async def undrain_node(site: Site, request: UndrainNode) -> None:
    await cluster_of(site).operations.undrain(request)


@handles(DiscardCopy)
async def discard_copy(site: Site, request: DiscardCopy) -> None:
    await cluster_of(site).operations.discard(request)


@handles(DescribeReplicas)
async def describe_replicas(site: Site, request: DescribeReplicas) -> list[ReplicaReport]:
    return await cluster_of(site).operations.replicas(request)


@handles(FindGroups)
async def find_groups(site: Site, request: FindGroups) -> GroupsIn:
    return cluster_of(site).groups_in(request)
