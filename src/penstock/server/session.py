"""One connection of the native protocol: who is behind it, what is under way, and how it ends.

Requests are carried out as they come, as many at a time as the limits allow; then reading stops until some are done. A
peer that does not take what it is sent gets no more messages, and is let go when it has been stuck for too long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from penstock.client.requests import Request
from penstock.client.transport import ACK_LEASES_MAX, Delivery, Receipt
from penstock.clock import Instant
from penstock.cluster.feeding import Feed
from penstock.errors import Fatal, Forbidden, InternalError, PenstockError, ProtocolError, Unauthenticated
from penstock.frame import Frame, takes_long
from penstock.limits import KIB, MIB, STORED_LIMITS
from penstock.server.admission import PARTIAL_BYTES_MIN, PartialRequest
from penstock.server.guard import SLOW, Guarded, only_reads
from penstock.server.listening import close
from penstock.server.members import Members
from penstock.server.parcels import given
from penstock.server.reply_budget import UNSENT_BYTES_MAX, ReplyAccount, Reservation, reply_bytes
from penstock.server.subscription import Subscription
from penstock.server.turns import Slice
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
POLL_BYTES_MAX = 8 * MIB
# They end when messages come, when others have answered, or never. A CANCEL ends them, and so does the end of the
# connection; a broker that stops does not wait for them.
_WAITING = (Kind.JOIN, Kind.POLL, Kind.SUBSCRIBE, Kind.REPLICATE)
# Reads and calls that are carried out at a time, of each connection.
_READS_MAX, _CALLS_MAX = 4, 16
# Of what a client calls itself, in the log.
_CLIENT_LENGTH = 100
# Of requests, whatever they are: names and settings.
_HEAD_BYTES = 4 * KIB
# Those of consumers begin with the group, and may name all their topics, or many offsets.
_OF_GROUPS = (Kind.JOIN, Kind.LEAVE, Kind.POLL, Kind.SUBSCRIBE, Kind.ANSWER, Kind.ACKS)
# Runs of offsets of one lease: with more, reading them takes a millisecond.
_RUNS_MANY = 2_000
_NAMES = {kind: kind.name.lower() for kind in Kind}


class Session(asyncio.Protocol):
    def __init__(self, door: NativeDoor) -> None:
        self._door = door
        # Of whoever is behind it, once that is known.
        self._site: Guarded
        self._limits = door.site.limits
        # Of frames. Those of another node of the cluster are others: see `_greet`.
        self._accepted = self._limits
        self._end = BrokerEnd(self._limits)
        self._transport: asyncio.Transport | None = None
        self._handshake: asyncio.TimerHandle | None = None
        self._under_way: dict[int, asyncio.Future[Any]] = {}
        # Those of them that may wait for long.
        self._waiting: dict[int, asyncio.Task[None]] = {}
        # Calls that only read: they end as those do, but a broker that stops answers them.
        self._reading: set[int] = set()
        self._subscriptions: dict[int, Subscription] = {}
        self._in_flight = 0
        self._is_paused = False
        self._is_ending = False
        # Packets that have come and are not carried out, and the first of them: they wait for the next turn.
        self._packets: Iterator[Packet] | None = None
        self._next: Packet | None = None
        # A large packet of which a part has come. Its connection may have to wait for memory.
        self._partial: PartialRequest | None = None
        self._waits_for_memory = False
        self.writable = asyncio.Event()
        self.writable.set()
        self.heard_at = door.loop.time()
        self.stuck_since: float | None = None
        self.client = ""
        # Held by the one of its slow requests that is being carried out: others of this connection wait for it.
        self._slot = asyncio.Lock()
        # Bytes of replies. Of requests under way, those that have some reserved.
        self._replies: ReplyAccount
        self._reserved: dict[int, Reservation] = {}
        self._reads, self._calls = asyncio.Semaphore(_READS_MAX), asyncio.Semaphore(_CALLS_MAX)
        # PUBLISH packets behind a frame that is decompressed on a thread, that one included: they are stored in the
        # order in which they came.
        self._publishing = asyncio.Lock()
        self._deferred = 0
        # To a node of a cluster that copies partitions through this connection.
        self._feed: Feed | None = None
        # Among the connections of its principal.
        self._is_counted = False
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
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
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
                self._packets = self._end.receive(data)
                if self._take_slice(is_short=self._door.turns.are_taken):
                    self._door.turns.add(self._site.principal, self._take_turn)
            elif packet.kind is Kind.PUBLISH:
                self._begin(packet, is_alone=not self._under_way)
            else:
                self._take(packet)
        except PenstockError as error:
            self.end(error.code, error.message)
        self._throttle()

    def _take_turn(self) -> bool:
        try:
            is_more = self._take_slice()
        except PenstockError as error:
            is_more, self._packets, self._next = False, None, None
            self.end(error.code, error.message)
        self._throttle()
        return is_more

    def _take_slice(self, *, is_short: bool = False) -> bool:
        """False if no packet is left."""
        if self._packets is None or self._is_ending or self._transport is None or self._transport.is_closing():
            return False
        slice = Slice(len(self._under_way), self._door.now_s, is_short=is_short)
        packet = self._next or next(self._packets, None)
        while packet is not None:
            self._forget_partial()
            self._take(packet)
            packet = next(self._packets, None)
            if packet is not None and slice.is_over(len(self._under_way)):
                self._next = packet
                return True
        self._packets = self._next = None
        self._count_partial()
        return False

    def _count_partial(self) -> None:
        held = self._end.held
        if held <= PARTIAL_BYTES_MIN:
            return
        if self._partial is None:
            requests = self._door.gate.partial_of(self._site.principal)
            self._partial = requests.begin(self, self._wait_for_memory, self._go_on)
        self._partial.grow(held)

    def _forget_partial(self) -> None:
        if self._partial is not None:
            self._partial.end()
            self._partial = None
            # The last bytes may have come together with those that exceeded the budget.
            self._waits_for_memory = False

    def _wait_for_memory(self) -> None:
        self._waits_for_memory = True
        self._throttle()

    def _go_on(self) -> None:
        self._waits_for_memory = False
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
                self._cancel_waiting()
                self._door.left(self)
                self._close()
            case Kind.CANCEL:
                cancelled = words.decoded(packet.header, words.Cancel).correlation
                if cancelled in self._under_way and cancelled not in self._subscriptions:
                    # Not before it has begun: it would end without a word.
                    self._door.loop.call_soon(self._cancel, cancelled, self._under_way[cancelled])
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
        self._site = self._door.gate.admit(hello.key, peer=self._peer())
        self._site.connect(self)
        self._is_counted = True
        replies = self._door.gate.replies_of(self._site)
        self._replies = ReplyAccount(replies, self, self._limits.in_flight_bytes_max, self._unsent)
        self._site.revoked, self._site.changed = self._revoked, self._check_rights
        self.client = f"{hello.client[:_CLIENT_LENGTH]} as {self._site.principal}"
        if self._site.is_node:
            # It passes on what the cluster has stored, under whatever limits that was.
            self._accepted = STORED_LIMITS
            # It reads for many clients.
            self._reads = asyncio.Semaphore(REQUESTS_MAX)
        if self._handshake is not None:
            self._handshake.cancel()
        self._door.greeted(self, has_rights=self._site.has_rights)
        door = self._door
        now_us = self._site.now_us()
        principal = self._site.principal if self._site.binds_producers else ""
        self._send(
            self._end.welcome(
                door.name, now_us, door.silence_us, door.cluster, principal=principal, accepted=self._accepted
            )
        )

    def _peer(self) -> tuple[str, int] | None:
        found = None if self._transport is None else self._transport.get_extra_info("peername")
        return None if not found else (str(found[0]), int(found[1]))

    def _revoked(self, error: Unauthenticated) -> None:
        """Its consumers leave: their partitions go to others."""
        self._door.left(self)
        self.end(error.code, error.message)

    def _check_rights(self) -> None:
        """Those that may not consume any more leave, also if they ask for nothing."""
        self._door.greeted(self, has_rights=self._site.has_rights)
        self.members.check(self._site.check_consuming)

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
        began, outcome = self._door.now_s(), "ok"
        try:
            self._check_header(packet)
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

    def _check_header(self, packet: Packet) -> None:
        """Rights first: a large request is decoded only for a client that may make it."""
        size = len(packet.header)
        if size <= _HEAD_BYTES or self._site.is_node:
            return
        if packet.kind in _OF_GROUPS:
            self._site.check_consuming(words.decoded(packet.header, words.OfGroup).group)
        elif packet.kind is Kind.CALL:
            self._site.check_head(words.head_of(packet.header), size)

    def _fail(self, correlation: int, error: PenstockError) -> str:
        self._send(self._end.failure(correlation, error.without_paths()))
        if isinstance(error, Fatal):
            self._door.broke(error)
        return error.code

    def _fail_unexpectedly(self, packet: Packet, error: BaseException) -> str:
        log.error("%s of %s failed", packet.kind.name, self.client, exc_info=error)
        return self._fail(packet.correlation, InternalError("the broker has a bug; its log says more"))

    def _done(self, packet: Packet, size: int, began: float, outcome: str) -> None:
        self._under_way.pop(packet.correlation, None)
        self._waiting.pop(packet.correlation, None)
        self._reading.discard(packet.correlation)
        if (reserved := self._reserved.pop(packet.correlation, None)) is not None:
            reserved.release()
        self._in_flight -= size
        self._door.counts.request("native", _NAMES[packet.kind], outcome, self._door.now_s() - began)
        self._throttle()

    def _reservation(self, packet: Packet) -> Reservation:
        """For the reply to this request. Released when the reply is sent."""
        reserved = self._reserved[packet.correlation] = self._replies.reservation()
        return reserved

    def _unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _throttle(self) -> None:
        """Reading stops while too much is under way, or the peer does not take what it is sent."""
        is_much = self._in_flight > self._limits.in_flight_bytes_max or len(self._under_way) >= REQUESTS_MAX
        is_busy = self._packets is not None or self._waits_for_memory or self._is_ending
        shall_pause = is_much or is_busy or not self.writable.is_set()
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
        began, outcome = self._door.now_s(), "ok"
        is_alone = self._door.publishes_alone(self) and is_alone
        try:
            word = words.decoded(packet.header, words.PublishFrame)
            self._site.check_publishing(word.topic)
            if self._deferred or takes_long(packet.payload):
                self._deferred += 1
                task = self._door.loop.create_task(self._publish_in_turn(packet, size, began, word))
                self._under_way[packet.correlation] = task
                return
            frame = Frame.accept(packet.payload, self._accepted)
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

    async def _publish_in_turn(self, packet: Packet, size: int, began: float, word: words.PublishFrame) -> None:
        outcome = "ok"
        try:
            try:
                async with self._publishing:
                    accept = partial(Frame.accept, packet.payload, self._accepted)
                    if takes_long(packet.payload):
                        frame = await self._door.site.broker.on_a_reading_thread(accept)
                    else:
                        frame = accept()
                    # Its rights may have changed while it waited.
                    self._site.check_publishing(word.topic)
                    storing, partitions = self._site.storing(word.topic, word.partition, frame, word.acks)
            finally:
                self._deferred -= 1
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
        await self._site.join(word.group, word.consumer, word.topics, word.settings, word.owner)
        if word.stands:
            self.members.add(word.group, word.consumer, word.topics)
        return None, ()

    async def _leave(self, packet: Packet) -> _Outcome:
        word = words.decoded(packet.header, words.Leave)
        self.members.discard(word.group, word.consumer)
        await self._site.leave(word.group, word.consumer)
        return None, ()

    async def _poll(self, packet: Packet) -> _Outcome:
        word, asked_us = words.decoded(packet.header, words.Poll), self._site.monotonic_us()
        return self._delivered(
            await self._site.poll(
                word.group,
                word.consumer,
                word.topics,
                count=word.count,
                bytes_max=min(word.bytes_max, POLL_BYTES_MAX),
                wait_us=word.wait_us,
                visibility_us=word.visibility_us,
                memory=self._reservation(packet),
            ),
            asked_us,
        )

    async def _subscribe(self, packet: Packet) -> _Outcome:
        word, asked_us = words.decoded(packet.header, words.Subscribe), self._site.monotonic_us()
        subscription, memory = Subscription(word.messages, word.bytes), self._reservation(packet)
        self._subscriptions[packet.correlation] = subscription
        try:
            while True:
                count, bytes_max = await subscription.credit()
                deliveries = await self._site.poll(
                    word.group,
                    word.consumer,
                    word.topics,
                    count=count,
                    bytes_max=min(bytes_max, POLL_BYTES_MAX),
                    wait_us=self._door.silence_us,
                    memory=memory,
                )
                if deliveries:
                    delivered, payload = self._delivered(deliveries, asked_us)
                    size = sum(map(len, payload))
                    subscription.spend(sum(len(one.receipt.offsets) for one in deliveries), size)
                    self._send(self._end.deliver(packet.correlation, delivered, size), payload)
                    memory.release()
        finally:
            self._subscriptions.pop(packet.correlation, None)

    def _delivered(self, deliveries: Sequence[Delivery], asked_us: int) -> _Outcome:
        now = Instant(self._site.now_us(), self._site.monotonic_us())
        given_all, parts = [], list[memoryview]()
        for delivery in deliveries:
            word, some = given(delivery, asked_us, now)
            given_all.append(word)
            parts += some
        return words.Delivered(given_all), parts

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
            if len(runs) > _RUNS_MANY:
                # Others come in between.
                await asyncio.sleep(0)
        failures = await self._site.ack_all(word.group, word.topic, word.partition, leases, again=word.again)
        told = [(at, failed(failure)) for at, failure in enumerate(failures) if failure is not None]
        return words.NotAcked(told), ()

    async def _read(self, packet: Packet) -> _Outcome:
        word = words.decoded(packet.header, words.Read)
        bytes_max = min(max(word.bytes_max, 1), POLL_BYTES_MAX)
        async with self._reads:
            # A page has one frame at least, whatever `bytes_max` is.
            await self._reservation(packet).reserve(max(bytes_max, self._limits.frame_bytes_max))
            page = await self._site.read(
                word.topic, word.partition, word.offset, word.until, bytes_max, word.columns, word.epoch
            )
        return words.PageOf(page.next_offset, page.epoch), [frame.data for frame in page.frames]

    async def _call(self, packet: Packet) -> _Outcome:
        request: Request[Any] = words.request_of(packet.header)
        if only_reads(request):
            self._reading.add(packet.correlation)
        if self._site.is_node:
            return await self._site.call(request), ()
        # Of each connection one slow request at a time.
        async with self._slot if type(request) in SLOW else self._calls:
            if size := reply_bytes(request):
                await self._reservation(packet).reserve(size)
            else:
                await self.writable.wait()
            return await self._site.call(request), ()

    # --- flow and end ------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self.writable.clear()
        self.stuck_since = self._door.loop.time()
        self._throttle()

    def resume_writing(self) -> None:
        self.writable.set()
        self.stuck_since = None
        if self._is_counted:
            self._replies.refresh()
        self._throttle()

    def end(self, code: str, message: str) -> None:
        """Says why, and closes."""
        if self._end.state is not State.CLOSED:
            self._send(self._end.goodbye(code, message))
            # Clients without a key must not be able to fill the log.
            level = logging.INFO if self.client else logging.DEBUG
            log.log(level, "closed %s: %s (%s)", self.client or "a connection", message, code)
        self._close()

    def evict(self, reason: str) -> None:
        self.end("overloaded", reason)

    def _close(self) -> None:
        if self._transport is not None:
            close(self._transport)

    def abort(self) -> None:
        self._end.state = State.CLOSED
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._end.state = State.CLOSED
        if self._handshake is not None:
            self._handshake.cancel()
        self.writable.set()
        self._forget_partial()
        self._cancel_waiting()
        if self._feed is not None:
            self._feed.close()
        self._door.gone(self)
        if self._is_counted:
            self._replies.close()
            self._site.disconnect(self)

    def _cancel_waiting(self) -> None:
        for correlation, one in self._under_way.items():
            self._cancel(correlation, one)

    def _cancel(self, correlation: int, one: asyncio.Future[Any]) -> None:
        """Unless the request has ended, or changes something."""
        if self._under_way.get(correlation) is one and (correlation in self._waiting or correlation in self._reading):
            one.cancel()

    async def drained(self) -> None:
        """What was asked for is answered, but for what waits for messages or for other nodes.

        Nothing more is read: what is not read is not carried out, and the client may ask for it again.
        """
        self._is_ending = True
        self._throttle()
        while under_way := [one for number, one in self._under_way.items() if number not in self._waiting]:
            await asyncio.wait(under_way)
            # Their answers are sent by what comes after them.
            await asyncio.sleep(0)


_Outcome = tuple[object, Sequence[bytes | memoryview]]


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
