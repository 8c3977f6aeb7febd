"""A frame: one batch of messages as it travels from the client over the wire to the disk and back.

    offset size  field             little-endian
    ── stamped by the log at append ───────────────────────────────────────────────────────────────
       0    3    magic "PNS"
       3    1    version 1
       4    4    head CRC-32C      of bytes 8–87, started from the CRC-32C of the log's id
       8    8    base offset       offset of the first message
      16    8    append time       µs; never runs backwards within a log
      24    4    leader epoch
      28    4    synced            bytes of this segment known to be on disk when this frame was written
    ── made by the producer, never rewritten ──────────────────────────────────────────────────────
      32    4    body CRC-32C      of bytes 36 to the end
      36    4    body length       as stored, without padding
      40    4    raw length        of the body when decompressed
      44    4    count             messages in the body; 0 in a control frame that stands for offsets nobody has
      48    4    span              offsets covered; more than count once compaction removed messages
      52    2    flags             see below
      54    1    codec             0 none, 1 lz4 (frame format), 2 zstd
      55    1    zero
      56    8    minimum timestamp µs
      64    8    maximum timestamp µs
      72    8    producer id       0 = none
      80    4    sequence          of the first message, within (producer id, partition)
      84    2    producer epoch
      86    2    zero
      88         body (`body.py` draws it), then zeros to a multiple of 8

The body CRC covers what nobody rewrites, so a leader stamps a frame without touching the payload; the head CRC
covers the whole header, so a reader can walk a segment without touching the bodies. Not protected: nothing. The
magic and the version are compared with constants, the two checksums with what they cover. The head CRC starts from
the log's id, so that a frame of another log, published as a value, is not taken for one of this log's own.

Flags tell a broker that a batch has nothing special, so a plain batch costs nothing extra. A frame whose flags
disagree with its columns is refused when it comes in.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from penstock.batch import Batch
from penstock.body import (
    Bytes,
    check_limits,
    decode,
    decode_message,
    encode,
    encode_message,
    encode_plain,
    is_plain_message,
)
from penstock.clock import TIME_MAX_US
from penstock.codec import CODECS, NONE, compress, decompress, decompress_checked
from penstock.errors import (
    BatchTooLarge,
    ChecksumMismatch,
    DecompressionRefused,
    FrameTooLarge,
    FrameTruncated,
    InvalidColumn,
    InvalidFrame,
    InvalidInput,
    InvalidMessage,
    UnknownMagic,
    UnsupportedVersion,
)
from penstock.limits import DEFAULT_LIMITS, MIB, Limits
from penstock.message import Message

MAGIC = b"PNS\x01"
HEADER_BYTES = 88
_STAMP_END = 36

HAS_DELAYS, HAS_TTL, HAS_HIGH, HAS_LOW = 1, 2, 4, 8
CONTROL = 16  # not messages: written by the broker for itself
SPARSE = 32  # has an offset_delta column
MERGED = 64  # has an append_time column
_FLAGS_FROM_OUTSIDE = HAS_DELAYS | HAS_TTL | HAS_HIGH | HAS_LOW
_FLAGS_OF_A_LOG = _FLAGS_FROM_OUTSIDE | CONTROL | SPARSE | MERGED
# Offsets are far from the end of their 63 bits, so that sums of them are numbers of 63 bits too.
OFFSET_MAX = 1 << 62
SPAN_MAX = (1 << 32) - 1


_STAMP = struct.Struct("<qqIII")
_HEAD = struct.Struct("<4sI")
_STABLE = struct.Struct("<IIIIHBxqqqiHxx")
_WALK = struct.Struct("<4sIqqIIIIIII")
_WHOLE = struct.Struct("<4sIqqIIIIIIIHBBqqqiHH")
_START = struct.Struct("<4s32xI")
_U32 = struct.Struct("<I")
# Where the codec stands in a header.
_CODEC_AT = 54
# Of a compressed body: on an event loop, that takes a millisecond. A thread costs a tenth of it.
_INLINE_BYTES_MAX = 4 * MIB
_PADDING = [b"\0" * n for n in range(8)]
_CODECS = frozenset(CODECS.values())
assert _HEAD.size + _STAMP.size == _STAMP_END
assert _STAMP_END + _STABLE.size == _WHOLE.size == HEADER_BYTES


class Producer(NamedTuple):
    """Who made a frame, and the sequence number of its first message: what makes a retry recognisable."""

    id: int
    epoch: int
    sequence: int


NO_PRODUCER = Producer(0, 0, 0)


def bound_id(producer_id: int, principal: str) -> int:
    """The id under which a broker with keys stores the frames of a producer: another principal that uses the same id
    gets another one."""
    digest = blake2b(producer_id.to_bytes(8, "little") + principal.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 or 1


class FrameInfo(NamedTuple):
    """What one look at a header tells, without the body."""

    base_offset: int
    next_offset: int
    append_time: int
    leader_epoch: int
    synced: int
    messages: int
    size: int


class FrameFacts(NamedTuple):
    """Every field of a stamped header that is not a checksum or a length."""

    base_offset: int
    append_time: int
    leader_epoch: int
    messages: int
    span: int
    flags: int
    codec: int
    timestamps: tuple[int, int]
    producer: Producer


class Frame:
    """One frame over a read-only buffer. Fields are read from the bytes when asked for."""

    __slots__ = ("data",)
    # The principal that publishes it, if the broker has keys: see `identified`. Not stored.
    owner = ""

    def __init__(self, data: memoryview) -> None:
        """Trusts `data`: for frames of our own log. For bytes from outside there is `accept`."""
        self.data = data

    # --- making frames -----------------------------------------------------------------------------------

    @classmethod
    def of(
        cls,
        batch: Batch,
        *,
        codec: int = NONE,
        producer: Producer = NO_PRODUCER,
        limits: Limits = DEFAULT_LIMITS,
        is_control: bool = False,
    ) -> Frame:
        batch = batch.without_log_columns()
        check_limits(batch, limits)
        _check_producer(producer)
        if codec not in CODECS.values():
            raise InvalidInput(f"codec must be one of {sorted(CODECS.values())}, not {codec!r}")
        flags = flags_of(batch) | (CONTROL if is_control else 0)
        frame = _build(encode(batch), batch.count, batch.count, flags, batch.timestamp_range(), codec, producer)
        if len(frame.data) > limits.frame_bytes_max or frame.raw_length > limits.decompressed_bytes_max:
            raise FrameTooLarge(
                f"a frame of {len(frame.data)} bytes, {frame.raw_length} decompressed; the limits are "
                f"{limits.frame_bytes_max} and {limits.decompressed_bytes_max}"
            )
        return frame

    @classmethod
    def of_message(
        cls, message: Message, *, now_us: int, producer: Producer = NO_PRODUCER, limits: Limits = DEFAULT_LIMITS
    ) -> Frame:
        """A frame of one message, without going through columns."""
        check_message(message, limits)
        _check_producer(producer)
        timestamp = message.timestamp or now_us
        if not isinstance(timestamp, int) or not 0 <= timestamp <= TIME_MAX_US:
            raise InvalidMessage(f"now_us must be microseconds within 1970–9999, not {now_us!r}")
        flags = (
            (HAS_DELAYS if message.deliver_at else 0)
            | (HAS_TTL if message.expires_at else 0)
            | (0, HAS_HIGH, HAS_LOW)[message.priority]
        )
        return _build(encode_message(message), 1, 1, flags, (timestamp, timestamp), NONE, producer)

    @classmethod
    def of_messages(cls, messages: Sequence[Message], *, now_us: int, limits: Limits = DEFAULT_LIMITS) -> Frame:
        """A frame of messages that were checked one by one (`check_message`)."""
        timestamps = [message.timestamp or now_us for message in messages]
        body = _plain_body(messages, timestamps)
        if body is None:
            return cls.of(Batch.from_messages(messages, now_us, checked=True), limits=limits)
        span = (min(timestamps), max(timestamps))
        frame = _build(body, len(messages), len(messages), 0, span, NONE, NO_PRODUCER)
        if len(frame.data) > limits.frame_bytes_max or len(messages) > limits.batch_messages_max:
            raise FrameTooLarge(f"a frame of {len(messages)} messages and {len(frame.data)} bytes")
        return frame

    @classmethod
    def accept(cls, data: Bytes, limits: Limits = DEFAULT_LIMITS) -> Frame:
        """A frame from outside, checked to the last column; raises InvalidFrame or BatchTooLarge."""
        view = memoryview(data).toreadonly()
        size = frame_size(view, limits.frame_bytes_max)
        if size != len(view):
            raise FrameTruncated(f"the header says {size} bytes, {len(view)} came", header=size, got=len(view))
        frame = cls(view)
        frame.check_body()
        body_length, raw_length, count, _, flags, codec, first, last, *_ = _checked_header(frame, limits)
        body = view[HEADER_BYTES : HEADER_BYTES + body_length]
        is_simple = count == 1 and codec == NONE and not flags and 0 <= first == last <= TIME_MAX_US
        if is_simple and is_plain_message(body, limits):
            return frame
        if codec != NONE:
            body = decompress_checked(codec, body, raw_length)
        batch = frame._decode(body, limits)
        if flags_of(batch) != flags:
            raise InvalidColumn(f"flags are {flags:#x}, the columns say {flags_of(batch):#x}")
        return frame

    # --- reading frames ----------------------------------------------------------------------------------

    def batch(self, *, verify: bool = True) -> Batch:
        """The messages, as views on this frame (or on a decompressed copy)."""
        if verify:
            self.check_body()
        body = self.data[HEADER_BYTES : HEADER_BYTES + self.body_length]
        if self.codec != NONE:
            body = decompress(self.codec, body, self.raw_length)
        return self._decode(body, None)

    def _decode(self, body: memoryview, limits: Limits | None) -> Batch:
        _, _, count, _, _, _, min_timestamp, max_timestamp, _, _, _ = self._stable()
        return decode(body, count=count, timestamps=(min_timestamp, max_timestamp), limits=limits)

    @property
    def body_crc(self) -> int:
        """Over all that its producer wrote: the same for a frame that is sent again."""
        return int(_U32.unpack_from(self.data, 32)[0])

    def check_body(self) -> None:
        if crc32c(self.data[_STAMP_END:]) != self.body_crc:
            raise ChecksumMismatch("the body does not match its checksum", base_offset=self.base_offset)

    def is_stamped_with(self, seed: int) -> bool:
        """Return whether the head was stamped by the log whose `head_seed` this is: log ids are random."""
        return bool(crc32c(self.data[8:HEADER_BYTES], seed) == _U32.unpack_from(self.data, 4)[0])

    def offsets(self, batch: Batch) -> npt.NDArray[np.int64]:
        """The offset of each message of `batch`, which must be this frame's."""
        return self.base_offset + batch.offset_deltas.astype(np.int64)

    def append_times(self, batch: Batch) -> npt.NDArray[np.int64]:
        if batch.append_time is None:
            return np.full(batch.count, self.append_time, np.int64)
        return batch.append_time

    def facts(self) -> FrameFacts:
        """All fields at once, for code that needs many of many frames."""
        base_offset, append_time, leader_epoch, _, _ = _STAMP.unpack_from(self.data, 8)
        _, _, count, span, flags, codec, first, last, producer_id, sequence, epoch = _STABLE.unpack_from(
            self.data, _STAMP_END
        )
        producer = Producer(producer_id, epoch, sequence)
        return FrameFacts(base_offset, append_time, leader_epoch, count, span, flags, codec, (first, last), producer)

    def message(self) -> tuple[bytes | None, bytes | None] | None:
        """Key and value of a plain frame of one message, trusted and not compressed; None if this is not one."""
        return decode_message(self.data[HEADER_BYTES:])

    # --- fields ------------------------------------------------------------------------------------------

    def _stable(self) -> tuple[Any, ...]:
        return _STABLE.unpack_from(self.data, _STAMP_END)

    @property
    def base_offset(self) -> int:
        return int(_STAMP.unpack_from(self.data, 8)[0])

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.span

    @property
    def append_time(self) -> int:
        return int(_STAMP.unpack_from(self.data, 8)[1])

    @property
    def leader_epoch(self) -> int:
        return int(_STAMP.unpack_from(self.data, 8)[2])

    @property
    def body_length(self) -> int:
        return int(self._stable()[0])

    @property
    def raw_length(self) -> int:
        return int(self._stable()[1])

    @property
    def count(self) -> int:
        return int(self._stable()[2])

    @property
    def span(self) -> int:
        return int(self._stable()[3])

    @property
    def flags(self) -> int:
        return int(self._stable()[4])

    @property
    def codec(self) -> int:
        return int(self._stable()[5])

    @property
    def timestamps(self) -> tuple[int, int]:
        fields = self._stable()
        return fields[6], fields[7]

    @property
    def producer(self) -> Producer:
        fields = self._stable()
        return Producer(id=fields[8], sequence=fields[9], epoch=fields[10])


class FrameRun:
    """Whole frames, one after the other, as they lie on disk. Iterates as frames; costs nothing until then."""

    __slots__ = ("bounds", "data", "next_offset")

    def __init__(self, data: memoryview, bounds: Sequence[int], next_offset: int) -> None:
        """Frame i is data[bounds[i]:bounds[i+1]]; `next_offset` is where to read on."""
        self.data = data
        self.bounds = bounds
        self.next_offset = next_offset

    def __len__(self) -> int:
        return max(len(self.bounds) - 1, 0)

    def __iter__(self) -> Iterator[Frame]:
        for start, end in zip(self.bounds, self.bounds[1:], strict=False):
            yield Frame(self.data[start:end])


def flags_of(batch: Batch) -> int:
    flags = 0
    if batch.deliver_at is not None:
        flags |= HAS_DELAYS
    if batch.expires_at is not None:
        flags |= HAS_TTL
    if batch.priority is not None:
        window = batch.priority[batch.start : batch.start + batch.count]
        flags |= (HAS_HIGH if (window > 0).any() else 0) | (HAS_LOW if (window < 0).any() else 0)
    if batch.offset_delta is not None:
        flags |= SPARSE
    if batch.append_time is not None:
        flags |= MERGED
    return flags


def stamp(frame: Frame, base_offset: int, append_time: int, leader_epoch: int, synced: int, seed: int) -> bytes:
    """The first 36 bytes of `frame` as it goes to disk: those a log decides. The frame itself is not touched."""
    (body_crc,) = _U32.unpack_from(frame.data, 32)
    stamped = _STAMP.pack(base_offset, append_time, leader_epoch, synced, body_crc)
    head_crc = crc32c(frame.data[_STAMP_END:HEADER_BYTES], crc32c(stamped, seed))
    return _HEAD.pack(MAGIC, head_crc) + stamped


def check_appendable(frame: Frame) -> int:
    """The number of messages of a frame that a log may append as it is; InvalidFrame if it may not.

    A frame taken from another log may have gaps or times of its own; as a producer's frame it would be nonsense.
    """
    if not isinstance(frame, Frame) or len(frame.data) < HEADER_BYTES:
        raise InvalidFrame("not a frame")
    _, _, count, span, flags, *_ = _STABLE.unpack_from(frame.data, _STAMP_END)
    if span != count or flags & (SPARSE | MERGED):
        raise InvalidFrame("a frame that a log has rewritten can't be appended; make one of its messages")
    return int(count)


def payload(frame: Frame) -> memoryview:
    """What follows the stamp."""
    return frame.data[_STAMP_END:]


def rewrite(frame: Frame, batch: Batch, span: int, append_time: int, seed: int) -> Frame:
    """`frame` with other messages inside, covering `span` offsets: for sealed segments only."""
    flags = flags_of(batch) | frame.flags & CONTROL
    built = _build(encode(batch), batch.count, span, flags, batch.timestamp_range(), frame.codec, frame.producer)
    head = stamp(built, frame.base_offset, append_time, frame.leader_epoch, 0, seed)
    return Frame(memoryview(head + payload(built)))


class _OwnedFrame(Frame):
    __slots__ = ("owner",)


def identified(frame: Frame, producer: Producer, owner: str = "") -> Frame:
    """The same by that producer of that principal: for one that is not stored yet."""
    _check_producer(producer)
    data = bytearray(frame.data)
    fields = frame._stable()[:-3]
    _STABLE.pack_into(data, _STAMP_END, *fields, producer.id, producer.sequence, producer.epoch)
    view = memoryview(data)
    _U32.pack_into(data, 32, crc32c(view[_STAMP_END:]))
    found = _OwnedFrame(view.toreadonly())
    found.owner = owner
    return found


def hole(span: int, now_us: int) -> Frame:
    """No messages, over `span` offsets that shall not be given out: for a log's own use."""
    return _build(encode(Batch(0, timestamp=now_us)), 0, span, CONTROL, (now_us, now_us), NONE, NO_PRODUCER)


def tail(frame: Frame, offset: int) -> Frame:
    """What `frame` says of the offsets from `offset` on, not stamped yet; a hole if it has no message there."""
    batch = frame.batch(verify=False)
    facts = frame.facts()
    behind = offset - facts.base_offset
    assert 0 < behind < facts.span
    row = int(batch.offset_deltas.searchsorted(behind)) if batch.count else 0
    if row == batch.count:
        return hole(facts.span - behind, facts.append_time)
    part = batch.slice(row, batch.count)
    if part.offset_delta is not None:
        # What lies before the part wraps around, and is not looked at.
        part.offset_delta = part.offset_delta - np.uint32(behind)
    producer = facts.producer
    if producer.id:
        producer = producer._replace(sequence=producer.sequence + behind)
        _check_producer(producer)
    flags = flags_of(part) | facts.flags & CONTROL
    return _build(encode(part), part.count, facts.span - behind, flags, part.timestamp_range(), facts.codec, producer)


def cut(frame: Frame, batch: Batch, start: int, stop: int, seed: int = 0) -> Frame:
    """Rows `start` to `stop` of a frame without gaps, which are then all there is in it. Not for a log."""
    part = batch.slice(start, stop)
    built = _build(encode(part), part.count, part.count, flags_of(part), part.timestamp_range(), NONE, frame.producer)
    head = stamp(built, frame.base_offset + start, frame.append_time, frame.leader_epoch, 0, seed)
    return Frame(memoryview(head + payload(built)))


def narrow(frame: Frame, batch: Batch, columns: Collection[str]) -> Frame:
    """`frame` with these columns alone, not compressed; what is not needed of it is not copied. Not for a log."""
    part = batch.only(columns)
    built = _build(encode(part), part.count, frame.span, flags_of(part), frame.timestamps, NONE, frame.producer)
    head = stamp(built, frame.base_offset, frame.append_time, frame.leader_epoch, 0, 0)
    return Frame(memoryview(head + payload(built)))


def frame_size(data: memoryview, bytes_max: int) -> int:
    """How long the frame that starts here says it is: to be asked before its body is read or allocated for."""
    if len(data) < HEADER_BYTES:
        raise FrameTruncated(f"{len(data)} bytes are less than a header", got=len(data))
    magic, body_length = _START.unpack_from(data)
    if magic != MAGIC:
        _check_magic(magic)
    size: int = HEADER_BYTES + body_length + (-body_length % 8)
    if size > bytes_max:
        raise FrameTooLarge(f"a frame of {size} bytes; the limit is {bytes_max}", size=size, limit=bytes_max)
    return size


def takes_long(data: Bytes) -> bool:
    """Whether to decompress this frame, which may be from outside, takes longer than an event loop should be held."""
    if len(data) < HEADER_BYTES or data[_CODEC_AT] == NONE:
        return False
    raw_length: int = _STABLE.unpack_from(data, _STAMP_END)[1]
    return raw_length > _INLINE_BYTES_MAX


def head_seed(log_id: bytes) -> int:
    """What the head CRCs of a log start from."""
    return crc32c(log_id)


def look(data: memoryview, at: int, seed: int) -> FrameInfo:
    """Reads the header at `at` of a segment's bytes and checks it; the body may lie beyond the buffer."""
    if len(data) - at < HEADER_BYTES:
        raise FrameTruncated(f"{len(data) - at} bytes are less than a header")
    magic, head_crc, base_offset, append_time, epoch, synced, _, body_length, _, count, span = _WALK.unpack_from(
        data, at
    )
    if magic != MAGIC:
        _check_magic(magic)
    if crc32c(data[at + 8 : at + HEADER_BYTES], seed) != head_crc:
        raise ChecksumMismatch("the header does not match its checksum")
    size = HEADER_BYTES + body_length + (-body_length % 8)
    return FrameInfo(base_offset, base_offset + span, append_time, epoch, synced, count, size)


def look_whole(data: memoryview, at: int, seed: int) -> FrameInfo:
    """Reads the frame at `at` of what another log has stored, come over a network: header and body are checked.

    Not the columns: they were when the frame first came in, and the checksums say that they are the same still.
    """
    if len(data) - at < HEADER_BYTES:
        raise FrameTruncated(f"{len(data) - at} bytes are less than a header", got=len(data) - at)
    (
        magic,
        head_crc,
        base_offset,
        append_time,
        epoch,
        synced,
        body_crc,
        body_length,
        raw_length,
        count,
        span,
        flags,
        codec,
        zero,
        first,
        last,
        producer_id,
        sequence,
        _,
        zeros,
    ) = _WHOLE.unpack_from(data, at)
    if magic != MAGIC:
        _check_magic(magic)
    if crc32c(data[at + 8 : at + HEADER_BYTES], seed) != head_crc:
        raise ChecksumMismatch("the header does not match its checksum, or is not of the log that it should be of")
    size = HEADER_BYTES + body_length + (-body_length % 8)
    if at + size > len(data):
        raise FrameTruncated(f"the header says {size} bytes, {len(data) - at} came", header=size, got=len(data) - at)
    if crc32c(data[at + _STAMP_END : at + size]) != body_crc:
        raise ChecksumMismatch("the body does not match its checksum", base_offset=base_offset)
    if not 0 <= base_offset <= OFFSET_MAX - span or not 0 <= append_time <= TIME_MAX_US:
        raise InvalidFrame(f"offset {base_offset} or append time {append_time} is out of its range")
    if span < 1 or count > span or (not count and not flags & CONTROL):
        raise InvalidFrame(f"{count} messages over {span} offsets")
    if flags & ~_FLAGS_OF_A_LOG or zero or zeros:
        raise InvalidFrame(f"unknown flags {flags:#x}, or reserved bytes that are not zero")
    if count and count != span and not flags & SPARSE:
        raise InvalidFrame(f"{count} messages over {span} offsets, without offsets of their own")
    if not 0 <= first <= last or producer_id < 0 or sequence < 0:
        raise InvalidFrame("timestamps, producer id or sequence are out of their range")
    if codec not in CODECS.values():
        raise DecompressionRefused(f"codec {codec} is unknown")
    if raw_length >= 1 << 31 or (codec == NONE and raw_length != body_length):
        raise InvalidFrame(f"raw length {raw_length} of a body of {body_length} bytes")
    return FrameInfo(base_offset, base_offset + span, append_time, epoch, synced, count, size)


def _check_magic(magic: bytes) -> None:
    if magic[:3] != MAGIC[:3]:
        raise UnknownMagic(f"not a frame: it starts with {magic!r}")
    if magic != MAGIC:
        raise UnsupportedVersion(f"frame version {magic[3]}; this build reads version {MAGIC[3]}", version=magic[3])


def _build(
    parts: Sequence[Any],
    count: int,
    span: int,
    flags: int,
    timestamps: tuple[int, int],
    codec: int,
    producer: Producer,
) -> Frame:
    data = bytearray().join((bytes(HEADER_BYTES), *parts))
    raw_length = len(data) - HEADER_BYTES
    body_length = raw_length
    if codec != NONE:
        compressed = compress(codec, memoryview(data)[HEADER_BYTES:])
        if compressed is None:
            codec = NONE
        else:
            body_length = len(compressed)
            data = bytearray().join((bytes(HEADER_BYTES), compressed, _PADDING[-body_length % 8]))
    _STABLE.pack_into(
        data,
        _STAMP_END,
        body_length,
        raw_length,
        count,
        span,
        flags,
        codec,
        *timestamps,
        producer.id,
        producer.sequence,
        producer.epoch,
    )
    view = memoryview(data)
    _U32.pack_into(data, 32, crc32c(view[_STAMP_END:]))
    data[:4] = MAGIC
    return Frame(view.toreadonly())


def _plain_body(messages: Sequence[Message], timestamps: Sequence[int]) -> list[Bytes] | None:
    """Without going through columns, ten times as fast for a few; None if these messages need more than that."""
    values, keys = [], []
    for message in messages:
        is_plain = not (message.headers or message.deliver_at or message.expires_at or message.priority)
        if not is_plain or message.value is None:
            return None
        values.append(message.value)
        if message.key is not None:
            keys.append(message.key)
    if keys and len(keys) < len(values):
        return None
    return encode_plain(values, keys or None, timestamps)


def _check_producer(producer: Producer) -> None:
    in_range = 0 <= producer.id < 1 << 63 and 0 <= producer.epoch < 1 << 16 and 0 <= producer.sequence < 1 << 31
    if producer is not NO_PRODUCER and not in_range:
        raise InvalidInput(f"{producer} is out of its range")


def check_message(message: Message, limits: Limits = DEFAULT_LIMITS) -> int:
    """The size of a message; raises InvalidMessage or BatchTooLarge if no frame could hold it."""
    message.check()
    if message.headers:
        if len(message.headers) > limits.headers_max:
            raise BatchTooLarge(f"a message with more than {limits.headers_max} headers (headers_max)")
        if message.header_size > limits.header_bytes_max:
            raise BatchTooLarge(
                f"headers of {message.header_size} bytes; header_bytes_max is {limits.header_bytes_max}"
            )
    size = message.size
    if size > limits.message_bytes_max:
        raise BatchTooLarge(f"a message of {size} bytes; message_bytes_max is {limits.message_bytes_max}", size=size)
    return size


def _checked_header(frame: Frame, limits: Limits) -> tuple[Any, ...]:
    fields = _STABLE.unpack_from(frame.data, _STAMP_END)
    body_length, raw_length, count, span, flags, codec, _, _, producer_id, sequence, _ = fields
    if count == 0 or span != count:
        raise InvalidFrame(f"{count} messages over {span} offsets")
    if flags & ~_FLAGS_FROM_OUTSIDE:
        raise InvalidFrame(f"flags that are not a producer's: {flags & ~_FLAGS_FROM_OUTSIDE:#x}")
    if frame.data[55] or frame.data[86] or frame.data[87]:
        raise InvalidFrame("reserved bytes are not zero")
    if producer_id < 0 or sequence < 0:
        raise InvalidFrame(f"producer id {producer_id}, sequence {sequence}: neither may be negative")
    if codec not in _CODECS:
        raise DecompressionRefused(f"codec {codec} is unknown")
    if codec == NONE and raw_length != body_length:
        raise InvalidFrame(f"raw length {raw_length} of an uncompressed body of {body_length} bytes")
    if raw_length > limits.decompressed_bytes_max:
        raise DecompressionRefused(f"{raw_length} bytes when decompressed", limit=limits.decompressed_bytes_max)
    if raw_length > limits.decompression_ratio_max * max(body_length, 1):
        raise DecompressionRefused(
            f"{body_length} bytes claim to decompress to {raw_length}", limit=limits.decompression_ratio_max
        )
    return fields
