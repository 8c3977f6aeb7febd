"""Requests, each by the way that the table has for it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from penstock.client import requests as r
from penstock.client.requests import Request
from penstock.clock import TIME_MAX_US
from penstock.errors import InvalidInput, NotFound, OffsetOutOfRange, PartitionNotFound, PenstockError, Unsupported
from penstock.net.routing.atlas import Atlas
from penstock.net.routing.groups import Groups
from penstock.net.routing.leading import Leading
from penstock.net.routing.merging import merged
from penstock.net.routing.nodes import Nodes
from penstock.net.routing.pace import Attempts, Pace
from penstock.net.routing.scattering import Scattering
from penstock.net.routing.table import GRAVES, ROUTES, Route, Way, partition_of, partitions_of, restricted, topic_of
from penstock.net.routing.topics import Topics

R = TypeVar("R")


class Calls:
    """Belongs to one event loop."""

    def __init__(
        self,
        nodes: Nodes,
        atlas: Atlas,
        leading: Leading,
        scattering: Scattering,
        topics: Topics,
        groups: Groups,
        pace: Pace,
    ) -> None:
        self._pace = pace
        self._nodes = nodes
        self._atlas = atlas
        self._leading = leading
        self._scattering = scattering
        self._topics = topics
        self._groups = groups

    async def call(self, request: Request[R]) -> R:
        route = ROUTES.get(type(request))
        if route is None:
            raise Unsupported(f"{type(request).__name__} has no way in a cluster")
        return cast(R, await self._answer(request, route))

    async def _answer(self, request: Request[Any], route: Route) -> Any:
        match route.way:
            case Way.TURNED:
                assert isinstance(request, r.Replay)
                return await self._replay(request)
            case Way.ALL:
                return await self._of_all(request)
            case Way.LEADERS | Way.GRAVES | Way.LEADER:
                return await self._of_leaders(request, route)
        reply = await self._nodes.ask(request, is_repeatable=route.is_repeatable)
        if isinstance(request, r.CreateTopic | r.ChangeTopic) and request.partitions is not None:
            self._atlas.note(request.name, request.partitions)
        # Of what was changed, others may not have heard yet.
        if route.way is Way.TOPIC:
            return msgspec.structs.replace(await self._topics.changed(topic_of(request)), settings=reply.settings)
        if route.way is Way.GROUP:
            return msgspec.structs.replace(
                await self._groups.described(reply.name, partial=True), settings=reply.settings
            )
        if isinstance(request, r.DeleteTopic):
            self._atlas.forget(request.name)
        return reply

    async def _of_all(self, request: Request[Any]) -> Any:
        match request:
            case r.ListTopics():
                return await self._topics.listed(request)
            case r.ListGroups():
                return await self._groups.listed(request)
            case r.DescribeGroup():
                return await self._groups.described(request.name, partial=request.partial)
            case r.ListParkedKeys():
                return await self._groups.parked(request)
        raise AssertionError(request)

    async def _of_leaders(self, request: Request[Any], route: Route) -> Any:
        one = partition_of(request)
        if one is not None:
            return await self._leading.ask(
                *one, lambda transport: transport.call(request), is_repeatable=route.is_repeatable
            )
        if route.way is Way.LEADER:
            # Its id is none, which anybody will say.
            return await self._nodes.ask(request, is_repeatable=route.is_repeatable)
        topic = topic_of(request)
        numbers = None if route.way is Way.GRAVES else partitions_of(request)
        if isinstance(request, r.DescribeTopic):
            if numbers == ():
                return await self._topics.known(topic)
            if numbers is None and request.partial:
                return await self._topics.described(topic, partial=True)
        if route.way is Way.GRAVES:
            topic = await self._graves(topic)
            if topic not in self._atlas.names():
                # There are no letters. Whoever is asked says whether the question makes sense.
                return await self._nodes.ask(restricted(request, ()), is_repeatable=route.is_repeatable)
        if isinstance(request, r.Archived) and not request.offsets:
            # No leader has anything to record, but any node checks the topic's id.
            await self._nodes.ask(request, is_repeatable=route.is_repeatable)
        make = partial(restricted, request)
        if isinstance(request, r.Redrive) and request.rate is not None:
            make = partial(_share, request, request.rate, len(self._atlas.numbers(topic)))
        parts = await self._scattering.ask(
            topic,
            make,
            is_repeatable=route.is_repeatable,
            nothing=_zero if isinstance(request, r.ReleaseKey) else None,
            numbers=numbers,
            # A leader that loses one of several partitions half-way refuses the whole request. Repeated for the others,
            # a seek would undo what was acknowledged since, and a key would count as never parked.
            apart=isinstance(request, r.Seek | r.ReleaseKey),
        )
        if isinstance(request, r.Archived):
            return await self._topics.changed(topic)
        reply = merged(request, parts)
        if isinstance(request, r.ReleaseKey) and not reply:
            raise NotFound(f"nothing of that is parked for group {request.group}", group=request.group)
        return reply

    async def _graves(self, topic: str) -> str:
        """The dead-letter topic, once all letters are there that are being written: the first one makes it."""
        attempts = Attempts(self._pace)
        await self._atlas.refresh_patiently(attempts, topic)
        self._atlas.numbers(topic)
        settle = r.ListDeadLetters(topic, r.Where(), False, 0, ())
        outcomes = await asyncio.gather(
            *[self._nodes.of(node).call(settle) for node in self._nodes.ids], return_exceptions=True
        )
        for outcome in outcomes:
            # Of a node that does not answer, what it leads will be led by another, which knows what is to be written.
            if isinstance(outcome, BaseException) and not isinstance(outcome, PenstockError):
                raise outcome
        await self._atlas.refresh_patiently(attempts, topic, topic + GRAVES)
        return topic + GRAVES

    # --- replays -----------------------------------------------------------------------------------------

    async def _replay(self, request: r.Replay) -> int:
        """What it is of is found out here: whoever makes the group does not lead all that it is of."""
        if (request.offsets is None) == (request.from_us is None and request.to_us is None):
            raise InvalidInput("a replay takes either from_time and to_time (one may be left out), or offsets")
        starts = await self.call(r.FindOffsets(request.topic, "earliest"))
        ends = await self.call(r.FindOffsets(request.topic, "latest"))
        if request.offsets is None:
            first = starts if request.from_us is None else await self._offsets_at(request.topic, request.from_us)
            last = ends if request.to_us is None else await self._offsets_at(request.topic, request.to_us)
            # Those that were added in between are left out.
            ranges = {
                number: (min(since, end), max(min(since, end), min(until, end)))
                for number, (since, until, end) in enumerate(zip(first, last, ends, strict=False))
            }
        else:
            ranges = _checked(request, starts, ends)
        turned = msgspec.structs.replace(request, from_us=None, to_us=None, offsets=ranges)
        return await self._nodes.ask(turned, is_repeatable=False)

    async def _offsets_at(self, topic: str, time_us: int) -> list[int]:
        if not 0 <= time_us <= TIME_MAX_US:
            raise InvalidInput(f"a time is 0 to {TIME_MAX_US} microseconds since 1970, not {time_us}")
        return await self.call(r.FindOffsets(topic, time_us))


def _checked(request: r.Replay, starts: list[int], ends: list[int]) -> dict[int, tuple[int, int]]:
    """The ranges that were given, and nothing of the other partitions."""
    assert request.offsets is not None
    for number in request.offsets:
        if not 0 <= number < len(ends):
            raise PartitionNotFound(f"{request.topic} has partitions 0 to {len(ends) - 1}, not {number!r}")
    ranges = {}
    for number, (start, end) in enumerate(zip(starts, ends, strict=False)):
        first, last = request.offsets.get(number, (end, end))
        if not start <= first <= last <= end:
            raise OffsetOutOfRange(
                f"partition {number} has offsets {start} to {end}, not {first} to {last} (the last one is exclusive)",
                start=start,
                end=end,
            )
        ranges[number] = (first, last)
    return ranges


def _share(request: r.Redrive, rate: float, total: int, numbers: tuple[int, ...]) -> Request[Any]:
    """All nodes together do no more than is asked for."""
    return msgspec.structs.replace(request, partitions=numbers, rate=rate * len(numbers) / total)


def _zero(error: PenstockError) -> int:
    if type(error) is not NotFound:
        raise error
    return 0
