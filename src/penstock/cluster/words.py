"""What nodes say to each other about partitions, within packets of the native protocol. MessagePack.

    follower ── REPLICATE ─►                         who it is; opens a stream
    follower ── FETCH … ──►  ◄── DELIVER … ── leader many partitions at a time, whenever there is something to say

A FETCH with nothing in it says that the follower still waits for what it has asked. The payload of a DELIVER is frames
as they lie on the leader's disk, part by part in the order of its replies.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from penstock.cluster.core.messages import Fetch, Reply
from penstock.decoding import msgpack_decoder
from penstock.errors import ProtocolError

T = TypeVar("T")


class Replicate(msgspec.Struct, frozen=True, array_like=True):
    node: str
    disk: str
    incarnation: str


class Fetches(msgspec.Struct, frozen=True, array_like=True):
    """By the id of the partition."""

    fetches: list[tuple[str, Fetch]]


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """Frames of the log of that id: the next `size` bytes of the payload."""

    log: bytes
    size: int
    # Below it, single messages may be missing from that log.
    whole_from: int = 0


class Answer(msgspec.Struct, frozen=True, array_like=True):
    partition: str
    reply: Reply
    sent: tuple[Sent | None, Sent | None]


class Answers(msgspec.Struct, frozen=True, array_like=True):
    answers: list[Answer]


_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def decoded(header: bytes, kind: type[T]) -> T:
    """ProtocolError if it is none."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgpack_decoder(kind)
    try:
        word: T = decoder.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"not a {kind.__name__}: {error}") from error
    return word
