"""Elections that an operator asks for: of the preferred leader, of another, or of one that may lack something."""

from __future__ import annotations

import logging
from functools import partial
from itertools import islice
from typing import NamedTuple

import msgspec

from penstock.client.cluster_requests import Elected, ElectLeaders
from penstock.cluster.core import election
from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.etcd.store import ABSENT
from penstock.cluster.node import Node
from penstock.cluster.records import Records, listed, name_of
from penstock.cluster.survey import Survey
from penstock.errors import InvalidInput, NodeNotFound, NotEnoughReplicas, PenstockError, StaleMetadata

log = logging.getLogger("penstock.cluster")

_TOLD_MAX = 20


class _Copy(NamedTuple):
    """Of a log. One of a later epoch has more of what is committed, also if it is shorter."""

    last_epoch: int
    end: int
    node: str
    # Whose deliveries go beyond its messages, and how far.
    groups: dict[str, int]
    is_quarantined: bool


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
            if record.is_fenced:
                if request.topic is None:
                    continue
                raise NotEnoughReplicas(
                    f"etcd was restored, and not all replicas of {name_of(record)} have reported where their logs end: "
                    "wait a minute, or elect one that may lack acknowledged messages (--unclean --node)",
                    nodes=list(record.hosting),
                )
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
        """Of several it is only told what would be, where there is need and somebody to elect. To give something up is
        said of one partition, for what was told to be lost is what is lost then."""
        if request.topic is None:
            partitions = self._records.all()
        else:
            partitions = self._records.named(request.topic, request.partition)
        # An operator may want a quarantined copy instead of what is led.
        preferred: set[str] = set()
        if request.partition is not None:
            for identity, record in partitions.items():
                try:
                    self._check_lost(record)
                except InvalidInput:
                    if not await self._is_quarantined(identity, record, request.node):
                        raise
                    preferred.add(identity)
        elif not request.is_dry:
            raise InvalidInput("an unclean election is of one partition: TOPIC:PARTITION", argument="partition")
        lost = {
            identity: record
            for identity, record in partitions.items()
            if identity in preferred or self._is_lost(record)
        }
        if not lost:
            raise InvalidInput(
                f"each partition of {request.topic or 'every topic'} has somebody alive with all of it that is "
                "committed: there is no need to give anything up"
            )
        live = self._node.members.live
        copies = await self._copies_of(lost)
        found, failure = [], None
        for identity, record in lost.items():
            try:
                chosen = self._chosen(record, copies[identity], request.node)
            except PenstockError as error:
                failure = failure or error
                continue
            loses = _loses(record, chosen)
            if not request.is_dry:
                await self._lead_unclean(identity, record, chosen, loses, live)
            elected = self._elected(record, chosen.node)
            found.append(msgspec.structs.replace(elected, loses=loses, end=chosen.end, groups=chosen.groups))
        if not found and failure is not None:
            if len(lost) > 1:
                names = ", ".join(f"{record.topic}:{record.number}" for record in islice(lost.values(), _TOLD_MAX))
                more = ", …" if len(lost) > _TOLD_MAX else ""
                told = f"{failure.message}. None of these {len(lost)} can be led: {names}{more}"
                raise type(failure)(told, **failure.details)
            raise failure
        return found

    async def _is_quarantined(self, identity: str, record: PartitionRecord, node: str | None) -> bool:
        if node is None:
            return False
        copy = (await self._copies_of({identity: record}))[identity].get(node)
        return copy is not None and copy.is_quarantined

    async def _lead_unclean(
        self, identity: str, record: PartitionRecord, chosen: _Copy, loses: str, live: election.Live
    ) -> None:
        """`live` is as it was before the copies were looked at: a process that has come since may have another disk."""
        node = chosen.node
        elected = election.elect_unclean(record, node, live)
        registered = live[node]

        def decide(now: PartitionRecord) -> PartitionRecord | None:
            is_as_told = now == record and self._node.members.live.get(node) == registered
            return elected if is_as_told and (chosen.is_quarantined or self._is_lost(now)) else None

        # Somebody in sync may come back at any moment, and who is to lead may go.
        keys = {self._node.keys.broker(name) for name in (node, *(member.node for member in record.isr))}
        items = {key: self._node.view.get(key) for key in keys}
        known = {key: ABSENT if item is None else item.revision for key, item in items.items()}
        if not await self._records.change(identity, decide, guards=known):
            raise StaleMetadata(f"{name_of(record)} has changed meanwhile; look again", partition=identity)
        log.warning("unclean election: %s", loses)

    async def _copies_of(self, lost: dict[str, PartitionRecord]) -> dict[str, dict[str, _Copy]]:
        """By partition and node, of those who answer."""
        heard, _ = await self._survey.replicas(tuple(lost), with_groups=True)
        copies: dict[str, dict[str, _Copy]] = {identity: {} for identity in lost}
        for (node, identity), told in heard.items():
            # An older version does not say of which epoch its copy is.
            is_said = told.last_epoch > 0 or told.ends[0] == told.starts[0]
            if is_said and lost[identity].hosts(node) and node in self._node.members.live:
                copies[identity][node] = _Copy(told.last_epoch, told.ends[0], node, told.groups, bool(told.quarantined))
        return copies

    def _chosen(self, record: PartitionRecord, copies: dict[str, _Copy], wanted: str | None) -> _Copy:
        """Who is wanted, or who has most of it."""
        if wanted is not None:
            if wanted not in copies:
                raise NodeNotFound(
                    f"{wanted} is not alive, or has no copy of {name_of(record)}; those that have one: "
                    f"{listed(sorted(copies))}",
                    nodes=sorted(copies),
                )
            return copies[wanted]
        mute = [node for node in record.hosting if node in self._node.members.live and node not in copies]
        if mute:
            raise NotEnoughReplicas(
                f"{listed(mute)} has not said how far its copy of {name_of(record)} goes: try again, or name who is to "
                "lead (--node)",
                nodes=mute,
            )
        if not copies:
            raise NotEnoughReplicas(
                f"no node with a copy of {name_of(record)} is alive; those that have one: {listed(record.hosting)}",
                nodes=list(record.hosting),
            )
        return max(copies.values())

    def _is_lost(self, record: PartitionRecord) -> bool:
        """It has no leader, and no node that is alive surely has all that is committed."""
        live = self._node.members.live
        return record.is_fenced or (not election.is_led(record, live) and not self._in_sync(record))

    def _check_lost(self, record: PartitionRecord) -> None:
        if record.is_fenced:
            return
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
                    f"{node}, the preferred leader of {name_of(record)}, is not alive; others that are, and in sync "
                    f"(--node): {listed(self._in_sync(record))}",
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


def _loses(record: PartitionRecord, copy: _Copy) -> str:
    missing = ", ".join(f"{member.node} (disk {member.disk[:8]})" for member in record.isr)
    if copy.is_quarantined:
        leader = record.leader or "any other replica"
        return (
            f"{copy.node}'s quarantined copy, which ends at offset {copy.end} of epoch {copy.last_epoch}, becomes "
            f"{name_of(record)}; what {leader} has that this copy lacks is lost for good, with what groups did there, "
            "and its offsets are given out again"
        )
    groups = ", ".join(f"{group} (at offset {reached})" for group, reached in sorted(copy.groups.items()))
    set_back = f". Groups that had come further are set back to offset {copy.end}: {groups}" if groups else ""
    return (
        f"{copy.node}'s copy of {name_of(record)} ends at offset {copy.end}; what was acknowledged beyond it, and only "
        f"{missing} had, is lost for good, with what groups did there, and its offsets are given out again{set_back}"
    )
