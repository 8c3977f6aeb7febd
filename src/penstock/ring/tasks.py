"""The same as `workers`, with `await`: as many tasks as there are workers, in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from math import inf
from threading import Event, current_thread
from time import monotonic

from penstock.errors import RingClosed
from penstock.ring.batch import JobBatch
from penstock.ring.handlers import AsyncHandler, check_returned
from penstock.ring.settings import Duration, seconds
from penstock.ring.waiting import JoinableThread
from penstock.ring.workers import Work

_LOOK_S = 0.1


async def run_tasks(work: Work, handler: AsyncHandler) -> None:
    """Until all have ended. If this is cancelled they are too, and what they held is tried again."""
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(work.count):
                group.create_task(_run(work, handler))
    except BaseExceptionGroup as errors:
        # The first is why the others were cancelled.
        raise errors.exceptions[0] from None


async def _run(work: Work, handler: AsyncHandler) -> None:
    try:
        while not work.is_over:
            batch = await work.ring.aio._take_for(work)
            if batch:
                await _handle(work, handler, batch)
            elif work.is_idle(batch):
                return
    except RingClosed:
        return
    except BaseException:
        work.stop_soon()
        raise


async def _handle(work: Work, handler: AsyncHandler, batch: JobBatch) -> None:
    work.begin(batch)
    try:
        check_returned(await handler(batch))
    except Exception as error:
        work.failed(batch, error)
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and not (task is not None and task.cancelling()):
            # Something that the handler awaited was cancelled, not this task.
            work.failed(batch, RuntimeError("CancelledError: what the handler awaited was cancelled"))
            return
        work.end(batch, error)
        raise
    else:
        work.end(batch, None)


class LoopTasks:
    """Tasks in the event loop of whoever runs them."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._ended = Event()
        self.count = work.count
        self.have_ended = False

    async def run(self, handler: AsyncHandler) -> None:
        try:
            await run_tasks(self._work, handler)
        finally:
            self._ended.set()

    def began_s(self) -> Iterable[float]:
        return self._work.began_s()

    def stop(self, wait: Duration | None = None) -> bool:
        self._work.stop_soon()
        if _running_loop() is self._loop:
            # They could not end while this waits for them.
            return self._ended.is_set()
        until_s = inf if wait is None else monotonic() + seconds(wait)
        while not self._ended.wait(max(min(until_s - monotonic(), _LOOK_S), 0)):
            if monotonic() >= until_s or not self._loop.is_running():
                # One that was stopped, or closed, in the middle of it: they will not end, however long this waits.
                return False
        return True

    def join(self) -> None:
        self._ended.wait()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class LoopThread:
    """An event loop with its tasks in a thread of its own, for whoever has none."""

    def __init__(self, work: Work, handler: AsyncHandler) -> None:
        self._work = work
        self._handler = handler
        self.count = work.count
        self.have_ended = False
        self._error: BaseException | None = None
        self._thread = JoinableThread(self._run, "penstock-ring-loop")

    def begin(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(run_tasks(self._work, self._handler))
        except BaseException as error:
            self._error = error
        finally:
            self._work.ended(self)

    def began_s(self) -> Iterable[float]:
        return self._work.began_s()

    def stop(self, wait: Duration | None = None) -> bool:
        self._work.stop_soon()
        if self._thread is current_thread():
            return False
        self._thread.join(None if wait is None else seconds(wait))
        return not self._thread.is_alive()

    def join(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error
