"""What is going to be one frame: gathered by the outbox, framed by the sender."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.batch import Batch
from penstock.client.transport import UNKNOWN, Stored
from penstock.errors import PenstockError
from penstock.message import Message

Rows = npt.NDArray[np.int64]
# Of a parcel in `parts`: they know where its messages went.
_IN_PARTS = Stored(UNKNOWN, UNKNOWN, 0, 0)


class Parcel:
    """Messages that are going to be one frame. `done` tells where the first of them went.

    `rows` are messages, or, in a parcel that `is_plain`, values and keys by turns. One operation adds a message, both
    of its items at once: a sender that is interrupted (Ctrl-C) has added it or not.
    """

    __slots__ = (
        "_batch",
        "bytes",
        "done",
        "is_closed",
        "is_due",
        "is_noted",
        "is_plain",
        "is_told",
        "partition",
        "parts",
        "pinned",
        "rows",
        "takes_plain",
        "waiting",
    )

    def __init__(self, partition: int, *, is_plain: bool = False, batch: Batch | None = None, size: int = 0) -> None:
        self.partition = partition
        self.is_plain = is_plain
        self.rows: list[Any] = []
        self._batch = batch
        self.bytes = size
        # Takes no more messages.
        self.is_closed = batch is not None
        self.is_due = False
        # The event loop knows of it: its time runs.
        self.is_noted = False
        # Open, noted and plain: all that `Outbox.add_plain` has to know.
        self.takes_plain = False
        # Somebody has heard what went wrong with it.
        self.is_told = False
        # Rows whose partition their caller has chosen: no other one will do.
        self.pinned: list[int] | range | None = None
        # If it was divided: its rows, and the parcels that have them now.
        self.parts: Sequence[tuple[Rows, Parcel]] = ()
        self.waiting: list[asyncio.Future[None]] = []
        self.done: Future[Stored] = Future()
        # Under way from the start: that somebody gives up waiting for it can't cancel it.
        self.done.set_running_or_notify_cancel()

    def __len__(self) -> int:
        if self._batch is not None:
            return self._batch.count
        return len(self.rows) // 2 if self.is_plain else len(self.rows)

    def add(self, message: Message) -> None:
        self.rows += (message.value, message.key) if self.is_plain else (message,)

    def pin(self, row: int) -> None:
        if not isinstance(self.pinned, list):
            self.pinned = []
        self.pinned.append(row)

    def close(self) -> None:
        self.is_closed = True
        self.takes_plain = False

    def batch(self, now_us: int) -> Batch:
        if self._batch is not None:
            return self._batch
        if self.is_plain:
            return Batch.from_columns(self.rows[::2], keys=self.rows[1::2], now_us=now_us)
        return Batch.from_messages(self.rows, now_us, checked=True)

    def divide(self, parts: Sequence[tuple[Rows, Parcel]]) -> None:
        """Leave its messages to other parcels. It is done when they are."""
        self.parts = parts
        self.empty()
        left = set(range(len(parts)))

        def end(number: int) -> None:
            left.discard(number)
            if not left:
                self.done.set_result(_IN_PARTS)
                self.wake()

        for number, (_, part) in enumerate(parts):
            part.done.add_done_callback(lambda _, number=number: end(number))  # type: ignore[misc]

    def stored(self, row: int) -> Stored:
        """Where that message went, once the parcel is done. Raises what went wrong with it."""
        for rows, part in self.parts:
            at = int(np.searchsorted(rows, row))
            if at < len(rows) and rows[at] == row:
                return part.stored(at)
        if self.done.exception() is not None:
            raise self.error()
        stored = self.done.result()
        return stored if stored.offset == UNKNOWN else stored._replace(offset=stored.offset + row)

    def places(self, rows: Rows) -> Iterator[tuple[Rows, Stored]]:
        """Where the first of each stretch of `rows` went: the caller's numbers of the rows of this parcel."""
        for some, part in self.parts:
            yield from part.places(rows[some])
        if not self.parts:
            yield rows, self.done.result()

    def tell(self) -> None:
        """The caller has learnt what went wrong with it."""
        self.is_told = True
        for _, part in self.parts:
            part.tell()

    def error(self) -> PenstockError:
        """What went wrong: to be raised, and told herewith."""
        self.is_told = True
        error = self.done.exception()
        assert isinstance(error, PenstockError)
        return error.again()

    def abandon(self, error: PenstockError) -> None:
        """Fail in this process alone: callbacks and waiting threads are those of another."""
        self.done = Future()
        self.done.set_exception(error)

    def wake(self) -> None:
        """It is done."""
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)

    def empty(self) -> None:
        """Its handles may be kept for long; what they tell is where it went."""
        self.rows, self._batch = [], None
