"""Elections that an operator asks for: of the preferred leader, of another, or of one that may lack something."""

from __future__ import annotations

import logging
from functools import partial

import msgspec

from penstock.client.cluster_requests import Elected, ElectLeaders
from penstock.cluster.core import election
from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.node import Node
from penstock.cluster.records import Records, listed, name_of
from penstock.cluster.survey import Survey
from penstock.errors import InvalidInput, NodeNotFound, NotEnoughReplicas, PenstockError, StaleMetadata

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
                self._check_candidate(record, leader, is_preferred=request.node is None)
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
        """One that is named is refused if there is no need, or nobody to elect. Of several, such are left alone."""
        if request.topic is None:
            partitions = self._records.all()
        else:
            partitions = self._records.named(request.topic, request.partition)
        if request.partition is not None:
            for record in partitions.values():
                self._check_lost(record)
        lost = {identity: record for identity, record in partitions.items() if self._is_lost(record)}
        if not lost:
            raise InvalidInput(
                f"each partition of {request.topic or 'every topic'} has somebody alive with all of it that is "
                "committed: there is no need to give anything up"
            )
        ends = await self._copies_of(lost)
        chosen = {identity: node for identity in lost if (node := _longest(ends[identity], request.node))}
        if not chosen:
            raise _nobody(request.node, lost, ends)
        found = []
        for identity, node in chosen.items():
            record = lost[identity]
            loses = _loses(record, node, ends[identity][node])
            elected_as = msgspec.structs.replace(self._elected(record, node), loses=loses)
            if request.is_dry or await self._lead_unclean(identity, record, node, loses):
                found.append(elected_as)
            elif request.partition is not None:
                raise StaleMetadata(f"{name_of(record)} has changed meanwhile; look again", partition=identity)
        return found

    async def _lead_unclean(self, identity: str, record: PartitionRecord, node: str, loses: str) -> bool:
        """False if that has changed meanwhile: somebody in sync may have come back, or who was to lead may be gone."""
        if node not in self._node.members.live:
            return False
        elected = election.elect_unclean(record, node, self._node.members.live)
        is_done = await self._records.change(identity, lambda now: elected if now == record else None)
        if is_done:
            log.warning("unclean election: %s", loses)
        return is_done

    async def _copies_of(self, lost: dict[str, PartitionRecord]) -> dict[str, dict[str, int]]:
        """By partition, where the copies end of those who answer."""
        heard, _ = await self._survey.replicas(tuple(lost))
        ends: dict[str, dict[str, int]] = {identity: {} for identity in lost}
        for (node, identity), told in heard.items():
            if lost[identity].hosts(node) and node in self._node.members.live:
                ends[identity][node] = told.ends[0]
        return ends

    def _is_lost(self, record: PartitionRecord) -> bool:
        """Nobody leads it, and nobody will who is alive."""
        live = self._node.members.live
        return not election.is_led(record, live) and not self._in_sync(record)

    def _check_lost(self, record: PartitionRecord) -> None:
        if election.is_led(record, self._node.members.live):
            raise InvalidInput(
                f"{name_of(record)} is led by {record.leader}, which has all that is committed: there is no need to "
                "give anything up. If it takes no messages since too few replicas are in sync, have them come back, "
                f"or lower min_isr (penstock topic set {record.topic} --min-isr N)",
                leader=record.leader,
            )
        in_sync = self._in_sync(record)
        if in_sync:
            raise InvalidInput(
                f"{in_sync[0]} is alive and has all of {name_of(record)} that is committed: elect it without --unclean",
                nodes=in_sync,
            )

    def _in_sync(self, record: PartitionRecord) -> list[str]:
        return [node for node in record.hosting if self._is_candidate(record, node)]

    def _check_candidate(self, record: PartitionRecord, node: str, *, is_preferred: bool) -> None:
        if node not in self._node.members.live:
            if is_preferred:
                raise NodeNotFound(
                    f"{node}, the preferred leader of {name_of(record)}, is not alive; alive and in sync are "
                    f"{listed(self._in_sync(record))}: name one of them (--node)",
                    node=node,
                )
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


# --- giving up what only lost disks have ---------------------------------------------------------------------


def _longest(ends: dict[str, int], wanted: str | None) -> str | None:
    """Who has most of it, or who is wanted; None if there is no such copy."""
    if wanted is not None:
        return wanted if wanted in ends else None
    return max(ends, key=lambda name: (ends[name], name), default=None)


def _nobody(wanted: str | None, lost: dict[str, PartitionRecord], ends: dict[str, dict[str, int]]) -> PenstockError:
    what = name_of(next(iter(lost.values()))) if len(lost) == 1 else f"any of {len(lost)} partitions without a leader"
    having = sorted({node for each in ends.values() for node in each})
    if wanted is not None:
        return NodeNotFound(
            f"{wanted} is not alive, or has no copy of {what}; those that have one: {listed(having)}", nodes=having
        )
    hosting = sorted({node for record in lost.values() for node in record.hosting})
    return NotEnoughReplicas(f"no node with a copy of {what} is alive: {listed(hosting)}", nodes=hosting)


def _loses(record: PartitionRecord, node: str, end: int) -> str:
    missing = ", ".join(f"{member.node} (disk {member.disk[:8]})" for member in record.isr)
    return (
        f"{node}'s copy of {name_of(record)} ends at offset {end}; what was acknowledged beyond it, and only {missing} "
        "had, is lost for good, with what groups did there, and its offsets are given out again"
    )
