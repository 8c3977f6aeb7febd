"""What an operator does with a cluster, at any of its nodes.

    survey       how it is: nodes, partitions, how far followers are behind
    moves        where replicas are, and which nodes are to be emptied
    elections    who leads

Everything is checked before anything is changed, and then put into etcd, partition by partition, by compare-and-swap.
To carry it out is up to those who lead, and to the controller: nothing is lost if this node dies half way.
"""

from __future__ import annotations

from functools import partial

import msgspec

from penstock.broker.deliveries import groups_beyond
from penstock.client.cluster_requests import (
    CancelMoves,
    ClusterReport,
    DescribeReplicas,
    DiscardCopy,
    DrainNode,
    Elected,
    ElectLeaders,
    Move,
    Plan,
    Reassign,
    Rebalance,
    ReplicaReport,
    SurveyCluster,
    UndrainNode,
)
from penstock.cluster.elections import Elections
from penstock.cluster.etcd.store import Store
from penstock.cluster.hosted import Hosted
from penstock.cluster.moves import Moves
from penstock.cluster.node import Node
from penstock.cluster.records import Records
from penstock.cluster.survey import Survey, Transports, kept_report, replica_report


class Operations:
    """`transport` leads to the other nodes."""

    def __init__(self, node: Node, store: Store, transport: Transports) -> None:
        self._node = node
        self._transport = transport
        self._records = records = Records(node, store)
        self._survey = Survey(node, transport)
        node.controller.ask_for_copies = self._survey.copies
        self._moves = Moves(node, records)
        self._elections = Elections(node, records, self._survey)

    async def survey(self, request: SurveyCluster) -> ClusterReport:
        return await self._survey.report(request.topics)

    async def reassign(self, request: Reassign) -> list[Move]:
        self._node.check_etcd()
        return await self._moves.reassign(request)

    async def cancel(self, request: CancelMoves) -> list[Move]:
        self._node.check_etcd()
        return await self._moves.cancel(request)

    async def rebalance(self, request: Rebalance) -> Plan:
        self._node.check_etcd()
        return await self._moves.rebalance(request)

    async def elect(self, request: ElectLeaders) -> list[Elected]:
        self._node.check_etcd()
        return await self._elections.elect(request)

    async def drain(self, request: DrainNode) -> list[Move]:
        self._node.check_etcd()
        return await self._moves.drain(request)

    async def undrain(self, request: UndrainNode) -> None:
        self._node.check_etcd()
        await self._moves.undrain(request)

    async def discard(self, request: DiscardCopy) -> None:
        if request.node == self._node.name:
            await self._node.discard(request.id)
        elif request.node in self._node.members.live:
            await self._transport(request.node).call(request)
        else:
            raise self._records.unknown(request.node)

    async def replicas(self, request: DescribeReplicas) -> list[ReplicaReport]:
        """Those of this node, for another one that asks."""
        hosted = self._node.hosted
        kept = self._node.kept
        ids = [*hosted, *kept] if request.ids is None else request.ids
        reports = [replica_report(hosted[identity]) for identity in ids if identity in hosted]
        reports += [kept_report(identity, kept[identity]) for identity in ids if identity in kept]
        if not request.with_groups:
            return reports
        found = []
        for report in reports:
            groups = await self._groups_beyond(hosted[report.id]) if report.id in hosted else {}
            found.append(msgspec.structs.replace(report, groups=groups))
        return found

    async def _groups_beyond(self, hosted: Hosted) -> dict[str, int]:
        messages, deliveries = hosted.logs
        if hosted.is_leader:
            return {}
        return await self._node.queue.on_a_reading_thread(partial(groups_beyond, deliveries, messages))
