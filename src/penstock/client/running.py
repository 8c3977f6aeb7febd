"""Handing messages to a function, several at a time, and answering for them."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple, Protocol

from penstock.client.answers import Ack, Nack, Release
from penstock.client.lease import Lease
from penstock.client.received import ACK, Received
from penstock.client.words import count_of
from penstock.errors import ConnectionLost, InvalidInput, LeaseError, PenstockError

Handler = Callable[[Received], Awaitable[object] | object]
CONCURRENCY_MAX = 1_000
_REASON_LENGTH_MAX = 500
_RENEW_S_MIN = 0.01


class Handled(NamedTuple):
    """How many messages were handled and acknowledged, and of how many the handler raised an error."""

    done: int
    failed: int


class Source(Protocol):
    """Where messages come from; None when there are none for now, or for ever."""

    async def next(self) -> Received | None: ...


async def run(source: Source, handler: Handler, concurrency: int, ahead: int) -> Handled:
    """Until the source has nothing more and nothing is being worked on.

    `ahead` bounds how many messages may wait for others of their key while a handler could take the next ones.
    """
    count_of("concurrency", concurrency, CONCURRENCY_MAX)
    if not callable(handler):
        raise InvalidInput(f"a handler is a function of a message, not {type(handler).__name__}")
    threads = ThreadPoolExecutor(concurrency, thread_name_prefix="penstock-handler")
    runner = _Runner(handler, concurrency, threads)
    renewing = asyncio.ensure_future(runner.renew())
    try:
        async with asyncio.TaskGroup() as tasks:
            await runner.feed(source, tasks, max(ahead, concurrency))
    except BaseExceptionGroup as errors:
        # Handlers' own errors are answers; what comes here is the broker's, and the first one says it all.
        raise errors.exceptions[0] from None
    finally:
        renewing.cancel()
        # Nothing is left for them to do, unless this was cancelled; and then nobody shall wait for them.
        threads.shutdown(wait=False)
    return Handled(runner.done, runner.failed)


class _Runner:
    def __init__(self, handler: Handler, concurrency: int, threads: ThreadPoolExecutor) -> None:
        self.done = 0
        self.failed = 0
        self._handler = handler
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
        self._slots = asyncio.Semaphore(concurrency)
        self._threads = threads
        self._at_work: set[asyncio.Task[None]] = set()
        self._leases: Counter[Lease] = Counter()
        self._last: dict[Hashable, asyncio.Task[None]] = {}

    async def feed(self, source: Source, tasks: asyncio.TaskGroup, at_work_max: int) -> None:
        while True:
            while len(self._at_work) >= at_work_max:
                await self._one_less()
            # Not more than can be worked on, except for those that wait for others.
            async with self._slots:
                pass
            message = await source.next()
            if message is not None:
                self._start(message, tasks)
                # Now it takes its slot, or begins to wait for another one.
                await asyncio.sleep(0)
            elif self._at_work:
                # What they do may make others ready: a key that was busy, a message that is to be tried again.
                await self._one_less()
            else:
                return

    async def renew(self) -> None:
        """While handlers work, what they work on stays theirs; so does what waits for them."""
        while True:
            held = [lease for lease, messages in self._leases.items() if messages > 0]
            self._leases = Counter({lease: self._leases[lease] for lease in held})
            shortest_us = min((lease.visibility_us for lease in held), default=1_000_000)
            await asyncio.sleep(max(shortest_us / 4_000_000, _RENEW_S_MIN))
            for lease in held:
                # A storage error is told by whoever answers next.
                with suppress(PenstockError):
                    await lease.keep()

    async def _one_less(self) -> None:
        await asyncio.wait(self._at_work, return_when=asyncio.FIRST_COMPLETED)

    def _start(self, message: Received, tasks: asyncio.TaskGroup) -> None:
        strand = message.lease.strand(message.key)
        task = tasks.create_task(self._handle(message, None if strand is None else self._last.get(strand)))
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)
        self._leases[message.lease] += 1
        task.add_done_callback(lambda _: self._leases.subtract([message.lease]))
        if strand is not None:
            self._last[strand] = task
            task.add_done_callback(lambda task: self._last.pop(strand) if self._last.get(strand) is task else None)

    async def _handle(self, message: Received, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        async with self._slots:
            # It may have waited long, or been taken back because of the one before it.
            if not message.is_held or not await message.lease.keep():
                return
            try:
                await self._call(message)
            except Exception as error:
                self.failed += 1
                await self._answered(message, failure=f"{type(error).__name__}: {error}"[:_REASON_LENGTH_MAX])
            except BaseException:
                # The client may be closed already; then it comes again when its lease has run out.
                with suppress(PenstockError):
                    await asyncio.shield(message._answer(Release()))
                raise
            else:
                if await self._answered(message, failure=None):
                    self.done += 1

    async def _call(self, message: Received) -> None:
        if self._is_async:
            outcome = self._handler(message)
        else:
            outcome = await asyncio.get_running_loop().run_in_executor(self._threads, self._on_a_thread, message)
        if inspect.isawaitable(outcome):
            await outcome

    def _on_a_thread(self, message: Received) -> object:
        try:
            return self._handler(message)
        except Exception:
            raise
        except BaseException as error:
            # `sys.exit` ends a thread, and must not end the event loop that waits for it.
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    async def _answered(self, message: Received, failure: str | None) -> bool:
        """A handler may have answered itself. If its time was up, the message comes again, and was not done."""
        if message.answered is not None:
            return isinstance(message.answered, Ack)
        if not message.is_held:
            return False
        try:
            await self._answer(message, failure)
        except LeaseError:
            return False
        return True

    async def _answer(self, message: Received, failure: str | None) -> None:
        for is_last in (False, True):
            try:
                await message._answer(ACK if failure is None else Nack(failure))
                return
            except ConnectionLost:
                # Nobody knows whether it was told. If it was, telling it again is refused, and changes nothing.
                if is_last:
                    raise
