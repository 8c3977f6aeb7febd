"""What a consumer holds together, and which of it it has lost again.

A lease is lost as a whole when its time is up. In an ordered group some of it is lost earlier: when a message is given
back, the broker takes back those of the same lease that must not be done before it, too. Both are known here without
being told, so that nobody works on what somebody else will get.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
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
        "__weakref__",
        "_answered",
        "_group",
        "_lost_after",
        "_partition",
        "_terms",
        "_transport",
        "_untold",
        "acks",
        "deadline_us",
        "fresh_until_us",
        "id",
        "is_ordered",
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
        """With `acks`, acknowledgements are told a moment later, together with others. Times are on the monotonic clock
        of the transport; for `deadline_us` see `Delivery`."""
        self._transport = transport
        self._group = group
        self._terms = terms
        self.id = (topic, partition, lease)
        self._partition = (topic, partition)
        self.deadline_us = deadline_us
        self.visibility_us = max(deadline_us - transport.monotonic_us(), 1)
        # Until then, more than half of its time is left.
        self.fresh_until_us = deadline_us - self.visibility_us // 2
        self.acks = acks
        # Some messages are handled one after the other: see `strand`.
        self.is_ordered = terms.ordering != "none"
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
        if self._terms.ordering == "key":
            return None if key is None else (*self._partition, key)
        return (*self._partition, _WHOLE_PARTITION) if self._terms.ordering == "partition" else None

    def holds(self, row: Row) -> bool:
        """Ours for sure: its time is not up, also not at the broker."""
        return self.has(row) and self._transport.monotonic_us() < self.deadline_us

    def has(self, row: Row) -> bool:
        """Neither answered nor reported as lost. After the deadline only the broker knows whether another consumer has
        leased the message."""
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
            held = BitMap64([row.offset for row in rows if self.has(row)])
            gone, offsets = offsets - held if not held else BitMap64(), held
        else:
            gone = offsets & self._answered
        if gone:
            raise NotLeased(
                f"answered already, or taken back by the broker: {self._named(gone)}. Answer each delivery once",
                **self._details(gone),
            )
        was_lost, sent_us = False, self._transport.monotonic_us()
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
                self._note(rows, offsets, answer, sent_us)
                told = (
                    f"{refusal.message} (the connection was lost while this was told: it arrived then, or not at all)"
                )
                refusal = type(error)(told, **refusal.details)
            raise refusal from error
        except PenstockError as error:
            if isinstance(answer, Ack) and (was_lost or error.in_doubt):
                self._untold |= offsets
            raise
        except asyncio.CancelledError:
            # The broker may carry it out all the same.
            if isinstance(answer, Ack):
                self._untold |= offsets
            elif not isinstance(answer, Extend):
                self._lose_after(rows)
            raise
        self._note(rows, offsets, answer, sent_us)

    def _refused(self, offsets: BitMap64, error: LeaseError) -> LeaseError:
        """The same, with what it was about."""
        if isinstance(error, LeaseNotFound):
            self.is_over, self.is_whole = True, False
        return type(error)(f"{error.message}: {self._named(offsets)}", **self._details(offsets))

    @staticmethod
    async def ack_all(given: Sequence[tuple[Lease, BitMap64]]) -> list[PenstockError | None]:
        """Of leases of one partition, in as few requests as possible. For each, what went wrong."""
        outcomes: list[PenstockError | None] = [None] * len(given)
        # By their ids: what was leased together may have come here in parts.
        together: dict[int, list[int]] = {}
        alone: list[int] = []
        for index, (lease, offsets) in enumerate(given):
            if len(given) > 1 and lease._answered.isdisjoint(offsets) and lease._untold.isdisjoint(offsets):
                together.setdefault(lease.id[2], []).append(index)
            else:
                alone.append(index)
        numbers = list(together)
        for first in range(0, len(numbers), ACK_LEASES_MAX):
            some = [together[number] for number in numbers[first : first + ACK_LEASES_MAX]]
            failures = await Lease._ack_some([[given[index] for index in indexes] for indexes in some])
            for indexes, failure in zip(some, failures, strict=True):
                if isinstance(failure, ConnectionLost):
                    # The broker may have received it. Each is sent once more.
                    alone += indexes
                elif failure is not None:
                    for index in indexes:
                        lease, offsets = given[index]
                        outcomes[index] = (
                            lease._refused(offsets, failure) if isinstance(failure, LeaseError) else failure
                        )
        sending = [given[index][0].answer((), given[index][1], Ack()) for index in alone]
        for index, outcome in zip(alone, await asyncio.gather(*sending, return_exceptions=True), strict=True):
            if isinstance(outcome, PenstockError):
                outcomes[index] = outcome
            elif outcome is not None:
                raise outcome
        return outcomes

    @staticmethod
    async def _ack_some(given: Sequence[Sequence[tuple[Lease, BitMap64]]]) -> Sequence[PenstockError | None]:
        """In one request: for each lease its parts, and for each lease what went wrong."""
        sent = [(parts[0][0].id[2], BitMap64.union(*(offsets for _, offsets in parts))) for parts in given]
        first = given[0][0][0]
        try:
            failures = await first._transport.ack_all(first._group, *first.id[:2], sent)
        except PenstockError as error:
            if isinstance(error, ConnectionLost) or error.in_doubt:
                for lease, offsets in chain.from_iterable(given):
                    lease._untold |= offsets
            return [error] * len(given)
        for parts, failure in zip(given, failures, strict=True):
            if failure is None:
                for lease, offsets in parts:
                    lease._note((), offsets, Ack(), 0)
        return failures

    def _note(self, rows: Iterable[Row], offsets: BitMap64, answer: Answer, sent_us: int) -> None:
        """What was said, and what follows from it. The broker began to count after `sent_us`."""
        if not isinstance(answer, Extend):
            self._answered |= offsets
        match answer:
            case Extend():
                self.visibility_us = answer.visibility_us or self.visibility_us
                self.deadline_us = sent_us + self.visibility_us
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
        return [f"{topic}:{partition}:{offset}" for offset in offsets[:IDS_TOLD_MAX].to_array()]

    def _named(self, offsets: BitMap64) -> str:
        more = len(offsets) - IDS_TOLD_MAX
        return ", ".join(self._ids(offsets)) + (f" and {more} more" if more > 0 else "")

    def _details(self, offsets: BitMap64) -> dict[str, Any]:
        return {"ids": self._ids(offsets), "count": len(offsets), "lease": self.id[2]}

    @property
    def is_fresh(self) -> bool:
        """More than half of its time is left."""
        return not self.is_over and self._transport.monotonic_us() < self.fresh_until_us

    async def keep(self) -> bool:
        """More time, if half of it is over: for messages that have waited here. False if it is too late."""
        if not self.is_over and not self.is_fresh:
            try:
                await self.answer((), BitMap64(), Extend(self.visibility_us))
            except LeaseNotFound:
                return False
        return not self.is_over
