"""What is going to be one frame: gathered by the outbox, framed by the sender."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

from penstock.batch import Batch
from penstock.client.transport import Stored
from penstock.errors import PenstockError
from penstock.message import Message


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

    def close(self) -> None:
        self.is_closed = True
        self.takes_plain = False

    def batch(self, now_us: int) -> Batch:
        if self._batch is not None:
            return self._batch
        if self.is_plain:
            return Batch.from_columns(self.rows[::2], keys=self.rows[1::2], now_us=now_us)
        return Batch.from_messages(self.rows, now_us, checked=True)

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
