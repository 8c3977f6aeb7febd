"""Acknowledge and nack what the handlers of one `Consumer.run` have finished, in one request for each partition at a
time. Belongs to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

from pyroaring import BitMap64

from penstock.client.answers import Nack
from penstock.client.lease import Lease
from penstock.client.received import ACK, Received
from penstock.client.work_queue import Failure, HandledMessages, WorkQueue
from penstock.errors import LeaseError

_Partition = tuple[str, int]


class Settlement:
    """Invariant: one request for acknowledgements is under way for each partition."""

    def __init__(self, queue: WorkQueue, lock: Lock, on_settled: Callable[[BaseException | None], None]) -> None:
        """
        lock: guards `queue`.
        on_settled: called after each request, with an error that is neither a handler's nor a lost lease.
        """
        self._queue = queue
        self._lock = lock
        self._on_settled = on_settled
        self._loop = asyncio.get_running_loop()
        # By partition: what waits for the request under way, and what that request is about.
        self._waiting: dict[_Partition, HandledMessages] = {}
        self._in_flight: dict[_Partition, HandledMessages] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, handled: HandledMessages, failures: Sequence[Failure]) -> None:
        for lease, messages in handled.items():
            partition = lease.id[:2]
            if partition not in self._waiting:
                self._waiting[partition] = {}
                self._begin(self._ack(partition))
            self._waiting[partition].setdefault(lease, []).extend(messages)
        for failure in failures:
            self._begin(self._nack(failure))

    async def finish(self) -> None:
        """Wait for all requests."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def leases(self) -> set[Lease]:
        return set[Lease]().union(*self._waiting.values(), *self._in_flight.values())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._on_settled(None if task.cancelled() else task.exception())

    async def _ack(self, partition: _Partition) -> None:
        """Until nothing of the partition waits. What is handled during one request is acknowledged by the next."""
        try:
            while handled := self._waiting[partition]:
                self._waiting[partition], self._in_flight[partition] = {}, handled
                await self._ack_some(handled)
                self._on_settled(None)
        finally:
            del self._waiting[partition]
            self._in_flight.pop(partition, None)

    async def _ack_some(self, handled: HandledMessages) -> None:
        given = [(lease, BitMap64([message.offset for message in messages])) for lease, messages in handled.items()]
        try:
            outcomes = await Lease.ack_all(given)
        finally:
            with self._lock:
                self._queue.unsettled -= sum(map(len, handled.values()))
        for messages, error in zip(handled.values(), outcomes, strict=True):
            if error is None:
                self._acked(messages)
            elif not isinstance(error, LeaseError):
                raise error
            elif len(messages) > 1:
                # The broker refuses a request as a whole, and only some of them may be lost.
                await asyncio.gather(*map(self._ack_one, messages))

    async def _ack_one(self, message: Received) -> None:
        if message._is_ours:
            with suppress(LeaseError):
                await message.lease.answer([], BitMap64([message.offset]), ACK)
                self._acked([message])

    def _acked(self, messages: Sequence[Received]) -> None:
        for message in messages:
            message.answered = ACK
        with self._lock:
            self._queue.done += len(messages)

    async def _nack(self, failure: Failure) -> None:
        """If it fails, the run ends, and the rest of the strand is released: it must not be handled before this one."""
        message = failure.message
        try:
            if message._is_ours:
                with suppress(LeaseError):
                    await message._answer(Nack(failure.reason))
        finally:
            with self._lock:
                self._queue.unsettled -= 1
        if message.lease.is_ordered:
            with self._lock:
                self._queue.advance(message)
