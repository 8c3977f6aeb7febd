"""All partitions of a topic: what is asked of their leaders, of each for its own.

A part that was not answered because its leader is another one by now is asked again, and only that part. Nobody hears
anything before all of it is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from penstock.client.placement import Placed
from penstock.client.requests import Request
from penstock.errors import NotEnoughReplicas, NotLeader, PenstockError
from penstock.net.routing.atlas import Atlas
from penstock.net.routing.failures import is_behind, is_misplaced, is_unknown
from penstock.net.routing.leading import Leading
from penstock.net.routing.merging import Part
from penstock.net.routing.nodes import Nodes
from penstock.net.routing.pace import Attempts, Pace

R = TypeVar("R")

# Requests under way at one node. Brokers close a connection by which more than 1,000 are.
_AT_ONCE = 300

# The request for some of the partitions.
Make = Callable[[tuple[int, ...]], Request[R]]


class Scattering:
    """Belongs to one event loop."""

    def __init__(self, nodes: Nodes, atlas: Atlas, leading: Leading, pace: Pace) -> None:
        self._nodes = nodes
        self._atlas = atlas
        self._leading = leading
        self._pace = pace
        # By node: one that hangs holds up nobody else's.
        self._room: dict[str, asyncio.Semaphore] = {}

    async def ask(
        self,
        topic: str,
        make: Make[R],
        *,
        is_repeatable: bool,
        nothing: Callable[[PenstockError], R] | None = None,
        numbers: Collection[int] | None = None,
        partial: bool = False,
        apart: bool = False,
    ) -> list[Part[R]]:
        """Of all partitions, or only of those. `nothing` is what an error stands for that says that there is nothing;
        it may raise it. If `partial`, those that nobody leads, or that can't be served, are left out after a moment.
        If `apart`, each partition gets a request of its own: a retry then repeats none that was carried out."""
        attempts = Attempts(replace(self._pace, patience_s=self._pace.partial_s) if partial else self._pace)
        await self._atlas.refresh_patiently(attempts, topic)
        left = set(self._atlas.numbers(topic) if numbers is None else numbers)
        asking = _Asking(self._atlas, self._leading, self._room, topic, make, left, is_repeatable, nothing, partial)
        together = asking.one_by_one if apart else asking.of_a_leader
        last = await asking.round(together)
        if partial and asking.has_failed_together:
            # However long it took: one that can't be served has kept others of its leader from being answered for.
            last = await asking.round(asking.one_by_one)
        while last is not None:
            try:
                await attempts.pause(last)
                self._nodes.wander()
                await self._atlas.refresh_patiently(attempts, topic)
            except PenstockError:
                if partial:
                    break
                raise
            last = await asking.round(asking.one_by_one if partial else together)
        return asking.parts


@dataclass
class _Asking(Generic[R]):
    """Of one request: which partitions are left, and what was answered for the others."""

    atlas: Atlas
    leading: Leading
    room: dict[str, asyncio.Semaphore]
    topic: str
    make: Make[R]
    left: set[int]
    is_repeatable: bool
    nothing: Callable[[PenstockError], R] | None
    partial: bool
    parts: list[Part[R]] = field(default_factory=list)
    # Several of one request, in the last round.
    has_failed_together: bool = False

    def of_a_leader(self, placed: Placed) -> Hashable:
        return placed.leader

    def one_by_one(self, placed: Placed) -> Hashable:
        return placed.number

    async def round(self, together: Callable[[Placed], Hashable]) -> PenstockError | None:
        """Those that are left, all at the same time, and those in one request for which `together` is the same. What
        keeps one of them from being answered, if any is left; that some can't be served, rather than another reason."""
        last: PenstockError | None = None
        self.has_failed_together = False
        asked: dict[Hashable, list[Placed]] = {}
        for number in sorted(self.left):
            # TopicNotFound if it is gone, PartitionNotFound if there is no such.
            placed = await self.atlas.placed(self.topic, number, None)
            if placed.leader:
                asked.setdefault(together(placed), []).append(placed)
            else:
                told = f"nobody leads partition {number} of {self.topic} yet"
                last = NotLeader(told, topic=self.topic, partition=number)
        outcomes = await asyncio.gather(*[self._asked(some) for some in asked.values()], return_exceptions=True)
        failed: BaseException | None = None
        for some, outcome in zip(asked.values(), outcomes, strict=True):
            try:
                self._take(tuple(placed.number for placed in some), outcome)
            except _Later as later:
                self.has_failed_together |= len(some) > 1
                last = last if isinstance(last, NotEnoughReplicas) else later.reason
            except BaseException as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return last

    async def _asked(self, some: list[Placed]) -> R:
        request = self.make(tuple(placed.number for placed in some))
        async with self.room.setdefault(some[0].leader, asyncio.Semaphore(_AT_ONCE)):
            reply: R = await self.leading.ask_once(self.topic, some[0], lambda transport: transport.call(request))
        return reply

    def _take(self, numbers: tuple[int, ...], outcome: R | BaseException) -> None:
        if isinstance(outcome, PenstockError):
            if self._is_passing(outcome):
                raise _Later(outcome)
            if self.nothing is None:
                raise outcome
            outcome = self.nothing(outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        self.parts.append((numbers, outcome))
        self.left -= set(numbers)

    def _is_passing(self, error: PenstockError) -> bool:
        is_not_served = self.partial and isinstance(error, NotEnoughReplicas)
        return is_not_served or is_misplaced(error) or is_behind(error) or (self.is_repeatable and is_unknown(error))


class _Later(Exception):
    """To be asked again."""

    def __init__(self, reason: PenstockError) -> None:
        self.reason = reason
