"""What is going to be one frame: gathered by the outbox, framed by the sender."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from penstock.batch import Batch
from penstock.client.transport import Stored
from penstock.errors import PenstockError
from penstock.message import Message


class Parcel:
    """Messages that are going to be one frame. `done` tells where the first of them went.

    Those with nothing but a value and a key are columns from the start.
    """

    __slots__ = (
        "_batch",
        "bytes",
        "done",
        "is_due",
        "is_plain",
        "is_told",
        "keys",
        "messages",
        "partition",
        "values",
        "waiting",
    )

    def __init__(self, partition: int, *, is_plain: bool = False, batch: Batch | None = None, size: int = 0) -> None:
        self.partition = partition
        self.is_plain = is_plain
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.messages: list[Message] = []
        self._batch = batch
        self.bytes = size
        self.is_due = False
        # Somebody has heard what went wrong with it.
        self.is_told = False
        self.waiting: list[asyncio.Future[None]] = []
        self.done: Future[Stored] = Future()
        # Under way from the start: that somebody gives up waiting for it can't cancel it.
        self.done.set_running_or_notify_cancel()

    def __len__(self) -> int:
        if self._batch is not None:
            return self._batch.count
        return len(self.values) if self.is_plain else len(self.messages)

    def add(self, message: Message) -> None:
        if self.is_plain:
            self.values.append(message.value)
            self.keys.append(message.key)
        else:
            self.messages.append(message)

    def batch(self, now_us: int) -> Batch:
        if self._batch is not None:
            return self._batch
        if self.is_plain:
            return Batch.from_columns(self.values, keys=self.keys, now_us=now_us)
        return Batch.from_messages(self.messages, now_us, checked=True)

    def error(self) -> PenstockError:
        """What went wrong: to be raised, and told herewith."""
        self.is_told = True
        error = self.done.exception()
        assert isinstance(error, PenstockError)
        return error.again()

    def wake(self) -> None:
        """It is done."""
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)

    def empty(self) -> None:
        """Its handles may be kept for long; what they tell is where it went."""
        self.values, self.keys, self.messages, self._batch = [], [], [], None
