"""Topics as a whole, put together from what their leaders tell."""

from __future__ import annotations

import asyncio

import msgspec

from penstock.client.requests import DescribeTopic, Listed, ListTopics, TopicInfo
from penstock.errors import NotEnoughReplicas, NotLeader, PenstockError, TopicNotFound
from penstock.net.routing.atlas import Atlas
from penstock.net.routing.failures import is_misplaced, is_unknown
from penstock.net.routing.merging import items_of, merged, page_of_names
from penstock.net.routing.nodes import Nodes
from penstock.net.routing.pace import Attempts, Pace
from penstock.net.routing.scattering import Scattering

# Topics that are asked for by themselves: each is waited for if it lacks a leader, and all of them may.
_AT_ONCE = 100


class Topics:
    """Belongs to one event loop."""

    def __init__(self, nodes: Nodes, atlas: Atlas, scattering: Scattering, pace: Pace) -> None:
        self._pace = pace
        self._nodes = nodes
        self._atlas = atlas
        self._scattering = scattering

    async def described(self, name: str, *, partial: bool = False) -> TopicInfo:
        """If `partial`, without the partitions that nobody leads."""
        parts = await self._scattering.ask(
            name, lambda numbers: DescribeTopic(name, numbers), is_repeatable=True, partial=partial
        )
        if not parts:
            return await self.known(name)
        info: TopicInfo = merged(DescribeTopic(name), parts)
        return info

    async def changed(self, name: str) -> TopicInfo:
        """What was asked for is done: that nobody leads one of the partitions is no reason to say anything else."""
        try:
            return await self.described(name)
        except (NotEnoughReplicas, NotLeader):
            return await self.described(name, partial=True)

    async def known(self, name: str) -> TopicInfo:
        """Without its partitions: any node tells, also while nobody leads some of them."""
        attempts = Attempts(self._pace)
        while True:
            await self._atlas.refresh_patiently(attempts, name)
            # TopicNotFound if it is not there.
            count = len(self._atlas.numbers(name))
            try:
                info = await self._nodes.ask(DescribeTopic(name, ()), is_repeatable=True)
            except TopicNotFound as error:
                # Whoever was asked is behind.
                await attempts.pause(error)
                self._nodes.wander()
                continue
            return msgspec.structs.replace(info, count=max(count, info.count))

    async def listed(self, request: ListTopics) -> list[TopicInfo] | Listed[TopicInfo]:
        """By name. Each node is asked once; topics that do not come out whole are then asked for by themselves."""
        await self._atlas.refresh_patiently(Attempts(self._pace))
        told: dict[str, list[TopicInfo]] = {}
        pages = await self._of_each_node(msgspec.structs.replace(request, partial=False))
        for page in pages:
            for info in items_of(page):
                told.setdefault(info.name, []).append(info)
        names = sorted({*told, *(self._atlas.names() if request.names is None else ())})
        if request.after is None:
            return await self._all(names, told, request.partial)
        names, next_name = page_of_names(names, request, [page.next for page in pages if isinstance(page, Listed)])
        return Listed(await self._all(names, told, request.partial), next_name)

    async def _all(self, names: list[str], told: dict[str, list[TopicInfo]], partial: bool) -> list[TopicInfo]:
        found: dict[str, TopicInfo | None] = {name: self._whole(name, told.get(name, [])) for name in names}
        lacking = [name for name in names if found[name] is None]
        for at in range(0, len(lacking), _AT_ONCE):
            some = lacking[at : at + _AT_ONCE]
            described = await asyncio.gather(*[self._described_or_gone(name, partial) for name in some])
            found |= zip(some, described, strict=True)
        return [whole for name in names if (whole := found[name]) is not None]

    async def _described_or_gone(self, name: str, partial: bool) -> TopicInfo | None:
        try:
            return await self.described(name, partial=partial)
        except TopicNotFound:
            return None

    async def _of_each_node(self, request: ListTopics) -> list[list[TopicInfo] | Listed[TopicInfo]]:
        """Of those that answer. Whoever leads what the others led tells of it when it is asked for by itself."""
        asked = [self._nodes.of(node).call(request) for node in self._nodes.ids]
        replies: list[list[TopicInfo] | Listed[TopicInfo]] = []
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(outcome, PenstockError) and (is_misplaced(outcome) or is_unknown(outcome)):
                continue
            if isinstance(outcome, BaseException):
                raise outcome
            replies.append(outcome)
        return replies

    def _whole(self, name: str, infos: list[TopicInfo]) -> TopicInfo | None:
        """None if a partition was told of twice, or by nobody: its leader has changed in between."""
        numbers = sorted(one.number for info in infos for one in info.partitions)
        is_one = len({info.id for info in infos}) == 1
        if not is_one or name not in self._atlas.names() or numbers != self._atlas.numbers(name):
            return None
        info: TopicInfo = merged(DescribeTopic(name), [((), info) for info in infos])
        return info
