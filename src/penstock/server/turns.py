"""Connections that have sent more packets than the broker carries out at once: they take turns.

One read from a socket may bring thousands of small packets. A connection has a slice of them carried out when they
come, and is not read from until the rest is done: one slice of one connection between two rounds of the event loop,
principal after principal, so that others wait for a slice and not for all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from penstock.broker.turns import RoundRobin
from penstock.errors import Overloaded

SLICE_S = 0.001
# Requests that a slice begins: most of their work is done later.
SLICE_REQUESTS = 32
# Connections of one principal that wait. Each holds what was read from its socket, up to 256 KiB.
WAITING_MAX = 256

T = TypeVar("T")
# Carries out a slice. False if nothing is left.
Work = Callable[[], bool]


class Slice:
    """Begins when it is made."""

    __slots__ = ("_now_s", "_requests_max", "_until")

    def __init__(self, requests: int, now_s: Callable[[], float], *, is_short: bool = False) -> None:
        """`requests` of the connection are under way. `is_short`: of one packet."""
        self._now_s = now_s
        self._until = 0.0 if is_short else now_s() + SLICE_S
        self._requests_max = requests + SLICE_REQUESTS

    def is_over(self, requests: int) -> bool:
        return requests >= self._requests_max or self._now_s() >= self._until


class Turns:
    """Belongs to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting = RoundRobin[Work]()

    @property
    def are_taken(self) -> bool:
        """Others wait for theirs."""
        return bool(self._waiting)

    def add(self, principal: str, work: Work) -> None:
        """Overloaded if too many connections of the principal wait."""
        if self._waiting.count(principal) >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} connections of {principal} have sent more than the broker carries out")
        if not self._waiting:
            self._loop.call_soon(self._turn)
        self._waiting.add(principal, work)

    def _turn(self) -> None:
        principal, work = self._waiting.take()
        try:
            if work():
                self._waiting.add(principal, work)
        finally:
            if self._waiting:
                self._loop.call_soon(self._turn)


async def in_slices(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """As `asyncio.gather`, for the parts of one request, which begin in their order. Others get on in between. After a
    failure no more are begun."""
    tasks: list[asyncio.Task[T]] = []
    try:
        for work in works:
            tasks.append(asyncio.ensure_future(work))
            if len(tasks) % SLICE_REQUESTS == 0:
                await asyncio.sleep(0)
                if any(task.done() and task.exception() for task in tasks[-SLICE_REQUESTS:]):
                    break
    except BaseException:
        for task in tasks:
            task.cancel()
        raise
    return await asyncio.gather(*tasks)
