"""Groups as a whole: their members as the coordinator knows them, their lags as the leaders do."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

from penstock.client.requests import DescribeGroup, GroupInfo, ListGroups, ListParkedKeys, ParkedKey, Request
from penstock.errors import GroupNotFound, PenstockError, TopicNotFound
from penstock.net.routing.atlas import Atlas
from penstock.net.routing.coordinators import Coordinators
from penstock.net.routing.failures import is_misplaced, is_unknown
from penstock.net.routing.merging import by_number
from penstock.net.routing.nodes import Nodes
from penstock.net.routing.pace import Attempts, Pace
from penstock.net.routing.scattering import Scattering

R = TypeVar("R")


# Groups that are put together at the same time: each may have to wait for leaders.
_AT_ONCE = 100


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

    async def described(self, name: str, *, partial: bool = False) -> GroupInfo:
        """GroupNotFound if no node knows it. If `partial`, without the lag where nobody leads."""
        told = await self._of_each_node(DescribeGroup(name))
        known = {node: info for node, info in told.items() if info is not None}
        if not known:
            raise GroupNotFound(f"there is no group {name}", group=name)
        whole = await self._whole(list(known.values()), partial)
        keeper = (await self._coordinators.find(name)).node
        return msgspec.structs.replace(whole, members=known[keeper].members) if keeper in known else whole

    async def listed(self, *, partial: bool = False) -> list[GroupInfo]:
        """By name."""
        by_name: dict[str, list[GroupInfo]] = {}
        for infos in (await self._of_each_node(ListGroups())).values():
            for info in infos or ():
                by_name.setdefault(info.name, []).append(info)
        names, found = sorted(by_name), []
        for at in range(0, len(names), _AT_ONCE):
            some = names[at : at + _AT_ONCE]
            found += await asyncio.gather(*[self._whole(by_name[name], partial) for name in some])
        return found

    async def parked(self, request: ListParkedKeys) -> list[ParkedKey]:
        found: list[ParkedKey] = []
        for topic in sorted((await self.described(request.group, partial=True)).lag):

            def make(numbers: tuple[int, ...], topic: str = topic) -> Request[list[ParkedKey]]:
                return ListParkedKeys(request.group, {topic: numbers})

            parts = await self._scattering.ask(topic, make, is_repeatable=True, partial=request.partial)
            found += sorted((key for _, keys in parts for key in keys), key=lambda key: key.partition)
        return found

    async def _of_each_node(self, request: Request[R]) -> dict[str, R | None]:
        """All that are alive: only one of them knows the members of a group. None from those who do not know it."""
        attempts = Attempts(self._pace)
        told: dict[str, R | None] = {}
        while True:
            await self._atlas.refresh_patiently(attempts)
            nodes = [node for node in self._nodes.ids if node not in told]
            asked = [self._nodes.of(node).call(request) for node in nodes]
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
            await attempts.pause(last)

    async def _whole(self, infos: list[GroupInfo], partial: bool) -> GroupInfo:
        """With all its members that anybody knows of."""
        lag, partitions, unknown = {}, {}, {}
        # Of a topic of which nobody leads anything, members tell.
        assigned = {topic for info in infos for parts in info.members.values() for topic, _ in parts}
        for topic in sorted({topic for info in infos for topic in info.lag} | assigned):
            parts = [(tuple(info.partitions[topic]), info.lag[topic]) for info in infos if topic in info.lag]
            numbers = sorted(number for some, _ in parts for number in some)
            if topic not in self._atlas.names() or numbers != self._atlas.numbers(topic):
                try:
                    parts = await self._exactly(infos[0].name, topic, partial)
                    everything = self._atlas.numbers(topic)
                except TopicNotFound:
                    # It was deleted meanwhile.
                    continue
                numbers = sorted(number for some, _ in parts for number in some)
                if lacking := [number for number in everything if number not in numbers]:
                    unknown[topic] = lacking
            lag[topic], partitions[topic] = by_number(parts), numbers
        members = {name: assigned for info in infos for name, assigned in info.members.items()}
        return msgspec.structs.replace(
            infos[0],
            lag=lag,
            members=members,
            partitions=partitions,
            unknown=unknown,
        )

    async def _exactly(self, group: str, topic: str, partial: bool) -> list[tuple[tuple[int, ...], list[int]]]:
        """Of a topic that has not come out whole: a leader has changed, or has not heard of the group there."""
        parts = await self._scattering.ask(
            topic, lambda numbers: DescribeGroup(group, {topic: numbers}), is_repeatable=True, partial=partial
        )
        return [(numbers, info.lag[topic]) for numbers, info in parts]
