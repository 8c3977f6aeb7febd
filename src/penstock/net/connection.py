"""One connection to a broker. When it is lost, everything that was under way fails with ConnectionLost."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from penstock.clock import Clock
from penstock.errors import ConnectionLost, PenstockError, ProtocolError
from penstock.limits import MIB
from penstock.wire.conversation import ClientEnd, State, failure_in
from penstock.wire.failures import Failed, error_of
from penstock.wire.packets import Kind, Packet
from penstock.wire.words import Cancel, Goodbye, Ping, Welcome, decoded

HANDSHAKE_S = 5.0
_GOODBYE_S = 1.0
# Why a broker says goodbye to a client that may come again, also instead of a welcome.
_PASSING = frozenset({"stopping", "silent", "handshake_timeout"})
# Bytes that wait to be sent; whoever wants to send more waits.
_UNSENT_BYTES_MAX = 4 * MIB
# OpenSSL's codes for a certificate that is signed by itself, or by nobody who is known here.
_UNKNOWN_ISSUER = (18, 19, 20, 21)

Delivered = Callable[[Packet | None], None]
Ahead = Callable[[int, int], None]


class Place(NamedTuple):
    """Where a broker is, and how to get in. `tls` None: without."""

    host: str
    port: int
    key: str | None = None
    tls: ssl.SSLContext | None = None
    client: str = "penstock-python"

    def __str__(self) -> str:
        return self.without_tls if self.tls is None else self.with_tls

    @property
    def with_tls(self) -> str:
        return f"penstocks://{self.host}:{self.port}"

    @property
    def without_tls(self) -> str:
        return f"penstock://{self.host}:{self.port}"


class Connection(asyncio.Protocol):
    """Made with `Connection.to`. Belongs to one event loop."""

    def __init__(self, place: Place, clock: Clock, ahead: Ahead) -> None:
        """`ahead` hears by how much the broker's clock is ahead of ours."""
        self._loop = asyncio.get_running_loop()
        self._place = place
        self._clock = clock
        self._ahead = ahead
        # When the broker was asked for its time, if it has not told it since.
        self._asked_us: int | None = clock.monotonic_us()
        self._end = ClientEnd()
        self._transport: asyncio.Transport | None = None
        self._welcomed: asyncio.Future[Welcome] = self._loop.create_future()
        self._under_way: dict[int, asyncio.Future[Packet]] = {}
        # By correlation: who gets what is delivered without being asked for; None when nothing will come any more.
        self._pushed: dict[int, Delivered] = {}
        # Requests that nobody waits for any more, and who sees to what they bring.
        self._late: dict[int, Delivered] = {}
        self._missed: dict[int, Packet] = {}
        self._room = asyncio.Event()
        self._room.set()
        # Those who wait for room, one behind the other: requests are sent in the order in which they are made.
        self._line = asyncio.Lock()
        self._in_line = 0
        self._heard_at = self._loop.time()
        self._beat: asyncio.TimerHandle | None = None
        self._lost: PenstockError | None = None
        self.ended = asyncio.Event()

    @classmethod
    async def to(cls, place: Place, clock: Clock, ahead: Ahead = lambda least_us, most_us: None) -> Connection:
        """ConnectionLost if nobody answers; what the broker says if it does not want us.

        `ahead` learns by how much the broker's wall clock is ahead of our monotonic clock, at least and at most: the
        broker told its time at some moment between our asking and our reading the answer.
        """
        loop, connection = asyncio.get_running_loop(), cls(place, clock, ahead)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await loop.create_connection(lambda: connection, place.host, place.port, ssl=place.tls)
                connection.welcome = await asyncio.shield(connection._welcomed)
        except BaseException as error:
            # Also if it never came to be: uvloop closes a transport whose caller was cancelled, and does not call
            # `connection_lost`. Its heartbeats would go on, and each fail.
            connection.abort(ConnectionLost(f"{place} did not answer"))
            if isinstance(error, OSError | TimeoutError):
                raise ConnectionLost(f"can't connect to {place}: {_reason(place, error)}", place=str(place)) from error
            raise
        return connection

    welcome: Welcome

    @property
    def is_open(self) -> bool:
        return self._lost is None and self._end.state is State.OPEN

    # --- requests ----------------------------------------------------------------------------------------

    async def request(
        self, kind: Kind, word: object, payload: Sequence[bytes | memoryview] = (), late: Delivered | None = None
    ) -> Packet:
        """The reply. If the caller gives up, the broker is told so, and what comes all the same goes to `late`."""
        if self._in_line or not self._room.is_set():
            await self._wait_for_room()
        self._check()
        correlation, head = self._end.request(kind, word, sum(map(len, payload)))
        reply: asyncio.Future[Packet] = self._loop.create_future()
        self._under_way[correlation] = reply
        self._send(head, payload)
        try:
            return await reply
        except asyncio.CancelledError:
            if self._under_way.pop(correlation, None) is not None:
                if late is not None:
                    self._late[correlation] = late
                self.tell(Kind.CANCEL, 0, Cancel(correlation))
            else:
                # It came while the caller was giving up: before that was known here, or after.
                came = self._missed.pop(correlation, None) if reply.cancelled() else _came(reply)
                if came is not None and late is not None:
                    late(came)
            raise

    async def _wait_for_room(self) -> None:
        self._in_line += 1
        try:
            async with self._line:
                while not self._room.is_set():
                    await self._room.wait()
        finally:
            self._in_line -= 1

    def subscribe(self, word: object, delivered: Delivered) -> int:
        return self.open_stream(Kind.SUBSCRIBE, word, delivered)

    def open_stream(self, kind: Kind, word: object, delivered: Delivered) -> int:
        """From now on `delivered` hears of everything that comes for it, and None at the end."""
        self._check()
        correlation, head = self._end.request(kind, word)
        self._pushed[correlation] = delivered
        self._send(head)
        return correlation

    def tell(self, kind: Kind, correlation: int, word: object) -> None:
        if self.is_open:
            self._send(self._end.follow_up(kind, correlation, word))

    def unsubscribe(self, correlation: int, late: Delivered) -> None:
        """What is on its way already goes to `late`, until None says that nothing comes any more."""
        if correlation in self._pushed:
            self._pushed[correlation] = late
            self.tell(Kind.UNSUBSCRIBE, correlation, None)

    def _send(self, head: bytes, payload: Sequence[bytes | memoryview] = ()) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            # `connection_lost` comes next, and fails everything under way.
            return
        if payload:
            self._transport.writelines([head, *payload])
        else:
            self._transport.write(head)

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost.again()
        if not self.is_open:
            raise ConnectionLost(f"the connection to {self._place} is closed")

    # --- what comes --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are none of asyncio's classes.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES_MAX)
        self._send(self._end.hello(self._place.client, self._place.key))

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        try:
            for packet in self._end.receive(data):
                self._take(packet)
        except PenstockError as error:
            self.abort(error)

    def _take(self, packet: Packet) -> None:
        match packet.kind:
            case Kind.REPLY | Kind.FAILURE:
                self._take_reply(packet)
            case Kind.DELIVER:
                if packet.correlation in self._pushed:
                    self._pushed[packet.correlation](packet)
            case Kind.PING:
                self._send(self._end.pong(self._clock.now_us()))
            case Kind.PONG:
                self._hear_time(decoded(packet.header, Ping).now_us)
            case Kind.WELCOME:
                welcome = self._end.welcomed(packet)
                self._hear_time(welcome.now_us)
                self._beat = self._loop.call_later(welcome.silence_us / 3e6, self._heartbeat, welcome.silence_us / 1e6)
                if not self._welcomed.done():
                    self._welcomed.set_result(welcome)
            case Kind.GOODBYE:
                said = decoded(packet.header, Goodbye)
                if self._welcomed.done() or said.code in _PASSING:
                    self.abort(ConnectionLost(f"the broker closed the connection: {said.message}", code=said.code))
                else:
                    self.abort(error_of(Failed(said.code, said.message, {})))
            case _:
                raise ProtocolError(f"a broker does not say {packet.kind.name}")

    def _take_reply(self, packet: Packet) -> None:
        reply = self._under_way.pop(packet.correlation, None)
        if reply is None:
            late = self._late.pop(packet.correlation, None)
            pushed = self._pushed.pop(packet.correlation, None)
            if late is not None and packet.kind is Kind.REPLY:
                late(packet)
            elif pushed is not None:
                # The end of a subscription, or why it could not be.
                pushed(packet if packet.kind is Kind.FAILURE else None)
        elif reply.cancelled():
            # Whoever waited does not know it yet, and looks here when it does.
            if packet.kind is Kind.REPLY:
                self._missed[packet.correlation] = packet
        elif packet.kind is Kind.REPLY:
            reply.set_result(packet)
        else:
            reply.set_exception(failure_in(packet))

    def _hear_time(self, now_us: int) -> None:
        asked_us, self._asked_us = self._asked_us, None
        if asked_us is not None:
            self._ahead(now_us - self._clock.monotonic_us(), now_us - asked_us)

    def _heartbeat(self, silence_s: float) -> None:
        if self._loop.time() - self._heard_at > silence_s:
            self.abort(ConnectionLost(f"{self._place} has said nothing for {silence_s:g} s"))
            return
        if self._asked_us is None:
            self._asked_us = self._clock.monotonic_us()
        self._send(self._end.ping(self._clock.now_us()))
        self._beat = self._loop.call_later(silence_s / 3, self._heartbeat, silence_s)

    # --- flow and end ------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, error: Exception | None) -> None:
        reason = f": {error}" if error is not None else ""
        if not self._welcomed.done() and self._place.tls is None:
            reason += f"; if it speaks TLS, its address is {self._place.with_tls}"
        self._fail(ConnectionLost(f"the connection to {self._place} was lost{reason}", place=str(self._place)))

    def abort(self, error: PenstockError) -> None:
        self._fail(error)
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: PenstockError) -> None:
        if self._lost is not None:
            return
        self._lost = error
        self._end.state = State.CLOSED
        if self._beat is not None:
            self._beat.cancel()
        if not self._welcomed.done():
            self._welcomed.set_exception(error)
            # Nobody may be waiting for it any more.
            self._welcomed.exception()
        under_way, self._under_way = self._under_way, {}
        for reply in under_way.values():
            if not reply.done():
                reply.set_exception(error.again())
        pushed, self._pushed = self._pushed, {}
        self._late.clear()
        for delivered in pushed.values():
            delivered(None)
        self._room.set()
        self.ended.set()

    async def close(self) -> None:
        """Says goodbye: the consumers behind it have left."""
        if self.is_open and self._transport is not None:
            self._send(self._end.goodbye("closed", "the client is done"))
            self._transport.close()
            try:
                async with asyncio.timeout(_GOODBYE_S):
                    await self.ended.wait()
            except TimeoutError:
                # More was to be sent than a broker takes that does not read any more.
                self.abort(ConnectionLost(f"{self._place} did not take all that was sent"))


def _came(reply: asyncio.Future[Packet]) -> Packet | None:
    return reply.result() if reply.exception() is None else None


def _reason(place: Place, error: OSError | TimeoutError) -> str:
    """The likely one, for people, and in brackets what was said."""
    if isinstance(error, ssl.SSLCertVerificationError):
        told = f"its certificate is not trusted ({error.verify_message})"
        if error.verify_code not in _UNKNOWN_ISSUER:
            return told
        return f"{told}; one to be trusted is named in SSL_CERT_FILE, or in a context given as tls"
    if isinstance(error, ssl.SSLError):
        return f"it does not seem to speak TLS; without, its address is {place.without_tls} ({error})"
    told = str(error) or f"no answer within {HANDSHAKE_S:g} s"
    return f"is a broker running there? `penstock serve` starts one ({told})"
