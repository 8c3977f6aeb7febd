"""A leader hands over: because it was asked to (`successor`), or because the replicas are to be others (`target`).

It takes no writes while the heir catches up, then puts the heir into the record itself, at the next epoch. If that
takes too long it goes on leading. Whatever becomes of the proposal, it is as safe as any election: the heir is in sync.

Once all of `target` are in the ISR they become the replicas, also at the next epoch, be it with the same leader. Nobody
is dropped otherwise: so what a replica said before can't be taken for something it says after it has come back empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.cluster.core.record import PartitionRecord
from penstock.cluster.core.site import Site

if TYPE_CHECKING:
    from penstock.cluster.core.leader import Leader


class Succession:
    def __init__(self, site: Site) -> None:
        self._site = site
        # Since when no writes are taken for it.
        self._since_us: int | None = None
        self._not_before_us = 0
        # It has begun or was given up, and nobody was told yet.
        self.has_changed = False

    @property
    def is_under_way(self) -> bool:
        return self._since_us is not None

    def heir(self, now_us: int, leader: Leader) -> PartitionRecord | None:
        """The record with another leader, or other replicas, if it is time for that."""
        record = leader.ballot.record
        is_moved = bool(record.target) and all(record.disk_of(node) is not None for node in record.target)
        node = self._next(record, is_moved) if leader.is_open else None
        if node is None:
            self._end()
            return None
        if node == self._site.node:
            return _handed_over(record, node, self._site.incarnation, is_moved)
        if self._since_us is None:
            if now_us < self._not_before_us:
                return None
            self._since_us = now_us
            self.has_changed = True
        elif now_us - self._since_us >= self._site.timing.handover_us:
            self._not_before_us = now_us + self._site.timing.lag_us
            self._end()
            return None
        progress = leader.followers.get(node)
        if progress is None or progress.ends != self._site.ends or not self._site.is_settled:
            return None
        if self._site.committed != self._site.ends and now_us - self._since_us < self._site.timing.settling_us:
            return None
        return _handed_over(record, node, progress.incarnation, is_moved)

    def _next(self, record: PartitionRecord, is_moved: bool) -> str | None:
        if is_moved and self._site.node in record.target:
            return self._site.node
        names = record.target if is_moved else (record.successor,)
        return next((name for name in names if name is not None and self._may_lead(record, name)), None)

    def _may_lead(self, record: PartitionRecord, node: str) -> bool:
        registered = self._site.tick.live.get(node)
        return node != self._site.node and registered is not None and record.is_in_sync(node, registered.disk)

    def _end(self) -> None:
        self.has_changed = self.has_changed or self.is_under_way
        self._since_us = None


def _handed_over(record: PartitionRecord, node: str, incarnation: str, is_moved: bool) -> PartitionRecord:
    if is_moved:
        isr = tuple(member for member in record.isr if member.node in record.target)
        record = replace(record, replicas=record.target, target=(), leaving=(), isr=isr)
    return record.elected(node, incarnation, record.isr)
