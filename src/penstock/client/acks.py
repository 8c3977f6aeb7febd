"""Acknowledgements that are told together, a moment after they were given.

Whatever has not been told when the process dies is delivered again: that is what the moment costs. What went wrong with
one of them is raised by the next, or by `flush`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from threading import Lock
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap64

from penstock.client import forks
from penstock.client.answers import Ack
from penstock.client.words import CLIENT_CLOSED
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
        # The dict for which a send is already scheduled.
        self._expected: dict[Lease, list[int]] | None = None
        self._telling: set[asyncio.Task[None]] = set()
        # Sent, and not confirmed yet.
        self._under_way = 0
        # What the next `check` raises.
        self.failure: PenstockError | None = None
        forks.guard(self)

    def add(self, lease: Lease, offset: int) -> None:
        """From any thread. If the caller is interrupted before a send is scheduled, the next `add` schedules it."""
        with self._lock:
            given = self._given
            try:
                given[lease].append(offset)
            except KeyError:
                given[lease] = [offset]
        if self._expected is not given:
            try:
                self._loop.call_soon_threadsafe(self._loop.call_later, self._linger_s, self._tell)
            except RuntimeError as error:
                raise LogClosed(CLIENT_CLOSED) from error
            self._expected = given

    def check(self) -> None:
        """Raise what went wrong with one that was given earlier."""
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure.again()

    def _tell(self) -> None:
        self._begin(self._told())

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Not to be cancelled with a caller that waits for it: these acknowledgements are nowhere else."""
        task = self._loop.create_task(work)
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        return task

    async def _told(self) -> None:
        with self._lock:
            given, self._given = self._given, {}
        by_partition: dict[tuple[str, int], list[tuple[Lease, BitMap64]]] = {}
        for lease, offsets in given.items():
            by_partition.setdefault(lease.id[:2], []).append((lease, BitMap64(offsets)))
        await asyncio.gather(*map(self._tell_of_all, by_partition.values()))

    async def _tell_of_all(self, given: list[tuple[Lease, BitMap64]]) -> None:
        count = sum(len(offsets) for _, offsets in given)
        self._under_way += count
        try:
            failures = await given[0][0].ack_all(given)
        finally:
            self._under_way -= count
        self.failure = self.failure or next(filter(None, failures), None)

    async def tell(self, lease: Lease) -> None:
        """Those of one lease, now."""
        with self._lock:
            offsets = self._given.pop(lease, None)
        if offsets is not None:
            await asyncio.wait([self._begin(self._tell_of(lease, BitMap64(offsets)))])

    async def _tell_of(self, lease: Lease, offsets: BitMap64) -> None:
        self._under_way += len(offsets)
        try:
            await lease.answer((), offsets, Ack())
        except PenstockError as error:
            self.failure = self.failure or error
        finally:
            self._under_way -= len(offsets)

    @property
    def undecided(self) -> int:
        """Acknowledgements that were given and are not known to be on disk, or refused."""
        return self._under_way + sum(map(len, self._given.values()))

    async def flush(self) -> None:
        """Until all that were given are on disk. Raises what went wrong with any of them."""
        self._tell()
        while self._telling:
            await asyncio.wait(self._telling)
        self.check()
