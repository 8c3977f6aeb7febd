"""Those who wait for messages: long polls and streams. They wait until something comes, the client goes, or the door
closes; and they are alive as long as they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.errors import LogClosed, Overloaded
from penstock.server.http.asking import Receive
from penstock.server.members import Members
from penstock.server.site import Site

T = TypeVar("T")

# Each is a connection and two tasks.
WAITING_MAX = 5_000


class Waited(NamedTuple, Generic[T]):
    """`outcome` is None if it was cut short."""

    outcome: T | None
    is_gone: bool


class Waiting:
    def __init__(self, site: Site) -> None:
        self.members = Members(site)
        self._count = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        # Streams that wait until something of theirs is answered for, by group.
        self._bells: dict[str, set[asyncio.Event]] = {}
        self.is_over = False

    def check(self) -> None:
        """One more may wait."""
        if self._count >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} polls and streams are waiting already")
        if self.is_over:
            raise LogClosed("the broker is stopping")

    @contextmanager
    def member(self, group: str, consumer: str) -> Iterator[None]:
        """Is heard of all the time."""
        self.check()
        self._count += 1
        try:
            with self.members.waiting(group, consumer):
                yield
        finally:
            self._count -= 1

    async def until_gone(self, receive: Receive, work: Coroutine[Any, Any, T]) -> Waited[T]:
        """What it gives. It is cancelled when the client goes or the door closes: a poll has leased nothing then."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        leaving = loop.create_task(_gone(receive))
        self._tasks.add(task)
        try:
            await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._tasks.discard(task)
            is_gone = leaving.done()
            leaving.cancel()
            task.cancel()
        try:
            return Waited(await task, is_gone)
        except asyncio.CancelledError:
            return Waited(None, is_gone)

    def answered(self, group: str) -> None:
        """Streams of that group may go on."""
        for bell in self._bells.get(group, ()):
            bell.set()

    @contextmanager
    def bell(self, group: str) -> Iterator[asyncio.Event]:
        """Rings when something of the group is answered for, and at the end."""
        bell = asyncio.Event()
        bells = self._bells.setdefault(group, set())
        bells.add(bell)
        try:
            yield bell
        finally:
            bells.discard(bell)
            if not bells:
                self._bells.pop(group, None)

    def end(self) -> None:
        self.is_over = True
        for task in self._tasks:
            task.cancel()
        for group in self._bells:
            self.answered(group)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
