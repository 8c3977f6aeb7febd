"""All partitions of a topic: what is asked of their leaders, of each for its own.

A part that was not answered because its leader is another one by now is asked again, and only that part. Nobody hears
anything before all of it is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, TypeVar

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

# The request for some of the partitions.
Make = Callable[[tuple[int, ...]], Request[R]]


class Scattering:
    """Belongs to one event loop."""

    def __init__(self, nodes: Nodes, atlas: Atlas, leading: Leading, pace: Pace) -> None:
        self._nodes = nodes
        self._atlas = atlas
        self._leading = leading
        self._pace = pace

    async def ask(
        self,
        topic: str,
        make: Make[R],
        *,
        is_repeatable: bool,
        nothing: Callable[[PenstockError], R] | None = None,
        numbers: Collection[int] | None = None,
        partial: bool = False,
    ) -> list[Part[R]]:
        """Of all partitions, or only of those. `nothing` is what an error stands for that says that there is nothing;
        it may raise it. If `partial`, those that nobody leads are left out after a moment."""
        attempts = Attempts(replace(self._pace, patience_s=self._pace.partial_s) if partial else self._pace)
        parts: list[Part[R]] = []
        await self._atlas.refresh_patiently(attempts, topic)
        left = set(self._atlas.numbers(topic) if numbers is None else numbers)
        is_first = True
        while True:
            # One that can't be served keeps those of the same leader from being answered for.
            last = await self._round(
                topic, left, parts, make, is_repeatable, nothing, partial, partial and not is_first
            )
            if not left:
                return parts
            assert last is not None
            is_first = False
            try:
                await attempts.pause(last)
                self._nodes.wander()
                await self._atlas.refresh_patiently(attempts, topic)
            except PenstockError:
                if partial:
                    return parts
                raise

    async def _round(
        self,
        topic: str,
        left: set[int],
        parts: list[Part[R]],
        make: Make[R],
        is_repeatable: bool,
        nothing: Callable[[PenstockError], R] | None,
        partial: bool,
        one_by_one: bool,
    ) -> PenstockError | None:
        """Those that are left, each of its leader at the same time. What kept one of them from being answered."""
        last: PenstockError | None = None
        asked: dict[tuple[str, int], list[Placed]] = {}
        for number in sorted(left):
            # TopicNotFound if it is gone, PartitionNotFound if there is no such.
            placed = await self._atlas.placed(topic, number, None)
            if placed.leader:
                asked.setdefault((placed.leader, number if one_by_one else -1), []).append(placed)
            else:
                last = NotLeader(f"nobody leads partition {number} of {topic} yet", topic=topic, partition=number)
        outcomes = await asyncio.gather(
            *[self._part(topic, some, make) for some in asked.values()], return_exceptions=True
        )
        failed: BaseException | None = None
        for some, outcome in zip(asked.values(), outcomes, strict=True):
            numbers = tuple(placed.number for placed in some)
            if isinstance(outcome, PenstockError):
                error = outcome
                is_not_served = partial and isinstance(error, NotEnoughReplicas)
                if is_not_served or is_misplaced(error) or is_behind(error) or (is_repeatable and is_unknown(error)):
                    last = error
                    continue
                try:
                    if nothing is None:
                        raise error
                    outcome = nothing(error)
                except PenstockError as raised:
                    failed = failed or raised
                    continue
            elif isinstance(outcome, BaseException):
                failed = failed or outcome
                continue
            parts.append((numbers, outcome))
            left -= set(numbers)
        if failed is not None:
            raise failed
        return last

    async def _part(self, topic: str, some: list[Placed], make: Make[R]) -> Any:
        request = make(tuple(placed.number for placed in some))
        return await self._leading.ask_once(topic, some[0], lambda transport: transport.call(request))
