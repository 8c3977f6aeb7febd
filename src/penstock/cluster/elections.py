"""Elections that an operator asks for: of the preferred leader, of another, or of one that may lack something."""

from __future__ import annotations

import logging
from functools import partial

import msgspec

from penstock.client.cluster_requests import Elected, ElectLeaders
from penstock.cluster.core import election
from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.node import Node
from penstock.cluster.records import Records, name_of
from penstock.cluster.survey import Survey
from penstock.errors import InvalidInput, NodeNotFound, NotEnoughReplicas, StaleMetadata

log = logging.getLogger("penstock.cluster")


class Elections:
    def __init__(self, node: Node, records: Records, survey: Survey) -> None:
        self._node = node
        self._records = records
        self._survey = survey

    async def elect(self, request: ElectLeaders) -> list[Elected]:
        await self._records.refresh()
        if request.is_unclean:
            return await self._elect_unclean(request)
        if request.topic is None:
            partitions = self._records.units()
        else:
            self._records.check_together(request.topic)
            partitions = self._records.named(request.topic, request.partition)
        live = self._node.members.live
        wanted = {}
        for identity, record in partitions.items():
            leader = record.replicas[0] if request.node is None else request.node
            if request.topic is None and not (
                leader in self._node.members.usable and self._is_candidate(record, leader)
            ):
                # Of all there are, those that can be.
                continue
            if record.leader != leader or not election.is_led(record, live):
                self._check_candidate(record, leader)
                wanted[identity] = leader
        found = [self._elected(self._records.record(identity), leader) for identity, leader in wanted.items()]
        if not request.is_dry:
            for identity, leader in wanted.items():
                await self._records.change(identity, partial(self._led_by, leader))
        return found

    def _led_by(self, leader: str, record: PartitionRecord) -> PartitionRecord | None:
        live = self._node.members.live
        if election.is_led(record, live):
            return election.hand_over(record, leader, live)
        return election.elect(record, {leader: live[leader]}) if leader in live else None

    async def _elect_unclean(self, request: ElectLeaders) -> list[Elected]:
        if request.topic is None or request.partition is None:
            raise InvalidInput("an unclean election is of one partition: TOPIC:PARTITION", argument="partition")
        ((identity, record),) = self._records.named(request.topic, request.partition).items()
        live = self._node.members.live
        if election.is_led(record, live):
            raise InvalidInput(
                f"{name_of(record)} is led by {record.leader}, which has all that is committed: there is no need to "
                "give anything up. If it takes no messages since too few replicas are in sync, have them come back, "
                f"or lower min_isr (penstock topic set {record.topic} --min-isr N)",
                leader=record.leader,
            )
        in_sync = [node for node in record.hosting if self._is_candidate(record, node)]
        if in_sync:
            raise InvalidInput(
                f"{in_sync[0]} is alive and has all of {name_of(record)} that is committed: elect it without --unclean",
                nodes=in_sync,
            )
        heard, _ = await self._survey.replicas((identity,))
        ends = {node: told.ends[0] for (node, _), told in heard.items() if record.hosts(node)}
        node = request.node
        if node is None:
            if not ends:
                raise NotEnoughReplicas(
                    f"no node with a copy of {name_of(record)} is alive: {', '.join(record.hosting)}",
                    partition=identity,
                )
            node = max(ends, key=lambda name: (ends[name], name))
        elif node not in ends:
            raise NodeNotFound(
                f"{node} is not alive, or has no copy of {name_of(record)}; those that have one: "
                f"{', '.join(sorted(ends)) or 'none'}",
                nodes=sorted(ends),
            )
        elected = election.elect_unclean(record, node, live)
        missing = ", ".join(f"{member.node} (disk {member.disk[:8]})" for member in record.isr)
        elected_as = self._elected(record, node)
        loses = (
            f"{node}'s copy of {name_of(record)} ends at offset {ends[node]}; what was acknowledged beyond it, and "
            f"only {missing} had, is lost for good, with what groups did there, and its offsets are given out again"
        )
        if not request.is_dry:

            def decide(now: PartitionRecord) -> PartitionRecord | None:
                # Somebody in sync may have come back meanwhile.
                return elected if now == record else None

            if not await self._records.change(identity, decide):
                raise StaleMetadata(f"{name_of(record)} has changed meanwhile; look again", partition=identity)
            log.warning("unclean election: %s", loses)
        return [msgspec.structs.replace(elected_as, loses=loses)]

    def _check_candidate(self, record: PartitionRecord, node: str) -> None:
        if node not in self._node.members.live:
            raise self._records.unknown(node)
        if not record.hosts(node):
            raise InvalidInput(
                f"{node} has no replica of {name_of(record)}; {', '.join(record.replicas)} have", node=node
            )
        if node in self._node.members.draining:
            raise InvalidInput(f"{node} is being drained; it leads nothing until that is undone", node=node)
        if not self._is_candidate(record, node):
            raise NotEnoughReplicas(
                f"{node} is not in sync with {name_of(record)}, and would lose what is acknowledged; in sync are "
                f"{', '.join(member.node for member in record.isr)}",
                node=node,
            )

    def _is_candidate(self, record: PartitionRecord, node: str) -> bool:
        registered = self._node.members.live.get(node)
        return registered is not None and record.is_in_sync(node, registered.disk)

    def _elected(self, record: PartitionRecord, leader: str) -> Elected:
        before = record.leader if election.is_led(record, self._node.members.live) else None
        return Elected(record.topic, record.number, before or "", leader)
