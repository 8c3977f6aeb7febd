"""The workers of one `Consumer.run`: each takes a message, calls the handler, and takes the next one."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from threading import Lock
from types import TracebackType

from penstock.client.received import Received
from penstock.client.work_queue import WorkQueue
from penstock.handlers import reason_of

log = logging.getLogger("penstock.consumer")

Handler = Callable[[Received], Awaitable[object] | object]
_REASON_LENGTH_MAX = 500


class Workers:
    """What threads and tasks have in common. Workers start when they are first needed, and are idle between messages.

    `lock` guards the queue and the counts of workers.
    """

    def __init__(
        self, handler: Handler, queue: WorkQueue, lock: Lock, concurrency: int, schedule_settling: Callable[[], None]
    ) -> None:
        """`schedule_settling` is called under the lock when a worker has nothing to do."""
        self._handler = handler
        self._queue = queue
        self._lock = lock
        self._concurrency = concurrency
        # How many may be active.
        self._limit = concurrency
        self._schedule_settling = schedule_settling
        # By worker: the message it handles.
        self._at_work: list[Received | None] = []
        self._idle = 0
        # Woken, and not at the queue yet.
        self._waking = 0
        # Messages that were taken so far.
        self._taken = 0
        self.futures: list[asyncio.Future[None]] = []

    # --- each kind has its own ---------------------------------------------------------------------------

    def _start(self, number: int) -> asyncio.Future[None]:
        """A worker. The future is done when it has ended."""
        raise NotImplementedError

    def _resume(self, is_over: bool) -> None:
        """Wake an idle worker: to take messages, or to end."""
        raise NotImplementedError

    def cancel(self) -> None:
        """The run was cancelled."""
        raise NotImplementedError

    # --- under the lock ----------------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """Workers that handle a message or are about to take one."""
        return len(self._at_work) - self._idle

    @property
    def is_wanting(self) -> bool:
        """Whether the next messages would be taken at once. Not until those that were woken have taken theirs."""
        return not self._waking and self._free > 0

    @property
    def _free(self) -> int:
        """How many may be woken."""
        return self._limit - self.active

    def wake(self, count: int) -> None:
        """As many as there are messages, including those that were woken before."""
        for _ in range(min(count - self._waking, self._free)):
            self._waking += 1
            if self._idle:
                self._idle -= 1
                self._resume(is_over=False)
            else:
                worker = self._start(len(self._at_work))
                self._at_work.append(None)
                self.futures.append(worker)

    def end(self) -> None:
        """The queue is over."""
        for _ in range(self._idle):
            self._resume(is_over=True)

    def messages(self) -> list[Received]:
        """Those that are handled now."""
        return [message for message in self._at_work if message is not None]

    # --- for a worker ------------------------------------------------------------------------------------

    def _woke(self) -> None:
        """A worker that was woken is about to take a message."""
        with self._lock:
            self._waking -= 1
            if not self._waking:
                self._schedule_settling()

    def _take(self, number: int, before: Received | None = None, failure: str | None = None) -> Received | None:
        """The next message for a worker, which is idle if there is none. `before` is the one it has handled."""
        with self._lock:
            if before is not None:
                self._queue.finish(before, failure)
            # Surplus if the limit was lowered.
            is_surplus = len(self._at_work) - self._idle > self._limit
            message = self._at_work[number] = None if is_surplus else self._queue.next()
            if message is None:
                self._rest()
            else:
                self._taken += 1
            return message

    def _rest(self) -> None:
        """A worker is idle from now on. Under the lock."""
        self._idle += 1
        self._schedule_settling()

    def _failed(self, message: Received, error: BaseException, file: str) -> str:
        """Log what a handler raised, and return it in one line. `file` is the one that called the handler."""
        with self._lock:
            self._queue.failed += 1
        raised = type(error), error, _of_handler(error, file)
        log.error("the handler failed for %s, attempt %d", message.id, message.attempt, exc_info=raised)
        return reason_of(error)[:_REASON_LENGTH_MAX]


def refuse_generator(outcome: object) -> None:
    if inspect.isgenerator(outcome) or inspect.isasyncgen(outcome):
        raise TypeError("the handler returned a generator, and its work is not done")


def _of_handler(error: BaseException, file: str) -> TracebackType | None:
    """Its traceback from the handler on, without the calls that led there."""
    found = each = error.__traceback__
    while each is not None:
        if each.tb_frame.f_code.co_filename == file and each.tb_next is not None:
            found = each.tb_next
        each = each.tb_next
    return found
