"""Where messages went, and those that are still on their way there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from penstock.client.outbox import Parcel
from penstock.client.transport import UNKNOWN, Stored
from penstock.errors import InvalidInput, PenstockError
from penstock.published import Published, PublishedBatch

__all__ = ["Published", "PublishedBatch", "Sending"]

# More than the operating system can wait for would be an error of its own.
TIMEOUT_MAX = 1_000_000


class Sending:
    """A message on its way: `await` it, or ask for its `result()` on another thread than the event loop's."""

    __slots__ = ("_topic", "parcel", "row")

    def __init__(self, topic: str, parcel: Parcel, row: int) -> None:
        self._topic = topic
        self.parcel = parcel
        self.row = row

    def __repr__(self) -> str:
        if not self.done():
            state = "on its way"
        else:
            error = self.parcel.done.exception()
            state = f"stored as {self.result().id}" if error is None else f"failed: {error!r}"
        return f"<{type(self).__name__} to {self._topic}, {state}>"

    def done(self) -> bool:
        return self.parcel.done.done()

    def add_done_callback(self, callback: Callable[[Sending], object]) -> None:
        """Called with this when it is stored, or has failed; at once if that has happened already.

        On the thread of the client's event loop: not for long work, and not for blocking calls of the same client.
        """
        if not callable(callback):
            raise InvalidInput(f"a callback is a function of a Sending, not {type(callback).__name__}")
        self.parcel.done.add_done_callback(lambda _: callback(self))

    def result(self, timeout: float | None = None) -> Published:
        """Waits until it is on disk, or as the producer's `acks` say. TimeoutError after `timeout` seconds."""
        is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and 0 <= timeout <= TIMEOUT_MAX):
            raise InvalidInput(f"timeout is 0 to {TIMEOUT_MAX} seconds, or None, not {timeout!r}", argument="timeout")
        try:
            return self._published(self.parcel.done.result(timeout))
        except PenstockError:
            self.parcel.is_told = True
            raise

    def __await__(self) -> Generator[Any, None, Published]:
        try:
            stored = yield from asyncio.wrap_future(self.parcel.done).__await__()
        except PenstockError:
            self.parcel.is_told = True
            raise
        return self._published(stored)

    def _published(self, stored: Stored) -> Published:
        offset = UNKNOWN if stored.offset == UNKNOWN else stored.offset + self.row
        return Published(self._topic, stored.partition, offset, stored.append_time)
