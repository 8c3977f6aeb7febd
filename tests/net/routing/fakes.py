"""Nodes of a cluster that share one broker: as if everything were replicated at once, and perfectly.

What each of them leads, who looks after which group, and what goes wrong is up to the test.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.polling import Polled
from penstock.client import requests as r
from penstock.client.answers import Answer, Release
from penstock.client.placement import (
    ClusterInfo,
    Coordinator,
    DescribeCluster,
    FindCoordinator,
    FindPlacement,
    NodeInfo,
    Placed,
    Placement,
    TopicPlacement,
)
from penstock.client.requests import Request
from penstock.client.transport import Delivery, Leases, Page, Receipt, Stored
from penstock.clock import SystemClock
from penstock.errors import ConnectionLost, LeaseError, MemberNotFound, NotCoordinator, NotLeader, PenstockError
from penstock.frame import Frame
from penstock.limits import Limits
from penstock.local.transport import LocalTransport
from penstock.message import Message
from penstock.net.routing.pace import Pace
from penstock.net.routing.table import partition_of, partitions_of
from penstock.net.routing.transport import RoutedTransport
from penstock.storage.commit import Committed
from penstock.testing import MemoryFiles

R = TypeVar("R")

QUICK = Pace(
    patience_s=10.0,
    pause_s=0.001,
    pause_s_max=0.004,
    dice=lambda: 0.5,
    refresh_s=0.02,
    ask_s=2.0,
    suspect_s=0.02,
    other_s=0.5,
)


class Cluster:
    def __init__(self, site: LocalTransport, names: Sequence[str]) -> None:
        self.site = site
        self.revision = 1
        self.nodes = {name: FakeNode(self, name) for name in names}
        self.coordinators: dict[str, Coordinator] = {}
        self._placed: dict[tuple[str, int], Placed] = {}

    def node(self, topic: str, number: int) -> FakeNode:
        return self.nodes[self.leader(topic, number)]

    def placed(self, topic: str, number: int) -> Placed:
        """At first they are led in turns, by those who are there."""
        names = tuple(name for name, node in self.nodes.items() if not node.is_down)
        if (topic, number) not in self._placed:
            self._placed[topic, number] = Placed(number, names[number % len(names)], 1, names, names)
        return self._placed[topic, number]

    def leader(self, topic: str, number: int) -> str:
        return self.placed(topic, number).leader

    def move(self, topic: str, number: int, to: str) -> None:
        """To another leader, or to none."""
        old = self.placed(topic, number)
        self.revision += 1
        epoch = old.epoch + 1 if to else old.epoch
        self._placed[topic, number] = msgspec.structs.replace(old, leader=to, epoch=epoch)
        # A node that leads more than before tells so those who wait there.
        self.site.broker.topic(topic).bell.ring()

    def appoint(self, group: str, node: str) -> None:
        self.revision += 1
        self.coordinators[group] = Coordinator(node, self.revision)

    def coordinator(self, group: str) -> Coordinator:
        return self.coordinators.get(group) or Coordinator(next(iter(self.nodes)), 1)

    def infos(self) -> tuple[NodeInfo, ...]:
        return tuple(node.info for node in self.nodes.values() if not node.is_down)

    def placement(self, names: Sequence[str]) -> Placement:
        topics = []
        for record in self.site.broker.topics:
            if not names or record.name in names:
                partitions = tuple(self.placed(record.name, number) for number in range(len(record.partitions)))
                topics.append(TopicPlacement(record.name, record.id, partitions))
        return Placement(self.revision, self.infos(), tuple(topics))

    async def transport(self, pace: Pace = QUICK, seeds: Sequence[str] = ()) -> RoutedTransport:
        by_address = {node.info.native: node for node in self.nodes.values()}
        chosen = [self.nodes[name].info for name in seeds or list(self.nodes)[:1]]
        return await RoutedTransport.to(
            [NodeInfo("", info.native) for info in chosen], lambda info: by_address[info.native], pace
        )


class FakeNode(LocalTransport):
    """To a door it is one; it has nothing of it but what is here."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.info = NodeInfo(name, f"{name}:7420")
        self.asked: Counter[str] = Counter()
        self.requests: list[Request[Any]] = []
        # Topics in whose partitions here no group has begun, as far as it tells without being asked.
        self.omits: set[str] = set()
        self.ahead_us = 0
        self.is_down = False
        self.is_closed = False
        # How many answers of a kind get lost, after what was asked has been done.
        self.loses: Counter[str] = Counter()
        # Called ahead of each request: what the test wants to happen just then.
        self.before: Callable[[str], None] = lambda what: None
        # As it was when it stopped hearing of changes.
        self.frozen: Placement | None = None
        self.hangs: asyncio.Event | None = None
        # Until then nobody hears what has come of polls.
        self.polls_heard: asyncio.Event | None = None
        self.polled: asyncio.Queue[Any] = asyncio.Queue()
        self.forgot: set[str] = set()
        self.session: object = object()
        self._cluster = cluster
        self._site = cluster.site
        # The group that polled last.
        self._polled = ""
        self._deaths: set[asyncio.Future[PenstockError]] = set()

    # --- what goes wrong ---------------------------------------------------------------------------------

    def kill(self) -> None:
        """What is under way there has an outcome that nobody knows."""
        self.is_down = True
        self.cut()

    def cut(self) -> None:
        """Connections are lost, and can be made again."""
        self.session = object()
        self.refuse_waiting(ConnectionLost(f"{self.name} is gone"))

    def refuse_waiting(self, error: PenstockError) -> None:
        """What is under way ends with that."""
        for death in list(self._deaths):
            if not death.done():
                death.set_result(error)

    async def _ask(self, what: str, work: Callable[[], Awaitable[R]]) -> R:
        self.asked[what] += 1
        self.before(what)
        if self.is_down:
            raise ConnectionLost(f"{self.name} is down", was_sent=False)
        if self.hangs is not None:
            await self.hangs.wait()
        death: asyncio.Future[PenstockError] = asyncio.get_running_loop().create_future()
        self._deaths.add(death)
        doing = asyncio.ensure_future(work())
        try:
            await asyncio.wait([doing, death], return_when=asyncio.FIRST_COMPLETED)
            if death.done():
                raise death.result().again()
            reply = doing.result()
            if what == "poll" and self.polls_heard is not None:
                self.polled.put_nowait(reply)
                await self.polls_heard.wait()
        except asyncio.CancelledError:
            doing.cancel()
            (came,) = await asyncio.gather(doing, return_exceptions=True)
            if what == "poll" and not isinstance(came, BaseException):
                # As a connection does: what comes for somebody who has given up is given back.
                for delivery in cast(Sequence[Delivery], came):
                    await self._site.answer(self._polled, delivery.receipt, Release())
            raise
        finally:
            self._deaths.discard(death)
            if not doing.done():
                # Otherwise what it has brought would be lost if somebody gives up just now.
                doing.cancel()
                await asyncio.gather(doing, return_exceptions=True)
        if self.loses[what]:
            self.loses[what] -= 1
            raise ConnectionLost(f"the answer of {self.name} is lost")
        return reply

    def _leads(self, topic: str, number: int) -> bool:
        return self._cluster.leader(topic, number) == self.name

    def _check(self, topic: str, number: int) -> None:
        count = self._site.broker.topic(topic).count
        if number < count and not self._leads(topic, number):
            raise NotLeader(f"{self.name} does not lead {topic}:{number}", topic=topic)

    # --- for a door --------------------------------------------------------------------------------------

    @property
    def broker(self) -> Broker:
        return self._site.broker

    def storing(
        self, topic: str, partition: int, frame: Frame, acks: str = "all", *, is_alone: bool = False
    ) -> tuple[Committed | asyncio.Future[Committed], int]:
        self.asked["publish"] += 1
        self._check(topic, partition)
        return self._site.storing(topic, partition, frame, acks, is_alone=is_alone)

    async def join_for_a_session(
        self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any], owner: str = ""
    ) -> None:
        await self.join(group, consumer, topics, settings)

    # --- the port ----------------------------------------------------------------------------------------

    @property
    def limits(self) -> Limits:
        return self._site.limits

    def now_us(self) -> int:
        return self._site.now_us() + self.ahead_us

    def monotonic_us(self) -> int:
        return self._site.monotonic_us()

    async def publish(self, topic: str, message: Message, partition: int | None, acks: str = "all") -> Stored:
        raise AssertionError("a router sends frames")

    async def publish_frame(self, topic: str, partition: int, frame: Frame, acks: str = "all") -> Stored:
        async def work() -> Stored:
            self._check(topic, partition)
            return await self._site.publish_frame(topic, partition, frame, acks)

        return await self._ask("publish", work)

    async def join(self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any]) -> None:
        async def work() -> None:
            self._check_coordinator(group)
            await self._site.join(group, consumer, topics, settings)
            for node in self._cluster.nodes.values():
                node.forgot.discard(consumer)

        await self._ask("join", work)

    async def leave(self, group: str, consumer: str) -> None:
        async def work() -> None:
            self._check_coordinator(group)
            await self._site.leave(group, consumer)

        await self._ask("leave", work)

    def _check_coordinator(self, group: str) -> None:
        if self._cluster.coordinator(group).node != self.name:
            raise NotCoordinator(f"{self.name} does not look after {group}")

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
        memory: object = None,
    ) -> Sequence[Delivery]:
        async def work() -> Sequence[Delivery]:
            return await self._poll(group, consumer, topics, count, bytes_max, wait_us, visibility_us)

        self._polled = group

        return await self._ask("poll", work)

    async def _poll(
        self,
        group: str,
        consumer: str,
        topics: Sequence[str],
        count: int,
        bytes_max: int,
        wait_us: int,
        visibility_us: int | None,
    ) -> Sequence[Delivery]:
        if consumer in self.forgot:
            raise MemberNotFound(f"{self.name} does not know {consumer}")
        loop, broker = asyncio.get_running_loop(), self._site.broker
        deadline = loop.time() + wait_us / 1e6
        while True:
            ring: asyncio.Future[None] = loop.create_future()
            bells = [broker.topic(topic).bell for topic in topics]
            for topic in topics:
                broker.topic(topic).bell.wait(group, ring, broker.topic(topic).partitions)
            try:
                for topic in topics:
                    numbers = [
                        number
                        for number in broker.consumers.leasable(group, consumer, topic)
                        if self._leads(topic, number)
                    ]
                    if numbers:
                        leased = await broker.group(group, topic).leased(
                            consumer, count, bytes_max, visibility_us=visibility_us, partitions=numbers
                        )
                        if leased:
                            polled = [Polled(topic, some, groups.state(group)) for groups, some in leased]
                            return [self._site._delivery(group, some) for some in polled]
                left_s = deadline - loop.time()
                if left_s <= 0:
                    return []
                await asyncio.wait([ring], timeout=left_s)
            finally:
                for bell in bells:
                    bell.leave(group, ring)

    async def answer(self, group: str, receipt: Receipt, answer: Answer) -> None:
        async def work() -> None:
            self._check(receipt.topic, receipt.partition)
            await self._site.answer(group, receipt, answer)

        await self._ask(type(answer).__name__, work)

    async def ack_all(
        self, group: str, topic: str, partition: int, leases: Leases, *, again: bool = False
    ) -> Sequence[LeaseError | None]:
        async def work() -> Sequence[LeaseError | None]:
            self._check(topic, partition)
            return await self._site.ack_all(group, topic, partition, leases, again=again)

        return await self._ask("acks", work)

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
        async def work() -> Page:
            self._check(topic, partition)
            return await self._site.read(topic, partition, offset, until, bytes_max, columns, epoch)

        return await self._ask("read", work)

    async def call(self, request: Request[R]) -> R:
        async def work() -> Any:
            return await self._call(request)

        self.requests.append(request)

        reply: R = await self._ask(type(request).__name__, work)
        return reply

    async def _call(self, request: Request[Any]) -> Any:
        match request:
            case DescribeCluster():
                return ClusterInfo("cluster", self.name, self._cluster.revision, "", self._cluster.infos())
            case FindPlacement():
                return self._cluster.placement(request.topics) if self.frozen is None else self.frozen
            case FindCoordinator():
                return self._cluster.coordinator(request.group)
        self._check_all(request)
        reply = await self._site.call(request)
        is_exact = isinstance(getattr(request, "partitions", None), tuple | dict)
        return reply if is_exact else self._led(reply)

    def _check_all(self, request: Request[Any]) -> None:
        """As a node does, whose topics have no other partitions than those it leads."""
        one = partition_of(request)
        asked = partitions_of(request)
        if one is not None:
            self._check(*one)
        elif isinstance(asked, dict):
            for topic, numbers in asked.items():
                for number in numbers:
                    self._check(topic, number)
        elif isinstance(asked, tuple):
            is_of_graves = isinstance(request, r.ListDeadLetters | r.Redrive | r.Discard)
            topic = request.name if isinstance(request, r.DescribeTopic) else request.topic  # type: ignore[attr-defined]
            for number in asked:
                self._check(topic + ".dlq" if is_of_graves else topic, number)

    def _led(self, reply: Any) -> Any:
        """What it tells without being asked for certain partitions."""
        match reply:
            case r.TopicInfo():
                led = tuple(one for one in reply.partitions if self._leads(reply.name, one.number))
                partitions = self._site.broker.topic(reply.name).here
                scheduled = sum(len(partitions[one.number].groups.delays.pending) for one in led)
                return msgspec.structs.replace(reply, partitions=led, scheduled=scheduled)
            case r.GroupInfo():
                numbers = {
                    topic: [one for one in some if self._leads(topic, one)]
                    for topic, some in reply.partitions.items()
                    if topic not in self.omits
                }
                # Of a topic of which it leads nothing, a node knows nothing.
                numbers = {topic: some for topic, some in numbers.items() if some}
                lag = {topic: [reply.lag[topic][one] for one in some] for topic, some in numbers.items()}
                members = reply.members if self._cluster.coordinator(reply.name).node == self.name else {}
                return msgspec.structs.replace(reply, lag=lag, partitions=numbers, members=members)
            case [r.TopicInfo() | r.GroupInfo(), *_]:
                return [self._led(one) for one in reply]
        return reply

    async def close(self, timeout_s: float) -> None:
        self.is_closed = True


@asynccontextmanager
async def cluster_of(*names: str) -> AsyncIterator[Cluster]:
    site = await LocalTransport.open(MemoryFiles, clock=SystemClock(), is_kept=False)
    try:
        yield Cluster(site, names or ("a", "b", "c"))
    finally:
        await site.close()


def run(work: Callable[[Cluster, RoutedTransport], Awaitable[None]], *names: str, pace: Pace = QUICK) -> None:
    """And nothing is left running at the end."""

    async def main() -> None:
        async with asyncio.timeout(30), cluster_of(*names) as cluster:
            before = asyncio.all_tasks()
            transport = await cluster.transport(pace)
            try:
                await work(cluster, transport)
            finally:
                await transport.close()
            left = {task for task in asyncio.all_tasks() - before if not task.done()}
            assert not left, left

    asyncio.run(main(), debug=False)
