"""The one upward signal: something may have become ready."""

from __future__ import annotations

import asyncio

_Waiters = dict[asyncio.Future[None], None]


class Bell:
    """Of a topic. Belongs to one event loop.

    Those who wait do so by group: what one group has done, such as to acknowledge, is no news for the others, and there
    may be thousands of them.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiters] = {}

    def ring(self, group: str = "") -> None:
        """For one group, or for all of them."""
        if not self._waiting:
            return
        if group:
            rung = [self._waiting.pop(group, {})]
        else:
            rung, self._waiting = list(self._waiting.values()), {}
        for waiters in rung:
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def wait(self, group: str, waiter: asyncio.Future[None]) -> None:
        """It is done at the next ring; the same one may wait for several bells.

        To be asked for before looking: what comes in between rings too.
        """
        self._waiting.setdefault(group, {})[waiter] = None

    def leave(self, group: str, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiting.get(group)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiting[group]
