"""What a consumer holds together, and which of it it has lost again.

A lease is lost as a whole when its time is up. In an ordered group some of it is lost earlier: when a message is given
back, the broker takes back those of the same lease that must not be done before it, too. Both are known here without
being told, so that nobody works on what somebody else will get.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from pyroaring import BitMap64

from penstock.client.answers import Ack, Answer, Extend, Nack, Reject, Release
from penstock.client.transport import Receipt, Terms, Transport
from penstock.errors import LeaseNotFound

_WHOLE_PARTITION = object()


class Lease:
    """Invariant: once `is_over`, always; what is lost stays lost."""

    __slots__ = ("_group", "_lost_after", "_terms", "_transport", "deadline_us", "id", "is_over", "visibility_us")

    def __init__(
        self, transport: Transport, group: str, terms: Terms, topic: str, partition: int, lease: int, deadline_us: int
    ) -> None:
        self._transport = transport
        self._group = group
        self._terms = terms
        self.id = (topic, partition, lease)
        self.deadline_us = deadline_us
        self.visibility_us = max(deadline_us - transport.now_us(), 1)
        self.is_over = False
        # By what waits for one another: the first offset that was given back.
        self._lost_after: dict[Hashable, int] = {}

    def strand(self, key: bytes | None) -> Hashable | None:
        """Messages of the same strand are handled one after the other; those of none wait for nobody."""
        if self._terms.ordering == "partition":
            return (*self.id[:2], _WHOLE_PARTITION)
        return (*self.id[:2], key) if self._terms.ordering == "key" and key is not None else None

    def has_lost(self, key: bytes | None, offset: int) -> bool:
        if self.is_over or not self._lost_after:
            return self.is_over
        first = self._lost_after.get(self.strand(key))
        return first is not None and offset > first

    async def answer(self, rows: Iterable[tuple[bytes | None, int]], offsets: BitMap64, answer: Answer) -> None:
        """`rows` are the keys and offsets of `offsets`; looked at only if some are given back."""
        try:
            await self._transport.answer(self._group, Receipt(*self.id, offsets), answer)
        except LeaseNotFound:
            self.is_over = True
            raise
        match answer:
            case Extend():
                self.visibility_us = answer.visibility_us or self.visibility_us
                self.deadline_us = self._transport.now_us() + self.visibility_us
            case Nack() | Release():
                self._lose_after(rows)
            case Reject() if self._terms.on_poison != "skip":
                self._lose_after(rows)
            case Ack() | Reject():
                pass

    def _lose_after(self, rows: Iterable[tuple[bytes | None, int]]) -> None:
        if self._terms.ordering == "none":
            return
        for key, offset in rows:
            strand = self.strand(key)
            if strand is not None:
                self._lost_after[strand] = min(offset, self._lost_after.get(strand, offset))

    @property
    def is_fresh(self) -> bool:
        """More than half of its time is left."""
        return not self.is_over and self._transport.now_us() < self.deadline_us - self.visibility_us // 2

    async def keep(self) -> bool:
        """More time, if half of it is over: for messages that have waited here. False if it is too late."""
        if not self.is_over and not self.is_fresh:
            try:
                await self.answer((), BitMap64(), Extend(self.visibility_us))
            except LeaseNotFound:
                return False
        return not self.is_over
