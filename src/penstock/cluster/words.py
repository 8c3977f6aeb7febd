"""What nodes say to each other about partitions, within packets of the native protocol. MessagePack.

    follower ── REPLICATE ─►                         who it is; opens a stream
    follower ── FETCH … ──►  ◄── DELIVER … ── leader many partitions at a time, whenever there is something to say

A FETCH without fetches is a heartbeat: the follower still follows wherever it has fetched on this stream and has not
withdrawn since. The leader answers a heartbeat with a DELIVER without answers. The payload of a DELIVER is frames as
they lie on the leader's disk, part by part in the order of its replies.

Every DELIVER carries the leader's clock, and every FETCH returns the last value that arrived. So the leader knows a
time at which the follower had not left yet, however long either packet was on its way. Nodes of a build without this
send and return nothing, which confirms nothing.

A FETCH may also ask which messages are left in a segment that the leader has rewritten (`CleanedQuery`), and a DELIVER
answer that (`CleanedSegment`). Builds that do not know the question pass over it.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from penstock.cluster.core.messages import Fetch, Reply, Withdraw
from penstock.decoding import msgpack_decoder
from penstock.errors import ProtocolError

T = TypeVar("T")


class Replicate(msgspec.Struct, frozen=True, array_like=True):
    node: str
    disk: str
    incarnation: str


# Base offset, end and generation.
SegmentId = tuple[int, int, int]


class CleanedQuery(msgspec.Struct, frozen=True, array_like=True):
    """Which messages are left in a sealed segment of the leader's that ends at or before `until`, and is none of those
    that were `applied`? By a follower that has all of the partition's messages up to there from that epoch's leader."""

    partition: str
    epoch: int
    until: int
    applied: list[SegmentId]


class CleanedSegment(msgspec.Struct, frozen=True, array_like=True):
    """The messages left in `segment`. It is None if no segment qualifies, or this node does not lead at that epoch."""

    partition: str
    epoch: int
    segment: SegmentId | None = None
    # What is missing may be replaced by anything below this offset.
    committed: int = 0
    # The leader's; see `Sent`.
    whole_from: int = 0
    # A bitmap of their offsets.
    kept: bytes = b""


class Fetches(msgspec.Struct, frozen=True, array_like=True):
    """By the id of the partition. Withdrawals come first: a partition may be in both lists."""

    fetches: list[tuple[str, Fetch]]
    withdrawn: list[tuple[str, Withdraw]] = []
    # `sent_us` of the last DELIVER on this stream; 0 before the first.
    echo_us: int = 0
    queries: list[CleanedQuery] = []


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
    # By the leader's boot time; it means nothing to the follower.
    sent_us: int = 0
    cleaned: list[CleanedSegment] = []


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
