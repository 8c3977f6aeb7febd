"""A member of a group: messages one by one, some at a time, in columns, or handed to a function."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from penstock.client import forks
from penstock.client.acks import Acks
from penstock.client.closing import CLOSE_TIMEOUT
from penstock.client.membership import Membership
from penstock.client.received import Received, ReceivedBatch
from penstock.client.runner import run
from penstock.client.transport import Transport
from penstock.client.words import Duration, count_of, duration_of
from penstock.client.work_queue import Handled
from penstock.client.workers import Handler
from penstock.errors import LeaseError, PenstockError

PREFETCH_DEFAULT = 100
PREFETCH_MAX = 10_000
# Consumers nobody refers to any more, on their way out.
_leaving: set[asyncio.Task[None]] = set()


class Consumer:
    """Made by `Client.consumer`. It is a member of its group from its first use until it is closed, or until a loop
    over it ends because it is idle; used again, it joins again.

    A message that was handed out is to be answered for: `ack`, `nack`, `reject` or `release`. What was fetched ahead
    and never handed out is given back when the consumer is closed.
    """

    def __init__(
        self,
        transport: Transport,
        group: str,
        topics: Sequence[str],
        *,
        name: str,
        settings: Mapping[str, Any],
        prefetch: int = PREFETCH_DEFAULT,
        until_idle: Duration | None = None,
        ack_linger: Duration = "0s",
    ) -> None:
        self.group = group
        self.name = name
        linger_us = duration_of("ack_linger", ack_linger)
        acks = Acks(linger_us / 1_000_000) if linger_us else None
        self._prefetch = count_of("prefetch", prefetch, PREFETCH_MAX)
        self.membership = Membership(transport, group, topics, name, settings, acks, prefetch)
        self._idle_us = None if until_idle is None else duration_of("until_idle", until_idle)
        self._turn = asyncio.Lock()
        # A loop over a consumer that nobody closes is the common way to use one.
        weakref.finalize(self, _abandon, self.membership, asyncio.get_running_loop()).atexit = False

    def __repr__(self) -> str:
        state = "closed" if self.membership.is_closed else "open"
        return f"<{type(self).__name__} {self.name} of {self.group} on {', '.join(self.membership.topics)}, {state}>"

    async def __aenter__(self) -> Self:
        await self.join()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def join(self) -> None:
        """Becomes a member now, instead of when it first asks for something."""
        await self.membership.join()

    # --- one by one --------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        self.membership.check_open()
        return self

    async def __anext__(self) -> Received:
        message = await self.next()
        if message is None:
            await self.membership.rest()
            raise StopAsyncIteration
        return message

    async def next(self) -> Received | None:
        """The next message, as soon as there is one; None when the consumer is idle or closed."""
        async with self._turn:
            while not self.membership.is_closed:
                message = self.membership.shelf.take_next()
                if message is None:
                    if not await self.membership.fetch(self._prefetch, self._idle_us):
                        return None
                elif await self._is_kept(message):
                    return message
            return None

    async def _fill(self) -> bool:
        """Until there is a message to take from the shelf, whose lease has time left. False if the consumer is idle or
        closed."""
        async with self._turn:
            while not self.membership.is_closed:
                lease = self.membership.shelf.next_lease()
                if lease is None:
                    if not await self.membership.fetch(self._prefetch, self._idle_us):
                        return False
                elif lease.is_fresh or await self.membership.keep(lease):
                    return True
            return False

    async def _is_kept(self, message: Received) -> bool:
        try:
            return await message.lease.keep()
        except BaseException:
            self.membership.put_back([message])
            raise

    async def poll(self, max: int = PREFETCH_DEFAULT, wait: Duration = "0s") -> list[Received]:
        """Up to `max` messages, as soon as there are some; none if nothing comes within `wait`."""
        wait_us = duration_of("wait", wait)
        count_of("max", max, PREFETCH_MAX)
        self.membership.check_open()
        async with self._turn:
            found = await self._taken(max)
            if not found and await self.membership.fetch(max, wait_us):
                found = await self._taken(max)
            return found

    async def _taken(self, count: int) -> list[Received]:
        found: list[Received] = []
        try:
            while len(found) < count and (message := self.membership.shelf.take()) is not None:
                if await self._is_kept(message):
                    found.append(message)
        except BaseException:
            self.membership.put_back(found)
            raise
        return found

    # --- many at once ------------------------------------------------------------------------------------

    async def batches(self) -> AsyncIterator[ReceivedBatch]:
        """Messages in columns, each batch with one answer for all of it. Ends when the consumer is idle or closed."""
        self.membership.check_open()
        while not self.membership.is_closed:
            async with self._turn:
                batch = self.membership.shelf.take_batch()
                if batch is None:
                    if not await self.membership.fetch(self._prefetch, self._idle_us):
                        await self.membership.rest()
                        return
                    continue
                try:
                    is_ours = await batch.lease.keep()
                except BaseException:
                    self.membership.put_back_batch(batch)
                    raise
            if is_ours:
                yield batch

    async def run(self, handler: Handler, concurrency: int = 8) -> Handled:
        """Hands each message to `handler`, `concurrency` at a time: ack when it returns, nack when it raises.

        A plain function runs on a thread. In a group that is ordered by key, messages of one key are handled one after
        the other. While a handler works, its message stays leased. Ends when the consumer is idle or closed, and leaves
        the group then.
        """
        self.membership.check_open()
        try:
            outcome = await run(self.membership, self._fill, handler, concurrency, ahead=self._prefetch)
            with suppress(LeaseError):
                # Of handlers that acknowledge themselves, too late. The messages are delivered again.
                await self.flush()
            return outcome
        finally:
            await self.close()

    async def flush(self) -> None:
        """Until every acknowledgement that was given is on disk: of use with `ack_linger`. Raises what went wrong."""
        if self.membership.acks is not None:
            await self.membership.acks.flush()

    async def close(self, timeout: Duration = CLOSE_TIMEOUT) -> None:
        """Leaves the group and gives back what was fetched ahead. Pending reads return None.

        If no broker answers for `timeout`: ConnectionLost, which says how many acknowledgements are undecided.
        """
        await self.membership.close(duration_of("timeout", timeout) / 1_000_000)


def _abandon(membership: Membership, loop: asyncio.AbstractEventLoop) -> None:
    if membership.is_closed or forks.is_inherited(membership.shelf):
        return
    try:
        loop.call_soon_threadsafe(_leave, membership, loop)
    except RuntimeError:
        # The loop is closed, and with it everything that the broker knew of this consumer.
        pass


def _leave(membership: Membership, loop: asyncio.AbstractEventLoop) -> None:
    leaving = loop.create_task(_close(membership))
    _leaving.add(leaving)
    leaving.add_done_callback(_leaving.discard)


async def _close(membership: Membership) -> None:
    try:
        await membership.close()
    except PenstockError:
        # Nobody is there to hear of it. What was leased comes back by itself when its time is up.
        pass
