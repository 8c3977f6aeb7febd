"""One partition on one node. The record says which role it has; the role says what comes of events.

Only a newer revision of the record than the newest seen counts, wherever it comes from; and none of an older epoch than
what is in the logs. A node leads an epoch only if the record names its process: not one that ran on it before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.cluster.core.effects import Effect, Reread, Rest
from penstock.cluster.core.events import (
    Begun,
    Event,
    Expired,
    ProposalEnded,
    RecordSeen,
    Stored,
    Tick,
    Trimmed,
    Unanswered,
    WasCut,
    Wrote,
)
from penstock.cluster.core.extent import LOGS, Both
from penstock.cluster.core.follower import Follower
from penstock.cluster.core.leader import Leader
from penstock.cluster.core.messages import Fetch, Reply, Withdraw
from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.core.site import Site


class Replica:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.revision = 0
        self.record: PartitionRecord | None = None
        # None while it rests: nobody leads, or it is not to follow.
        self.role: Leader | Follower | None = None
        # Following would cut off data that may have been committed before etcd was restored. The copy may still lead.
        self.is_quarantined = False

    def step(self, now_us: int, event: Event) -> list[Effect]:
        out: list[Effect] = []
        _STEPS[type(event)](self, now_us, event, out)
        return out

    @property
    def committed(self) -> Both:
        return self.site.committed

    # ---- the record

    def _record_seen(self, now_us: int, event: RecordSeen, out: list[Effect]) -> None:
        if event.revision <= self.revision:
            return
        self.revision = event.revision
        self.record = record = event.record
        role, site = self.role, self.site
        is_host = record is not None and record.hosts(site.node)
        if record is not None and record.epoch < site.last_epoch:
            # An old read, by a process that has just started. The leader of that epoch may still be there, and would
            # have us cut what a later one has counted on.
            self._rest(True, out)
            out.append(Reread())
        elif record is None or not is_host or record.leader is None:
            self._rest(is_host, out)
        elif role is not None and role.epoch == record.epoch:
            if isinstance(role, Leader):
                role.seen(now_us, event.revision, record, out)
        elif self.is_quarantined and record.leader != site.node:
            self._rest(is_host, out)
        elif record.leader != site.node:
            self.role = Follower(site, record.leader, record, out)
        elif record.incarnation == site.incarnation:
            self.is_quarantined = False
            self.role = Leader(site, event.revision, record, now_us, out)
        else:
            self._rest(is_host, out)

    def _rest(self, is_host: bool, out: list[Effect]) -> None:
        self.role = None
        out.append(Rest(is_host, self.revision))

    def _quarantine(self, out: list[Effect]) -> None:
        self.is_quarantined = True
        self._rest(True, out)

    # ---- its logs

    def _wrote(self, now_us: int, event: Wrote, out: list[Effect]) -> None:
        self.site.logs[event.log].wrote(event.end, event.durable)
        if isinstance(self.role, Leader):
            self.role.wrote(now_us, out)
        else:
            self._settled(out)

    def _begun(self, now_us: int, event: Begun, out: list[Effect]) -> None:
        self.site.beginning -= 1
        for log in LOGS:
            own, first = self.site.logs[log], event.firsts[log]
            if first is not None:
                own.lineage.add(event.epoch, first, event.id)
                own.end = max(own.end, first + 1)
        if isinstance(self.role, Leader):
            self.role.begun(now_us, event, out)
        else:
            self._settled(out)

    def _stored(self, now_us: int, event: Stored, out: list[Effect]) -> None:
        self.site.logs[event.log].stored(event.end, event.epochs)
        if event.is_diverged and isinstance(self.role, Follower) and self.role.is_earlier(event.log):
            self._quarantine(out)
        else:
            self._settled(out)

    def _was_cut(self, now_us: int, event: WasCut, out: list[Effect]) -> None:
        self.site.logs[event.log].cut(event.start, event.end)
        self._settled(out)

    def _settled(self, out: list[Effect]) -> None:
        if isinstance(self.role, Follower):
            self.role.ask(out)

    def _expired(self, now_us: int, event: Expired, out: list[Effect]) -> None:
        if isinstance(self.role, Leader):
            self.role.expired(now_us, event.log, event.start, out)

    def _trimmed(self, now_us: int, event: Trimmed, out: list[Effect]) -> None:
        self.site.logs[event.log].trim(event.start)
        self._settled(out)

    # ---- others

    def _fetched(self, now_us: int, event: Fetch, out: list[Effect]) -> None:
        if isinstance(self.role, Leader):
            self.role.fetched(now_us, event, out)
        else:
            out.append(Reply(event.node, event.incarnation, 0, event.request, is_fenced=True))
            if self.record is None or event.epoch > self.record.epoch:
                out.append(Reread())

    def _withdrawn(self, now_us: int, event: Withdraw, out: list[Effect]) -> None:
        if isinstance(self.role, Leader):
            self.role.withdrawn(now_us, event, out)

    def _replied(self, now_us: int, event: Reply, out: list[Effect]) -> None:
        if isinstance(self.role, Follower):
            self.role.replied(now_us, event, out)
            if self.role.is_quarantined:
                self._quarantine(out)

    def _unanswered(self, now_us: int, event: Unanswered, out: list[Effect]) -> None:
        if isinstance(self.role, Follower):
            self.role.unanswered(out)

    def _proposal_ended(self, now_us: int, event: ProposalEnded, out: list[Effect]) -> None:
        if isinstance(self.role, Leader):
            self.role.proposal_ended(now_us, out)

    def _ticked(self, now_us: int, event: Tick, out: list[Effect]) -> None:
        self.site.tick = event
        if self.role is not None:
            self.role.ticked(now_us, out)


_STEPS: dict[type, Callable[[Replica, int, Any, list[Effect]], None]] = {
    RecordSeen: Replica._record_seen,
    ProposalEnded: Replica._proposal_ended,
    Tick: Replica._ticked,
    Wrote: Replica._wrote,
    Begun: Replica._begun,
    Stored: Replica._stored,
    WasCut: Replica._was_cut,
    Expired: Replica._expired,
    Trimmed: Replica._trimmed,
    Unanswered: Replica._unanswered,
    Fetch: Replica._fetched,
    Withdraw: Replica._withdrawn,
    Reply: Replica._replied,
}
