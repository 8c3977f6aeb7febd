"""What a consumer holds together, and which of it it has lost again.

A lease is lost as a whole when its time is up. In an ordered group some of it is lost earlier: when a message is given
back, the broker takes back those of the same lease that must not be done before it, too. Both are known here without
being told, so that nobody works on what somebody else will get.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from pyroaring import BitMap64

from penstock.client.acks import Acks
from penstock.client.answers import Ack, Answer, Extend, Nack, Reject, Release
from penstock.client.transport import ACK_LEASES_MAX, Receipt, Terms, Transport
from penstock.errors import ConnectionLost, LeaseError, LeaseNotFound, NotLeased, PenstockError

IDS_TOLD_MAX = 5
_Place = tuple[int, int]


class Row(NamedTuple):
    """As much of a message as it takes to tell whom it waits for."""

    key: bytes | None
    offset: int
    priority: int


_WHOLE_PARTITION = object()


class Lease:
    """Invariant: once `is_over`, always; what is lost stays lost."""

    __slots__ = (
        "_answered",
        "_group",
        "_lost_after",
        "_terms",
        "_transport",
        "_untold",
        "acks",
        "deadline_us",
        "fresh_until_us",
        "id",
        "is_over",
        "is_whole",
        "visibility_us",
    )

    def __init__(
        self,
        transport: Transport,
        group: str,
        terms: Terms,
        topic: str,
        partition: int,
        lease: int,
        deadline_us: int,
        acks: Acks | None = None,
    ) -> None:
        """With `acks`, acknowledgements are told a moment later, together with others."""
        self._transport = transport
        self._group = group
        self._terms = terms
        self.id = (topic, partition, lease)
        self.deadline_us = deadline_us
        self.visibility_us = max(deadline_us - transport.now_us(), 1)
        # Until then, more than half of its time is left.
        self.fresh_until_us = deadline_us - self.visibility_us // 2
        self.acks = acks
        self.is_over = False
        # Nothing of it is lost as far as is known here.
        self.is_whole = True
        self._answered = BitMap64()
        # Acknowledged, and nobody knows whether that was heard.
        self._untold = BitMap64()
        # By what waits for one another: the first that was given back.
        self._lost_after: dict[Hashable, _Place] = {}

    def strand(self, key: bytes | None) -> Hashable | None:
        """Messages of the same strand are handled one after the other; those of none wait for nobody."""
        if self._terms.ordering == "partition":
            return (*self.id[:2], _WHOLE_PARTITION)
        return (*self.id[:2], key) if self._terms.ordering == "key" and key is not None else None

    def holds(self, row: Row) -> bool:
        """Not answered for yet, and not lost as far as is known here."""
        return not self.is_over and row.offset not in self._answered and not self._was_taken_back(row)

    def _was_taken_back(self, row: Row) -> bool:
        if not self._lost_after:
            return False
        first = self._lost_after.get(self._waits_for(row))
        return first is not None and self._place(row) > first

    def _waits_for(self, row: Row) -> Hashable | None:
        """What must not be done before another one: of one key and lane, or all of the partition."""
        strand = self.strand(row.key)
        return strand if strand is None or self._terms.ordering == "partition" else (strand, self._lane(row))

    def _place(self, row: Row) -> _Place:
        """In the order in which they are to be done: a higher lane comes first."""
        return -self._lane(row), row.offset

    def _lane(self, row: Row) -> int:
        return 0 if self._terms.lanes == "none" else row.priority

    async def answer(self, rows: Iterable[Row], offsets: BitMap64, answer: Answer) -> None:
        """`rows` are those of `offsets`; looked at only if some are, or were, given back."""
        if self.acks is not None and isinstance(answer, Nack | Reject | Release):
            # Not ahead of those that were given before.
            await self.acks.tell(self)
        if isinstance(answer, Extend) and (self._answered or self._lost_after) and not self.is_over:
            # Of a batch, what is left of it is to be kept.
            held = BitMap64([row.offset for row in rows if self.holds(row)])
            gone, offsets = offsets - held if not held else BitMap64(), held
        else:
            gone = offsets & self._answered
        if gone:
            raise NotLeased(f"answered for already, or taken back: {self._named(gone)}", **self._details(gone))
        was_lost = False
        if isinstance(answer, Ack) and offsets & self._untold:
            answer = Ack(again=True)
        try:
            try:
                await self._transport.answer(self._group, Receipt(*self.id, offsets), answer)
            except ConnectionLost:
                # Nobody knows whether it was told. If it was, telling it again is refused, and changes nothing.
                was_lost = True
                once_more = Ack(again=True) if isinstance(answer, Ack) else answer
                await self._transport.answer(self._group, Receipt(*self.id, offsets), once_more)
        except LeaseError as error:
            refusal = self._refused(offsets, error)
            if not offsets:
                raise
            if was_lost:
                # It may have arrived the first time: nothing that waits for these may be worked on here.
                self._note(rows, offsets, answer)
                told = (
                    f"{refusal.message} (the connection was lost while this was told: it arrived then, or not at all)"
                )
                refusal = type(error)(told, **refusal.details)
            raise refusal from error
        except PenstockError as error:
            if isinstance(answer, Ack) and (was_lost or error.in_doubt):
                self._untold |= offsets
            raise
        self._note(rows, offsets, answer)

    def _refused(self, offsets: BitMap64, error: LeaseError) -> LeaseError:
        """The same, with what it was about."""
        if isinstance(error, LeaseNotFound):
            self.is_over, self.is_whole = True, False
        return type(error)(f"{error.message}: {self._named(offsets)}", **self._details(offsets))

    @staticmethod
    async def ack_all(given: Sequence[tuple[Lease, BitMap64]]) -> list[PenstockError]:
        """Of leases of one partition, told together. What went wrong with any of them."""
        # By their ids: what was leased together may have come here in parts.
        plain: dict[int, list[tuple[Lease, BitMap64]]] = {}
        alone: list[tuple[Lease, BitMap64]] = []
        for lease, offsets in given:
            if lease._answered.isdisjoint(offsets) and lease._untold.isdisjoint(offsets):
                plain.setdefault(lease.id[2], []).append((lease, offsets))
            else:
                alone.append((lease, offsets))
        failures: list[PenstockError] = []
        numbers = list(plain)
        for first in range(0, len(numbers), ACK_LEASES_MAX):
            some = {number: plain[number] for number in numbers[first : first + ACK_LEASES_MAX]}
            again, refused = await Lease._ack_some(some)
            alone += again
            failures += refused
        telling = [lease.answer((), offsets, Ack()) for lease, offsets in alone]
        for outcome in await asyncio.gather(*telling, return_exceptions=True):
            if isinstance(outcome, PenstockError):
                failures.append(outcome)
            elif outcome is not None:
                raise outcome
        return failures

    @staticmethod
    async def _ack_some(
        given: dict[int, list[tuple[Lease, BitMap64]]],
    ) -> tuple[list[tuple[Lease, BitMap64]], list[PenstockError]]:
        """Those that are to be told again, each by itself, and what went wrong with others."""
        parts = [part for some in given.values() for part in some]
        told = [(number, BitMap64.union(*(offsets for _, offsets in some))) for number, some in given.items()]
        first = parts[0][0]
        try:
            refusals = await first._transport.ack_all(first._group, *first.id[:2], told)
        except PenstockError as error:
            if isinstance(error, ConnectionLost) or error.in_doubt:
                for lease, offsets in parts:
                    lease._untold |= offsets
            # Nobody knows what was told, if the connection was lost. Once more, then.
            return (parts, []) if isinstance(error, ConnectionLost) else ([], [error])
        failures: list[PenstockError] = []
        for some, refusal in zip(given.values(), refusals, strict=True):
            for lease, offsets in some:
                if refusal is None:
                    lease._note((), offsets, Ack())
                else:
                    failures.append(lease._refused(offsets, refusal))
        return [], failures

    def _note(self, rows: Iterable[Row], offsets: BitMap64, answer: Answer) -> None:
        """What was said, and what follows from it."""
        if not isinstance(answer, Extend):
            self._answered |= offsets
        match answer:
            case Extend():
                self.visibility_us = answer.visibility_us or self.visibility_us
                self.deadline_us = self._transport.now_us() + self.visibility_us
                self.fresh_until_us = self.deadline_us - self.visibility_us // 2
            case Nack() | Release():
                self._lose_after(rows)
            case Reject() if self._terms.on_poison != "skip":
                self._lose_after(rows)
            case Ack() | Reject():
                pass

    def _lose_after(self, rows: Iterable[Row]) -> None:
        if self._terms.ordering == "none":
            return
        for row in rows:
            waits_for, place = self._waits_for(row), self._place(row)
            if waits_for is not None:
                self._lost_after[waits_for] = min(place, self._lost_after.get(waits_for, place))
                self.is_whole = False

    def _ids(self, offsets: BitMap64) -> list[str]:
        topic, partition, _ = self.id
        return [f"{topic}:{partition}:{offset}" for offset in offsets[:IDS_TOLD_MAX]]

    def _named(self, offsets: BitMap64) -> str:
        more = len(offsets) - IDS_TOLD_MAX
        return ", ".join(self._ids(offsets)) + (f" and {more} more" if more > 0 else "")

    def _details(self, offsets: BitMap64) -> dict[str, Any]:
        return {"ids": self._ids(offsets), "count": len(offsets), "lease": self.id[2]}

    @property
    def is_fresh(self) -> bool:
        """More than half of its time is left."""
        return not self.is_over and self._transport.now_us() < self.fresh_until_us

    async def keep(self) -> bool:
        """More time, if half of it is over: for messages that have waited here. False if it is too late."""
        if not self.is_over and not self.is_fresh:
            try:
                await self.answer((), BitMap64(), Extend(self.visibility_us))
            except LeaseNotFound:
                return False
        return not self.is_over
