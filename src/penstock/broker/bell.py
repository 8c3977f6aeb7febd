"""The one upward signal: something may have become ready."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence

# By who waits: where something would have to become ready for it.
_Waiters = dict[asyncio.Future[None], Container[object]]
_NOBODY: _Waiters = {}
# Waiters that are woken between two turns of the event loop: each of them may lease something.
_AT_ONCE = 32


class Bell:
    """Of a topic. Belongs to one event loop.

    Those who wait do so by group: what one group has done, such as to acknowledge, is no news for the others, and there
    may be thousands of them. And they wait at some of the topic's partitions: what comes to another one is not theirs.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiters] = {}
        # How often it has rung, for anybody.
        self.rings = 0

    def ring(self, group: str = "", *, at: object = None) -> None:
        """For one group, or for all of them: those who wait at that partition, or wherever they do if who may get what
        has changed."""
        self.rings += 1
        _wake(
            [
                waiter
                for name in ((group,) if group else self._waiting)
                for waiter, places in self._waiting.get(name, _NOBODY).items()
                if (at is None or at in places) and not waiter.done()
            ]
        )

    def wait(self, group: str, waiter: asyncio.Future[None], places: Container[object]) -> None:
        """It is done at the next ring; the same one may wait for several bells. To be left in any case.

        Whoever has looked before must look again if it has rung since.
        """
        self._waiting.setdefault(group, {})[waiter] = places

    def leave(self, group: str, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiting.get(group)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiting[group]


def _wake(waiters: Sequence[asyncio.Future[None]]) -> None:
    for waiter in waiters[:_AT_ONCE]:
        if not waiter.done():
            waiter.set_result(None)
    if len(waiters) > _AT_ONCE:
        asyncio.get_running_loop().call_soon(_wake, waiters[_AT_ONCE:])
