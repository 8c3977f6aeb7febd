"""What a leader has proposed to make of the record, and whose word counts meanwhile.

A proposal has won, or lost, only when a newer revision than the one it was guarded by is seen. Until then it may still
win, even if its answer was lost, or another one has been made since: all of them count as pending. So the voters are
the ISR as it was last seen together with everybody proposed for it since.
"""

from __future__ import annotations

from penstock.cluster.core.effects import Effect, Propose
from penstock.cluster.core.record import Member, PartitionRecord


class Ballot:
    __slots__ = ("_me", "_pending", "is_proposing", "record", "revision", "voters")

    def __init__(self, me: str, revision: int, record: PartitionRecord) -> None:
        self._me = me
        self.is_proposing = False
        self.seen(revision, record)

    def seen(self, revision: int, record: PartitionRecord) -> None:
        self.revision = revision
        self.record = record
        self._pending: frozenset[Member] = frozenset()
        self._count()

    def propose(self, record: PartitionRecord, out: list[Effect]) -> None:
        assert not self.is_proposing
        self.is_proposing = True
        self._pending |= frozenset(record.isr)
        self._count()
        out.append(Propose(self.revision, record))

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
