"""The broker as one principal sees it: what it may not do is refused before anything happens.

One table says which rights each request needs; every door goes through here. So this is also where quotas are applied,
and where what was refused, and what needs the right `admin`, is written to the audit log.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import msgspec

from penstock.acks import ALL
from penstock.broker.polling import TOPICS_MAX, ReplyMemory
from penstock.broker.turns import acting_for
from penstock.broker.work import to_its_end
from penstock.client import cluster_requests as c
from penstock.client import placement as p
from penstock.client import requests as r
from penstock.client.answers import Answer
from penstock.client.closing import CLOSE_S
from penstock.client.requests import Request
from penstock.client.transport import Delivery, Leases, Page, Receipt, Stored
from penstock.errors import Forbidden, InvalidInput, LeaseError, PenstockError, ProtocolError, Unauthenticated
from penstock.frame import Frame, bound_id, identified
from penstock.limits import KIB, Limits
from penstock.local.paging import check_limit, check_unpaged
from penstock.local.transport import LocalTransport
from penstock.message import Message
from penstock.server.access import Kind, Operation, Right, Rules
from penstock.server.admission import UnderWay
from penstock.server.audit import Audit, Peer, action_of, is_dry, object_of
from penstock.server.quotas import GROUPS, SCHEDULES, TOPICS, Allowance, Meter, size_of
from penstock.server.reply_budget import Reservation, reply_bytes
from penstock.server.site import Site
from penstock.storage.commit import Committed
from penstock.wire.words import Head

R = TypeVar("R")
# Of what a principal is known to be allowed: a topic to publish to, or a group and its topics to consume.
_ALLOWED_MAX = 64
# Of a request that needs no rights.
_ANYBODYS_BYTES_MAX = 256 * KIB
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
    c.DiscardCopy: _on_broker(_ADMIN),
}
# What they create, as its quota is called.
_CREATES: Mapping[type[Request[Any]], str] = {
    r.CreateTopic: TOPICS,
    r.CreateGroup: GROUPS,
    r.Replay: GROUPS,
    r.CreateSchedule: SCHEDULES,
}
# Requests that look at everything there is, or read a log from end to end.
SLOW = frozenset(
    {
        r.ListTopics,
        r.ListGroups,
        r.ListParkedKeys,
        r.ListScheduled,
        r.ListSchedules,
        r.ListDeadLetters,
        r.Redrive,
        r.Discard,
        r.Replay,
        r.GetTrace,
        r.AskWhy,
        r.GetStateAt,
        r.FindDeliveries,
        r.ReadDeliveries,
    }
)
_BY_NAME = {kind.__name__: needs for kind, needs in NEEDS.items()}


def only_reads(request: Request[Any]) -> bool:
    """Whether the request changes nothing, and may be cancelled at any time."""
    needs = NEEDS.get(type(request))
    if needs is None:
        return False
    return is_dry(request) or all(right.operation in (_READ, _DESCRIBE) for right in needs(request))


class Guarded:
    """The client's port, as far as the rules allow. `rules` is asked each time: they may change."""

    def __init__(
        self,
        site: Site,
        principal: str,
        rules: Callable[[], Rules],
        *,
        is_node: bool = False,
        binds_producers: bool = False,
        audit: Audit | None = None,
        peer: Peer = None,
        meter: Meter | None = None,
        is_single: bool = False,
        slow: UnderWay | None = None,
    ) -> None:
        """`is_node`: another node of the same cluster. `peer` is the client's address, `meter` counts what its
        principal uses, `slow` its slow requests. For `is_single` see `Allowance`."""
        self._slow = slow
        self._audit = audit
        self._peer = peer
        self._meter = meter
        self._is_single = is_single
        self.apply_quotas()
        self.binds_producers = binds_producers
        self._site = site
        # Where something is stored right here: for the native door, whose clients know who leads what.
        self._here = site if isinstance(site, LocalTransport) else None
        self.principal = principal
        self.is_node = is_node
        # Of a client with one request: for the replies to it. Its connection releases what is reserved.
        self.memory: Reservation | None = None
        self._rules = rules
        # By which rules the others are allowed.
        self._asked: Rules | None = None
        self._allowed: set[_Known] = set()
        # Requests that may take long, and what each of them needs to be allowed.
        self._under_way: dict[asyncio.Timeout, Callable[[], object]] = {}
        # Called when the client's key is no longer valid; and when it still is, and rules have changed.
        self.revoked: Callable[[Unauthenticated], None] | None = None
        self.changed: Callable[[], None] | None = None

    def check_again(self) -> None:
        """Keys or rules have changed: what is not allowed any more ends now."""
        try:
            self._rules()
        except Unauthenticated as error:
            if self.revoked is not None:
                self.revoked(error)
        else:
            if self.changed is not None:
                self.changed()
        for request, check in list(self._under_way.items()):
            try:
                check()
            except PenstockError:
                if not request.expired():
                    request.reschedule(0)

    @asynccontextmanager
    async def _while_allowed(self, check: Callable[[], object]) -> AsyncIterator[None]:
        """Cancel what is done meanwhile, and raise what `check` does, as soon as that is an error."""
        try:
            async with asyncio.timeout(None) as request:
                self._under_way[request] = check
                yield
        except TimeoutError:
            check()
            raise
        finally:
            del self._under_way[request]

    def apply_quotas(self) -> None:
        """None without a rate: nothing is counted then."""
        has_rates = self._meter is not None and self._meter.has_rates
        self._quota = Allowance(self._meter, is_single=self._is_single) if self._meter and has_rates else None

    def connect(self, connection: object) -> None:
        """Count a connection of the principal. QuotaExceeded if there are too many."""
        if self._meter is not None:
            self._meter.connect(connection)

    def disconnect(self, connection: object) -> None:
        if self._meter is not None:
            self._meter.disconnect(connection)

    def _check(self, *rights: Right) -> None:
        if self.is_node:
            # It may do everything, also what no client may: publish audit events.
            return
        try:
            self._rules().check(self.principal, rights)
        except (Forbidden, Unauthenticated) as error:
            # The first of them that is not allowed, or one of them.
            name = error.details.get("name", rights[0].name)
            right = next((right for right in rights if right.name == name), rights[0])
            self._record(right.operation, f"{right.kind} {right.name}".rstrip(), error.code)
            raise

    def _record(self, action: str, object: str, outcome: str, **more: Any) -> None:
        if self._audit is not None:
            self._audit.record(self.principal, self._peer, action, object, outcome, **more)

    def check_broker(self, operation: Operation) -> None:
        """On everything there is."""
        self._check(Right(operation, Kind.BROKER, ""))

    @property
    def has_rights(self) -> bool:
        """A key without any right is no better than none."""
        return self.is_node or self._rules().may_anything(self.principal)

    def check_anything(self, operation: Operation) -> None:
        """Before the request is read. Forbidden if there is nothing that the principal may do this to."""
        if not self._rules().may(self.principal, operation):
            self._record(operation, "", Forbidden.code)
            raise Forbidden(f"{self.principal} may not {operation} anything", operation=operation)

    def check_named(self, operation: Operation, names: Mapping[str, str]) -> None:
        """Before the rest of a request is read: `names` are of its topic or group, or of something else."""
        if "topic" in names:
            self._check(_topic(operation, names["topic"]))
        elif "group" in names:
            self._check(_group(operation, names["group"]))
        else:
            self.check_anything(operation)

    @property
    def limits(self) -> Limits:
        return self._site.limits

    @property
    def is_lost(self) -> bool:
        return self._site.is_lost

    def is_led(self, topic: str, partition: int) -> bool:
        return self._site.is_led(topic, partition)

    def now_us(self) -> int:
        return self._site.now_us()

    def monotonic_us(self) -> int:
        return self._site.monotonic_us()

    async def publish(self, topic: str, message: Message, partition: int | None, acks: str = ALL) -> Stored:
        self._check(_topic(Operation.PUBLISH, topic))
        if self._quota is not None:
            self._quota.publish(message.size)
        return await self._site.publish(topic, message, partition, acks)

    async def publish_frame(self, topic: str, partition: int, frame: Frame, acks: str = ALL) -> Stored:
        self._check(_topic(Operation.PUBLISH, topic))
        if self._quota is not None:
            self._quota.publish(len(frame.data))
        return await self._site.publish_frame(topic, partition, self._bound(frame), acks)

    @property
    def _owner(self) -> str:
        """Of what the client creates."""
        return self.principal if self.binds_producers else ""

    def _bound(self, frame: Frame) -> Frame:
        """Producer ids are the client's choice, and readers see them. Each principal has ids of its own."""
        producer = frame.producer
        if not (self.binds_producers and producer.id):
            return frame
        if self._meter is not None:
            self._meter.produce(producer.id)
        return identified(frame, producer._replace(id=bound_id(producer.id, self.principal)), self.principal)

    def check_publishing(self, topic: str) -> None:
        if not self._is_known(topic):
            self._check(_topic(Operation.PUBLISH, topic))
            self._allowed.add(topic)

    def storing(
        self, topic: str, partition: int, frame: Frame, acks: str = ALL, *, is_alone: bool = False
    ) -> tuple[Committed | asyncio.Future[Committed], int]:
        """`check_publishing` comes first."""
        if self._quota is not None:
            self._quota.publish(len(frame.data))
        assert self._here is not None
        return self._here.storing(topic, partition, self._bound(frame), acks, is_alone=is_alone)

    async def join(
        self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any], owner: str = ""
    ) -> None:
        """For a session: whoever comes through a door may fall silent. `owner` is what another node says."""
        self.check_consuming(group, topics)
        if self._quota is not None:
            self._quota.request()
        join = partial(self._site.join_for_a_session, group, consumer, topics, settings)
        if self.is_node:
            await join(owner)
            return
        if self._meter is not None:
            self._meter.join(group, consumer, self._site.is_member)
        is_new = not self._site.broker.has_group(group)
        async with self._creating(GROUPS if is_new else None, group):
            await join(self._owner)
        if is_new:
            self._record("create_group", f"group {group}", "ok")

    @asynccontextmanager
    async def _creating(self, kind: str | None, group: str = "") -> AsyncIterator[None]:
        """LimitReached if the principal has as many as it may. One at a time, so that requests that come together
        count each other. `group` is to be created, unless another request has done so meanwhile."""
        if kind is None or self._meter is None or self._meter.most(kind) is None:
            yield
            return
        async with self._meter.creating:
            if not group or not self._site.broker.has_group(group):
                self._meter.check_count(kind, self._site.broker.owned(kind, self.principal))
            yield

    async def leave(self, group: str, consumer: str) -> None:
        self.check_consuming(group)
        if self._quota is not None:
            self._quota.answer()
        await self._site.leave(group, consumer)
        if self._meter is not None:
            self._meter.leave(group, consumer)

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
        check = partial(self.check_consuming, group, topics)
        check()
        poll = partial(self._polled, group, consumer, topics, count=count, visibility_us=visibility_us)
        poll = partial(poll, memory=memory or self.memory)
        with acting_for(self.principal):
            if not wait_us:
                return await poll(bytes_max=bytes_max, wait_us=0)
            async with self._while_allowed(check):
                return await poll(bytes_max=bytes_max, wait_us=wait_us)

    async def _polled(
        self, group: str, consumer: str, topics: Sequence[str], *, bytes_max: int, wait_us: int, **more: Any
    ) -> Sequence[Delivery]:
        quota = self._quota
        if quota is None:
            return await self._site.poll(group, consumer, topics, bytes_max=bytes_max, wait_us=wait_us, **more)
        bytes_max, wait_us = await quota.poll(bytes_max, wait_us)
        deliveries = await self._site.poll(group, consumer, topics, bytes_max=bytes_max, wait_us=wait_us, **more)
        quota.consumed(size_of(deliveries))
        return deliveries

    async def answer(self, group: str, receipt: Receipt, answer: Answer) -> None:
        self.check_consuming(group, [receipt.topic])
        if self._quota is not None:
            self._quota.answer()
        await self._site.answer(group, receipt, answer)

    async def ack_all(
        self, group: str, topic: str, partition: int, leases: Leases, *, again: bool = False
    ) -> Sequence[LeaseError | None]:
        self.check_consuming(group, [topic])
        if self._quota is not None:
            self._quota.answer()
        return await self._site.ack_all(group, topic, partition, leases, again=again)

    def check_consuming(self, group: str, topics: Sequence[str] = ()) -> None:
        if len(topics) > TOPICS_MAX:
            raise InvalidInput(f"a consumer has 1 to {TOPICS_MAX} topics, not {len(topics)}")
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
        if self.memory is not None:
            # A page has one frame at least, whatever `bytes_max` is.
            await self.memory.reserve(max(bytes_max, self.limits.frame_bytes_max))
        quota = self._quota
        wanted = bytes_max if quota is None else quota.read(bytes_max)
        with acting_for(self.principal):
            page = await self._site.read(topic, partition, offset, until, wanted, columns, epoch)
        if quota is not None:
            quota.consumed(sum(len(frame.data) for frame in page.frames))
        return page

    def check_head(self, head: Head, size: int) -> None:
        """Forbidden if the principal may not make such a request of so many bytes, whatever else is in it."""
        if self.is_node:
            return
        if not head.type:
            raise ProtocolError("a request without a type")
        needs = _BY_NAME.get(head.type)
        if needs is None:
            raise Forbidden(f"{head.type[:50]} is not for clients")
        if needs is _nothing and size > _ANYBODYS_BYTES_MAX:
            raise InvalidInput(f"{head.type} has {size} bytes; it may have {_ANYBODYS_BYTES_MAX}")
        self._check(*needs(head))

    async def call(self, request: Request[R]) -> R:
        """A request that changes something is carried out to its end, also if the caller is cancelled."""
        with acting_for(self.principal):
            if self.is_node:
                return await self._site.call(request)
            calling = self._recorded(request)
            return await (calling if only_reads(request) else to_its_end(calling))

    async def _recorded(self, request: Request[R]) -> R:
        needs = NEEDS.get(type(request))
        rights = () if needs is None else needs(request)
        outcome = "ok"
        try:
            if needs is None:
                raise Forbidden(f"{type(request).__name__} is not for clients")
            self._rules().check(self.principal, rights)
            with self.slow() if type(request) in SLOW else nullcontext():
                return await self._called(request, rights)
        except PenstockError as error:
            outcome = error.code
            raise
        except BaseException as error:
            outcome = "cancelled" if isinstance(error, asyncio.CancelledError) else "internal_error"
            raise
        finally:
            is_admin = any(right.operation is _ADMIN for right in rights)
            if is_admin or outcome in ("forbidden", "unauthenticated"):
                more = {"dry_run": True} if is_dry(request) else {}
                self._record(action_of(request), object_of(request), outcome, **more)

    @contextmanager
    def slow(self) -> Iterator[None]:
        """For a request that looks at everything there is. Overloaded if the principal has too many under way."""
        with self._slow.one(self.principal) if self._slow else nullcontext(), acting_for(self.principal):
            yield

    async def _called(self, request: Request[R], rights: Sequence[Right]) -> R:
        if type(request) in _CREATES:
            request = msgspec.structs.replace(request, owner=self._owner)
        if self._quota is not None:
            self._quota.request()
        if isinstance(request, r.DescribeGroup):
            # A consumer's right suffices: it is its own lag.
            await self._site.broker.walk(map(self._check_lag, request.partitions or ()))
        if isinstance(request, r.ListTopics | r.ListGroups):
            listed: R = await self._listed(request)
            return listed
        kind, group = _CREATES.get(type(request)), request.name if isinstance(request, r.CreateGroup) else ""
        if group and self._site.broker.has_group(group):
            kind = None
        if self.memory is not None and (size := reply_bytes(request)):
            await self.memory.reserve(size)
        async with (
            self._creating(kind, group),
            self._while_allowed(lambda: self._rules().check(self.principal, rights)),
        ):
            reply = await self._site.call(request)
        if isinstance(reply, p.Placement) and not self._rules().allow_all:
            topics = (one if self._may_do_something(one.name) else None for one in reply.topics)
            reply = msgspec.structs.replace(reply, topics=tuple(await self._site.broker.walk(topics)))
        return reply

    def _check_lag(self, topic: str) -> None:
        if not self._may_do_something(topic):
            self._rules().check(self.principal, [_topic(_DESCRIBE, topic)])

    async def _listed(self, request: r.ListTopics | r.ListGroups) -> Any:
        """A page of those that the principal may know of: what it may not is neither counted nor looked up."""
        if self._rules().allow_all:
            return await self._site.call(request)
        names = await self.visible(request)
        if request.after is None:
            check_unpaged("of them", len(names))
            return await self._site.call(msgspec.structs.replace(request, names=tuple(names)))
        names = names[bisect_right(names, request.after) :]
        some = tuple(names[: check_limit(request.limit)])
        page: Any = await self._site.call(msgspec.structs.replace(request, names=some))
        return page if page.next or len(some) == len(names) else msgspec.structs.replace(page, next=some[-1])

    async def visible(self, request: r.ListTopics | r.ListGroups) -> list[str]:
        """Names of topics or groups that the principal may know of, in order."""
        kind = Kind.TOPIC if isinstance(request, r.ListTopics) else Kind.GROUP
        names = sorted(await self._site.names(request))
        if self._rules().allow_all:
            return names
        return await self._site.broker.walk(name if self._may_know(kind, name) else None for name in names)

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Nothing happens: the broker is there for others, too."""

    def _may_do_something(self, topic: str) -> bool:
        """Whoever may has to know where."""
        rules = self._rules()
        return any(rules.allow(self.principal, _topic(operation, topic)) for operation in Operation)

    def _may_know(self, kind: Kind, name: str) -> bool:
        return self._rules().allow(self.principal, Right(_DESCRIBE, kind, name))
