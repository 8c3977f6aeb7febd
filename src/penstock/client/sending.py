"""Where messages went, and those that are still on their way there."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from penstock.client.outbox import Parcel
from penstock.client.transport import Stored
from penstock.published import Published, PublishedBatch

__all__ = ["Published", "PublishedBatch", "Sending"]


class Sending:
    """A message on its way: `await` it, or ask for its `result()` on another thread than the event loop's."""

    __slots__ = ("_parcel", "_row", "_topic")

    def __init__(self, topic: str, parcel: Parcel, row: int) -> None:
        self._topic = topic
        self._parcel = parcel
        self._row = row

    def done(self) -> bool:
        return self._parcel.done.done()

    def result(self, timeout: float | None = None) -> Published:
        """Waits until it is on disk. TimeoutError if that takes more than `timeout` seconds."""
        return self._published(self._parcel.done.result(timeout))

    def __await__(self) -> Generator[Any, None, Published]:
        stored = yield from asyncio.wrap_future(self._parcel.done).__await__()
        return self._published(stored)

    def _published(self, stored: Stored) -> Published:
        return Published(self._topic, stored.partition, stored.offset + self._row, stored.append_time)
