"""`Consumer.run`: workers call the handler for each message, and what they finished is settled in batches.

Workers take messages from the shelf themselves. The event loop fetches when a worker has nothing to do, settles what
was handled, and renews leases.

work_queue      from the shelf to the workers, in order, and from there to the broker
thread_workers  call a plain function; task_workers call a coroutine function; workers is what both have in common
settlement      acknowledges and nacks
lease_renewal   keeps messages leased until they are settled
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Lock

from penstock.client.closing import while_answered
from penstock.client.lease import Lease
from penstock.client.lease_renewal import LeaseRenewal
from penstock.client.membership import Membership
from penstock.client.settlement import Settlement
from penstock.client.task_workers import TaskWorkers
from penstock.client.thread_workers import ThreadWorkers
from penstock.client.words import count_of
from penstock.client.work_queue import Handled, WorkQueue
from penstock.client.workers import Handler, Workers
from penstock.errors import ConnectionLost
from penstock.handlers import check_handler, is_async

CONCURRENCY_MAX = 1_000
# Handlers at work may make messages ready that no poll returned: a key that was busy, a retry.
_POLL_AGAIN_S = 1.0

Fill = Callable[[], Awaitable[bool]]


async def run(membership: Membership, fill: Fill, handler: Handler, concurrency: int, ahead: int) -> Handled:
    """Until the consumer is idle or closed and every handler has returned.

    `fill` returns as soon as there is a message on the shelf; False if the consumer is idle or closed. `ahead` bounds
    how many messages may wait for others of their key while a worker could take the next ones. If this is cancelled,
    coroutine handlers are cancelled and their messages released. Threads can't be cancelled: this waits for handlers
    that run on them, and acknowledges what they did.
    """
    count_of("concurrency", concurrency, CONCURRENCY_MAX)
    check_handler(handler, "a message")
    return await Runner(handler, membership, concurrency, max(ahead, concurrency)).run(fill)


class Runner:
    """Belongs to the event loop. `_lock` guards what workers change, too: the queue, and the counts of workers."""

    def __init__(self, handler: Handler, membership: Membership, concurrency: int, ahead: int) -> None:
        loop = asyncio.get_running_loop()
        self._membership = membership
        self._shelf = membership.shelf
        self._lock = Lock()
        self._is_scheduled = False
        self._changed = asyncio.Event()
        self._feeding: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._queue = WorkQueue(membership, ahead, self._schedule_settling)
        self._settlement = Settlement(self._queue, self._lock, self._settled)
        self._renewal = LeaseRenewal(self._leases)
        kind: type[Workers] = TaskWorkers if is_async(handler) else ThreadWorkers
        self._workers = kind(handler, self._queue, self._lock, concurrency, self._schedule_settling)
        # Tasks are on the loop, where `call_soon` is cheaper.
        self._call_soon: Callable[..., object] = loop.call_soon if kind is TaskWorkers else loop.call_soon_threadsafe

    async def run(self, fill: Fill) -> Handled:
        self._feeding = asyncio.ensure_future(self._feed(fill))
        renewing = asyncio.ensure_future(self._renewal.run())
        is_cancelled = True
        try:
            await self._feeding
            is_cancelled = False
        except asyncio.CancelledError:
            if self._error is None:
                raise
        finally:
            try:
                await self._end(is_cancelled)
            finally:
                renewing.cancel()
        if self._error is not None:
            raise self._error
        return Handled(self._queue.done, self._queue.failed)

    # --- messages for the workers ------------------------------------------------------------------------

    async def _feed(self, fill: Fill) -> None:
        while not self._membership.is_closed:
            if not self._workers.is_wanting or self._queue.is_full:
                await self._change()
            elif await fill():
                lease = self._shelf.next_lease()
                if lease is not None:
                    self._renewal.expect(lease)
                self._wake(len(self._shelf) + len(self._queue.ready))
            elif self._workers.active or not self._queue.is_empty:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_AGAIN_S):
                        await self._change()
            else:
                return

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _wake(self, count: int) -> None:
        with self._lock:
            if not self._queue.is_over:
                before = len(self._workers.futures)
                self._workers.wake(count)
                for worker in self._workers.futures[before:]:
                    worker.add_done_callback(self._worker_ended)

    def _worker_ended(self, worker: asyncio.Future[None]) -> None:
        self._settled(None if worker.cancelled() else worker.exception())

    # --- what the workers have finished ------------------------------------------------------------------

    def _schedule_settling(self) -> None:
        """Have the event loop settle. Under the lock, from any thread that a worker may run on."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._settle)

    def _settle(self) -> None:
        with self._lock:
            self._is_scheduled = False
            handled, failures = self._queue.take_finished()
        self._settlement.start(handled, failures)
        self._settled(None)

    def _settled(self, error: BaseException | None) -> None:
        """An error is neither a handler's nor a lost lease: it ends the run."""
        if error is not None:
            self._error = self._error or error
            if self._feeding is not None:
                self._feeding.cancel()
        self._changed.set()
        if self._queue.ready:
            self._wake(len(self._queue.ready))

    def _leases(self) -> set[Lease]:
        with self._lock:
            found = {message.lease for message in self._workers.messages()} | self._queue.leases()
        return found | self._settlement.leases()

    # --- the end -----------------------------------------------------------------------------------------

    async def _end(self, is_cancelled: bool) -> None:
        with self._lock:
            self._queue.is_over = True
            self._workers.end()
        if is_cancelled:
            self._workers.cancel()
        if self._workers.futures:
            await asyncio.wait(self._workers.futures)
        self._settle()
        try:
            await while_answered(self._settlement.finish(), self._membership.transport, self._membership.topics[0])
        except TimeoutError:
            unsettled = self._queue.unsettled
            text = f"no broker answers, and {unsettled} messages that were handled may be delivered again"
            raise ConnectionLost(text, undecided=unsettled) from None
        self._membership.put_back([message for message in self._queue.waiting() if message._is_ours])
