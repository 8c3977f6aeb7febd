"""Packets: a prefix of 16 bytes, a header (MessagePack), and a payload (frames as they lie on disk).

      0  u16  magic            0x5350, "PS"
      2  u8   kind             one of `Kind`
      3  u8   flags            0
      4  u32  correlation      of a request: chosen by the client; of a reply: that of its request; otherwise 0
      8  u32  header length
     12  u32  payload length

Little-endian. Lengths are checked against a limit before anything is allocated for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from penstock.errors import PacketTooLarge, ProtocolError

MAGIC = 0x5350
_PREFIX = Struct("<HBBIII")
PREFIX_BYTES = _PREFIX.size
CORRELATION_MAX = (1 << 32) - 1


# A payload is a view of what came with it, which stays in memory as long as the payload does. One that is a smaller
# part of it is copied.
_SHARED_MIN = 8

# What an HTTP client or server, or one of gRPC, begins with.
_HTTP_REPLY, _HTTP_REQUESTS = b"HTTP", (b"GET ", b"POST", b"PUT ", b"HEAD", b"PATC", b"DELE", b"OPTI", b"PRI ")
_HTTP2_SETTINGS = 4


class Kind(IntEnum):
    """1 to 31 are said by the client, 32 to 63 by the broker, 64 and more by either. A number is never used again."""

    HELLO = 1
    PUBLISH = 2
    JOIN = 3
    LEAVE = 4
    POLL = 5
    ANSWER = 6
    READ = 7
    CALL = 8
    CANCEL = 9
    SUBSCRIBE = 10
    CREDIT = 11
    UNSUBSCRIBE = 12
    REPLICATE = 13
    FETCH = 14
    ACKS = 15

    WELCOME = 32
    REPLY = 33
    FAILURE = 34
    DELIVER = 35

    PING = 64
    PONG = 65
    GOODBYE = 66


_KINDS = {int(kind): kind for kind in Kind}


class Packet(NamedTuple):
    kind: Kind
    correlation: int
    header: bytes
    payload: memoryview


def packed(kind: Kind, correlation: int, header: bytes, payload_length: int = 0) -> bytes:
    """Prefix and header; the payload follows as it is."""
    return _PREFIX.pack(MAGIC, kind, 0, correlation, len(header), payload_length) + header


class Decoder:
    """Takes bytes as they come. After an error it is of no use any more: nobody knows where the next packet starts."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` bounds header and payload of one packet together, and with it what is held here.
        `header_bytes_max` bounds headers alone: decoded, they may be many times as large."""
        self.bytes_max = self.header_bytes_max = bytes_max
        self._chunks = bytearray()

    @property
    def held(self) -> int:
        return len(self._chunks)

    def whole(self, data: bytes) -> Packet | None:
        """The packet that these bytes are, all of them and nothing else. None if they are to be fed: that also tells
        what is wrong with them, if anything is."""
        if self._chunks or len(data) < PREFIX_BYTES:
            return None
        magic, kind, flags, correlation, header, payload = _PREFIX.unpack_from(data)
        size, known = header + payload, _KINDS.get(kind)
        if magic != MAGIC or known is None or flags or not size == len(data) - PREFIX_BYTES <= self.bytes_max:
            return None
        if header > self.header_bytes_max:
            return None
        middle = PREFIX_BYTES + header
        return Packet(known, correlation, data[PREFIX_BYTES:middle], memoryview(data)[middle:])

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Packet]:
        """The packets that are complete now. To be used up before the next call."""
        chunks = self._chunks
        if chunks:
            chunks += data
            source = memoryview(bytes(chunks)) if len(chunks) >= self._wanted(chunks) else None
        else:
            source = memoryview(bytes(data))
        if source is None:
            return
        at = 0
        while len(source) - at >= PREFIX_BYTES:
            kind, correlation, header, size = self._look(source, at)
            end = at + PREFIX_BYTES + size
            if end > len(source):
                break
            middle = at + PREFIX_BYTES + header
            payload = source[middle:end]
            if _SHARED_MIN * len(payload) < len(source):
                payload = memoryview(bytes(payload))
            packet = Packet(kind, correlation, bytes(source[at + PREFIX_BYTES : middle]), payload)
            at = end
            yield packet
        if at < len(source) or chunks:
            self._chunks = bytearray(source[at:])

    def _wanted(self, data: bytearray) -> int:
        """How many bytes make it worth looking again."""
        if len(data) < PREFIX_BYTES:
            return PREFIX_BYTES
        *_, size = self._look(memoryview(data), 0)
        return PREFIX_BYTES + size

    def _look(self, data: memoryview, at: int) -> tuple[Kind, int, int, int]:
        magic, kind, flags, correlation, header, payload = _PREFIX.unpack_from(data, at)
        if magic != MAGIC:
            raise _not_ours(bytes(data[at : at + 4]))
        known = _KINDS.get(kind)
        if known is None or flags:
            raise ProtocolError(f"a packet of an unknown kind: {kind}, flags {flags}", kind=kind)
        size = header + payload
        if size > self.bytes_max:
            raise PacketTooLarge(f"a packet of {size} bytes; the limit is {self.bytes_max}", limit=self.bytes_max)
        if header > self.header_bytes_max:
            limit = self.header_bytes_max
            raise PacketTooLarge(f"a header of {header} bytes; the limit is {limit}", limit=limit)
        return known, correlation, header, size


def _not_ours(start: bytes) -> ProtocolError:
    hint = ""
    if start == _HTTP_REPLY or (start[:2] == b"\0\0" and start[3] == _HTTP2_SETTINGS):
        hint = ". This is the port of the HTTP or gRPC listener. Connect to the native one, penstock://host:7420"
    elif start in _HTTP_REQUESTS:
        hint = ". This is the port of the native listener. Send HTTP requests to that of the HTTP listener"
    return ProtocolError(f"not the native protocol of Penstock: {start!r}{hint}")
