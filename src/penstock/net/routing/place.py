"""A consumer's place in its group: it joins at the coordinator, and again when that is another one.

What it has leased is not given up by that: leases are the leaders' business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from penstock.client.placement import Coordinator
from penstock.client.transport import Transport
from penstock.errors import GroupNotFound, PenstockError, TopicNotFound
from penstock.net.routing.atlas import Atlas
from penstock.net.routing.coordinators import Coordinators
from penstock.net.routing.failures import is_misplaced, is_unknown
from penstock.net.routing.pace import Attempts, Pace


class Place:
    """Belongs to one event loop."""

    def __init__(self, group: str, name: str, *, atlas: Atlas, coordinators: Coordinators, pace: Pace) -> None:
        self.group = group
        self.name = name
        self.topics: Sequence[str] = ()
        self._settings: Mapping[str, Any] = {}
        self._atlas = atlas
        self._coordinators = coordinators
        self._pace = pace
        self._coordinator: Coordinator | None = None
        self._transport: Transport | None = None
        # Whoever was last asked to let it join, and may have done so though nobody heard the answer.
        self._asked: Transport | None = None
        self._session: object = None
        self._turn = asyncio.Lock()

    @property
    def period_s(self) -> float:
        """How often to look whether all is as it was: in time for the shortest session that it may have."""
        session_us = self._settings.get("session_us")
        return min(self._pace.refresh_s, session_us / 3e6) if isinstance(session_us, int) else self._pace.refresh_s

    async def join(self, topics: Sequence[str], settings: Mapping[str, Any]) -> None:
        self.topics, self._settings = tuple(topics), settings
        await self.join_again()

    async def join_again(self) -> None:
        async with self._turn:
            await self._join()

    async def _join(self) -> None:
        attempts = Attempts(self._pace)
        while True:
            try:
                self._coordinator, (self._transport, self._session) = await self._coordinators.ask(
                    self.group, self._ask_to_join
                )
                return
            except TopicNotFound as error:
                # The coordinator may be behind.
                await self._atlas.refresh(*self.topics)
                for topic in self.topics:
                    self._atlas.numbers(topic)
                await attempts.pause(error)

    async def _ask_to_join(self, transport: Transport) -> tuple[Transport, object]:
        self._asked = transport
        await transport.join(self.group, self.name, self.topics, self._settings)
        return transport, _session_of(transport)

    async def confirm(self) -> None:
        """Joins again if somebody else looks after the group, or what stood for this member is gone."""
        async with self._turn:
            coordinator = await self._coordinators.find(self.group)
            is_same = coordinator == self._coordinator and self._transport is not None
            if coordinator.node and not (is_same and _session_of(self._transport) is self._session):
                await self._join()

    async def leave(self) -> None:
        """At whoever may count it in. Whoever can't be reached will find out by itself, when the session is over."""
        async with self._turn:
            left: list[Transport] = []
            for transport in (self._asked, self._transport):
                if transport is not None and transport not in left:
                    left.append(transport)
                    if await self._has_left(transport):
                        return
            # Somebody else looks after the group, or will soon, and hears of this member from those who lead.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.leave_s):
                    while left:
                        found = await self._found_again()
                        if found is not None and await self._has_left(found):
                            return
                        await asyncio.sleep(self._pace.pause_s_max)

    async def _has_left(self, transport: Transport) -> bool:
        # Also if its connection was lost: to be cut off is not to leave, and a coordinator waits for whoever is.
        leave = getattr(transport, "leave_a_session", transport.leave)
        try:
            await leave(self.group, self.name)
        except GroupNotFound:
            # The join was cancelled before it created the group, or the group has been deleted.
            return True
        except PenstockError as error:
            if not (is_misplaced(error) or is_unknown(error)):
                raise
            return False
        return True

    async def _found_again(self) -> Transport | None:
        try:
            return self._coordinators.transport(await self._coordinators.find(self.group))
        except PenstockError:
            # Nobody says at the moment, and somebody may soon.
            return None


def _session_of(transport: Transport | None) -> object:
    """What stands for those who joined through it: a connection, or the transport itself."""
    return getattr(transport, "session", transport)
