"""One partition: what is asked of its leader, whoever that is by then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.client.placement import Placed
from penstock.client.transport import Transport
from penstock.errors import LeadershipLost, NotCommitted, NotEnoughReplicas, NotLeader, PenstockError
from penstock.net.routing.atlas import Atlas
from penstock.net.routing.failures import is_behind, is_misplaced, is_unknown
from penstock.net.routing.nodes import Nodes
from penstock.net.routing.pace import Attempts, Pace

R = TypeVar("R")

Ask = Callable[[Transport], Awaitable[R]]


class Leading:
    """Belongs to one event loop."""

    def __init__(self, nodes: Nodes, atlas: Atlas, pace: Pace) -> None:
        self._nodes = nodes
        self._atlas = atlas
        self._pace = pace

    async def ask(
        self, topic: str, number: int, ask: Ask[R], *, is_repeatable: bool, awaits_replicas: bool = False
    ) -> R:
        """Until it is answered. If it is not repeatable, and nobody knows whether it was carried out, that is raised.
        So is that too few replicas are in sync, unless it is to wait for them. What is raised in the end, of several
        attempts, is that nobody knows, if that is so of any of them.

        Nothing is waited for before it is asked the first time, if the leader is known: what is asked in an order
        arrives in it.
        """
        attempts: Attempts | None = None
        doubted: Placed | None = None
        last: PenstockError | None = None
        doubt: PenstockError | None = None
        while True:
            if doubted is not None:
                attempts = attempts or Attempts(self._pace)
            try:
                placed = await self._atlas.placed(topic, number, doubted)
            except PenstockError as error:
                if not (is_misplaced(error) or is_unknown(error)):
                    raise
                attempts = attempts or Attempts(self._pace)
                await attempts.pause(doubt or error)
                continue
            if placed == doubted and attempts is not None and last is not None:
                await attempts.pause(doubt or last)
                self._nodes.wander()
            doubted = placed
            try:
                if not placed.leader:
                    raise NotLeader(f"nobody leads partition {number} of {topic} yet", topic=topic, partition=number)
                return await self.ask_once(topic, placed, ask)
            except PenstockError as error:
                waits = NotEnoughReplicas | NotCommitted if is_repeatable else NotEnoughReplicas
                is_awaited = awaits_replicas and isinstance(error, waits)
                if not (is_awaited or is_misplaced(error) or is_behind(error) or (is_repeatable and is_unknown(error))):
                    if doubt is not None and error.retriable:
                        raise doubt from error
                    raise
                last = error
                doubt = doubt or (error if error.in_doubt else None)

    async def ask_once(self, topic: str, placed: Placed, ask: Ask[R]) -> R:
        """LeadershipLost if somebody else leads it before there is an answer: a node that hangs says nothing."""
        transport = self._nodes.of(placed.leader)
        watch = _Watch(self._atlas, topic, placed, self._pace.suspect_s)
        try:
            async with asyncio.timeout(None) as limit:
                watch.start(limit)
                try:
                    return await ask(transport)
                finally:
                    watch.stop()
        except TimeoutError:
            if not watch.has_struck:
                raise
            raise LeadershipLost(
                f"partition {placed.number} of {topic} has another leader now; {placed.leader} has not answered",
                topic=topic,
                partition=placed.number,
            ) from None


class _Watch:
    """Over one request: as long as it takes, it is found out now and then whether its leader still is one."""

    __slots__ = ("_atlas", "_handle", "_is_over", "_limit", "_loop", "_placed", "_suspect_s", "_topic", "has_struck")

    def __init__(self, atlas: Atlas, topic: str, placed: Placed, suspect_s: float) -> None:
        self._atlas = atlas
        self._topic = topic
        self._placed = placed
        self._suspect_s = suspect_s
        self._loop = asyncio.get_running_loop()
        self.has_struck = self._is_over = False

    def start(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self._handle = self._loop.call_later(self._suspect_s, self._look)

    def _look(self) -> None:
        self._atlas.refresh_soon(self._topic, self._looked)
        self._handle = self._loop.call_later(self._suspect_s, self._look)

    def _looked(self) -> None:
        if not self._is_over and self._atlas.has_moved(self._topic, self._placed):
            self.has_struck = self._is_over = True
            self._limit.reschedule(self._loop.time())

    def stop(self) -> None:
        self._is_over = True
        self._handle.cancel()
