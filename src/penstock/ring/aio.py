"""A ring for tasks: the same ring, with `await` where it waits. Threads may be at the other end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.ring.batch import JobBatch
from penstock.ring.handlers import AsyncHandler, check_async
from penstock.ring.settings import Duration, listed
from penstock.ring.tasks import LoopTasks
from penstock.ring.waiting import WaitingTask, drive_async
from penstock.ring.workers import Work

if TYPE_CHECKING:
    from penstock.ring.ring import Ring


class AsyncRing:
    """`ring.aio`. Answers (`batch.ack()` and the rest) never wait, and are the same."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    async def put(self, job: Any, wait: Duration | None = None) -> None:
        await drive_async(self._ring._putting([job], wait, WaitingTask))

    async def put_many(self, jobs: Iterable[Any], wait: Duration | None = None) -> None:
        await drive_async(self._ring._putting(listed(jobs), wait, WaitingTask))

    async def take(self, max: int = 1, wait: Duration | None = None) -> JobBatch:
        taken: JobBatch = await drive_async(self._ring._taking(max, wait, WaitingTask))
        return taken

    async def _take_for(self, work: Work) -> JobBatch:
        taken: JobBatch = await drive_async(self._ring._taking(work.batch_max, work.until_idle, WaitingTask, work))
        return taken

    async def join(self, wait: Duration | None = None) -> bool:
        return bool(await drive_async(self._ring._joining(wait, WaitingTask)))

    async def run(
        self, handler: AsyncHandler, workers: int = 1, batch: int = 100, *, until_idle: Duration | None = None
    ) -> None:
        """Tasks in this event loop, until the ring is closed, or has had nothing to do for `until_idle`."""
        check_async(handler)
        self._ring._check_open()
        tasks = LoopTasks(Work(self._ring, workers, batch, until_idle))
        self._ring._list(tasks)
        try:
            await tasks.run(handler)
        finally:
            self._ring._remove(tasks)

    async def flush(self) -> None:
        await asyncio.to_thread(self._ring.flush)

    async def close(self, wait: Duration | None = None) -> None:
        """As `Ring.close`, which would keep the tasks of this loop from finishing what they hold."""
        await asyncio.to_thread(self._ring.close, wait)
