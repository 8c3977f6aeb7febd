"""Workers for coroutine functions: tasks of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any

from penstock.client.answers import Release
from penstock.client.received import Received
from penstock.client.work_queue import WorkQueue
from penstock.client.workers import Handler, Workers, refuse_generator
from penstock.errors import PenstockError

# Coroutines that never wait must let the event loop run now and then.
_TURN = 128


class TaskWorkers(Workers):
    def __init__(
        self, handler: Handler, queue: WorkQueue, lock: Lock, concurrency: int, schedule_settling: Callable[[], None]
    ) -> None:
        super().__init__(handler, queue, lock, concurrency, schedule_settling)
        self._woken: asyncio.Queue[bool] = asyncio.Queue()

    def _start(self, number: int) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._work(number))

    def _resume(self, is_over: bool) -> None:
        self._woken.put_nowait(not is_over)

    def cancel(self) -> None:
        for worker in self.futures:
            worker.cancel()

    async def _work(self, number: int) -> None:
        turn, is_woken = 0, True
        while is_woken:
            self._woke()
            message = self._take(number)
            while message is not None:
                failure = await self._handle(message)
                turn += 1
                if turn % _TURN:
                    message = self._take(number, message, failure)
                else:
                    with self._lock:
                        self._queue.finish(message, failure)
                    await asyncio.sleep(0)
                    message = self._take(number)
            is_woken = not self._queue.is_over and await self._woken.get()

    async def _handle(self, message: Received) -> str | None:
        """Why the handler failed, if it did."""
        lease = message.lease
        try:
            if lease.is_ordered and not lease.is_fresh and not await lease.keep():
                return None
            return await self._call(message)
        except asyncio.CancelledError:
            # The client may be closed already. Then it is delivered again when its lease has expired.
            with suppress(PenstockError):
                await asyncio.shield(message._answer(Release()))
            raise

    async def _call(self, message: Received) -> str | None:
        try:
            outcome: Any = self._handler(message)
            outcome = await outcome
            if outcome is not None:
                refuse_generator(outcome)
        except Exception as error:
            return self._failed(message, error, __file__)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something that the handler awaited was cancelled, not the run.
            return self._failed(message, error, __file__)
        return None
