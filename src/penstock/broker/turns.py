"""Turns: principal after principal, whatever the number of requests that each of them has.

Work that the broker does by itself has every other turn: it waits for one turn of a client at the most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

# The broker itself. No principal of a client has this name.
BROKER = ""
# The principal for which the current task works.
PRINCIPAL = ContextVar("penstock_principal", default=BROKER)


@contextmanager
def acting_for(principal: str) -> Iterator[None]:
    token = PRINCIPAL.set(principal)
    try:
        yield
    finally:
        PRINCIPAL.reset(token)


class RoundRobin(Generic[T]):
    """What waits for a turn. Invariant: the queues of principals are not empty."""

    def __init__(self) -> None:
        # The first one that is not the broker's is next.
        self._queues: dict[str, deque[T]] = {}
        # The principal that has had the last turn, and what else of it waits. This is behind what others add until the
        # next turn: among them is the one that has had the turn before.
        self.last = BROKER
        self._rest = deque[T]()

    def __bool__(self) -> bool:
        return bool(self._queues or self._rest)

    def count(self, principal: str) -> int:
        return len(self._queue(principal))

    def add(self, principal: str, item: T) -> None:
        queue = self._queue(principal)
        queue.append(item)
        if queue is not self._rest:
            self._queues[principal] = queue

    def _queue(self, principal: str) -> deque[T]:
        is_last = principal == self.last and self._rest
        return self._rest if is_last else self._queues.get(principal, deque())

    def take(self) -> tuple[str, T]:
        """Remove and return the next item and its principal."""
        if self._rest:
            self._queues[self.last] = self._rest
        if BROKER in self._queues and self.last != BROKER:
            principal = BROKER
        else:
            principal = next((one for one in self._queues if one != BROKER), BROKER)
        self.last, self._rest = principal, self._queues.pop(principal)
        return principal, self._rest.popleft()


class Turn:
    """A lock that principals hold in turn. Belongs to one event loop."""

    def __init__(self) -> None:
        self._is_taken = False
        # Those that were cancelled stay until it is their turn.
        self._waiting = RoundRobin[asyncio.Future[None]]()

    async def __aenter__(self) -> None:
        principal = PRINCIPAL.get()
        if not self._is_taken:
            self._is_taken, self._waiting.last = True, principal
            return
        given = asyncio.get_running_loop().create_future()
        self._waiting.add(principal, given)
        try:
            await given
        except asyncio.CancelledError:
            if not given.cancelled():
                self._pass_on()
            raise

    async def __aexit__(self, *error: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            _, given = self._waiting.take()
            if not given.done():
                given.set_result(None)
                return
        self._is_taken = False
