"""A consumer's place in its group, and what it has been given there that nobody has seen yet.

It joins when it is first needed, and again when the broker does not know it any more: the group was changed in a way
that makes all its members join anew, or was deleted. Leaving gives back what nobody has seen.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Any, TypeVar

from pyroaring import BitMap64

from penstock.client import forks
from penstock.client.acks import Acks
from penstock.client.answers import Release
from penstock.client.closing import CLOSE_S, retrieve, while_answered
from penstock.client.lease import Lease
from penstock.client.received import Make, Received, ReceivedBatch, received
from penstock.client.settings import in_users_words
from penstock.client.shelf import Shelf, Unseen
from penstock.client.transport import Delivery, Transport
from penstock.client.words import CLIENT_CLOSED
from penstock.errors import ConnectionLost, LeaseError, LogClosed, MemberNotFound, PenstockError, QuotaExceeded
from penstock.limits import MIB

# A poll that waits longer is asked again after this: whoever was forgotten meanwhile then hears of it.
POLL_US_MAX = 30_000_000
# Whoever fetches fewer ahead does not want to hold more than can be worked on soon.
AHEAD_MIN = 64
# Half of the time of a lease, and a little: what is not fresh by then is given back.
_STALE_SHARE = 0.55

T = TypeVar("T")
Wait = Callable[[Awaitable[object]], Awaitable[object]]
log = logging.getLogger("penstock.client")


async def _waited(work: Awaitable[object]) -> object:
    return await work


class Membership:
    """Belongs to one event loop, except for its `shelf`, from which any thread may take."""

    def __init__(
        self,
        transport: Transport,
        group: str,
        topics: Sequence[str],
        name: str,
        settings: Mapping[str, Any],
        acks: Acks | None = None,
        prefetch: int = 0,
    ) -> None:
        self.group = group
        self.name = name
        self.is_closed = False
        self.transport = transport
        self.topics = topics
        self.acks = acks
        self._settings = settings
        self.make: Make = received
        # In a cluster, what was leased together may come in parts: to extend one of them extends all.
        self._leases: weakref.WeakValueDictionary[tuple[str, int, int], Lease] = weakref.WeakValueDictionary()
        self._loop = asyncio.get_running_loop()
        # When so many are left of a large number, that many more are asked for.
        self._low = prefetch // 2 if prefetch >= AHEAD_MIN else -1
        self.shelf = Shelf(transport.monotonic_us, self._low, self._is_low)
        self._ahead: asyncio.Task[None] | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._giving_back: set[asyncio.Task[None]] = set()
        self._has_joined = False
        # Also after a join whose outcome is not known: only a LEAVE makes sure that the broker does not count it in.
        self._may_be_member = False
        self._joining = asyncio.Lock()
        self._has_left = asyncio.Event()
        # Requests that `close` cancels.
        self._polling: set[asyncio.Task[Any]] = set()

    async def join(self) -> None:
        forks.check(self.shelf)
        async with self._joining:
            if self.is_closed:
                raise self._closed()
            if not self._has_joined:
                self._may_be_member = True
                try:
                    with in_users_words():
                        await self.transport.join(self.group, self.name, self.topics, self._settings)
                except PenstockError as error:
                    self._may_be_member = error.retriable or error.in_doubt
                    raise
                self._has_joined = True

    # --- what is to come ---------------------------------------------------------------------------------

    def _is_low(self) -> None:
        """From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._fetch_ahead)
        except RuntimeError as error:
            raise LogClosed(CLIENT_CLOSED) from error

    def _fetch_ahead(self) -> None:
        if not self.shelf.has_batches and self._ahead is None and not self.is_closed and self._has_joined:
            self._ahead = asyncio.ensure_future(self._ask_ahead())
            self._polling.add(self._ahead)
            self._ahead.add_done_callback(self._fetched_ahead)

    async def _ask_ahead(self) -> None:
        """Never joins: whoever has left meanwhile did so on purpose."""
        self._take_in(await self._ask(self._low, 0))

    def _fetched_ahead(self, ahead: asyncio.Task[None]) -> None:
        self._ahead = None
        self._polling.discard(ahead)
        if not ahead.cancelled():
            # What went wrong will go wrong again, for whoever runs out of messages and asks for more.
            ahead.exception()

    async def fetch(self, count: int, wait_us: int | None) -> bool:
        """More to take, as soon as there is some. False if nothing has come for so long, or the consumer was closed.

        None waits for ever. What counts is how long the broker was asked to wait, not how long that took: with a
        virtual clock it takes no time.
        """
        if self._ahead is not None:
            await asyncio.wait([self._ahead])
            if self.shelf.has_batches:
                return True
        left_us = wait_us
        while not self.is_closed:
            step_us = POLL_US_MAX if left_us is None else min(left_us, POLL_US_MAX)
            asked_us = self.transport.monotonic_us()
            try:
                await self._until_closed(self._poll(count, step_us))
            except QuotaExceeded as error:
                step_us = ceil(error.retry_after_s * 1e6)
                if left_us is not None and step_us > left_us:
                    raise
                await self._until_closed(asyncio.sleep(error.retry_after_s))
            if self.shelf.has_batches:
                return True
            if left_us is not None:
                left_us -= step_us
                # A clock that stands still, as in tests, will not make anything come by waiting.
                if left_us <= 0 or self.transport.monotonic_us() == asked_us:
                    return False
        return False

    async def keep(self, lease: Lease) -> bool:
        """Renew the lease of a message on the shelf. False if the lease is lost or the consumer was closed."""
        return bool(await self._until_closed(lease.keep()))

    async def _until_closed(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of a request, or None if `close` cancelled it."""
        request = asyncio.ensure_future(work)
        self._polling.add(request)
        try:
            return await request
        except asyncio.CancelledError:
            if not self._only_the_poll():
                raise
            return None
        finally:
            self._polling.discard(request)

    def _only_the_poll(self) -> bool:
        """Whether it was told to stop because the consumer is closed, and not because its caller was."""
        task = asyncio.current_task()
        return self.is_closed and (task is None or not task.cancelling())

    async def _poll(self, count: int, wait_us: int) -> None:
        await self.join()
        try:
            deliveries = await self._ask(count, wait_us)
        except MemberNotFound:
            self._has_joined = False
            await self.join()
            deliveries = await self._ask(count, wait_us)
        self._take_in(deliveries)

    def _take_in(self, deliveries: Sequence[Delivery]) -> None:
        lasting_us = []
        for delivery in deliveries:
            identity = (delivery.receipt.topic, delivery.receipt.partition, delivery.receipt.lease)
            lease = self._leases.get(identity)
            if lease is None:
                lease = self._leases[identity] = Lease(
                    self.transport, self.group, delivery.terms, *identity, delivery.deadline_us, self.acks
                )
            lasting_us.append(lease.visibility_us)
            self.shelf.add(ReceivedBatch(lease, delivery, self.make))
        if lasting_us:
            self._look_again(min(lasting_us))

    # --- what waits here too long ------------------------------------------------------------------------

    def _look_again(self, visibility_us: int) -> None:
        if self._looking is None:
            self._looking = self._loop.call_later(_STALE_SHARE * visibility_us / 1_000_000, self._look)

    def _look(self) -> None:
        self._looking = None
        if not self.is_closed and self.shelf:
            self._give_back(self._give_back_stale())

    async def _give_back_stale(self) -> None:
        """Messages that nobody has seen must not be charged for the slow one in front of them.

        They are given back while there is time, and come to whoever asks next.
        """
        unseen, kept = self.shelf.take_stale()
        if kept:
            self._look_again(min(lease.visibility_us for lease in kept))
        await self._release(unseen)

    async def _ask(self, count: int, wait_us: int) -> Sequence[Delivery]:
        return await self.transport.poll(
            self.group, self.name, self.topics, count=count, bytes_max=MIB, wait_us=wait_us
        )

    def check_open(self) -> None:
        """Raise LogClosed if it was closed before it is asked for something. One that is closed meanwhile ends."""
        forks.check(self.shelf)
        if self.is_closed:
            raise self._closed()

    def _closed(self) -> LogClosed:
        return LogClosed(f"consumer {self.name} is closed. Open another one: client.consumer({self.group!r}, …)")

    # --- the end -----------------------------------------------------------------------------------------

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Gives back what nobody has seen, and leaves. ConnectionLost after `timeout_s` without an answer."""
        if forks.is_inherited(self.shelf):
            return
        if self.is_closed:
            # Whoever closes it a second time, too, must not go on before it has left.
            await self._has_left.wait()
            return
        self.is_closed = True
        self.shelf.close()
        if self._looking is not None:
            self._looking.cancel()
        wait = partial(self._answered, timeout_s)
        try:
            for polling in list(self._polling):
                polling.cancel()
            await wait(asyncio.gather(*self._polling, *self._giving_back, return_exceptions=True))
            await self._leave(wait)
        except TimeoutError:
            raise self._unanswered(timeout_s) from None
        finally:
            self._has_left.set()

    async def _answered(self, timeout_s: float, work: Awaitable[T]) -> T:
        return await while_answered(work, self.transport, next(iter(self.topics), ""), timeout_s)

    def _unanswered(self, timeout_s: float) -> ConnectionLost:
        undecided = 0 if self.acks is None else self.acks.undecided
        told = f"consumer {self.name} of {self.group} was closed without its broker: no answer for {timeout_s:g} s"
        if undecided:
            told += f"; {undecided} acknowledgements are undecided, and their messages may be redelivered"
        log.warning("%s", told)
        return ConnectionLost(told, group=self.group, undecided=undecided)

    async def rest(self) -> None:
        """Leaves the group until something is asked for again: others may have its partitions meanwhile."""
        if not self.is_closed:
            await self._leave()

    async def _leave(self, wait: Wait = _waited) -> None:
        """`wait` raises TimeoutError if there is no broker to leave."""
        await wait(self._joining.acquire())
        is_there = True
        try:
            # Also of one that has left because it was idle: it may have acknowledged something since.
            if self.acks is not None:
                await wait(self.acks.flush())
        except TimeoutError:
            is_there = False
            raise
        finally:
            try:
                if is_there:
                    await self._leave_group(wait)
            finally:
                self._joining.release()

    async def _leave_group(self, wait: Wait) -> None:
        if not self._may_be_member:
            return
        had_joined, self._has_joined, self._may_be_member = self._has_joined, False, False
        is_there = True
        try:
            await wait(self._release(self.shelf.take_all()))
        except TimeoutError:
            is_there = False
            raise
        finally:
            # Whatever went wrong before: a member that does not leave keeps its partitions from the others.
            if is_there:
                with suppress(*(() if had_joined else (PenstockError,))):
                    await wait(self.transport.leave(self.group, self.name))

    def put_back(self, messages: Sequence[Received]) -> None:
        """No caller has seen them after all. On the event loop."""
        if self.shelf.put_back(*messages):
            for message in messages[:1]:
                self._look_again(message.lease.visibility_us)
        else:
            unseen: Unseen = {}
            for message in messages:
                unseen.setdefault(message.lease, BitMap64()).add(message.offset)
            self._give_back(self._release(unseen))

    def put_back_batch(self, batch: ReceivedBatch) -> None:
        if self.shelf.put_back_batch(batch):
            self._look_again(batch.lease.visibility_us)
        else:
            self._give_back(self._release({batch.lease: BitMap64(batch.offsets)}))

    def _give_back(self, work: Coroutine[Any, Any, None]) -> None:
        """To its end, also if the consumer is closed meanwhile."""
        giving_back = asyncio.ensure_future(work)
        self._giving_back.add(giving_back)
        giving_back.add_done_callback(self._giving_back.discard)
        # An error is no loss: the leases expire.
        giving_back.add_done_callback(retrieve)

    async def _release(self, unseen: Unseen) -> None:
        await asyncio.gather(*[self._release_one(lease, offsets) for lease, offsets in unseen.items()])

    async def _release_one(self, lease: Lease, offsets: BitMap64) -> None:
        # What has run out meanwhile is not ours to give back.
        with suppress(LeaseError, LogClosed):
            await lease.answer((), offsets, Release())
