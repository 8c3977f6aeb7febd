"""Groups as a whole: their members as the coordinator knows them, their lags as the leaders do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import NamedTuple, TypeVar

import msgspec

from penstock.client.requests import DescribeGroup, GroupInfo, ListGroups, ListParkedKeys, ParkedKey, Request
from penstock.errors import ConnectionLost, GroupNotFound, PenstockError, TopicNotFound
from penstock.net.routing.atlas import Atlas
from penstock.net.routing.coordinators import Coordinators
from penstock.net.routing.failures import is_misplaced, is_unknown
from penstock.net.routing.merging import by_number
from penstock.net.routing.nodes import Nodes
from penstock.net.routing.pace import Attempts, Pace
from penstock.net.routing.scattering import Scattering

R = TypeVar("R")


# Topics of groups that are asked for at the same time: each may have to wait for leaders.
_AT_ONCE = 100


class _Lags(NamedTuple):
    """Of a group in a topic; `unknown` are partitions that nobody has told of."""

    parts: list[tuple[tuple[int, ...], list[int]]]
    unknown: tuple[int, ...] = ()

    @property
    def numbers(self) -> list[int]:
        return sorted(number for some, _ in self.parts for number in some)


class Groups:
    """Belongs to one event loop."""

    def __init__(
        self, nodes: Nodes, atlas: Atlas, coordinators: Coordinators, scattering: Scattering, pace: Pace
    ) -> None:
        self._nodes = nodes
        self._atlas = atlas
        self._coordinators = coordinators
        self._scattering = scattering
        self._pace = pace
        # Whoever waits long for all of it keeps nobody who does not.
        self._room = {partial: asyncio.Semaphore(_AT_ONCE) for partial in (False, True)}

    async def described(self, name: str, *, partial: bool = False) -> GroupInfo:
        """GroupNotFound if no node knows it. If `partial`, without the lag where nobody leads, and without what only
        nodes know that do not answer."""
        return await self._described(name, partial=partial, without_silent=partial)

    async def _described(self, name: str, *, partial: bool, without_silent: bool) -> GroupInfo:
        told = await self._of_each_node(DescribeGroup(name), without_silent)
        known = {node: info for node, info in told.items() if info is not None}
        if not known:
            raise GroupNotFound(f"there is no group {name}", group=name)
        whole = await self._whole(list(known.values()), partial)
        keeper = (await self._coordinators.find(name)).node
        return msgspec.structs.replace(whole, members=known[keeper].members) if keeper in known else whole

    async def listed(self, *, partial: bool = False) -> list[GroupInfo]:
        """By name."""
        by_name: dict[str, list[GroupInfo]] = {}
        for infos in (await self._of_each_node(ListGroups(), partial)).values():
            for info in infos or ():
                by_name.setdefault(info.name, []).append(info)
        return await _all(self._whole(by_name[name], partial) for name in sorted(by_name))

    async def parked(self, request: ListParkedKeys) -> list[ParkedKey]:
        group = await self._described(request.group, partial=True, without_silent=request.partial)
        found = await _all(self._parked_in(topic, request) for topic in sorted(group.lag))
        return [key for keys in found for key in keys]

    async def _parked_in(self, topic: str, request: ListParkedKeys) -> list[ParkedKey]:
        def make(numbers: tuple[int, ...]) -> Request[list[ParkedKey]]:
            return ListParkedKeys(request.group, {topic: numbers})

        async with self._room[request.partial]:
            parts = await self._scattering.ask(topic, make, is_repeatable=True, partial=request.partial)
        return sorted((key for _, keys in parts for key in keys), key=lambda key: key.partition)

    async def _of_each_node(self, request: Request[R], without_silent: bool) -> dict[str, R | None]:
        """All that are alive: only one of them knows the members of a group. None from those who do not know it. If
        `without_silent`, those that do not answer are left out after a moment, unless nobody does."""
        attempts = Attempts(self._pace)
        hurried = Attempts(replace(self._pace, patience_s=self._pace.partial_s)) if without_silent else attempts
        told: dict[str, R | None] = {}
        while True:
            await self._atlas.refresh_patiently(attempts)
            nodes = [node for node in self._nodes.ids if node not in told]
            asked = [self._asked(node, request, without_silent) for node in nodes]
            last: PenstockError | None = None
            for node, outcome in zip(nodes, await asyncio.gather(*asked, return_exceptions=True), strict=True):
                if isinstance(outcome, GroupNotFound):
                    told[node] = None
                elif isinstance(outcome, PenstockError) and (is_misplaced(outcome) or is_unknown(outcome)):
                    last = outcome
                elif isinstance(outcome, BaseException):
                    raise outcome
                else:
                    told[node] = outcome
            if last is None:
                return told
            try:
                await (hurried if told else attempts).pause(last)
            except PenstockError:
                if without_silent and told:
                    return told
                raise

    async def _asked(self, node: str, request: Request[R], without_silent: bool) -> R:
        try:
            async with asyncio.timeout(self._pace.ask_s if without_silent else None):
                return await self._nodes.of(node).call(request)
        except TimeoutError:
            raise ConnectionLost(f"node {node} has not answered for {self._pace.ask_s:g} s", node=node) from None

    async def _whole(self, infos: list[GroupInfo], partial: bool) -> GroupInfo:
        """With all its members that anybody knows of."""
        # Of a topic of which nobody leads anything, members tell.
        assigned = {topic for info in infos for parts in info.members.values() for topic, _ in parts}
        topics = sorted({topic for info in infos for topic in info.lag} | assigned)
        found = dict(zip(topics, await _all(self._lag_in(topic, infos, partial) for topic in topics), strict=True))
        known = {topic: lags for topic, lags in found.items() if lags is not None}
        members = {name: assigned for info in infos for name, assigned in info.members.items()}
        return msgspec.structs.replace(
            infos[0],
            lag={topic: by_number(lags.parts) for topic, lags in known.items()},
            members=members,
            partitions={topic: lags.numbers for topic, lags in known.items()},
            unknown={topic: list(lags.unknown) for topic, lags in known.items() if lags.unknown},
        )

    async def _lag_in(self, topic: str, infos: list[GroupInfo], partial: bool) -> _Lags | None:
        """None if it was deleted meanwhile."""
        told = _Lags([(tuple(info.partitions[topic]), info.lag[topic]) for info in infos if topic in info.lag])
        if topic in self._atlas.names() and told.numbers == self._atlas.numbers(topic):
            return told
        try:
            async with self._room[partial]:
                told = _Lags(await self._exactly(infos[0].name, topic, partial))
            there = set(told.numbers)
            return told._replace(unknown=tuple(number for number in self._atlas.numbers(topic) if number not in there))
        except TopicNotFound:
            return None

    async def _exactly(self, group: str, topic: str, partial: bool) -> list[tuple[tuple[int, ...], list[int]]]:
        """Of a topic that has not come out whole: a leader has changed, or has not heard of the group there."""
        parts = await self._scattering.ask(
            topic, lambda numbers: DescribeGroup(group, {topic: numbers}), is_repeatable=True, partial=partial
        )
        return [(numbers, info.lag[topic]) for numbers, info in parts]


async def _all(work: Iterable[Awaitable[R]]) -> list[R]:
    """At the same time. What fails is raised once nothing is under way any more."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
