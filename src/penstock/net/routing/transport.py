"""The client's port with a cluster behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from penstock.acks import ALL
from penstock.client.answers import Ack, Answer, Extend
from penstock.client.closing import CLOSE_S, all_done
from penstock.client.placement import DescribeCluster, NodeInfo
from penstock.client.requests import Request
from penstock.client.transport import Delivery, Leases, Page, Receipt, Stored, Transport
from penstock.client.words import CLIENT_CLOSED
from penstock.environment import random_id
from penstock.errors import (
    ConnectionLost,
    LeadershipLost,
    LeaseError,
    LogClosed,
    MemberNotFound,
    NotCommitted,
    PenstockError,
    Unsupported,
)
from penstock.frame import Frame
from penstock.limits import Limits
from penstock.message import Message
from penstock.net.routing.atlas import Atlas
from penstock.net.routing.calls import Calls
from penstock.net.routing.coordinators import Coordinators
from penstock.net.routing.failures import is_misplaced
from penstock.net.routing.groups import Groups
from penstock.net.routing.leading import Leading
from penstock.net.routing.member import Member
from penstock.net.routing.nodes import Make, Nodes
from penstock.net.routing.pace import Attempts, Pace
from penstock.net.routing.place import Place
from penstock.net.routing.plain import Plain
from penstock.net.routing.scattering import Scattering
from penstock.net.routing.topics import Topics
from penstock.net.singles import Singles
from penstock.wire import words

R = TypeVar("R")


class RoutedTransport:
    """Made with `RoutedTransport.to`. Belongs to the event loop it was made on."""

    def __init__(
        self, seeds: Sequence[NodeInfo], make: Make, pace: Pace, new_id: Callable[[], bytes] = random_id
    ) -> None:
        self._nodes = Nodes(seeds, make, pace)
        self._atlas = Atlas(self._nodes)
        self._leading = Leading(self._nodes, self._atlas, pace)
        self._coordinators = Coordinators(self._nodes, pace, self._atlas.refresh)
        self._plain = Plain(self._atlas, self._leading)
        self._singles = Singles(self, new_id)
        self._members: dict[tuple[str, str], Member] = {}
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._look_at = 0.0
        scattering = Scattering(self._nodes, self._atlas, self._leading, pace)
        self._calls = Calls(
            self._nodes,
            self._atlas,
            self._leading,
            scattering,
            Topics(self._nodes, self._atlas, scattering, pace),
            Groups(self._nodes, self._atlas, self._coordinators, scattering, pace),
            pace,
        )
        self._is_closed = False

    @classmethod
    async def to(
        cls,
        seeds: Sequence[NodeInfo],
        make: Make,
        pace: Pace | None = None,
        new_id: Callable[[], bytes] = random_id,
    ) -> RoutedTransport:
        """`seeds` need no more than an address; any one that answers will do. `make` makes a transport to a node, which
        connects when it is used, gives up at once if it can't, and is closed with this one.

        Unsupported if whoever answers is not a node of a cluster.
        """
        transport = cls(seeds, make, pace or Pace(), new_id)
        try:
            attempts = Attempts(transport._pace)
            while not (info := await transport._nodes.look(DescribeCluster(), lambda info: bool(info.nodes))).nodes:
                if not info.node:
                    raise Unsupported("a broker on its own is not a cluster: nothing is to be routed")
                # A node opens its native listener before it joins the cluster.
                text = f"node {info.node} has not joined its cluster yet. Check the nodes: penstock cluster status"
                await attempts.pause(ConnectionLost(text, was_sent=False))
        except BaseException:
            await transport.close()
            raise
        transport._nodes.learn(info.revision, info.nodes)
        return transport

    @property
    def limits(self) -> Limits:
        return self._nodes.home.limits

    @property
    def principal(self) -> str:
        return self._nodes.home.principal

    def now_us(self) -> int:
        return self._nodes.home.now_us()

    def monotonic_us(self) -> int:
        return self._nodes.home.monotonic_us()

    @property
    def is_lost(self) -> bool:
        return self._nodes.home.is_lost

    def is_led(self, topic: str, partition: int) -> bool:
        """While a partition is not led, its leader is looked for now and then: no request to it may do so."""
        leader = self._atlas.leader_of(topic, partition)
        if leader is None or self._is_reachable(leader):
            return True
        now = self._loop.time()
        if now >= self._look_at:
            self._look_at = now + self._pace.suspect_s
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._look_for_leaders, topic)
        return False

    def _is_reachable(self, node: str) -> bool:
        return self._nodes.is_reachable(node)

    def _look_for_leaders(self, topic: str) -> None:
        if not self._is_closed:
            self._atlas.refresh_soon(topic, self._nodes.reconnect_soon)

    # --- publishing --------------------------------------------------------------------------------------

    async def publish(self, topic: str, message: Message, partition: int | None, acks: str = ALL) -> Stored:
        """With an identity and a sequence, so that it can be sent again."""
        self._check()
        return await self._singles.publish(topic, message, partition, acks)

    def publish_at_once(self, topic: str, message: Message, partition: int | None) -> Stored | Future[Stored] | None:
        """As RemoteTransport has it, to the leader."""
        return self._singles.publish_at_once(topic, message, partition, self.publish_frame_at_once)

    def publish_frame_at_once(self, topic: str, partition: int, frame: Frame, acks: str = ALL) -> Stored | None:
        """From any thread. None, or an error that passes: to go the long way, which finds out who leads it by now."""
        leader = self._atlas.leader_of(topic, partition)
        way = self._nodes.at_once(leader) if leader else None
        stored = None if way is None else way(topic, partition, frame, acks)
        if stored is not None:
            self._atlas.note(topic, stored.partitions)
        return stored

    async def publish_frame(self, topic: str, partition: int, frame: Frame, acks: str = ALL) -> Stored:
        """One without an identity is not sent again if it may have arrived."""
        self._check()
        if frame.producer.id:
            stored = await self._leading.ask(
                topic,
                partition,
                lambda transport: transport.publish_frame(topic, partition, frame, acks),
                is_repeatable=True,
            )
        else:
            stored = await self._plain.publish(topic, partition, frame, acks)
        self._atlas.note(topic, stored.partitions)
        return stored

    # --- consuming ---------------------------------------------------------------------------------------

    async def join(self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any]) -> None:
        self._check()
        member = self._members.get((group, consumer))
        if member is None:
            place = Place(group, consumer, atlas=self._atlas, coordinators=self._coordinators, pace=self._pace)
            member = Member(place, self._nodes, self._atlas, self._pace, self.answer)
            # Before the answer arrives: a caller that is cancelled meanwhile still has to leave.
            self._members[group, consumer] = member
        try:
            await member.join(topics, settings)
        except PenstockError as error:
            if not (member.has_joined or error.retriable or error.in_doubt):
                self._members.pop((group, consumer), None)
            raise

    async def leave(self, group: str, consumer: str) -> None:
        member = self._members.pop((group, consumer), None)
        if member is not None:
            await member.leave()

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
        """What came for one that was cancelled is kept for the next, or given back soon."""
        self._check()
        member = self._members.get((group, consumer))
        if member is None or not member.has_joined:
            raise MemberNotFound(f"{consumer} has not joined group {group} here", group=group)
        return await member.poll(topics, count=count, bytes_max=bytes_max, wait_us=wait_us, visibility_us=visibility_us)

    async def answer(self, group: str, receipt: Receipt, answer: Answer) -> None:
        """ConnectionLost if nobody knows whether it was told, or other nodes do not know of it; but an acknowledgement
        is told until that is known."""
        self._check()
        told = answer

        async def tell(transport: Transport) -> None:
            nonlocal told
            try:
                await transport.answer(group, receipt, told)
            except BaseException as error:
                is_known = isinstance(error, PenstockError) and is_misplaced(error)
                if isinstance(answer, Ack) and not is_known:
                    told = Ack(again=True)
                raise

        is_repeatable = isinstance(answer, Ack | Extend)
        try:
            await self._leading.ask(
                receipt.topic, receipt.partition, tell, is_repeatable=is_repeatable, awaits_replicas=True
            )
        except (LeadershipLost, NotCommitted) as error:
            raise ConnectionLost(error.message, **error.details) from error

    async def ack_all(
        self, group: str, topic: str, partition: int, leases: Leases, *, again: bool = False
    ) -> Sequence[LeaseError | None]:
        """As `answer`: told until it is known."""
        self._check()
        is_again = again

        async def tell(transport: Transport) -> Sequence[LeaseError | None]:
            nonlocal is_again
            try:
                return await transport.ack_all(group, topic, partition, leases, again=is_again)
            except BaseException as error:
                is_again = is_again or not (isinstance(error, PenstockError) and is_misplaced(error))
                raise

        try:
            return await self._leading.ask(topic, partition, tell, is_repeatable=True, awaits_replicas=True)
        except (LeadershipLost, NotCommitted) as error:
            raise ConnectionLost(error.message, **error.details) from error

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
        self._check()
        return await self._leading.ask(
            topic,
            partition,
            lambda transport: transport.read(topic, partition, offset, until, bytes_max, columns, epoch),
            is_repeatable=True,
        )

    async def call(self, request: Request[R]) -> R:
        self._check()
        return await self._calls.call(words.checked(request))

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Sends what is to be sent, and gives back what is held."""
        if self._is_closed:
            return
        try:
            await self._singles.close(timeout_s)
            # What is held may be of leaders that do not answer: it comes back when its lease ends.
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await all_done(*[member.stop() for member in list(self._members.values())])
        finally:
            self._is_closed = True
            await self._coordinators.close()
            await self._atlas.close()
            await self._nodes.close(timeout_s)

    def _check(self) -> None:
        if self._is_closed:
            raise LogClosed(CLIENT_CLOSED)
