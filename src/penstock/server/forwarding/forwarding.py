"""A cluster, as the doors of one of its nodes see it: everything goes to whoever leads, from here or by a connection.

Requests, answers and what is published go the way that a client's do (`net/routing`), with this node as the one that
says where things are. Polls do not: a door stands for many consumers, who may come to another node the next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from pyroaring import BitMap64

from penstock.acks import ALL
from penstock.broker.broker import Broker
from penstock.broker.catalog import GroupRecord
from penstock.broker.polling import WAIT_US_MAX, ReplyMemory
from penstock.client.closing import CLOSE_S
from penstock.client.placement import Coordinator, DescribeCluster, FindLeft, FindPlacement, NodeInfo
from penstock.client.requests import ListGroups, ListTopics, Request
from penstock.client.transport import Delivery, Lease, Page, Stored, Transport
from penstock.environment import random_id
from penstock.errors import (
    ConnectionLost,
    GroupNotFound,
    InvalidInput,
    MemberNotFound,
    NotFound,
    PenstockError,
    TopicNotFound,
)
from penstock.frame import Frame
from penstock.limits import Limits
from penstock.local.transport import LocalTransport
from penstock.message import Message
from penstock.net.connection import Place
from penstock.net.routing.pace import Attempts, Pace
from penstock.net.routing.transport import RoutedTransport
from penstock.server.forwarding.catching_up import CatchingUp
from penstock.server.forwarding.copies import RoutedCopies
from penstock.server.forwarding.identities import Identities
from penstock.server.forwarding.polls import Polls, Wanted
from penstock.server.forwarding.standing import Standing
from penstock.server.forwarding.way import Lines, Way

R = TypeVar("R")

_KNOWN_HERE = (DescribeCluster, FindPlacement)
# How long a node that stops goes on sending forwarded publishes whose callers are gone.
_UNSENT_S = 1.0
# One that hangs may not be the coordinator any more. To join twice is the same as to join once.
_JOIN_S = 5.0


class Here(Protocol):
    """This node, as far as this needs it."""

    @property
    def name(self) -> str: ...

    @property
    def site(self) -> LocalTransport: ...

    def info(self, node: str) -> NodeInfo | None:
        """None of one that is not alive."""

    def place_at(self, native: str) -> Place | None:
        """Of the node with that address, with what lets us in."""

    def leaders(self, topics: Sequence[str]) -> list[str]: ...

    def changed(self) -> asyncio.Future[None]: ...

    def coordinator(self, group: str) -> Coordinator: ...

    def check_ready(self) -> None: ...

    async def refresh(self) -> None: ...


class Forwarding(RoutedTransport):
    """A `Site`. Belongs to the event loop it was made on."""

    def __init__(self, here: Here, pace: Pace | None = None, *, new_id: Callable[[], bytes] = random_id) -> None:
        self._here = here
        self._new_id = new_id
        self._site = here.site
        # The first of the nodes is this one, whether it has an address yet or not.
        pace = pace or Pace()
        super().__init__([NodeInfo(here.name, "")], self._made, pace, new_id)
        self._catching_up = CatchingUp(here.refresh)
        self._standing = Standing(self, self._joined)
        self._polls = Polls(self, self.answer, pace.patience_s)
        self._identities = Identities(self._plain.publish, new_id)
        # For the dead letters of this node's broker.
        self.copies = RoutedCopies(self._leading)

    def _made(self, node: NodeInfo) -> Way:
        if node.id == self._here.name:
            return Way(self._site)
        return Way(Lines(lambda: self._here.place_at(node.native), self._site.clock, self._site.limits, self._new_id))

    # --- what this node knows ----------------------------------------------------------------------------

    @property
    def broker(self) -> Broker:
        return self._site.broker

    @property
    def archive_dir(self) -> str | None:
        return self._site.archive_dir

    @property
    def limits(self) -> Limits:
        return self._site.limits

    def now_us(self) -> int:
        return self._site.now_us()

    def monotonic_us(self) -> int:
        return self._site.monotonic_us()

    def check_ready(self) -> None:
        self._site.check()
        self._here.check_ready()

    def leaders(self, topics: Sequence[str]) -> list[str]:
        return self._here.leaders(topics)

    def changed(self) -> asyncio.Future[None]:
        return self._here.changed()

    def coordinator(self, group: str) -> Coordinator:
        return self._here.coordinator(group)

    def group_record(self, group: str) -> GroupRecord | None:
        return self.broker.group_record(group) if self.broker.has_group(group) else None

    def way(self, node: str) -> Way:
        info = self._here.info(node)
        if info is None:
            raise ConnectionLost(f"node {node} is not alive, as far as is known here", was_sent=False)
        way = self._nodes.at(info)
        assert isinstance(way, Way)
        return way

    async def catch_up(self) -> None:
        await self._catching_up.caught_up()

    def _is_reachable(self, node: str) -> bool:
        return self._here.info(node) is not None and super()._is_reachable(node)

    # --- publishing --------------------------------------------------------------------------------------

    async def publish(self, topic: str, message: Message, partition: int | None, acks: str = ALL) -> Stored:
        publish = super().publish
        return await self._catching_up.found(lambda: publish(topic, message, partition, acks))

    async def publish_frame(self, topic: str, partition: int, frame: Frame, acks: str = ALL) -> Stored:
        """One without an identity gets one, and keeps its place among those of its partition."""
        if frame.producer.id:
            publish_frame = super().publish_frame
            return await self._catching_up.found(lambda: publish_frame(topic, partition, frame, acks))
        self._check()
        stored = await self._catching_up.found(lambda: self._identities.publish(topic, partition, frame, acks))
        self._atlas.note(topic, stored.partitions)
        return stored

    # --- consuming ---------------------------------------------------------------------------------------

    async def join_for_a_session(
        self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any], owner: str = ""
    ) -> None:
        await self._catching_up.found(lambda: self._standing.join(group, consumer, topics, settings, owner))

    async def join(self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any]) -> None:
        await self.join_for_a_session(group, consumer, topics, settings)

    async def _joined(
        self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any], owner: str
    ) -> None:
        async def ask(way: Transport) -> None:
            assert isinstance(way, Way)
            try:
                async with asyncio.timeout(_JOIN_S):
                    await way.join_for_a_session(group, consumer, topics, settings, owner)
            except TimeoutError:
                raise ConnectionLost(f"the coordinator of {group} has not answered for {_JOIN_S:g} s") from None

        attempts = Attempts(self._pace)
        while True:
            for topic in topics:
                self.broker.topic(topic)
            try:
                await self._coordinators.ask(group, ask)
                return
            except TopicNotFound as error:
                # The coordinator is behind.
                await attempts.pause(error)

    def heartbeat(self, group: str, consumer: str) -> None:
        self._standing.heartbeat(group, consumer)

    def is_member(self, group: str, consumer: str) -> bool:
        return self._standing.has(group, consumer)

    async def leave(self, group: str, consumer: str) -> None:
        async def known() -> GroupRecord:
            return self.broker.group_record(group)

        async def ask(transport: Transport) -> None:
            await transport.leave(group, consumer)

        await self._catching_up.found(known)
        self._standing.forget(group, consumer)
        await self._coordinators.ask(group, ask)

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
        memory: ReplyMemory | None = None,
    ) -> Sequence[Delivery]:
        if not 0 <= wait_us <= WAIT_US_MAX:
            raise InvalidInput(f"wait is 0 to {WAIT_US_MAX} microseconds, not {wait_us!r}")
        wanted = Wanted(group, consumer, topics, count, bytes_max, visibility_us)
        try:
            return await self._polls.poll(wanted, wait_us, memory)
        except (MemberNotFound, GroupNotFound):
            # It was deleted, and maybe made anew, since it joined.
            if not await self._standing.again(group, consumer):
                raise
            return await self._polls.poll(wanted, wait_us, memory)

    async def left(self, group: str, leases: Sequence[Lease]) -> list[BitMap64]:
        by_partition: dict[tuple[str, int], list[int]] = {}
        for topic, partition, number in leases:
            by_partition.setdefault((topic, partition), []).append(number)
        answers = await asyncio.gather(
            *[self._left_in(group, *where, numbers) for where, numbers in by_partition.items()]
        )
        found = {
            Lease(*where, number): offsets
            for (where, numbers), answer in zip(by_partition.items(), answers, strict=True)
            for number, offsets in zip(numbers, answer, strict=True)
        }
        return [found[lease] for lease in leases]

    async def _left_in(self, group: str, topic: str, partition: int, numbers: Sequence[int]) -> list[BitMap64]:
        request = FindLeft(group, topic, partition, tuple(numbers))
        try:
            return await self._leading.ask(
                topic, partition, lambda way: way.call(request), is_repeatable=True, awaits_replicas=True
            )
        except NotFound:
            return [BitMap64() for _ in numbers]

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
        read = super().read
        return await self._catching_up.found(lambda: read(topic, partition, offset, until, bytes_max, columns, epoch))

    async def call(self, request: Request[R]) -> R:
        if type(request) in _KNOWN_HERE:
            return await self._site.call(request)
        call = super().call
        return await self._catching_up.found(lambda: call(request))

    async def names(self, request: ListTopics | ListGroups) -> Collection[str]:
        await self.catch_up()
        return await self._site.names(request)

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        await self._standing.close()
        await self._polls.settled()
        # The listeners are closed: no caller waits for a publish that still looks for a leader.
        with suppress(TimeoutError, PenstockError):
            async with asyncio.timeout(_UNSENT_S):
                await self._singles.close()
        await super().close(timeout_s)
