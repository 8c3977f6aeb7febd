"""What a leader has proposed to make of the record, and whose word counts meanwhile.

A proposal has won, or lost, only when a newer revision than the one it was guarded by is seen. Until then it may still
win, even if its answer was lost, or another one has been made since: all of them count as pending. So the voters are
the ISR as it was last seen together with everybody proposed for it since.

Who was proposed may be dead by now, and nothing would be committed without it. So a leader in doubt proposes again
until one wins, be it the record as it is: that has a newer revision then, and all earlier ones have lost.
"""

from __future__ import annotations

from penstock.cluster.core.effects import Effect, Propose
from penstock.cluster.core.record import Member, PartitionRecord


class Ballot:
    __slots__ = ("_me", "_not_before_us", "_pending", "is_proposing", "record", "revision", "voters")

    def __init__(self, me: str, revision: int, record: PartitionRecord) -> None:
        self._me = me
        self.is_proposing = False
        self.seen(revision, record)

    def seen(self, revision: int, record: PartitionRecord) -> None:
        self.revision = revision
        self.record = record
        self._pending: frozenset[Member] = frozenset()
        self._not_before_us = 0
        self._count()

    def is_due(self, now_us: int, wanted: PartitionRecord) -> bool:
        """Whether that is to be proposed now."""
        if self.is_proposing or now_us < self._not_before_us:
            return False
        return self.is_in_doubt or wanted != self.record

    def propose(self, record: PartitionRecord, out: list[Effect]) -> None:
        assert not self.is_proposing
        self.is_proposing = True
        self._pending |= frozenset(record.isr)
        self._count()
        out.append(Propose(self.revision, record))

    def ended(self, again_us: int) -> None:
        """If it is not known how, another one is made, and not before that time."""
        self.is_proposing = False
        if self.is_in_doubt:
            self._not_before_us = again_us

    @property
    def is_in_doubt(self) -> bool:
        return bool(self._pending)

    @property
    def has_quorum(self) -> bool:
        return len(self.record.isr) >= self.record.min_isr

    def _count(self) -> None:
        # The leader itself is always among them, and counts by what it knows of itself.
        everybody = self._pending.union(self.record.isr)
        self.voters = tuple(sorted(member for member in everybody if member.node != self._me))
