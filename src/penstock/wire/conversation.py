"""Both ends of a connection as state machines: bytes that came in, what they mean, and bytes to be sent.

    client ── HELLO ──►  ◄── WELCOME ── broker      or  ◄── GOODBYE
    client ── request ─► ◄── REPLY or FAILURE ──    as many under way as one likes, answered in any order
    client ── SUBSCRIBE ─► ◄── DELIVER … ── CREDIT ─►
    node ── REPLICATE ─► ◄── DELIVER … ── FETCH ─►
    either ── PING ──►   ◄── PONG ──
    either ── GOODBYE ─►                            and nothing after it

No sockets and no clock: whoever has those feeds `receive` and sends what it is told to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum

from penstock.client.transport import ACK_LEASES_MAX
from penstock.errors import PacketTooLarge, PenstockError, ProtocolError, VersionMismatch
from penstock.limits import DEFAULT_LIMITS, KIB, MIB, STORED_LIMITS, TOLD, Limits
from penstock.wire.failures import Failed, error_of, failed
from penstock.wire.packets import Decoder, Kind, Packet, packed
from penstock.wire.words import ACK_LEASES, VERSION, Goodbye, Hello, Ping, Welcome, decoded, encoded

# Next to the frames of a packet.
_HEADER_BYTES_MAX = 16 * MIB
# Of a client's request: the longest ones have many ids, or a message.
_REQUEST_BYTES_MAX = 3 * MIB
# Of everything else that a client says: the longest have many leases; those of others, a thousand names of topics.
ACKS_BYTES_MAX = 1 * MIB
WORD_BYTES_MAX = 256 * KIB


class State(Enum):
    NEW = "new"
    OPEN = "open"
    CLOSED = "closed"


def packet_bytes_max(limits: Limits) -> int:
    return limits.frame_bytes_max + _HEADER_BYTES_MAX


class _End(ABC):
    """What both have in common."""

    # Between these lies what only the other side says, when a connection is open, and not about the connection itself.
    _first: int
    _last: int

    def __init__(self, bytes_max: int) -> None:
        self.state = State.NEW
        self._decoder = Decoder(bytes_max)

    @property
    def held(self) -> int:
        """Bytes of a packet that has not come completely."""
        return self._decoder.held

    def receive(self, data: bytes) -> Iterator[Packet]:
        """The packets that have come, but for those that are dealt with here. ProtocolError if they make no sense."""
        for packet in self._decoder.feed(data):
            if self.state is State.CLOSED:
                return
            self._check(packet)
            if packet.kind is Kind.GOODBYE:
                self.state = State.CLOSED
            yield packet

    def receive_one(self, data: bytes) -> Packet | None:
        """What has come, if it is one packet, all of it, and a usual one; otherwise None, and it is for `receive`."""
        packet = self._decoder.whole(data)
        if packet is None or not self._first <= packet.kind <= self._last or self.state is not State.OPEN:
            return None
        return packet if len(packet.header) <= WORD_BYTES_MAX else None

    @abstractmethod
    def _check(self, packet: Packet) -> None:
        """ProtocolError if the other side does not say that, or not now."""

    def ping(self, now_us: int) -> bytes:
        return packed(Kind.PING, 0, encoded(Ping(now_us)))

    def pong(self, now_us: int) -> bytes:
        return packed(Kind.PONG, 0, encoded(Ping(now_us)))

    def goodbye(self, code: str, message: str) -> bytes:
        self.state = State.CLOSED
        return packed(Kind.GOODBYE, 0, encoded(Goodbye(code, message)))


class ClientEnd(_End):
    _first, _last = Kind.REPLY, Kind.PING - 1

    def __init__(self) -> None:
        super().__init__(DEFAULT_LIMITS.hello_bytes_max)
        self._correlation = 0

    def hello(self, client: str, key: str | None) -> bytes:
        return packed(Kind.HELLO, 0, encoded(Hello((VERSION,), client, key)))

    def _check(self, packet: Packet) -> None:
        kind = packet.kind
        if kind < Kind.WELCOME or (self.state is State.NEW) != (kind in (Kind.WELCOME, Kind.GOODBYE)):
            if self.state is State.OPEN and kind is Kind.GOODBYE:
                return
            raise ProtocolError(f"a broker does not say {kind.name} when a connection is {self.state.value}")

    def welcomed(self, packet: Packet) -> Welcome:
        welcome = decoded(packet.header, Welcome)
        if welcome.version != VERSION:
            raise VersionMismatch(f"the broker speaks version {welcome.version}; this is version {VERSION}")
        self.state = State.OPEN
        # A broker sends what it has stored, under whatever limits that was.
        self._decoder.bytes_max = self._decoder.header_bytes_max = packet_bytes_max(STORED_LIMITS)
        return welcome

    def request(self, kind: Kind, word: object, payload_length: int = 0) -> tuple[int, bytes]:
        """Its correlation, and what to send ahead of the payload."""
        self._correlation = self._correlation % 0xFFFF_FFFF + 1
        return self._correlation, packed(kind, self._correlation, encoded(word), payload_length)

    def follow_up(self, kind: Kind, correlation: int, word: object) -> bytes:
        """About a request made before."""
        return packed(kind, correlation, encoded(word))


class BrokerEnd(_End):
    """Of a peer that has not said who it is, only a small packet is taken."""

    _first, _last = Kind.PUBLISH, Kind.WELCOME - 1

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits.hello_bytes_max)
        self._limits = limits
        self._is_node = False

    def _check(self, packet: Packet) -> None:
        kind, size = packet.kind, len(packet.header)
        if Kind.WELCOME <= kind < Kind.PING or (self.state is State.NEW) != (kind is Kind.HELLO):
            raise ProtocolError(f"a client does not say {kind.name} when a connection is {self.state.value}")
        if size > WORD_BYTES_MAX and not self._is_node and kind is not Kind.CALL:
            limit = ACKS_BYTES_MAX if kind is Kind.ACKS else WORD_BYTES_MAX
            if size > limit:
                raise PacketTooLarge(f"{kind.name} with a header of {size} bytes; the limit is {limit}", limit=limit)

    def greeted(self, packet: Packet) -> Hello:
        hello = decoded(packet.header, Hello)
        if VERSION not in hello.versions:
            raise VersionMismatch(f"the client speaks versions {list(hello.versions)}; this is version {VERSION}")
        return hello

    def welcome(
        self,
        broker: str,
        now_us: int,
        silence_us: int,
        cluster: str = "",
        *,
        principal: str = "",
        accepted: Limits | None = None,
    ) -> bytes:
        """Only now are larger packets taken: within `accepted`, which are the limits that the client is told unless it
        is given others."""
        self.state = State.OPEN
        self._decoder.bytes_max = packet_bytes_max(accepted or self._limits)
        self._is_node = is_node = accepted is STORED_LIMITS
        self._decoder.header_bytes_max = (
            _HEADER_BYTES_MAX if is_node else _REQUEST_BYTES_MAX + self._limits.message_bytes_max
        )
        limits = {name: getattr(self._limits, name) for name in TOLD} | {ACK_LEASES: ACK_LEASES_MAX}
        welcome = Welcome(VERSION, broker, now_us, silence_us, limits, cluster, principal)
        return packed(Kind.WELCOME, 0, encoded(welcome))

    def reply(self, correlation: int, word: object, payload_length: int = 0) -> bytes:
        return packed(Kind.REPLY, correlation, encoded(word), payload_length)

    def deliver(self, correlation: int, word: object, payload_length: int) -> bytes:
        return packed(Kind.DELIVER, correlation, encoded(word), payload_length)

    def failure(self, correlation: int, error: PenstockError) -> bytes:
        return packed(Kind.FAILURE, correlation, encoded(failed(error)))


def failure_in(packet: Packet) -> PenstockError:
    return error_of(decoded(packet.header, Failed))
