"""The client's port with a broker right behind it: no connection, no copy, the same calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from pyroaring import BitMap64

from penstock.acks import ALL
from penstock.broker import group as groups
from penstock.broker.broker import Broker, Polled
from penstock.broker.joins import Join
from penstock.broker.names import check_name, check_publishable
from penstock.broker.polling import ReplyMemory
from penstock.broker.projection import check_columns, read_columns
from penstock.broker.settings import partitions_with
from penstock.broker.timers import Timers
from penstock.client.answers import Ack, Answer, Extend, Nack, Reject, Release
from penstock.client.closing import CLOSE_S
from penstock.client.requests import ListGroups, ListTopics, Request
from penstock.client.transport import Delivery, Lease, Leases, Page, Receipt, Stored, Terms
from penstock.client.words import CLIENT_CLOSED
from penstock.clock import Clock
from penstock.environment import random_id
from penstock.errors import LeaseError, LogClosed, LogTruncated, PenstockError
from penstock.frame import Frame
from penstock.limits import DEFAULT_LIMITS, Limits
from penstock.local import groups as group_handlers
from penstock.local import history, operating, placement, topics
from penstock.local.handlers import AWAITING_REPLICAS, HANDLERS, Cluster, Site
from penstock.local.keeper import Keeper
from penstock.local.overdue import Overdue
from penstock.message import Message
from penstock.storage.commit import Committed
from penstock.storage.files import DiskFiles, Files
from penstock.storage.kernel_syncs import KernelSyncs
from penstock.wire import words

R = TypeVar("R")
T = TypeVar("T")

# Importing them is what registers their handlers.
_ANSWERING = (topics, group_handlers, history, placement, operating)
# Group commits of several partitions at the same time, a look into the log, and something that takes longer.
THREADS = 4
# Pages for those who scan, one at a time: more threads would not get more of the interpreter lock, and what is being
# published waits for each that wants it.
READERS = 1


class LocalTransport:
    """Opened with `LocalTransport.open`. Belongs to the event loop it was opened on."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        executor: Executor,
        readers: Executor,
        limits: Limits,
        keeper: Keeper | None,
        archive_dir: str | None = None,
        cluster: Cluster | None = None,
        new_id: Callable[[], bytes] = random_id,
    ) -> None:
        self.broker = broker
        self._clock = clock
        self.monotonic_us = clock.monotonic_us
        self._executor = executor
        self._readers = readers
        self._limits = limits
        self._keeper = keeper
        self.archive_dir = archive_dir
        self._loop = asyncio.get_running_loop()
        self._site = Site(broker, clock, new_id, self._on_a_thread, archive_dir, cluster)
        # Of what waits for other nodes.
        self._overdue = None if cluster is None else Overdue(limits.commit_us)
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        files: Callable[[], Files],
        *,
        clock: Clock,
        timers: Timers | None = None,
        limits: Limits = DEFAULT_LIMITS,
        is_kept: bool = True,
        dice: Callable[[], float] | None = None,
        archive_dir: str | None = None,
    ) -> LocalTransport:
        """`files` opens the directory, on a thread. Unless it is kept, somebody else must see to `broker.tick`.

        `archive_dir` is where readers are told that the archive is.
        """
        executor = ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-disk")
        readers = ThreadPoolExecutor(READERS, thread_name_prefix="penstock-read")
        try:
            loop = asyncio.get_running_loop()
            directory = await loop.run_in_executor(executor, files)
            broker = await Broker.open(
                directory,
                clock=clock,
                executor=executor,
                readers=readers,
                limits=limits,
                timers=timers,
                dice=dice,
                syncs=KernelSyncs() if isinstance(directory, DiskFiles) else None,
                partitions_max=partitions_with(directory.descriptors_max) if isinstance(directory, DiskFiles) else None,
            )
        except BaseException:
            executor.shutdown(wait=False)
            readers.shutdown(wait=False)
            raise
        return cls(broker, clock, executor, readers, limits, Keeper(broker) if is_kept else None, archive_dir)

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def principal(self) -> str:
        return ""

    @property
    def is_lost(self) -> bool:
        return False

    def is_led(self, topic: str, partition: int) -> bool:
        return True

    def now_us(self) -> int:
        return self._clock.now_us()

    # --- publishing --------------------------------------------------------------------------------------

    async def publish(self, topic: str, message: Message, partition: int | None, acks: str = ALL) -> Stored:
        self.check()
        on_topic = self.broker.topic(topic)
        check_publishable(topic)
        publishing = on_topic.publish(message, partition, acks)
        published = await (self._bounded(publishing) if acks == ALL else publishing)
        return Stored(published.partition, published.offset, published.append_time, on_topic.count)

    async def publish_frame(self, topic: str, partition: int, frame: Frame, acks: str = ALL) -> Stored:
        self.check()
        on_topic = self.broker.topic(topic)
        check_publishable(topic)
        publishing = on_topic.publish_frame(frame, partition, acks)
        published = await (self._bounded(publishing) if acks == ALL else publishing)
        return Stored(partition, published.offset, published.append_time, on_topic.count)

    def storing(
        self, topic: str, partition: int, frame: Frame, acks: str = ALL, *, is_alone: bool = False
    ) -> tuple[Committed | asyncio.Future[Committed], int]:
        """As `publish_frame`, for a caller that never gives up: the future must not be cancelled. What comes alone may
        be on disk when this returns. And the number of partitions of the topic."""
        if self._is_closed or (self._keeper is not None and self._keeper.failure is not None):
            self.check()
        on_topic = self.broker.topic(topic)
        check_publishable(topic)
        storing = on_topic.storing(frame, partition, acks, is_alone=is_alone)
        if self._overdue is not None and acks == ALL and not isinstance(storing, Committed):
            storing = self._overdue.bounded(storing)
        return storing, on_topic.count

    def _bounded(self, work: Awaitable[T]) -> Awaitable[T]:
        return work if self._overdue is None else self._overdue.within(work)

    # --- consuming ---------------------------------------------------------------------------------------

    async def join(self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any]) -> None:
        """Without a session: a consumer in the same process can't fall silent without the broker doing so."""
        with self._joining(group, consumer) as join:
            await self._group_of(group, topics, settings)
            join.check()
            await self.broker.join(group, consumer, topics)

    async def join_for_a_session(
        self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any], owner: str = ""
    ) -> None:
        """One that has to be heard of: as often as the group's `session` says. A new group is the owner's."""
        with self._joining(group, consumer) as join:
            session_us = await self._group_of(group, topics, settings, owner)
            join.check()
            await self.broker.join(group, consumer, topics, session_us=session_us)

    def _joining(self, group: str, consumer: str) -> AbstractContextManager[Join]:
        """From here on a leave invalidates it, also while the group is being created."""
        return self.broker.consumers.joins.begin(check_name("group", group), check_name("consumer", consumer))

    async def _group_of(self, group: str, topics: Sequence[str], settings: Mapping[str, Any], owner: str = "") -> int:
        """Makes the group if it is not there; how long its members may be silent."""
        self.check()
        for name in topics:
            self.broker.topic(name)
        return (await self.broker.ensure_group(group, owner, **settings)).settings.session_us

    async def leave(self, group: str, consumer: str) -> None:
        self.check()
        self.broker.leave(group, consumer)

    def heartbeat(self, group: str, consumer: str) -> None:
        """Of one that joined for a session. MemberNotFound if it is none any more."""
        self.broker.consumers.heartbeat(group, consumer)

    def is_member(self, group: str, consumer: str) -> bool:
        members = self.broker.consumers.of(group)
        return members is not None and members.has(consumer)

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
        """Not a task of its own: between the lease and the caller there is no point at which it could be cancelled."""
        self.check()
        await self._hear_of(group)
        polled = await self.broker.poll(
            group,
            consumer,
            topics,
            count=count,
            bytes_max=bytes_max,
            wait_us=wait_us,
            visibility_us=visibility_us,
            memory=memory,
        )
        return [self._delivery(group, some) for some in polled]

    async def _hear_of(self, group: str) -> None:
        """In a cluster it may have been made elsewhere, a moment ago."""
        cluster = self._site.cluster
        if cluster is not None and not self.broker.has_group(group):
            await cluster.refresh()

    def _delivery(self, group: str, polled: Polled) -> Delivery:
        (receipt, frames), state = polled.handed, polled.state
        attempts = {}
        if state.attempts:
            tried = receipt.offsets & BitMap64(state.attempts)
            attempts = {offset: state.attempts[offset] for offset in tried.to_array()}
        told = Receipt(polled.topic, receipt.partition, receipt.lease, receipt.offsets)
        settings = self.broker.group(group, polled.topic).settings
        terms = Terms(settings.ordering, settings.on_poison, settings.lanes)
        # A short one may be over by the time that others know of it, in a cluster.
        lease = state.leases.get(receipt.lease)
        return Delivery(told, frames, attempts, self.monotonic_us() if lease is None else lease.deadline_us, terms)

    async def answer(self, group: str, receipt: Receipt, answer: Answer) -> None:
        self.check()
        await self._hear_of(group)
        on_topic = self.broker.group(group, receipt.topic)
        held = groups.Receipt(receipt.partition, receipt.lease, receipt.offsets)
        await self._bounded(_answered(on_topic, held, answer))

    async def ack_all(
        self, group: str, topic: str, partition: int, leases: Leases, *, again: bool = False
    ) -> Sequence[LeaseError | None]:
        self.check()
        await self._hear_of(group)
        return await self._bounded(self.broker.group(group, topic).ack_all(partition, leases, again=again))

    async def left(self, group: str, leases: Sequence[Lease]) -> list[BitMap64]:
        """Of each what is not answered for and not over."""
        return [self._left(group, lease) for lease in leases]

    def _left(self, group: str, lease: Lease) -> BitMap64:
        try:
            return placement.left_of(self.broker, group, lease.topic, lease.partition, [lease.number])[0]
        except PenstockError:
            return BitMap64()

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
        self.check()
        on = self.broker.topic(topic).partition(partition)
        cut = on.cut_before(offset, until, epoch)
        if cut is not None:
            raise LogTruncated(
                f"an operator had a leader elected for partition {partition} of {topic} that did not have everything: "
                f"what was at offset {cut} and behind it is lost, and offsets are given out again from there on",
                topic=topic,
                partition=partition,
                end=cut,
            )
        # What is not on disk may never have been.
        log, until = on.messages, min(until, on.reading.visible_offset)
        if columns is None:
            run = await self._on_a_reading_thread(partial(log.read, offset, bytes_max=bytes_max, until=until))
            return Page(list(run), run.next_offset, on.epoch)
        wanted = check_columns(columns)
        frames, next_offset = await self._on_a_reading_thread(
            partial(read_columns, log, offset, until, bytes_max, wanted)
        )
        return Page(frames, next_offset, on.epoch)

    async def call(self, request: Request[R]) -> R:
        self.check()
        words.checked(request)
        kind = type(request)
        answering = HANDLERS[kind](self._site, request)
        reply: R = await (self._bounded(answering) if kind in AWAITING_REPLICAS else answering)
        return reply

    async def names(self, request: ListTopics | ListGroups) -> Collection[str]:
        if self._site.cluster is not None and isinstance(request, ListGroups):
            await self._site.cluster.caught_up(request.revision)
        return self.broker.topic_names() if isinstance(request, ListTopics) else self.broker.group_names()

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._keeper is not None:
                await self._keeper.stop()
            await self.broker.close()
        finally:
            self._executor.shutdown(wait=False)
            self._readers.shutdown(wait=False)

    def disown(self) -> None:
        """In a forked child: the directory stays locked as long as any process has it open."""
        self.broker.disown()

    async def catch_up(self) -> None:
        """Nothing is made elsewhere."""

    def check_ready(self) -> None:
        """Raises what keeps it from taking and giving messages."""
        self.check()

    def check(self) -> None:
        """Raises what makes it useless from now on."""
        if self._is_closed:
            raise LogClosed(CLIENT_CLOSED)
        if self._keeper is not None:
            self._keeper.check()

    async def _on_a_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._executor, work)

    async def _on_a_reading_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._readers, work)


async def _answered(on_topic: groups.Group, held: groups.Receipt, answer: Answer) -> None:
    match answer:
        case Ack():
            await on_topic.ack(held, again=answer.again)
        case Nack():
            await on_topic.nack(held, reason=answer.reason, delay_us=answer.delay_us)
        case Reject():
            await on_topic.reject(held, answer.reason)
        case Release():
            await on_topic.release(held)
        case Extend():
            await on_topic.extend(held, answer.visibility_us)
