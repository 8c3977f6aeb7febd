"""Messages as a consumer gets them: one by one, or many at once in columns. Each is to be answered for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import repeat
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from penstock.client.answers import Ack, Answer, Extend, Nack, Reject, Release
from penstock.client.lease import Lease, Row
from penstock.client.rows import LOG_SCHEMA, Columns, StoredMessage, among
from penstock.client.transport import Delivery
from penstock.client.words import Duration, duration_of, text_of
from penstock.errors import NotLeased

ACK = Ack()


class Answers:
    """What a consumer can say. LeaseNotFound or NotLeased if it is too late, or was said before."""

    __slots__ = ()

    async def _answer(self, answer: Answer) -> None:
        # Not an abstract method: msgspec's structs have a metaclass of their own.
        raise NotImplementedError

    async def ack(self) -> None:
        """Done: it never comes to this group again. On disk when this returns."""
        await self._answer(ACK)

    async def nack(self, delay: Duration | None = None, *, reason: str = "") -> None:
        """To be tried again: after `delay`, or by the group's back-off."""
        await self._answer(Nack(text_of("reason", reason), None if delay is None else duration_of("delay", delay)))

    async def reject(self, reason: str = "") -> None:
        """Never to be tried again: a dead letter at once."""
        await self._answer(Reject(text_of("reason", reason)))

    async def release(self) -> None:
        """Given back unseen: ready at once for any consumer of the group, and this delivery does not count."""
        await self._answer(Release())

    async def extend(self, visibility: Duration | None = None) -> None:
        """More time from now on, for everything that came with it; as much as the group gives, or as said."""
        await self._answer(Extend(None if visibility is None else duration_of("visibility", visibility)))


class Held(StoredMessage, eq=False, gc=False):
    """One message, and the lease it came with: what the async and the blocking client have in common."""

    lease: Lease
    attempt: int
    answered: Answer | None = None

    @property
    def _row(self) -> Row:
        return Row(self.key, self.offset, self.priority)

    @property
    def is_held(self) -> bool:
        """Not answered for yet, and not lost: the lease is not over. Early rather than late: when this is False, the
        broker may still count it as ours for as long as a request takes."""
        return self.answered is None and self.lease.holds(self._row)

    @property
    def _is_ours(self) -> bool:
        """Neither answered nor reported as lost. Whether the lease has expired, only the broker knows."""
        return self.answered is None and self.lease.has(self._row)

    async def _answer(self, answer: Answer) -> None:
        if isinstance(answer, Ack) and self.ack_later():
            return
        await self.lease.answer([self._row], BitMap64([self.offset]), answer)
        if not isinstance(answer, Extend):
            self.answered = answer

    def ack_later(self) -> bool:
        """Whether the consumer tells acknowledgements a moment later; then this one was given. From any thread."""
        lease = self.lease
        acks = lease.acks
        if acks is None:
            return False
        if self.answered is not None:
            raise NotLeased(f"{self.id} was answered already. Answer each delivery once", ids=[self.id])
        acks.add(lease, self.offset)
        self.answered = ACK
        if acks.failure is not None:
            acks.check()
        return True


class Received(Held, Answers, eq=False, gc=False):
    """One message. `attempt` counts its deliveries to the group, from 1 on."""


class Make(Protocol):
    """Makes messages of columns: the blocking client has its own kind, which it gets out again as such."""

    def __call__(
        self, where: tuple[str, int], columns: Columns, lease: Lease, attempts: Iterable[int]
    ) -> Iterator[Received]: ...


def received(where: tuple[str, int], columns: Columns, lease: Lease, attempts: Iterable[int]) -> Iterator[Received]:
    return map(Received, *fields_of(where, columns), repeat(lease), attempts)


def fields_of(where: tuple[str, int], columns: Columns) -> tuple[Iterable[Any], ...]:
    """Those of a `StoredMessage`, each as a column."""
    topic, partition = where
    offsets, times = columns.offsets.tolist(), columns.append_times.tolist()
    return repeat(topic), repeat(partition), offsets, times, columns.batch.messages()


class ReceivedBatch(Answers):
    """Messages of one partition, leased together, with one answer for all of them."""

    def __init__(self, lease: Lease, delivery: Delivery, make: Make = received) -> None:
        """`make` makes single messages of it."""
        self.topic = delivery.receipt.topic
        self.partition = delivery.receipt.partition
        self.offsets = delivery.receipt.offsets
        self.lease = lease
        self._frames = delivery.frames
        self._attempts = delivery.attempts
        self._make = make

    def __len__(self) -> int:
        return len(self.offsets)

    def __repr__(self) -> str:
        where = f"{self.topic}:{self.partition}:{self.offsets.min()}"
        return f"<{type(self).__name__} of {len(self)} messages, from {where} on>"

    def arrow(self) -> pa.RecordBatch:
        """With the columns of a message, where it is stored, and `attempt`."""
        batches = [columns.arrow(self.partition) for columns in self._columns]
        found = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        attempts = np.ones(len(found), np.int32)
        for offset, attempt in self._attempts.items():
            attempts[found.column("offset").to_numpy() == offset] = attempt
        schema = LOG_SCHEMA.append(pa.field("attempt", pa.int32()))
        return pa.RecordBatch.from_arrays([*found.columns, pa.array(attempts)], schema=schema)

    def messages(self) -> Iterator[Received]:
        """One by one; each may then be answered for alone."""
        where = (self.topic, self.partition)
        for columns in self._columns:
            attempts: Iterable[int] = repeat(1)
            if self._attempts:
                attempts = [self._attempts.get(offset, 1) for offset in columns.offsets.tolist()]
            yield from self._make(where, columns, self.lease, attempts)

    @cached_property
    def _columns(self) -> list[Columns]:
        found = (among(frame, self.offsets) for frame in self._frames)
        return [columns for columns in found if columns is not None]

    async def _answer(self, answer: Answer) -> None:
        await self.lease.answer(self._rows(), self.offsets, answer)

    def _rows(self) -> Iterator[Row]:
        for columns in self._columns:
            for offset, _, message in columns.rows():
                yield Row(message.key, offset, message.priority)
