"""A consumer's place in its group, and what it has been given there that nobody has seen yet.

It joins when it is first needed, and again when the broker does not know it any more: the group was changed in a way
that makes all its members join anew, or was deleted. Leaving gives back what nobody has seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pyroaring import BitMap64

from penstock.client.acks import Acks
from penstock.client.answers import Release
from penstock.client.lease import Lease
from penstock.client.received import Make, Received, ReceivedBatch, received
from penstock.client.settings import in_users_words
from penstock.client.shelf import Shelf, Unseen
from penstock.client.transport import Delivery, Transport
from penstock.errors import LeaseError, LogClosed, MemberNotFound
from penstock.limits import MIB

# A poll that waits longer is asked again after this: whoever was forgotten meanwhile then hears of it.
POLL_US_MAX = 30_000_000
# Whoever fetches fewer ahead does not want to hold more than can be worked on soon.
AHEAD_MIN = 64
# Half of the time of a lease, and a little: what is not fresh by then is given back.
_STALE_SHARE = 0.55


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
        self._transport = transport
        self.topics = topics
        self.acks = acks
        self._settings = settings
        self.make: Make = received
        self._loop = asyncio.get_running_loop()
        # When so many are left of a large number, that many more are asked for.
        self._low = prefetch // 2 if prefetch >= AHEAD_MIN else -1
        self.shelf = Shelf(transport.now_us, self._low, self._is_low)
        self._ahead: asyncio.Task[None] | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._giving_back: set[asyncio.Task[None]] = set()
        self._has_joined = False
        self._joining = asyncio.Lock()
        self._has_left = asyncio.Event()
        self._polling: set[asyncio.Task[None]] = set()

    async def join(self) -> None:
        async with self._joining:
            if self.is_closed:
                raise LogClosed(f"consumer {self.name} is closed")
            if not self._has_joined:
                with in_users_words():
                    await self._transport.join(self.group, self.name, self.topics, self._settings)
                self._has_joined = True

    # --- what is to come ---------------------------------------------------------------------------------

    def _is_low(self) -> None:
        """From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._fetch_ahead)
        except RuntimeError as error:
            raise LogClosed("the client is closed") from error

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
            # A task of its own, so that closing can end the waiting.
            asked_us = self._transport.now_us()
            polling = asyncio.ensure_future(self._poll(count, step_us))
            self._polling.add(polling)
            try:
                await polling
            except asyncio.CancelledError:
                if not self._only_the_poll():
                    raise
            finally:
                self._polling.discard(polling)
            if self.shelf.has_batches:
                return True
            if left_us is not None:
                left_us -= step_us
                # A clock that stands still, as in tests, will not make anything come by waiting.
                if left_us <= 0 or self._transport.now_us() == asked_us:
                    return False
        return False

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
        leases: dict[tuple[str, int, int], Lease] = {}
        for delivery in deliveries:
            identity = (delivery.receipt.topic, delivery.receipt.partition, delivery.receipt.lease)
            if identity not in leases:
                leases[identity] = Lease(
                    self._transport, self.group, delivery.terms, *identity, delivery.deadline_us, self.acks
                )
            self.shelf.add(ReceivedBatch(leases[identity], delivery, self.make))
        if leases:
            self._look_again(min(lease.visibility_us for lease in leases.values()))

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
        return await self._transport.poll(
            self.group, self.name, self.topics, count=count, bytes_max=MIB, wait_us=wait_us
        )

    # --- the end -----------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Gives back what nobody has seen, and leaves."""
        if self.is_closed:
            # Whoever closes it a second time, too, must not go on before it has left.
            await self._has_left.wait()
            return
        self.is_closed = True
        self.shelf.close()
        if self._looking is not None:
            self._looking.cancel()
        try:
            for polling in list(self._polling):
                polling.cancel()
            await asyncio.gather(*self._polling, *self._giving_back, return_exceptions=True)
            await self._leave()
        finally:
            self._has_left.set()

    async def rest(self) -> None:
        """Leaves the group until something is asked for again: others may have its partitions meanwhile."""
        if not self.is_closed:
            await self._leave()

    async def _leave(self) -> None:
        async with self._joining:
            if self._has_joined:
                self._has_joined = False
                try:
                    if self.acks is not None:
                        await self.acks.flush()
                finally:
                    await self._release(self.shelf.take_all())
                    await self._transport.leave(self.group, self.name)

    def put_back(self, *messages: Received) -> None:
        """Nobody has seen them after all. On the event loop."""
        if not self.shelf.put_back(*messages):
            unseen: Unseen = {}
            for message in messages:
                unseen.setdefault(message.lease, BitMap64()).add(message.offset)
            self._give_back(self._release(unseen))

    def _give_back(self, work: Coroutine[Any, Any, None]) -> None:
        """To its end, also if the consumer is closed meanwhile."""
        giving_back = asyncio.ensure_future(work)
        self._giving_back.add(giving_back)
        giving_back.add_done_callback(self._giving_back.discard)

    async def _release(self, unseen: Unseen) -> None:
        await asyncio.gather(*[self._release_one(lease, offsets) for lease, offsets in unseen.items()])

    async def _release_one(self, lease: Lease, offsets: BitMap64) -> None:
        # What has run out meanwhile is not ours to give back.
        with suppress(LeaseError, LogClosed):
            await lease.answer((), offsets, Release())
