"""Acknowledgements that are told together, a moment after they were given.

Whatever has not been told when the process dies is delivered again: that is what the moment costs. What went wrong with
one of them is raised by the next, or by `flush`.
"""

from __future__ import annotations

import asyncio
from threading import Lock
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from penstock.client.answers import Ack
from penstock.errors import LogClosed, PenstockError

if TYPE_CHECKING:
    from penstock.client.lease import Lease


class Acks:
    """Of one consumer. Belongs to one event loop, except for `add`."""

    def __init__(self, linger_s: float) -> None:
        self._linger_s = linger_s
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._given: dict[Lease, list[int]] = {}
        self._is_expected = False
        self._telling: set[asyncio.Task[None]] = set()
        self._failure: PenstockError | None = None

    def add(self, lease: Lease, offset: int) -> None:
        """From any thread."""
        with self._lock:
            try:
                self._given[lease].append(offset)
            except KeyError:
                self._given[lease] = [offset]
            is_first = not self._is_expected
            self._is_expected = True
        if is_first:
            try:
                self._loop.call_soon_threadsafe(self._loop.call_later, self._linger_s, self._tell)
            except RuntimeError as error:
                raise LogClosed("the client is closed") from error
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure.again()

    def _tell(self) -> None:
        task = self._loop.create_task(self._told())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _told(self) -> None:
        with self._lock:
            given, self._given = self._given, {}
            self._is_expected = False
        by_partition: dict[tuple[str, int], list[tuple[Lease, BitMap64]]] = {}
        for lease, offsets in given.items():
            by_partition.setdefault(lease.id[:2], []).append((lease, BitMap64(offsets)))
        await asyncio.gather(*map(self._tell_of_all, by_partition.values()))

    async def _tell_of_all(self, given: list[tuple[Lease, BitMap64]]) -> None:
        if len(given) == 1:
            await self._tell_of(*given[0])
            return
        failures = await given[0][0].ack_all(given)
        self._failure = self._failure or next(iter(failures), None)

    async def tell(self, lease: Lease) -> None:
        """Those of one lease, now."""
        with self._lock:
            offsets = self._given.pop(lease, None)
        if offsets is not None:
            await self._tell_of(lease, BitMap64(offsets))

    async def _tell_of(self, lease: Lease, offsets: BitMap64) -> None:
        try:
            await lease.answer((), offsets, Ack())
        except PenstockError as error:
            self._failure = self._failure or error

    async def flush(self) -> None:
        """Until all that were given are on disk. Raises what went wrong with any of them."""
        self._tell()
        while self._telling:
            await asyncio.gather(*self._telling)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure.again()
