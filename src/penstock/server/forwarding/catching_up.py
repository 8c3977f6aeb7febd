"""What this node does not know of yet, and others may: a topic or a group that was made at another one a moment ago.

Who does not find something asks again after all that etcd knew by then is known here, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.errors import GroupNotFound, TopicNotFound

R = TypeVar("R")

# Between one full read of etcd and the next: somebody may ask for a topic that nobody ever made, again and again.
_PAUSE_S = 0.1


class CatchingUp:
    """Belongs to one event loop."""

    def __init__(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """`refresh` returns when everything that was there before is known here."""
        self._refresh = refresh
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        # When the last one was begun, and how many have been.
        self._began_at = 0.0
        self._begun = 0
        self._done = 0

    async def found(self, ask: Callable[[], Awaitable[R]]) -> R:
        """Asked a second time if what it is about is not found. So it must not have done anything by then."""
        try:
            return await ask()
        except (TopicNotFound, GroupNotFound):
            await self.caught_up()
            return await ask()

    async def caught_up(self) -> None:
        """By a read that began after this was called; one serves all who wait for it."""
        wanted = self._begun + 1
        async with self._turn:
            if self._done >= wanted:
                return
            await asyncio.sleep(max(0.0, self._began_at + _PAUSE_S - self._loop.time()))
            self._begun += 1
            self._began_at = self._loop.time()
            await self._refresh()
            # What is in the catalog is taken up at the next turn of the loop.
            await asyncio.sleep(0)
            self._done = self._begun
