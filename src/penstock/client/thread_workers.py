"""Workers for plain functions: threads.

While handlers return quickly, one thread works alone: several would only wait for the lock and for the interpreter. If
that thread handles fewer than LONE_RATE messages a second, because a handler blocks or computes, all of them work.
After WIDE_S one thread tries again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from typing import Any, TypeVar

from penstock.client.received import Received
from penstock.client.work_queue import WorkQueue
from penstock.client.workers import Handler, Workers, log, refuse_generator

R = TypeVar("R")

# Messages a second. Eight threads that only count messages reach twice as many, one thread six times as many.
LONE_RATE = 50_000
# How long one thread works alone before it is judged: what a message waits behind a handler that blocks.
LONE_S = 0.001
# In a row. A thread is also slow when it decodes a batch, or waits for the interpreter while the event loop computes.
SLOW_MAX = 3
WIDE_S = 0.2


class ThreadWorkers(Workers):
    """Invariant: while `_limit` is 1, at most one thread takes another message."""

    def __init__(
        self, handler: Handler, queue: WorkQueue, lock: Lock, concurrency: int, schedule_settling: Callable[[], None]
    ) -> None:
        super().__init__(handler, queue, lock, concurrency, schedule_settling)
        self._loop = asyncio.get_running_loop()
        self._woken: SimpleQueue[bool] = SimpleQueue()
        self._limit = 1
        self._slow = 0
        self._timer: asyncio.TimerHandle | None = None
        # Since the last judgement: how long a thread was active, without the current stretch.
        self._active_s = 0.0
        self._active_since_s = 0.0
        # At the last judgement.
        self._taken_before = 0

    def _start(self, number: int) -> asyncio.Future[None]:
        ended: Future[None] = Future()
        # A daemon: a user who interrupts the waiting for handlers wants the process to exit.
        Thread(target=self._work, args=[number, ended], name=f"penstock-handler-{number}", daemon=True).start()
        return asyncio.wrap_future(ended)

    def _resume(self, is_over: bool) -> None:
        self._woken.put(not is_over)

    def cancel(self) -> None:
        at_work = len(self.messages())
        if at_work:
            log.warning("waiting for %d handlers that are running", at_work)

    # --- one thread, or all ------------------------------------------------------------------------------

    def wake(self, count: int) -> None:
        was_active = self.active
        super().wake(count)
        if self.active and not was_active:
            self._active_since_s = perf_counter()
            if self._timer is None and self._concurrency > 1:
                self._judge_later()

    def _rest(self) -> None:
        super()._rest()
        if not self.active:
            self._active_s += perf_counter() - self._active_since_s

    def _judge_later(self) -> None:
        self._timer = self._loop.call_later(LONE_S if self._limit == 1 else WIDE_S, self._judge)

    def _judge(self) -> None:
        with self._lock:
            self._timer = None
            if not self.active or self._queue.is_over:
                return
            now_s = perf_counter()
            active_s = self._active_s + now_s - self._active_since_s
            is_slow = self._limit == 1 and self._taken - self._taken_before < LONE_RATE * active_s
            self._slow = self._slow + 1 if is_slow else 0
            self._limit = self._concurrency if self._slow == SLOW_MAX else 1
            if self._limit > 1:
                self._schedule_settling()
            self._active_s, self._active_since_s, self._taken_before = 0.0, now_s, self._taken
            self._judge_later()

    # --- on a thread -------------------------------------------------------------------------------------

    def _work(self, number: int, ended: Future[None]) -> None:
        try:
            is_woken = True
            while is_woken:
                self._woke()
                message = self._take(number)
                while message is not None:
                    message = self._take(number, message, self._handle(message))
                is_woken = not self._queue.is_over and self._woken.get()
        except BaseException as error:
            ended.set_exception(error)
        else:
            ended.set_result(None)

    def _handle(self, message: Received) -> str | None:
        """Why the handler failed, if it did."""
        lease = message.lease
        # What comes from the shelf is fresh, and what has waited for others of its strand may not be.
        if lease.is_ordered and not lease.is_fresh and not self._on_loop(lease.keep()):
            return None
        try:
            outcome = self._handler(message)
            if outcome is not None:
                self._check_outcome(outcome)
        except BaseException as error:
            # Also `sys.exit`, which would end this thread and nothing else.
            return self._failed(message, error, __file__)
        return None

    def _check_outcome(self, outcome: object) -> None:
        refuse_generator(outcome)
        if inspect.isawaitable(outcome):
            self._on_loop(_awaited(outcome))

    def _on_loop(self, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _awaited(outcome: Awaitable[R]) -> R:
    return await outcome
