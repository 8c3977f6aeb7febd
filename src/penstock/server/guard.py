"""The broker as one principal sees it: what it may not do is refused before anything happens.

One table says which rights each request needs; every door goes through here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from penstock.acks import ALL
from penstock.client import cluster_requests as c
from penstock.client import placement as p
from penstock.client import requests as r
from penstock.client.answers import Answer
from penstock.client.requests import Request
from penstock.client.transport import Delivery, Leases, Page, Receipt, Stored
from penstock.errors import Forbidden, LeaseError
from penstock.frame import Frame
from penstock.limits import Limits
from penstock.local.transport import LocalTransport
from penstock.message import Message
from penstock.server.access import Kind, Operation, Right, Rules
from penstock.server.site import Site
from penstock.storage.commit import Committed

R = TypeVar("R")
# Of what a principal is known to be allowed: a topic to publish to, or a group and its topics to consume.
_ALLOWED_MAX = 64
_Known = str | tuple[str, ...]
_Needs = Callable[[Any], list[Right]]


def _topic(operation: Operation, name: str) -> Right:
    return Right(operation, Kind.TOPIC, name)


def _group(operation: Operation, name: str) -> Right:
    return Right(operation, Kind.GROUP, name)


def _of_id(operation: Operation) -> _Needs:
    """Of a message: its topic's."""
    return lambda request: [_topic(operation, str(request.id).partition(":")[0])]


def _on_topic(operation: Operation, field: str = "topic") -> _Needs:
    return lambda request: [_topic(operation, getattr(request, field))]


def _on_group(operation: Operation, field: str = "name") -> _Needs:
    return lambda request: [_group(operation, getattr(request, field))]


def _on_broker(operation: Operation) -> _Needs:
    return lambda request: [Right(operation, Kind.BROKER, "")]


def _nothing(request: Any) -> list[Right]:
    """What is listed is only what one may know of."""
    return []


_ADMIN, _READ, _DESCRIBE = Operation.ADMIN, Operation.READ, Operation.DESCRIBE

NEEDS: Mapping[type[Request[Any]], _Needs] = {
    r.CreateTopic: _on_topic(_ADMIN, "name"),
    r.ChangeTopic: _on_topic(_ADMIN, "name"),
    r.DeleteTopic: _on_topic(_ADMIN, "name"),
    r.DescribeTopic: _on_topic(_DESCRIBE, "name"),
    r.ListTopics: _nothing,
    r.FindOffsets: _on_topic(_READ),
    r.Archived: _on_topic(_ADMIN),
    r.FindArchive: _on_topic(_READ),
    r.CreateGroup: _on_group(_ADMIN),
    r.ChangeGroup: _on_group(_ADMIN),
    r.DeleteGroup: _on_group(_ADMIN),
    r.DescribeGroup: _on_group(_DESCRIBE),
    r.ListGroups: _nothing,
    r.Seek: lambda q: [_group(_ADMIN, q.group), _topic(_READ, q.topic)],
    r.ListParkedKeys: _on_group(_DESCRIBE, "group"),
    r.ReleaseKey: _on_group(_ADMIN, "group"),
    r.Replay: lambda q: [_group(_ADMIN, q.group), _topic(_READ, q.topic)],
    r.ListScheduled: _on_topic(_READ),
    r.GetScheduled: _of_id(_READ),
    r.CancelScheduled: _of_id(_ADMIN),
    r.Reschedule: _of_id(_ADMIN),
    r.CreateSchedule: lambda q: [_topic(_ADMIN, q.topic), _topic(Operation.PUBLISH, q.topic)],
    r.ListSchedules: lambda q: [Right(_DESCRIBE, Kind.BROKER, "")],
    r.DeleteSchedule: lambda q: [Right(_ADMIN, Kind.BROKER, "")],
    r.ListDeadLetters: _on_topic(_READ),
    r.GetDeadLetter: _of_id(_READ),
    r.Redrive: _on_topic(_ADMIN),
    r.Discard: _on_topic(_ADMIN),
    r.GetMessage: _of_id(_READ),
    r.GetTrace: _of_id(_READ),
    r.FindDeliveries: _on_topic(_READ),
    r.ReadDeliveries: _on_topic(_READ),
    r.AskWhy: lambda q: [*_of_id(_READ)(q), _group(_DESCRIBE, q.group)],
    r.GetStateAt: lambda q: [_topic(_READ, q.topic), _group(_DESCRIBE, q.group)],
    p.DescribeCluster: _nothing,
    p.FindPlacement: _nothing,
    p.FindCoordinator: _nothing,
    c.SurveyCluster: _on_broker(_DESCRIBE),
    c.Reassign: _on_broker(_ADMIN),
    c.CancelMoves: _on_broker(_ADMIN),
    c.Rebalance: _on_broker(_ADMIN),
    c.ElectLeaders: _on_broker(_ADMIN),
    c.DrainNode: _on_broker(_ADMIN),
    c.UndrainNode: _on_broker(_ADMIN),
}


class Guarded:
    """The client's port, as far as the rules allow. `rules` is asked each time: they may change."""

    def __init__(self, site: Site, principal: str, rules: Callable[[], Rules], *, is_node: bool = False) -> None:
        """`is_node`: another node of the same cluster."""
        self._site = site
        # Where something is stored right here: for the native door, whose clients know who leads what.
        self._here = site if isinstance(site, LocalTransport) else None
        self.principal = principal
        self.is_node = is_node
        self._rules = rules
        # By which rules the others are allowed.
        self._asked: Rules | None = None
        self._allowed: set[_Known] = set()

    def _check(self, *rights: Right) -> None:
        self._rules().check(self.principal, rights)

    def check_broker(self, operation: Operation) -> None:
        """On everything there is."""
        self._check(Right(operation, Kind.BROKER, ""))

    @property
    def limits(self) -> Limits:
        return self._site.limits

    def now_us(self) -> int:
        return self._site.now_us()

    async def publish(self, topic: str, message: Message, partition: int | None, acks: str = ALL) -> Stored:
        self._check(_topic(Operation.PUBLISH, topic))
        return await self._site.publish(topic, message, partition, acks)

    async def publish_frame(self, topic: str, partition: int, frame: Frame, acks: str = ALL) -> Stored:
        self._check(_topic(Operation.PUBLISH, topic))
        return await self._site.publish_frame(topic, partition, frame, acks)

    def storing(
        self, topic: str, partition: int, frame: Frame, acks: str = ALL, *, is_alone: bool = False
    ) -> tuple[Committed | asyncio.Future[Committed], int]:
        if not self._is_known(topic):
            self._check(_topic(Operation.PUBLISH, topic))
            self._allowed.add(topic)
        assert self._here is not None
        return self._here.storing(topic, partition, frame, acks, is_alone=is_alone)

    async def join(self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any]) -> None:
        """For a session: whoever comes through a door may fall silent."""
        self.check_consuming(group, topics)
        await self._site.join_for_a_session(group, consumer, topics, settings)

    async def leave(self, group: str, consumer: str) -> None:
        self.check_consuming(group)
        await self._site.leave(group, consumer)

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
        self.check_consuming(group, topics)
        return await self._site.poll(
            group,
            consumer,
            topics,
            count=count,
            bytes_max=bytes_max,
            wait_us=wait_us,
            visibility_us=visibility_us,
        )

    async def answer(self, group: str, receipt: Receipt, answer: Answer) -> None:
        self.check_consuming(group, [receipt.topic])
        await self._site.answer(group, receipt, answer)

    async def ack_all(
        self, group: str, topic: str, partition: int, leases: Leases, *, again: bool = False
    ) -> Sequence[LeaseError | None]:
        self.check_consuming(group, [topic])
        return await self._site.ack_all(group, topic, partition, leases, again=again)

    def check_consuming(self, group: str, topics: Sequence[str] = ()) -> None:
        wanted = (group, *topics)
        if not self._is_known(wanted):
            self._check(_group(Operation.CONSUME, group), *(_topic(Operation.CONSUME, topic) for topic in topics))
            self._allowed.add(wanted)

    def _is_known(self, wanted: _Known) -> bool:
        """To be allowed. Every publish says its topic again, every poll all of them; rules that change are others."""
        rules = self._rules()
        if rules is not self._asked or len(self._allowed) > _ALLOWED_MAX:
            self._asked, self._allowed = rules, set()
        return wanted in self._allowed

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
        self._check(_topic(_READ, topic))
        return await self._site.read(topic, partition, offset, until, bytes_max, columns, epoch)

    async def call(self, request: Request[R]) -> R:
        needs = NEEDS.get(type(request))
        if self.is_node:
            return await self._site.call(request)
        if needs is None:
            raise Forbidden(f"{type(request).__name__} is not for clients")
        self._check(*needs(request))
        reply = await self._site.call(request)
        if isinstance(request, r.ListTopics | r.ListGroups):
            kind = Kind.TOPIC if isinstance(request, r.ListTopics) else Kind.GROUP
            listed: Any = reply
            reply = [one for one in listed if self._may_know(kind, one.name)]  # type: ignore[assignment]
        elif isinstance(reply, p.Placement):
            topics = tuple(one for one in reply.topics if self._may_do_something(one.name))
            reply = msgspec.structs.replace(reply, topics=topics)
        return reply

    async def close(self) -> None:
        """Nothing happens: the broker is there for others, too."""

    def _may_do_something(self, topic: str) -> bool:
        """Whoever may has to know where."""
        rules = self._rules()
        return any(rules.allow(self.principal, _topic(operation, topic)) for operation in Operation)

    def _may_know(self, kind: Kind, name: str) -> bool:
        return self._rules().allow(self.principal, Right(_DESCRIBE, kind, name))
