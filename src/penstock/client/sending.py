"""Where messages went, and those that are still on their way there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, wait
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.client.parcel import Parcel
from penstock.client.transport import UNKNOWN, Stored
from penstock.errors import ClientForked, InvalidInput, PenstockError
from penstock.published import Published, PublishedBatch

__all__ = ["Published", "PublishedBatch", "Sending", "SendingBatch"]

# More than the operating system can wait for would be an error of its own.
TIMEOUT_MAX = 1_000_000


class Sending(msgspec.Struct, eq=False):
    """A message on its way: `await` it, or ask for its `result()` on another thread than the event loop's."""

    _topic: str
    parcel: Parcel
    row: int

    def __repr__(self) -> str:
        if not self.parcel.done.done():
            state = "on its way"
        else:
            try:
                state = f"stored as {self._published(self.parcel.done.result()).id}"
            except PenstockError as error:
                state = f"failed: {error!r}"
        return f"<{type(self).__name__} to {self._topic}, {state}>"

    def done(self) -> bool:
        return _outcome(self.parcel).done()

    def add_done_callback(self, callback: Callable[[Sending], object]) -> None:
        """Called with this when it is stored, or has failed; at once if that has happened already.

        On the thread of the client's event loop: not for long work, and not for blocking calls of the same client.
        """
        if not callable(callback):
            raise InvalidInput(f"a callback is a function of a Sending, not {type(callback).__name__}")
        _outcome(self.parcel).add_done_callback(lambda _: callback(self))

    def result(self, timeout: float | None = None) -> Published:
        """Waits until it is on disk, or as the producer's `acks` say. TimeoutError after `timeout` seconds."""
        check_timeout(timeout)
        try:
            return self._published(self.parcel.done.result(timeout))
        except PenstockError:
            self.parcel.tell()
            raise

    def __await__(self) -> Generator[Any, None, Published]:
        try:
            stored = yield from asyncio.wrap_future(self.parcel.done).__await__()
            return self._published(stored)
        except PenstockError:
            self.parcel.tell()
            raise

    def _published(self, stored: Stored) -> Published:
        if self.parcel.parts:
            stored = self.parcel.stored(self.row)
            return Published(self._topic, stored.partition, stored.offset, stored.append_time)
        offset = UNKNOWN if stored.offset == UNKNOWN else stored.offset + self.row
        return Published(self._topic, stored.partition, offset, stored.append_time)


class SendingBatch:
    """A table on its way, in as many parts as it has partitions: `await` it, or ask for its `result()`."""

    __slots__ = ("_count", "_parts", "_topic")

    def __init__(self, topic: str, count: int, parts: Sequence[tuple[npt.NDArray[np.int64], Parcel]]) -> None:
        """Each part has the rows of the table that are in its parcel."""
        self._topic = topic
        self._count = count
        self._parts = parts

    def __repr__(self) -> str:
        state = "done" if all(parcel.done.done() for _, parcel in self._parts) else "on their way"
        return f"<{type(self).__name__} of {self._count} messages to {self._topic}, {state}>"

    def __len__(self) -> int:
        return self._count

    def done(self) -> bool:
        return all(_outcome(parcel).done() for _, parcel in self._parts)

    def result(self, timeout: float | None = None) -> PublishedBatch:
        """Waits until all of it is on disk, or as the producer's `acks` say. TimeoutError after `timeout` seconds.

        If a part fails, its error is raised, and others may have been stored.
        """
        check_timeout(timeout)
        # All of them, also if one fails: nobody shall still be writing when the error is told.
        if wait(self._futures(), timeout).not_done:
            raise TimeoutError
        return self._published()

    def __await__(self) -> Generator[Any, None, PublishedBatch]:
        stored = asyncio.gather(*map(asyncio.wrap_future, self._futures()), return_exceptions=True)
        yield from stored.__await__()
        return self._published()

    def _futures(self) -> list[Future[Stored]]:
        return [parcel.done for _, parcel in self._parts]

    def _published(self) -> PublishedBatch:
        partitions, offsets = np.empty(self._count, np.int64), np.empty(self._count, np.int64)
        for _, parcel in self._parts:
            parcel.tell()
        for rows, stored in chain.from_iterable(parcel.places(rows) for rows, parcel in self._parts):
            partitions[rows] = stored.partition
            offsets[rows] = UNKNOWN if stored.offset == UNKNOWN else stored.offset + np.arange(len(rows))
        return PublishedBatch(self._topic, partitions, offsets)


def _outcome(parcel: Parcel) -> Future[Stored]:
    """Raise ClientForked if the parent process sends it: this one never learns what becomes of it."""
    future = parcel.done
    if future.done() and isinstance(error := future.exception(), ClientForked):
        raise error.again()
    return future


def check_timeout(timeout: Any) -> None:
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and 0 <= timeout <= TIMEOUT_MAX):
        raise InvalidInput(f"timeout is 0 to {TIMEOUT_MAX} seconds, or None, not {timeout!r}", argument="timeout")
