"""The client's port with a connection behind it.

What may be asked twice without harm is asked again when the connection was lost meanwhile: reading, polling, looking.
Frames of a producer are sent again by their sender, and recognised by the broker; what a consumer answers is told again
by its lease. Everything else fails with ConnectionLost: nobody knows whether it was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from penstock.acks import ALL
from penstock.client.answers import Ack, Answer, Extend, Release
from penstock.client.closing import CLOSE_S
from penstock.client.cluster_requests import SurveyCluster
from penstock.client.patience import patience_left_s
from penstock.client.placement import DescribeCluster, FindCoordinator, FindPlacement
from penstock.client.requests import (
    Archived,
    AskWhy,
    DescribeGroup,
    DescribeTopic,
    FindArchive,
    FindDeliveries,
    FindOffsets,
    GetDeadLetter,
    GetMessage,
    GetScheduled,
    GetStateAt,
    GetTrace,
    ListDeadLetters,
    ListGroups,
    ListParkedKeys,
    ListScheduled,
    ListSchedules,
    ListTopics,
    ReadDeliveries,
    Request,
)
from penstock.client.transport import Delivery, Leases, Page, Receipt, Stored, Terms
from penstock.clock import Clock, Instant
from penstock.environment import random_id
from penstock.errors import ConnectionLost, LeaseError, PenstockError, ProtocolError, QuotaExceeded
from penstock.frame import Frame, frame_size
from penstock.limits import DEFAULT_LIMITS, STORED_LIMITS, Limits
from penstock.message import Message
from penstock.net.connection import Place
from penstock.net.express import ANSWER_S, REST_S, Express
from penstock.net.link import Link
from penstock.net.singles import Singles
from penstock.wire import words
from penstock.wire.failures import Failed, error_of
from penstock.wire.packets import Kind, Packet
from penstock.wire.runs import from_runs, to_runs

R = TypeVar("R")

PATIENCE_S = 30.0
# A connection that is lost so many times in a row, the last time at once, is no accident.
_LOST_MAX = 5
_LOST_AT_ONCE_S = 1.0
# Of all leases in one packet: more may be larger than a broker takes.
_ACK_RUNS_MAX = 100_000
# `Archived` said twice is the same as said once.
_LOOKING = (
    Archived | AskWhy | DescribeCluster | DescribeGroup | DescribeTopic | FindArchive | FindCoordinator | FindDeliveries
    | FindOffsets | FindPlacement | GetDeadLetter | GetMessage | GetScheduled | GetStateAt | GetTrace | ListDeadLetters
    | ListGroups | ListParkedKeys | ListScheduled | ListSchedules | ListTopics | ReadDeliveries | SurveyCluster
)  # fmt: skip


class RemoteTransport:
    """Made with `RemoteTransport.to`, or connected when it is first used. Belongs to the event loop it was made on."""

    def __init__(
        self,
        place: Place,
        clock: Clock,
        *,
        patience_s: float = PATIENCE_S,
        limits: Limits = DEFAULT_LIMITS,
        new_id: Callable[[], bytes] = random_id,
    ) -> None:
        """`limits` are those of the broker, as far as they are known before it is asked."""
        self._link = Link(place, clock, patience_s=patience_s)
        self._clock = clock
        # Without a call between: a consumer asks for each message.
        self.monotonic_us = clock.monotonic_us
        self._limits = limits
        self._singles = Singles(self, new_id)
        self._releasing: set[asyncio.Task[None]] = set()
        self._express: Express | None = None
        self._answer_s = ANSWER_S
        self._resting: asyncio.TimerHandle

    @classmethod
    async def to(
        cls,
        place: Place,
        clock: Clock,
        *,
        patience_s: float = PATIENCE_S,
        new_id: Callable[[], bytes] = random_id,
    ) -> RemoteTransport:
        """A broker that is not there now is not waited for: the address may be wrong."""
        transport = cls(place, clock, patience_s=patience_s, new_id=new_id)
        connection = await transport._link.connect(patience_s=0)
        transport._limits = connection.welcome.known_limits()
        transport.cluster = connection.welcome.cluster
        transport.principal = connection.welcome.principal
        return transport

    # The id of the one that the broker is a node of; empty if it is on its own.
    cluster = ""
    principal = ""

    @property
    def session(self) -> object:
        """The connection that there is now, if there is one: it stands for those who joined through it."""
        return self._link.open

    @property
    def is_lost(self) -> bool:
        return self._link.is_lost

    def is_led(self, topic: str, partition: int) -> bool:
        return True

    @property
    def limits(self) -> Limits:
        return self._limits

    def now_us(self) -> int:
        return self._clock.monotonic_us() + self._link.ahead_us

    # --- publishing --------------------------------------------------------------------------------------

    async def publish(self, topic: str, message: Message, partition: int | None, acks: str = ALL) -> Stored:
        """With an identity and a sequence, so that it can be sent again."""
        return await self._singles.publish(topic, message, partition, acks)

    def publish_at_once(self, topic: str, message: Message, partition: int | None) -> Stored | Future[Stored] | None:
        """On the thread that waits for it, or by the loop if it had to take over. None: not at all. See `Express`.

        Only for a topic that was published to before, without it.
        """
        if self._express is None:
            return None
        return self._singles.publish_at_once(topic, message, partition, self.publish_frame_at_once)

    def publish_frame_at_once(self, topic: str, partition: int, frame: Frame, acks: str = ALL) -> Stored | None:
        """On the thread that waits for it. None: nobody knows whether it is stored. See `Express`."""
        express = self._express
        if express is None:
            return None
        try:
            return express.publish_frame(topic, partition, frame, acks)
        except PenstockError:
            raise
        except BaseException:
            # Interrupted, at any point: nobody knows what it was about. Others begin with a new one.
            express.abandon()
            self._express = Express(self._link.place, self._clock, answer_s=self._answer_s)
            raise

    def serve_threads(self, answer_s: float = ANSWER_S) -> None:
        """From now on there are threads that publish at once, and wait so long for an answer before they go the long
        way."""
        self._answer_s = answer_s
        self._express = Express(self._link.place, self._clock, answer_s=answer_s)
        self._rest()

    def _rest(self) -> None:
        assert self._express is not None
        self._express.rest()
        self._resting = asyncio.get_running_loop().call_later(REST_S, self._rest)

    async def publish_frame(self, topic: str, partition: int, frame: Frame, acks: str = ALL) -> Stored:
        connection = await self._link.connect()
        reply = await connection.request(Kind.PUBLISH, words.PublishFrame(topic, partition, acks), [frame.data])
        stored = words.decoded(reply.header, words.Stored)
        return Stored(stored.partition, stored.offset, stored.append_time, stored.partitions)

    # --- consuming ---------------------------------------------------------------------------------------

    async def join(self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any]) -> None:
        await self._again(Kind.JOIN, words.Join(group, consumer, tuple(topics), dict(settings)))

    async def join_for_a_session(
        self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any], owner: str = ""
    ) -> None:
        """For somebody who has to be heard of: the connection does not stand for it."""
        join = words.Join(group, consumer, tuple(topics), dict(settings), stands=False, owner=owner)
        await self._again(Kind.JOIN, join)

    async def leave_a_session(self, group: str, consumer: str) -> None:
        """Of one that joined for a session, through whatever connection."""
        connection = await self._link.connect()
        await connection.request(Kind.LEAVE, words.Leave(group, consumer))

    async def leave(self, group: str, consumer: str) -> None:
        connection = self._link.open
        if connection is not None:
            # Whoever is not connected has left already, or will have when its session is over.
            await connection.request(Kind.LEAVE, words.Leave(group, consumer))

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
        word = words.Poll(group, consumer, tuple(topics), count, bytes_max, wait_us, visibility_us)
        sent_us = 0

        def sending() -> None:
            nonlocal sent_us
            sent_us = self._clock.monotonic_us()

        reply = await self._again(Kind.POLL, word, partial(self._give_back, group), sending)
        return deliveries_in(reply, sent_us, Instant(self.now_us(), self.monotonic_us()))

    def _give_back(self, group: str, packet: Packet | None) -> None:
        """What came for somebody who had given up."""
        if packet is not None:
            task = asyncio.get_running_loop().create_task(self._release(group, packet))
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    async def _release(self, group: str, packet: Packet) -> None:
        for given in words.decoded(packet.header, words.Delivered).given:
            receipt = Receipt(given.topic, given.partition, given.lease, from_runs(given.runs))
            try:
                await self.answer(group, receipt, Release())
            except PenstockError:
                # Its lease will run out by itself.
                pass

    async def answer(self, group: str, receipt: Receipt, answer: Answer) -> None:
        word = words.Answered(group, receipt.topic, receipt.partition, receipt.lease, to_runs(receipt.offsets), answer)
        if isinstance(answer, Extend):
            await self._again(Kind.ANSWER, word)
        else:
            connection = await self._link.connect()
            await connection.request(Kind.ANSWER, word)

    async def ack_all(
        self, group: str, topic: str, partition: int, leases: Leases, *, again: bool = False
    ) -> Sequence[LeaseError | None]:
        connection = await self._link.connect()
        if len(leases) > connection.welcome.limits.get(words.ACK_LEASES, 0):
            # An older broker.
            return await self._ack_each(group, [Receipt(topic, partition, *lease) for lease in leases], Ack(again))
        told = [(lease, to_runs(offsets)) for lease, offsets in leases]
        if len(leases) > 1 and sum(len(runs) for _, runs in told) > _ACK_RUNS_MAX:
            parts = leases[: len(leases) // 2], leases[len(leases) // 2 :]
            acking = [self.ack_all(group, topic, partition, part, again=again) for part in parts]
            return [outcome for part in await asyncio.gather(*acking) for outcome in part]
        reply = await connection.request(Kind.ACKS, words.Acked(group, topic, partition, told, again))
        failures = dict(words.decoded(reply.header, words.NotAcked).failures)
        return [_lease_error(failures[at]) if at in failures else None for at in range(len(leases))]

    async def _ack_each(self, group: str, receipts: Sequence[Receipt], ack: Ack) -> Sequence[LeaseError | None]:
        acking = [self.answer(group, receipt, ack) for receipt in receipts]
        outcomes = await asyncio.gather(*acking, return_exceptions=True)
        failures = [one for one in outcomes if one is not None and not isinstance(one, LeaseError)]
        # Nothing was carried out only if all say the same.
        is_one = len(failures) == len(outcomes) and len(set(map(type, failures))) == 1
        if failures and isinstance(failures[0], PenstockError) and not is_one:
            raise ConnectionLost(f"not all of them could be told: {failures[0].message}") from failures[0]
        if failures:
            raise failures[0]
        return [one if isinstance(one, LeaseError) else None for one in outcomes]

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
        wanted = None if columns is None else tuple(columns)
        reply = await self._again(Kind.READ, words.Read(topic, partition, offset, until, bytes_max, wanted, epoch))
        page = words.decoded(reply.header, words.PageOf)
        return Page(frames_in(reply.payload), page.next_offset, page.epoch)

    async def call(self, request: Request[R]) -> R:
        words.checked(request)
        if isinstance(request, _LOOKING):
            reply = await self._again(Kind.CALL, request)
        else:
            reply = await self._within_quota(lambda: self._request(Kind.CALL, request))
        return words.reply_of(request, reply.header)

    async def _again(
        self, kind: Kind, word: object, late: Any = None, sending: Callable[[], None] | None = None
    ) -> Packet:
        """Until it is answered. Not for ever: what makes the broker hang up does so every time. `sending` is called
        ahead of each attempt."""
        if kind is Kind.POLL:
            # The consumer knows how long it wants to wait.
            return await self._until_answered(kind, word, late, sending)
        return await self._within_quota(lambda: self._until_answered(kind, word, late, sending))

    async def _within_quota(self, ask: Callable[[], Awaitable[Packet]]) -> Packet:
        """Ask again, as late as the broker says, if a quota is used up. For as long as for a broker that is away."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + min(PATIENCE_S, patience_left_s())
        while True:
            try:
                return await ask()
            except QuotaExceeded as error:
                if loop.time() + error.retry_after_s > give_up:
                    raise
                await asyncio.sleep(error.retry_after_s)

    async def _request(self, kind: Kind, word: object) -> Packet:
        connection = await self._link.connect()
        return await connection.request(kind, word)

    async def _until_answered(self, kind: Kind, word: object, late: Any, sending: Callable[[], None] | None) -> Packet:
        loop = asyncio.get_running_loop()
        for lost in range(1, _LOST_MAX + 1):
            connection = await self._link.connect()
            began = loop.time()
            if sending is not None:
                sending()
            try:
                return await connection.request(kind, word, late=late)
            except ConnectionLost:
                if lost == _LOST_MAX and loop.time() - began < _LOST_AT_ONCE_S:
                    raise
        return await self._until_answered(kind, word, late, sending)

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        try:
            await self._singles.close(timeout_s)
            if self._releasing and self._link.open is not None:
                await asyncio.wait(self._releasing, timeout=timeout_s)
        finally:
            if self._express is not None:
                self._resting.cancel()
                self._express.close()
            await self._link.close()


def frames_in(payload: memoryview) -> list[Frame]:
    """Whole frames, one after the other. Limits are for what is sent to a broker: it may have stored larger ones."""
    frames, at = [], 0
    while at < len(payload):
        size = frame_size(payload[at:], STORED_LIMITS.frame_bytes_max)
        if at + size > len(payload):
            raise ProtocolError("a frame that ends behind its packet")
        frames.append(Frame(payload[at : at + size]))
        at += size
    return frames


def deliveries_in(packet: Packet, sent_us: int, now: Instant) -> list[Delivery]:
    """`sent_us` is a moment before the request was sent, on the monotonic clock: counted from there, no lease seems to
    last longer than it does, however long the reply was on its way or waited here. `now` is by the broker's wall clock.
    """
    found, at = [], 0
    for given in words.decoded(packet.header, words.Delivered).given:
        frames = frames_in(packet.payload[at : at + given.bytes])
        at += given.bytes
        attempts = dict(zip(given.attempts[::2], given.attempts[1::2], strict=True))
        receipt = Receipt(given.topic, given.partition, given.lease, from_runs(given.runs))
        terms = Terms(given.ordering, given.on_poison, given.lanes)
        if given.lasts_us is None:
            deadline_us = now.monotonic_us + given.deadline_us - now.wall_us
        else:
            deadline_us = sent_us + given.lasts_us
        found.append(Delivery(receipt, frames, attempts, deadline_us, terms))
    return found


def _lease_error(failure: Failed) -> LeaseError:
    error = error_of(failure)
    if not isinstance(error, LeaseError):
        raise ProtocolError(f"a lease can't fail with {failure.code}")
    return error
