"""How the cluster is, for an operator: what etcd says of it, and what those who lead say of their followers.

Nodes are asked all at once. One that does not answer in time is told to be silent, and nothing is made up for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from penstock.client.cluster_requests import (
    ClusterReport,
    DescribeReplicas,
    FollowerReport,
    NodeReport,
    PartitionReport,
    QuarantinedCopy,
    ReplicaReport,
)
from penstock.client.transport import Transport
from penstock.cluster.core.election import Copy, is_led
from penstock.cluster.core.leader import Leader
from penstock.cluster.core.record import Member, PartitionRecord
from penstock.cluster.hosted import Hosted
from penstock.cluster.node import KeptCopy, Node
from penstock.errors import PenstockError, TopicNotFound

# A node that is alive answers in milliseconds; one that has just died is alive for etcd until its session is over.
PATIENCE_S = 2.0
# If it has to read deliveries logs first.
READING_PATIENCE_S = 20.0

Transports = Callable[[str], Transport]


class Survey:
    def __init__(self, node: Node, transport: Transports) -> None:
        self._node = node
        self._transport = transport

    async def report(self, topics: Sequence[str] = ()) -> ClusterReport:
        node = self._node
        records = [record for record in node.catalog.topics if not topics or record.name in topics]
        for name in topics:
            if not node.catalog.has_topic(name):
                raise TopicNotFound.named(name)
        ids = tuple(identity for record in records for identity in record.partitions) if topics else None
        heard, silent = await self.replicas(ids)
        partitions = [
            self._partition(identity, placed.record, heard)
            for record in records
            for identity in record.partitions
            if (placed := node.partitions.get(identity)) is not None
        ]
        return ClusterReport(
            node.id,
            node.name,
            node.view.revision,
            node.controller.node,
            self._nodes(),
            len(records),
            tuple(partitions),
            silent,
            node.feeding.throttle.rate,
            node.is_cut_off,
            self._quarantined(heard),
            node.levels.finalized,
        )

    def _quarantined(self, heard: Mapping[tuple[str, str], ReplicaReport]) -> tuple[QuarantinedCopy, ...]:
        found = []
        for (node, identity), told in sorted(heard.items()):
            if told.quarantined:
                placed = self._node.partitions.get(identity)
                topic, number = ("", -1) if placed is None else (placed.record.topic, placed.record.number)
                span = told.starts[0], told.ends[0]
                found.append(QuarantinedCopy(node, identity, topic, number, told.last_epoch, *span, told.quarantined))
        return tuple(found)

    async def replicas(
        self, ids: tuple[str, ...] | None, *, with_groups: bool = False
    ) -> tuple[dict[tuple[str, str], ReplicaReport], tuple[str, ...]]:
        """By node and partition, and the nodes that did not answer."""
        names = sorted(self._node.members.brokers)
        answers = await asyncio.gather(*[self._asked(name, DescribeReplicas(ids, with_groups)) for name in names])
        heard = {(name, one.id): one for name, answer in zip(names, answers, strict=True) if answer for one in answer}
        return heard, tuple(name for name, answer in zip(names, answers, strict=True) if answer is None)

    async def copies(self, ids: tuple[str, ...]) -> dict[str, dict[str, Copy]]:
        """By partition and node, of those that answer."""
        found: dict[str, dict[str, Copy]] = {}
        heard, _ = await self.replicas(ids)
        for (node, identity), told in heard.items():
            found.setdefault(identity, {})[node] = Copy(told.last_epoch, told.ends)
        return found

    async def _asked(self, node: str, request: DescribeReplicas) -> list[ReplicaReport] | None:
        try:
            async with asyncio.timeout(READING_PATIENCE_S if request.with_groups else PATIENCE_S):
                return await self._transport(node).call(request)
        except (PenstockError, TimeoutError):
            return None

    def _partition(
        self, identity: str, record: PartitionRecord, heard: Mapping[tuple[str, str], ReplicaReport]
    ) -> PartitionReport:
        leader = record.leader if is_led(record, self._node.members.live) else None
        told = heard.get((leader, identity)) if leader is not None else None
        if told is not None and (not told.is_leader or told.epoch != record.epoch):
            # It has become so a moment ago, or does not know yet that it is no more.
            told = None
        followers = [_follower(node, told) for node in record.hosting if node != leader]
        lagging = () if told is None else told.lagging
        return PartitionReport(
            record.topic,
            record.number,
            identity,
            leader or "",
            record.epoch,
            record.replicas,
            tuple(member.node for member in record.isr if self._is_there(member) and member.node not in lagging),
            record.min_isr,
            record.target,
            tuple(followers),
            -1 if told is None else told.starts[0],
            -1 if told is None else told.ends[0],
            tuple(member.node for member in record.isr),
        )

    def _is_there(self, member: Member) -> bool:
        registered = self._node.members.live.get(member.node)
        return registered is not None and registered.disk == member.disk

    def _nodes(self) -> tuple[NodeReport, ...]:
        members = self._node.members
        leaders: Counter[str] = Counter()
        replicas: Counter[str] = Counter()
        for record in self._node.partitions.records():
            replicas.update(record.replicas)
            if record.leader is not None and is_led(record, members.live):
                leaders[record.leader] += 1
        found = []
        for name in sorted({*members.brokers, *replicas, *members.draining}):
            broker = members.brokers.get(name)
            known = (name, broker is not None, name in members.draining, leaders[name], replicas[name])
            if broker is None:
                found.append(NodeReport(*known))
            else:
                doors = broker.native, broker.http, broker.grpc
                found.append(NodeReport(*known, *doors, broker.rack, broker.version, broker.disk, broker.since_us))
        return tuple(found)


def _follower(node: str, told: ReplicaReport | None) -> FollowerReport:
    ends = None if told is None else told.followers.get(node)
    if told is None or ends is None:
        return FollowerReport(node)
    return FollowerReport(node, max(0, told.ends[0] - ends[0]), max(0, told.ends[1] - ends[1]))


def replica_report(hosted: Hosted) -> ReplicaReport:
    """Of a copy on this node."""
    messages, deliveries = hosted.logs
    role = hosted.replica.role
    followers = {}
    if isinstance(role, Leader):
        followers = {node: progress.ends for node, progress in role.followers.items() if progress.ends is not None}
    return ReplicaReport(
        hosted.identity,
        hosted.epoch,
        hosted.is_leader,
        (messages.start_offset, deliveries.start_offset),
        (messages.end_offset, deliveries.end_offset),
        followers,
        hosted.lagging(),
        messages.last_epoch,
        quarantined=hosted.quarantined,
    )


def kept_report(identity: str, copy: KeptCopy) -> ReplicaReport:
    """Of a quarantined copy on this node that is not hosted."""
    return ReplicaReport(identity, 0, False, copy.starts, copy.ends, last_epoch=copy.epoch, quarantined=copy.why)
