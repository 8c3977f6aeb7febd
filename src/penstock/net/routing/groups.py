"""Groups as a whole: their members as the coordinator knows them, their lags as the leaders do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

import msgspec

from penstock.client.requests import DescribeGroup, GroupInfo, Listed, ListGroups, ListParkedKeys, ParkedKey, Request
from penstock.errors import ConnectionLost, GroupNotFound, NotLeader, PenstockError, TopicNotFound
from penstock.net.routing.atlas import Atlas, KnownTopic
from penstock.net.routing.coordinators import Coordinators
from penstock.net.routing.failures import is_misplaced, is_unknown
from penstock.net.routing.merging import by_number, items_of, merged_page, page_of_names
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
        told = await self._of_each_node(
            lambda revision: DescribeGroup(name, revision=revision), lambda info: [info], without_silent
        )
        known = {node: info for node, info in told.items() if info is not None}
        if not known:
            raise GroupNotFound.named(name)
        whole = await self._whole(list(known.values()), partial)
        keeper = (await self._coordinators.find(name)).node
        return msgspec.structs.replace(whole, members=known[keeper].members) if keeper in known else whole

    async def listed(self, request: ListGroups) -> list[GroupInfo] | Listed[GroupInfo]:
        """By name."""
        by_name: dict[str, list[GroupInfo]] = {}

        def make(revision: int) -> Request[list[GroupInfo] | Listed[GroupInfo]]:
            return msgspec.structs.replace(request, partial=False, revision=revision)

        told = await self._of_each_node(make, items_of, request.partial)
        pages = [page for page in told.values() if page is not None]
        for page in pages:
            for info in items_of(page):
                by_name.setdefault(info.name, []).append(info)
        names, next_name = sorted(by_name), ""
        if request.after is not None:
            names, next_name = page_of_names(names, request, [page.next for page in pages if isinstance(page, Listed)])
        whole = await _all(self._whole(by_name[name], request.partial) for name in names)
        return whole if request.after is None else Listed(whole, next_name)

    async def parked(self, request: ListParkedKeys) -> list[ParkedKey] | Listed[ParkedKey]:
        group = await self._described(request.group, partial=True, without_silent=request.partial)
        topics = [topic for topic in sorted(group.lag) if topic >= (request.after or "").partition(":")[0]]
        if request.after is None:
            found = await _all(self._parked_in(topic, request) for topic in topics)
            return [key for page in found for key in items_of(page)]
        items: list[ParkedKey] = []
        for topic in topics:
            page = await self._parked_in(topic, request)
            items += items_of(page)[: request.limit - len(items)]
            if (isinstance(page, Listed) and page.next) or len(items) == request.limit:
                return Listed(items, ":".join(map(str, _parked_place(items[-1]))))
        return Listed(items)

    async def _parked_in(self, topic: str, request: ListParkedKeys) -> list[ParkedKey] | Listed[ParkedKey]:
        def make(numbers: tuple[int, ...]) -> Request[list[ParkedKey] | Listed[ParkedKey]]:
            return msgspec.structs.replace(request, partitions={topic: numbers})

        async with self._room[request.partial]:
            parts = await self._scattering.ask(topic, make, is_repeatable=True, partial=request.partial)
        return merged_page(
            [page for _, page in parts],
            request.limit if request.after is not None else sum(len(items_of(page)) for _, page in parts),
            _parked_place,
            lambda key: ":".join(map(str, _parked_place(key))),
            is_paged=request.after is not None,
        )

    async def _of_each_node(
        self, make: Callable[[int], Request[R]], infos_of: Callable[[R], list[GroupInfo]], without_silent: bool
    ) -> dict[str, R | None]:
        """All that are alive: only one of them knows the members of a group. None from those who do not know it. If
        `without_silent`, those that do not answer are left out after a moment, unless nobody does.

        Only the leaders of a topic's partitions know which groups use the topic. If all its partitions moved while
        nodes were asked, no answer may cover the topic: then all nodes are asked again.
        """
        attempts = Attempts(self._pace)
        hurried = Attempts(replace(self._pace, patience_s=self._pace.partial_s)) if without_silent else attempts
        told: dict[str, R | None] = {}
        before: Mapping[str, KnownTopic] = {}
        while True:
            await self._atlas.refresh_patiently(attempts)
            before = before or self._atlas.snapshot()
            nodes = [node for node in self._nodes.ids if node not in told]
            asked = [self._asked(node, make(self._atlas.revision), without_silent) for node in nodes]
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
            begins_anew = last is None
            if last is None:
                if all(one is None for one in told.values()):
                    return told
                await self._atlas.refresh_patiently(attempts, anew=True)
                infos = {node: infos_of(one) for node, one in told.items() if one is not None}
                last = self._untold(before, infos, without_silent)
                if last is None:
                    return told
            try:
                await (hurried if told else attempts).pause(last)
            except PenstockError:
                if without_silent and told:
                    return told
                raise
            if begins_anew:
                told, before = {}, {}

    def _untold(
        self, before: Mapping[str, KnownTopic], told: Mapping[str, list[GroupInfo]], partial: bool
    ) -> PenstockError | None:
        """Return an error if there is a topic that no stable leader has reported on: its groups are not known then.

        If `partial`, a topic without any leader, before and now, is skipped: `_whole` reports it as unknown.
        """
        now = self._atlas.snapshot()
        infos = [info for some in told.values() for info in some]
        # Of one group: the lag in a topic that any node tells of is asked for exactly afterwards.
        is_one = len({info.name for info in infos}) == 1
        known = {topic for info in infos for topic in info.lag} if is_one else set()
        for topic in sorted((before.keys() & now.keys()) - known):
            if partial and not before[topic].leaders and not now[topic].leaders:
                continue
            for number, leader in self._atlas.stable_leaders(topic, before):
                # All that a node tells of have the same `unknown`.
                if leader in told and not any(number in info.unknown.get(topic, ()) for info in told[leader][:1]):
                    break
            else:
                return NotLeader(f"nobody leads a partition of {topic}, or not for long enough to tell", topic=topic)
        return None

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
        unknown = {topic: list(lags.unknown) for topic, lags in known.items() if lags.unknown}
        if partial:
            # Only the leaders of a topic know its groups: any group may have messages in a topic without leaders.
            led = self._atlas.snapshot()
            unknown |= {
                topic: self._atlas.numbers(topic) for topic in led.keys() - known.keys() if not led[topic].leaders
            }
        return msgspec.structs.replace(
            infos[0],
            lag={topic: by_number(lags.parts) for topic, lags in known.items()},
            members=members,
            partitions={topic: lags.numbers for topic, lags in known.items()},
            unknown=unknown,
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


def _parked_place(parked: ParkedKey) -> tuple[str, int, int]:
    return parked.topic, parked.partition, parked.offset


async def _all(work: Iterable[Awaitable[R]]) -> list[R]:
    """At the same time. What fails is raised once nothing is under way any more."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
