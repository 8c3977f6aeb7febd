"""What happens to messages: the rows of a partition's deliveries log.

One row covers a set of offsets, so a thousand messages leased together are one row. The value of the row is
MessagePack of the event, an array that starts with its letter; the key is the group; the timestamp is when it happened.
Offsets are a 64-bit Roaring bitmap in its portable serialisation, which other languages read.
"""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from penstock.errors import LogCorrupt
from penstock.message import Message


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`group` on each: a row must be understood alone."""

    group: str


class Started(Event, frozen=True, array_like=True, gc=False, tag="S"):
    """The group begins at `offset`, or was moved there (`seek`): all it held is let go."""

    offset: int


class Leased(Event, frozen=True, array_like=True, gc=False, tag="L"):
    """`offsets` went to `consumer` until `deadline_us`. Fresh ones are those from the old cursor to `cursor`."""

    consumer: str
    lease: int
    offsets: bytes
    cursor: int
    deadline_us: int


class Extended(Event, frozen=True, array_like=True, gc=False, tag="E"):
    lease: int
    deadline_us: int


class Acknowledged(Event, frozen=True, array_like=True, gc=False, tag="A"):
    lease: int
    offsets: bytes


class Nacked(Event, frozen=True, array_like=True, gc=False, tag="N"):
    """Given back by the consumer; ready again at `due_us`."""

    lease: int
    offsets: bytes
    due_us: int
    reason: str


class Expired(Event, frozen=True, array_like=True, gc=False, tag="X"):
    """The lease ran out; what was left of it is ready again at `due_us`."""

    lease: int
    offsets: bytes
    due_us: int


class Released(Event, frozen=True, array_like=True, gc=False, tag="R"):
    """Given back unseen, as if it had not been delivered."""

    lease: int
    offsets: bytes


class Exhausted(Event, frozen=True, array_like=True, gc=False, tag="D"):
    """Not to be delivered again: rejected, or tried too often."""

    lease: int
    offsets: bytes
    reason: str


AnyEvent = Started | Leased | Extended | Acknowledged | Nacked | Expired | Released | Exhausted
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyEvent)


def pack(offsets: BitMap64) -> bytes:
    packed: bytes = offsets.serialize()
    return packed


def unpack(packed: bytes) -> BitMap64:
    return BitMap64.deserialize(packed)


def to_message(event: AnyEvent, now_us: int) -> Message:
    return Message(_encoder.encode(event), key=event.group.encode(), timestamp=now_us)


def from_value(value: bytes | None) -> AnyEvent:
    try:
        event: AnyEvent = _decoder.decode(value or b"")
    except msgspec.DecodeError as error:
        raise LogCorrupt(f"a row of the deliveries log is not an event: {error}") from error
    return event
