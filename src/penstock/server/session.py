"""One connection of the native protocol: who is behind it, what is under way, and how it ends.

Requests are carried out as they come, as many at a time as the limits allow; then reading stops until some are done. A
peer that does not take what it is sent gets no more messages, and is let go when it has been stuck for too long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from penstock.client.requests import Request
from penstock.client.transport import ACK_LEASES_MAX, Receipt
from penstock.cluster.feeding import Feed
from penstock.errors import Fatal, Forbidden, InternalError, PenstockError, ProtocolError
from penstock.frame import Frame
from penstock.limits import MIB
from penstock.server.guard import Guarded
from penstock.server.members import Members
from penstock.server.parcels import given
from penstock.server.subscription import Subscription
from penstock.storage.commit import Committed
from penstock.wire import words
from penstock.wire.conversation import BrokerEnd, State
from penstock.wire.failures import failed
from penstock.wire.packets import Kind, Packet
from penstock.wire.runs import OFFSETS_MAX, from_runs

if TYPE_CHECKING:
    from penstock.server.native import NativeDoor

log = logging.getLogger("penstock.native")

REQUESTS_MAX = 1_000
# What waits to be sent: above it nothing is leased for this peer.
_UNSENT_BYTES_MAX = 4 * MIB
POLL_BYTES_MAX = 8 * MIB
# They end when messages come, or never.
_WAITING = (Kind.POLL, Kind.SUBSCRIBE, Kind.REPLICATE)
_NAMES = {kind: kind.name.lower() for kind in Kind}


class Session(asyncio.Protocol):
    def __init__(self, door: NativeDoor) -> None:
        self._door = door
        # Of whoever is behind it, once that is known.
        self._site: Guarded
        self._limits = door.site.limits
        self._end = BrokerEnd(self._limits)
        self._transport: asyncio.Transport | None = None
        self._handshake: asyncio.TimerHandle | None = None
        self._under_way: dict[int, asyncio.Future[Any]] = {}
        # Those of them that wait for messages.
        self._waiting: dict[int, asyncio.Task[None]] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._in_flight = 0
        self._is_paused = False
        self._is_ending = False
        self.writable = asyncio.Event()
        self.writable.set()
        self.heard_at = door.loop.time()
        self.stuck_since: float | None = None
        self.client = ""
        # To a node of a cluster that copies partitions through this connection.
        self._feed: Feed | None = None
        # Consumers that joined through this connection.
        self.members = Members(door.site)

    @property
    def is_open(self) -> bool:
        return self._end.state is State.OPEN

    @property
    def requests(self) -> int:
        """Under way."""
        return len(self._under_way)

    # --- the connection ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES_MAX)
        refusal = self._door.admitted(self)
        if refusal is not None:
            self.end("overloaded", refusal)
            return
        patience_s = self._limits.handshake_us / 1e6
        self._handshake = self._door.loop.call_later(
            patience_s, self.end, "handshake_timeout", f"no HELLO within {patience_s:g} s"
        )

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._door.loop.time()
        try:
            packet = self._end.receive_one(data)
            if packet is None:
                for packet in self._end.receive(data):
                    self._take(packet)
            elif packet.kind is Kind.PUBLISH:
                self._begin(packet, is_alone=not self._under_way)
            else:
                self._take(packet)
        except PenstockError as error:
            self.end(error.code, error.message)
        self._throttle()

    def _take(self, packet: Packet) -> None:
        match packet.kind:
            case Kind.HELLO:
                self._greet(packet)
            case Kind.PING:
                self._send(self._end.pong(self._site.now_us()))
            case Kind.PONG:
                pass
            case Kind.GOODBYE:
                self._door.left(self)
                self._close()
            case Kind.CANCEL:
                cancelled = words.decoded(packet.header, words.Cancel).correlation
                if cancelled in self._waiting and cancelled not in self._subscriptions:
                    # Not before it has begun: it would end without a word.
                    self._door.loop.call_soon(self._waiting[cancelled].cancel)
            case Kind.CREDIT:
                credit = words.decoded(packet.header, words.Credit)
                if packet.correlation in self._subscriptions:
                    self._subscriptions[packet.correlation].add(credit.messages, credit.bytes)
            case Kind.REPLICATE:
                self._copied_by(packet)
                self._begin(packet)
            case Kind.FETCH:
                self._fetch(packet)
            case Kind.UNSUBSCRIBE:
                if packet.correlation in self._subscriptions:
                    self._door.loop.call_soon(self._waiting[packet.correlation].cancel)
            case _:
                self._begin(packet)

    def _greet(self, packet: Packet) -> None:
        hello = self._end.greeted(packet)
        self._site = self._door.gate.admit(hello.key)
        self.client = f"{hello.client} as {self._site.principal}"
        if self._handshake is not None:
            self._handshake.cancel()
        self._door.greeted(self)
        door = self._door
        self._send(self._end.welcome(door.name, self._site.now_us(), door.silence_us, door.cluster))

    # --- requests ----------------------------------------------------------------------------------------

    def _begin(self, packet: Packet, *, is_alone: bool = False) -> None:
        """`is_alone`: nothing else came with it, and nothing else is under way here."""
        if packet.correlation == 0 or packet.correlation in self._under_way:
            raise ProtocolError(f"correlation {packet.correlation} is under way already, or 0")
        if len(self._under_way) >= 2 * REQUESTS_MAX:
            raise ProtocolError(f"more than {REQUESTS_MAX} requests are under way")
        size = len(packet.header) + len(packet.payload)
        self._in_flight += size
        if packet.kind is Kind.PUBLISH:
            self._publish(packet, size, is_alone)
            return
        task = self._door.loop.create_task(self._carry_out(packet, size))
        self._under_way[packet.correlation] = task
        if packet.kind in _WAITING:
            self._waiting[packet.correlation] = task

    async def _carry_out(self, packet: Packet, size: int) -> None:
        began, outcome = perf_counter(), "ok"
        try:
            word, payload = await _ACTIONS[packet.kind](self, packet)
        except PenstockError as error:
            outcome = self._fail(packet.correlation, error)
        except asyncio.CancelledError:
            # By the client: it has leased nothing. Or by the end of the connection: nobody hears it.
            outcome = "cancelled"
            self._send(self._end.reply(packet.correlation, words.Delivered([])))
        except Exception as error:
            outcome = self._fail_unexpectedly(packet, error)
        else:
            self._send(self._end.reply(packet.correlation, word, sum(map(len, payload))), payload)
        finally:
            self._done(packet, size, began, outcome)

    def _fail(self, correlation: int, error: PenstockError) -> str:
        self._send(self._end.failure(correlation, error))
        if isinstance(error, Fatal):
            self._door.broke(error)
        return error.code

    def _fail_unexpectedly(self, packet: Packet, error: BaseException) -> str:
        log.error("%s of %s failed", packet.kind.name, self.client, exc_info=error)
        return self._fail(packet.correlation, InternalError("the broker has a bug; its log says more"))

    def _done(self, packet: Packet, size: int, began: float, outcome: str) -> None:
        self._under_way.pop(packet.correlation, None)
        self._waiting.pop(packet.correlation, None)
        self._in_flight -= size
        self._door.counts.request("native", _NAMES[packet.kind], outcome, perf_counter() - began)
        self._throttle()

    def _throttle(self) -> None:
        """Reading stops while too much is under way, or the peer does not take what it is sent."""
        is_much = self._in_flight > self._limits.in_flight_bytes_max or len(self._under_way) >= REQUESTS_MAX
        shall_pause = is_much or self._is_ending or not self.writable.is_set()
        if self._transport is None or self._transport.is_closing() or shall_pause == self._is_paused:
            return
        self._is_paused = shall_pause
        if shall_pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _send(self, head: bytes, payload: Sequence[bytes | memoryview] = ()) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if payload:
            self._transport.writelines([head, *payload])
        else:
            self._transport.write(head)

    # --- what can be asked -------------------------------------------------------------------------------

    def _publish(self, packet: Packet, size: int, is_alone: bool) -> None:
        """Without a task: whoever publishes one message and waits for it feels every turn of the loop."""
        began, outcome = perf_counter(), "ok"
        is_alone = self._door.publishes_alone(self) and is_alone
        try:
            word = words.decoded(packet.header, words.PublishFrame)
            frame = Frame.accept(packet.payload, self._limits)
            storing, partitions = self._site.storing(word.topic, word.partition, frame, word.acks, is_alone=is_alone)
        except PenstockError as error:
            outcome = self._fail(packet.correlation, error)
        except Exception as error:
            outcome = self._fail_unexpectedly(packet, error)
        else:
            if not isinstance(storing, Committed):
                self._under_way[packet.correlation] = storing
                storing.add_done_callback(partial(self._published, packet, size, began, word.partition, partitions))
                return
            self._send_stored(packet.correlation, word.partition, partitions, storing)
            self._door.vigil.answered()
            # Behind the answer: nobody waits for it.
            self._door.loop.call_soon(self._done, packet, size, began, outcome)
            return
        self._done(packet, size, began, outcome)

    def _published(
        self,
        packet: Packet,
        size: int,
        began: float,
        partition: int,
        partitions: int,
        storing: asyncio.Future[Committed],
    ) -> None:
        outcome, error = "ok", storing.exception()
        if error is None:
            self._send_stored(packet.correlation, partition, partitions, storing.result())
        elif isinstance(error, PenstockError):
            outcome = self._fail(packet.correlation, error)
        else:
            outcome = self._fail_unexpectedly(packet, error)
        self._done(packet, size, began, outcome)

    def _send_stored(self, correlation: int, partition: int, partitions: int, where: Committed) -> None:
        """The one place where somebody hears that a frame is stored: it is as safe by now as its topic wants it."""
        stored = words.Stored(partition, where.base_offset, where.append_time, partitions)
        self._send(self._end.reply(correlation, stored))

    async def _join(self, packet: Packet) -> _Outcome:
        word = words.decoded(packet.header, words.Join)
        await self._site.join(word.group, word.consumer, word.topics, word.settings)
        if word.stands:
            self.members.add(word.group, word.consumer)
        return None, ()

    async def _leave(self, packet: Packet) -> _Outcome:
        word = words.decoded(packet.header, words.Leave)
        self.members.discard(word.group, word.consumer)
        await self._site.leave(word.group, word.consumer)
        return None, ()

    async def _poll(self, packet: Packet) -> _Outcome:
        word = words.decoded(packet.header, words.Poll)
        await self.writable.wait()
        return _delivered(
            await self._site.poll(
                word.group,
                word.consumer,
                word.topics,
                count=word.count,
                bytes_max=min(word.bytes_max, POLL_BYTES_MAX),
                wait_us=word.wait_us,
                visibility_us=word.visibility_us,
            )
        )

    async def _subscribe(self, packet: Packet) -> _Outcome:
        word = words.decoded(packet.header, words.Subscribe)
        subscription = Subscription(word.messages, word.bytes)
        self._subscriptions[packet.correlation] = subscription
        try:
            while True:
                count, bytes_max = await subscription.credit()
                await self.writable.wait()
                deliveries = await self._site.poll(
                    word.group,
                    word.consumer,
                    word.topics,
                    count=count,
                    bytes_max=min(bytes_max, POLL_BYTES_MAX),
                    wait_us=self._door.silence_us,
                )
                if deliveries:
                    delivered, payload = _delivered(deliveries)
                    size = sum(map(len, payload))
                    subscription.spend(sum(len(one.receipt.offsets) for one in deliveries), size)
                    self._send(self._end.deliver(packet.correlation, delivered, size), payload)
        finally:
            self._subscriptions.pop(packet.correlation, None)

    def _copied_by(self, packet: Packet) -> None:
        """Another node of the cluster: it is sent what its copies of partitions led here do not have."""
        if self._door.feeding is None or not self._site.is_node:
            raise Forbidden("only nodes of the same cluster copy its partitions")
        # At once: fetches may have come with it.
        self._feed = self._door.feeding.open(self, packet.correlation, packet.header)

    async def _replicate(self, packet: Packet) -> _Outcome:
        assert self._feed is not None
        await self._feed.run()
        return None, ()

    def _fetch(self, packet: Packet) -> None:
        if self._feed is None:
            raise ProtocolError("a fetch comes behind REPLICATE")
        self._feed.fetched(packet.header)

    def deliver(self, correlation: int, word: object, payload: Sequence[memoryview]) -> None:
        self._send(self._end.deliver(correlation, word, sum(map(len, payload))), payload)

    async def _answer(self, packet: Packet) -> _Outcome:
        word = words.decoded(packet.header, words.Answered)
        receipt = Receipt(word.topic, word.partition, word.lease, from_runs(word.runs))
        await self._site.answer(word.group, receipt, word.answer)
        return None, ()

    async def _acks(self, packet: Packet) -> _Outcome:
        word = words.decoded(packet.header, words.Acked)
        if not 1 <= len(word.leases) <= ACK_LEASES_MAX:
            raise ProtocolError(f"ACKS has 1 to {ACK_LEASES_MAX} leases, not {len(word.leases)}")
        leases, left = [], OFFSETS_MAX
        for lease, runs in word.leases:
            # All of them together are no more than one may have.
            leases.append((lease, from_runs(runs, left)))
            left -= len(leases[-1][1])
        failures = await self._site.ack_all(word.group, word.topic, word.partition, leases, again=word.again)
        told = [(at, failed(failure)) for at, failure in enumerate(failures) if failure is not None]
        return words.NotAcked(told), ()

    async def _read(self, packet: Packet) -> _Outcome:
        word = words.decoded(packet.header, words.Read)
        bytes_max = min(max(word.bytes_max, 1), POLL_BYTES_MAX)
        page = await self._site.read(
            word.topic, word.partition, word.offset, word.until, bytes_max, word.columns, word.epoch
        )
        return words.PageOf(page.next_offset, page.epoch), [frame.data for frame in page.frames]

    async def _call(self, packet: Packet) -> _Outcome:
        request: Request[Any] = words.request_of(packet.header)
        return await self._site.call(request), ()

    # --- flow and end ------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self.writable.clear()
        self.stuck_since = self._door.loop.time()
        self._throttle()

    def resume_writing(self) -> None:
        self.writable.set()
        self.stuck_since = None
        self._throttle()

    def end(self, code: str, message: str) -> None:
        """Says why, and closes."""
        if self._end.state is not State.CLOSED:
            self._send(self._end.goodbye(code, message))
            log.info("closed %s: %s (%s)", self.client or "a connection", message, code)
        self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._end.state = State.CLOSED
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._end.state = State.CLOSED
        if self._handshake is not None:
            self._handshake.cancel()
        self.writable.set()
        for task in self._waiting.values():
            task.cancel()
        if self._feed is not None:
            self._feed.close()
        self._door.gone(self)

    async def drained(self) -> None:
        """What was asked for is answered, but for those who wait for messages.

        Nothing more is read: what is not read is not carried out, and the client may ask for it again.
        """
        self._is_ending = True
        self._throttle()
        while under_way := [one for number, one in self._under_way.items() if number not in self._waiting]:
            await asyncio.wait(under_way)
            # Their answers are sent by what comes after them.
            await asyncio.sleep(0)


_Outcome = tuple[object, Sequence[bytes | memoryview]]


def _delivered(deliveries: Sequence[Any]) -> _Outcome:
    given_all, parts = [], list[memoryview]()
    for delivery in deliveries:
        word, some = given(delivery)
        given_all.append(word)
        parts += some
    return words.Delivered(given_all), parts


_ACTIONS: dict[Kind, Callable[[Session, Packet], Awaitable[_Outcome]]] = {
    Kind.JOIN: Session._join,
    Kind.LEAVE: Session._leave,
    Kind.POLL: Session._poll,
    Kind.SUBSCRIBE: Session._subscribe,
    Kind.REPLICATE: Session._replicate,
    Kind.ANSWER: Session._answer,
    Kind.ACKS: Session._acks,
    Kind.READ: Session._read,
    Kind.CALL: Session._call,
}
