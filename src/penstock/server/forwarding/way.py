"""The way to one node of the cluster, lent to whoever forwards: its own broker, or connections to another one.

A connection has a bound for what is under way on it (`session.REQUESTS_MAX`), and polls may wait for minutes. So polls
have connections of their own, as many as need be, and everything else waits for its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from penstock.acks import ALL
from penstock.client.answers import Answer
from penstock.client.requests import Request
from penstock.client.transport import Delivery, Leases, Page, Receipt, Stored
from penstock.clock import Clock
from penstock.environment import random_id
from penstock.errors import ConnectionLost, LeaseError
from penstock.frame import Frame
from penstock.limits import Limits
from penstock.local.transport import LocalTransport
from penstock.message import Message
from penstock.net.connection import Place
from penstock.net.remote import RemoteTransport

R = TypeVar("R")

# Of one connection, at the same time.
REQUESTS_MAX = POLLS_MAX = 500


class Way:
    """A client's port, and what doors need beyond it. Belongs to one event loop."""

    def __init__(self, lines: Lines | LocalTransport) -> None:
        """To another node, or to the broker of this one."""
        self._lines = lines
        self._turn = asyncio.Semaphore(REQUESTS_MAX)

    def _line(self) -> LocalTransport | RemoteTransport:
        return self._lines if isinstance(self._lines, LocalTransport) else self._lines.line()

    @property
    def limits(self) -> Limits:
        return self._line().limits

    @property
    def principal(self) -> str:
        return self._line().principal

    @property
    def is_lost(self) -> bool:
        return self._lines.is_lost

    def is_led(self, topic: str, partition: int) -> bool:
        return True

    def now_us(self) -> int:
        return self._line().now_us()

    def monotonic_us(self) -> int:
        return self._line().monotonic_us()

    # --- publishing --------------------------------------------------------------------------------------

    async def publish(self, topic: str, message: Message, partition: int | None, acks: str = ALL) -> Stored:
        async with self._turn:
            return await self._line().publish(topic, message, partition, acks)

    async def publish_frame(self, topic: str, partition: int, frame: Frame, acks: str = ALL) -> Stored:
        async with self._turn:
            return await self._line().publish_frame(topic, partition, frame, acks)

    # --- consuming ---------------------------------------------------------------------------------------

    async def join_for_a_session(
        self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any], owner: str = ""
    ) -> None:
        """Whoever stands for it may be another node the next time."""
        async with self._turn:
            await self._line().join_for_a_session(group, consumer, topics, settings, owner)

    async def join(self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any]) -> None:
        await self.join_for_a_session(group, consumer, topics, settings)

    async def leave(self, group: str, consumer: str) -> None:
        async with self._turn:
            line = self._line()
            if isinstance(line, LocalTransport):
                await line.leave(group, consumer)
            else:
                await line.leave_a_session(group, consumer)

    async def poll(
        self,
        group: str,
        consumer: str,
        topics: Sequence[str],
        *,
        count: int,
        bytes_max: int,
        wait_us: int,
        visibility_us: int | None = None,
    ) -> Sequence[Delivery]:
        wanted = {"count": count, "bytes_max": bytes_max, "wait_us": wait_us, "visibility_us": visibility_us}
        if isinstance(self._lines, LocalTransport):
            return await self._lines.poll(group, consumer, topics, **wanted)  # type: ignore[arg-type]
        with self._lines.waiting() as line:
            return await line.poll(group, consumer, topics, **wanted)  # type: ignore[arg-type]

    async def answer(self, group: str, receipt: Receipt, answer: Answer) -> None:
        async with self._turn:
            await self._line().answer(group, receipt, answer)

    async def ack_all(
        self, group: str, topic: str, partition: int, leases: Leases, *, again: bool = False
    ) -> Sequence[LeaseError | None]:
        async with self._turn:
            return await self._line().ack_all(group, topic, partition, leases, again=again)

    # --- the rest ----------------------------------------------------------------------------------------

    async def read(
        self,
        topic: str,
        partition: int,
        offset: int,
        until: int,
        bytes_max: int,
        columns: Sequence[str] | None = None,
        epoch: int = 0,
    ) -> Page:
        async with self._turn:
            return await self._line().read(topic, partition, offset, until, bytes_max, columns, epoch)

    async def call(self, request: Request[R]) -> R:
        async with self._turn:
            return await self._line().call(request)

    async def close(self, timeout_s: float) -> None:
        """The broker of this node is not ours to close."""
        if not isinstance(self._lines, LocalTransport):
            await self._lines.close()


class Lines:
    """Connections to another node."""

    def __init__(
        self,
        place: Callable[[], Place | None],
        clock: Clock,
        limits: Limits,
        new_id: Callable[[], bytes] = random_id,
    ) -> None:
        """`place` is where it is, if it is alive."""
        self._place = place
        self._clock = clock
        self._limits = limits
        self._new_id = new_id
        self._at: Place | None = None
        self._line: RemoteTransport | None = None
        # Those for polls, and how many wait on each.
        self._waiting: dict[RemoteTransport, int] = {}
        self._closing: list[RemoteTransport] = []

    @property
    def is_lost(self) -> bool:
        return self._line is not None and self._line.is_lost

    def line(self) -> RemoteTransport:
        self._locate()
        if self._line is None:
            self._line = self._new()
        return self._line

    @contextmanager
    def waiting(self) -> Iterator[RemoteTransport]:
        """One on which there is room for a poll."""
        self._locate()
        line = next((line for line, count in self._waiting.items() if count < POLLS_MAX), None)
        if line is None:
            line = self._new()
        self._waiting[line] = self._waiting.get(line, 0) + 1
        try:
            yield line
        finally:
            if line in self._waiting:
                self._waiting[line] -= 1

    def _locate(self) -> None:
        place = self._place()
        if place is None:
            raise ConnectionLost("the node is not alive, as far as is known here", was_sent=False)
        if place != self._at:
            self._closing += [*self._waiting, *([self._line] if self._line is not None else [])]
            self._at, self._line, self._waiting = place, None, {}

    def _new(self) -> RemoteTransport:
        assert self._at is not None
        return RemoteTransport(self._at, self._clock, patience_s=0, limits=self._limits, new_id=self._new_id)

    async def close(self) -> None:
        lines = [*self._closing, *self._waiting, *([self._line] if self._line is not None else [])]
        for line in lines:
            await line.close()
