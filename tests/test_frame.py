"""A frame is what it was made of, or it is refused with an error that says why; never anything in between."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import frame as frame_module
from penstock.batch import Batch
from penstock.body import encode
from penstock.codec import CODECS, LZ4, NONE, ZSTD
from penstock.errors import (
    BatchTooLarge,
    ChecksumMismatch,
    CountMismatch,
    DecompressionRefused,
    FrameTooLarge,
    FrameTruncated,
    InvalidColumn,
    InvalidFrame,
    InvalidInput,
    PenstockError,
    UnknownColumn,
    UnknownMagic,
    UnsupportedVersion,
)
from penstock.frame import (
    CONTROL,
    HAS_DELAYS,
    HAS_HIGH,
    HAS_LOW,
    HAS_TTL,
    HEADER_BYTES,
    Frame,
    Producer,
    frame_size,
    look,
    payload,
    stamp,
)
from penstock.limits import Limits
from penstock.message import Message
from test_batch import messages, rows

codecs = st.sampled_from(list(CODECS.values()))
TEXTS = [b"all work and no play %d" % (i % 3) for i in range(200)]


def resealed(data: bytes | bytearray | memoryview) -> bytes:
    """The same bytes with a body checksum that fits, as a hostile client would send them."""
    frame = bytearray(data)
    frame[32:36] = struct.pack("<I", crc32c(bytes(frame[36:])))
    return bytes(frame)


def changed(frame: Frame, at: int, data: bytes) -> bytes:
    copy = bytearray(frame.data)
    copy[at : at + len(data)] = data
    return resealed(copy)


def with_body(frame: Frame, body: bytes) -> bytes:
    """The same header, as far as it can stay, around another body."""
    header = bytearray(frame.data[:HEADER_BYTES])
    header[36:44] = struct.pack("<II", len(body), len(body))
    return resealed(bytes(header) + body + b"\0" * (-len(body) % 8))


# --- what goes in comes out ---------------------------------------------------------------------------------


@given(rows, codecs, st.integers(0, 1 << 62), st.integers(0, 65535), st.integers(0, (1 << 31) - 1))
def test_a_frame_from_outside_holds_what_it_was_made_of(
    given_rows: list[Message], codec: int, producer_id: int, epoch: int, sequence: int
) -> None:
    producer = Producer(producer_id, epoch, sequence)
    made = Frame.of(Batch.from_messages(given_rows, now_us=1), codec=codec, producer=producer)
    frame = Frame.accept(bytes(made.data))
    assert list(frame.batch().messages()) == given_rows
    assert frame.producer == producer
    assert frame.count == frame.span == len(given_rows)
    assert frame.timestamps == (min(m.timestamp for m in given_rows), max(m.timestamp for m in given_rows))
    assert len(frame.data) % 8 == 0


@given(messages)
def test_a_frame_of_one_message_is_the_same_either_way(message: Message) -> None:
    assert bytes(Frame.of_message(message, now_us=1).data) == bytes(Frame.of(Batch.from_messages([message], 1)).data)


plain = st.builds(Message, value=st.none() | st.binary(max_size=20), key=st.none() | st.binary(max_size=10))


@given(st.lists(messages, min_size=1, max_size=10) | st.lists(plain, min_size=1, max_size=10))
def test_a_frame_of_messages_is_the_same_either_way(given_rows: list[Message]) -> None:
    expected = Frame.of(Batch.from_messages(given_rows, 7))
    assert bytes(Frame.of_messages(given_rows, now_us=7).data) == bytes(expected.data)


@given(rows)
def test_flags_tell_what_is_special_about_a_batch(given_rows: list[Message]) -> None:
    flags = Frame.of(Batch.from_messages(given_rows, now_us=1)).flags
    assert bool(flags & HAS_DELAYS) == any(m.deliver_at for m in given_rows)
    assert bool(flags & HAS_TTL) == any(m.expires_at for m in given_rows)
    assert bool(flags & HAS_HIGH) == any(m.priority > 0 for m in given_rows)
    assert bool(flags & HAS_LOW) == any(m.priority < 0 for m in given_rows)


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_compression_shrinks_what_repeats(codec: int) -> None:
    batch = Batch.from_columns(TEXTS, now_us=1)
    frame = Frame.of(batch, codec=codec)
    assert frame.codec == codec
    assert len(frame.data) < len(Frame.of(batch).data) / 4
    assert frame.batch().values() == TEXTS


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_what_does_not_shrink_is_stored_as_it_is(codec: int) -> None:
    assert Frame.of(Batch.from_columns([Random(1).randbytes(100)], now_us=1), codec=codec).codec == NONE


def test_stamping_leaves_the_producers_bytes_alone() -> None:
    frame = Frame.of(Batch.from_columns([b"a"], now_us=1))
    before = bytes(frame.data)
    stamped = memoryview(stamp(frame, 7, 8, 9, 10, seed=11) + payload(frame))
    assert bytes(frame.data) == before
    info = look(stamped, 0, seed=11)
    with pytest.raises(ChecksumMismatch):
        look(stamped, 0, seed=12)
    assert (info.base_offset, info.append_time, info.leader_epoch, info.synced) == (7, 8, 9, 10)
    assert (info.next_offset, info.messages, info.size) == (8, 1, len(stamped))
    assert Frame(stamped).batch().values() == [b"a"]


@pytest.mark.parametrize("codec", CODECS.values())
def test_a_frame_that_gets_an_identity_is_the_one_that_its_producer_would_have_made(codec: int) -> None:
    batch = Batch.from_messages([Message(b"x" * 500, key=b"k", priority=1), Message(None)], 1)
    producer = Producer(1 << 62, 3, 9)
    plain = Frame.of(batch, codec=codec)
    before = bytes(plain.data)
    named = frame_module.identified(plain, producer)
    assert bytes(named.data) == bytes(Frame.of(batch, codec=codec, producer=producer).data)
    assert Frame.accept(bytes(named.data)).producer == producer
    assert bytes(plain.data) == before
    with pytest.raises(InvalidInput):
        frame_module.identified(plain, Producer(1 << 63, 0, 0))


def test_a_batch_of_one_costs_few_bytes_around_its_value() -> None:
    frame = Frame.of_message(Message(b"x" * 104), now_us=1)
    assert len(frame.data) - HEADER_BYTES - 104 == 16


def test_views_on_a_frame_do_not_copy_it() -> None:
    frame = Frame.of(Batch.from_columns([b"x" * 1000] * 10, now_us=1))
    value = frame.batch().value
    assert value is not None
    start = np.frombuffer(frame.data, np.uint8).ctypes.data
    assert start < np.frombuffer(value.data, np.uint8).ctypes.data < start + len(frame.data)


# --- every way to be wrong has its own error ----------------------------------------------------------------


def good() -> Frame:
    return Frame.of(Batch.from_columns([b"one", b"two", None], keys=[b"k", None, b"kk"], now_us=1))


@pytest.mark.parametrize("length", [0, 1, 87])
def test_bytes_shorter_than_a_header_are_refused(length: int) -> None:
    with pytest.raises(FrameTruncated):
        Frame.accept(good().data[:length])


@pytest.mark.parametrize("cut", [1, 8, 30])
def test_a_frame_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(FrameTruncated):
        Frame.accept(good().data[:-cut])


def test_a_frame_followed_by_more_bytes_is_refused() -> None:
    with pytest.raises(FrameTruncated):
        Frame.accept(bytes(good().data) + b"\0" * 8)


def test_an_unknown_magic_is_refused() -> None:
    with pytest.raises(UnknownMagic):
        Frame.accept(b"GET / HTTP/1.1\r\n" * 10)


def test_a_later_version_is_refused_by_its_number() -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        Frame.accept(changed(good(), 3, b"\x02"))
    assert caught.value.details["version"] == 2


def test_a_length_beyond_the_limit_is_refused_from_the_header_alone() -> None:
    header = changed(good(), 36, struct.pack("<I", 1 << 31))[:HEADER_BYTES]
    with pytest.raises(FrameTooLarge):
        frame_size(memoryview(header), 8 << 20)


@pytest.mark.parametrize("at", [32, 40, 60, 88, 90, 120])
def test_a_flipped_bit_is_noticed(at: int) -> None:
    data = bytearray(good().data)
    data[at] ^= 4
    with pytest.raises(ChecksumMismatch):
        Frame.accept(data)


def test_a_count_that_disagrees_with_the_batch_is_refused() -> None:
    with pytest.raises(CountMismatch):
        Frame.accept(changed(good(), 44, struct.pack("<II", 4, 4)))


def test_a_frame_without_messages_is_refused() -> None:
    with pytest.raises(InvalidFrame):
        Frame.accept(changed(good(), 44, struct.pack("<II", 0, 0)))


def test_offsets_that_leave_gaps_are_the_logs_own_business() -> None:
    with pytest.raises(InvalidFrame):
        Frame.accept(changed(good(), 48, struct.pack("<I", 9)))


@pytest.mark.parametrize("flag", [CONTROL, 32, 64, 128, 1 << 15])
def test_flags_that_are_not_a_producers_are_refused(flag: int) -> None:
    with pytest.raises(InvalidFrame):
        Frame.accept(changed(good(), 52, struct.pack("<H", flag)))


@pytest.mark.parametrize("flag", [HAS_DELAYS, HAS_TTL, HAS_HIGH, HAS_LOW])
def test_flags_that_disagree_with_the_columns_are_refused(flag: int) -> None:
    with pytest.raises(InvalidColumn):
        Frame.accept(changed(good(), 52, struct.pack("<H", flag)))
    message = Message(b"a", deliver_at=1, expires_at=1, priority=1)
    frame = Frame.of_message(message, now_us=1)
    with pytest.raises(InvalidColumn):
        Frame.accept(changed(frame, 52, struct.pack("<H", frame.flags ^ flag)))


@pytest.mark.parametrize("at", [55, 86, 87])
def test_reserved_bytes_must_be_zero(at: int) -> None:
    with pytest.raises(InvalidFrame):
        Frame.accept(changed(good(), at, b"\1"))


@pytest.mark.parametrize(("at", "field"), [(72, "<q"), (80, "<i")])
def test_a_negative_producer_is_refused(at: int, field: str) -> None:
    with pytest.raises(InvalidFrame):
        Frame.accept(changed(good(), at, struct.pack(field, -1)))


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(DecompressionRefused):
        Frame.accept(changed(good(), 54, b"\x03"))


def test_a_raw_length_that_disagrees_with_an_uncompressed_body_is_refused() -> None:
    with pytest.raises(InvalidFrame):
        Frame.accept(changed(good(), 40, struct.pack("<I", 8)))


def test_timestamps_that_disagree_with_the_header_are_refused() -> None:
    for at in (56, 64):
        with pytest.raises(InvalidColumn):
            Frame.accept(changed(good(), at, struct.pack("<q", 7)))


@pytest.mark.parametrize("bit", [9, 10, 11, 31])
def test_columns_that_are_not_a_producers_are_refused(bit: int) -> None:
    frame = good()
    (columns,) = struct.unpack_from("<I", frame.data, HEADER_BYTES + 4)
    with pytest.raises(UnknownColumn):
        Frame.accept(changed(frame, HEADER_BYTES + 4, struct.pack("<I", columns | 1 << bit)))


@pytest.mark.parametrize("bit", range(9))
def test_a_column_too_many_or_too_few_is_refused(bit: int) -> None:
    frame = good()
    (columns,) = struct.unpack_from("<I", frame.data, HEADER_BYTES + 4)
    with pytest.raises(InvalidFrame):
        Frame.accept(changed(frame, HEADER_BYTES + 4, struct.pack("<I", columns ^ 1 << bit)))


def test_offsets_that_run_backwards_or_out_of_the_data_are_refused() -> None:
    frame = Frame.of(Batch.from_columns([b"aaaa", b"bbbb", b"cccc"], now_us=1))
    assert struct.unpack_from("<4i", frame.data, HEADER_BYTES + 8) == (0, 4, 8, 12)
    for wrong in ((0, 8, 4, 12), (0, 4, 8, 1000), (0, 4, 8, -1), (4, 4, 8, 12), (-4, 4, 8, 12), (0, 4, 8, 2**31 - 1)):
        with pytest.raises(InvalidColumn):
            Frame.accept(changed(frame, HEADER_BYTES + 8, struct.pack("<4i", *wrong)))


def test_bytes_between_columns_must_be_zero() -> None:
    frame = Frame.of(Batch.from_columns([b"aaa"], now_us=1))
    with pytest.raises(InvalidColumn):
        Frame.accept(changed(frame, HEADER_BYTES + 16 + 3, b"!"))


def test_a_body_without_a_descriptor_is_refused() -> None:
    with pytest.raises(InvalidColumn):
        Frame.accept(with_body(good(), b"1234"))


def test_bytes_behind_the_last_column_are_refused() -> None:
    frame = good()
    with pytest.raises(InvalidColumn):
        Frame.accept(with_body(frame, bytes(frame.data[HEADER_BYTES:]) + b"\0" * 8))


def test_a_priority_or_time_out_of_range_is_refused() -> None:
    frame = Frame.of_message(Message(b"a", priority=1), now_us=1)
    with pytest.raises(InvalidColumn):
        Frame.accept(changed(frame, len(frame.data) - 8, b"\x05"))
    for message in (Message(b"a", deliver_at=5), Message(b"a", expires_at=5)):
        frame = Frame.of_message(message, now_us=1)
        for wrong in (-1, 1 << 62):
            with pytest.raises(InvalidColumn):
                Frame.accept(changed(frame, len(frame.data) - 8, struct.pack("<q", wrong)))
    frame = Frame.of_message(Message(b"a"), now_us=1)
    with pytest.raises(InvalidColumn):
        Frame.accept(changed(frame, 56, struct.pack("<qq", -5, -5)))


def test_header_names_that_are_not_text_are_refused() -> None:
    frame = Frame.of_message(Message(b"", headers=(("é", b""), ("b", b""))), now_us=1)
    at = bytes(frame.data).index("é".encode())
    with pytest.raises(InvalidColumn):
        Frame.accept(changed(frame, at, b"\xff\xff"))
    # Valid as a whole, but one name would end and the next start inside a character.
    offsets_at = bytes(frame.data).index(struct.pack("<3i", 0, 2, 3))
    with pytest.raises(InvalidColumn):
        Frame.accept(changed(frame, offsets_at, struct.pack("<3i", 0, 1, 3)))


# --- compression bombs --------------------------------------------------------------------------------------


def compressed(codec: int, raw_length: int | None = None) -> tuple[Frame, bytes]:
    frame = Frame.of(Batch.from_columns(TEXTS, now_us=1), codec=codec)
    return frame, changed(frame, 40, struct.pack("<I", frame.raw_length if raw_length is None else raw_length))


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
@pytest.mark.parametrize("difference", [-8, -1, 1, 8, 4096])
def test_a_body_that_decompresses_to_another_length_is_refused(codec: int, difference: int) -> None:
    frame, _ = compressed(codec)
    _, data = compressed(codec, frame.raw_length + difference)
    with pytest.raises(DecompressionRefused):
        Frame.accept(data)


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_a_body_that_claims_to_decompress_beyond_the_limits_is_refused_unread(codec: int) -> None:
    frame, data = compressed(codec, 200 << 20)
    with pytest.raises(DecompressionRefused, match="when decompressed"):
        Frame.accept(data)
    _, data = compressed(codec, frame.body_length * 101)
    with pytest.raises(DecompressionRefused, match="claim"):
        Frame.accept(data)


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_a_real_bomb_is_refused(codec: int) -> None:
    zeros = Frame.of(Batch.from_columns([bytes(1 << 20)] * 7, now_us=1))
    body = pa.Codec({LZ4: "lz4", ZSTD: "zstd"}[codec]).compress(zeros.data[HEADER_BYTES:], asbytes=True)
    bomb = bytearray(with_body(zeros, body))
    bomb[40:44] = struct.pack("<I", zeros.raw_length)
    bomb[54] = codec
    with pytest.raises(DecompressionRefused, match="claim to decompress"):
        Frame.accept(resealed(bomb))


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_what_is_made_here_is_accepted_everywhere(codec: int) -> None:
    """Even if it shrinks as only bombs do, or would be larger than any reader takes."""
    zeros = Frame.of(Batch.from_columns([bytes(1 << 20)] * 7, now_us=1), codec=codec)
    assert Frame.accept(zeros.data).count == 7
    with pytest.raises(FrameTooLarge):
        Frame.of(Batch.from_columns([TEXTS[i % 200] * 20_000 for i in range(100)], now_us=1), codec=codec)


@pytest.mark.parametrize("extra", ["twice", "empty behind", "skippable before", "skippable behind"])
def test_an_lz4_body_of_more_than_one_frame_is_refused(extra: str) -> None:
    """A stream decoder takes them, the decoder of the readers does not: such a frame would be poison for ever."""
    plain = Frame.of(Batch.from_columns(TEXTS, now_us=1))
    raw = bytes(plain.data[HEADER_BYTES:])
    lz4 = pa.Codec("lz4")
    skippable = struct.pack("<II", 0x184D2A50, 4) + b"skip"
    whole = lz4.compress(raw, asbytes=True)
    half = len(raw) // 2
    body = {
        "twice": lz4.compress(raw[:half], asbytes=True) + lz4.compress(raw[half:], asbytes=True),
        "empty behind": whole + lz4.compress(b"", asbytes=True),
        "skippable before": skippable + whole,
        "skippable behind": whole + skippable,
    }[extra]
    hostile = bytearray(with_body(plain, body))
    hostile[40:44] = struct.pack("<I", len(raw))
    hostile[54] = LZ4
    with pytest.raises(DecompressionRefused):
        Frame.accept(resealed(hostile))


@pytest.mark.parametrize("producer", [Producer(-1, 0, 0), Producer(1, 70_000, 0), Producer(1, 0, 1 << 31)])
def test_a_producer_out_of_range_is_refused(producer: Producer) -> None:
    with pytest.raises(InvalidInput):
        Frame.of(Batch.from_columns([b"a"], now_us=1), producer=producer)
    with pytest.raises(InvalidInput):
        Frame.of_message(Message(b"a"), now_us=1, producer=producer)


@pytest.mark.parametrize("codec", [3, -1, "zstd", None])
def test_a_codec_that_does_not_exist_is_refused(codec: object) -> None:
    with pytest.raises(InvalidInput):
        Frame.of(Batch.from_columns([b"a"], now_us=1), codec=codec)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_a_body_that_is_not_what_its_codec_says_is_refused(codec: int) -> None:
    with pytest.raises(DecompressionRefused):
        Frame.accept(changed(good(), 54, bytes([codec])))


# --- limits -------------------------------------------------------------------------------------------------

TIGHT = Limits(frame_bytes_max=2000, batch_messages_max=5, message_bytes_max=300, header_bytes_max=20, headers_max=3)


@pytest.mark.parametrize(
    "rows",
    [
        [Message(b"")] * 6,
        [Message(b"x" * 301)],
        [Message(b"x" * 200, key=b"x" * 101)],
        [Message(b"a"), Message(b"x" * 290, headers=(("n", b"x" * 10),))],
        [Message(b"", headers=(("n", b"x" * 20),))],
        [Message(b"", headers=(("n", b""),) * 4)],
    ],
)
def test_messages_beyond_a_limit_are_refused_at_both_ends(rows: list[Message]) -> None:
    batch = Batch.from_messages(rows, now_us=1)
    with pytest.raises(BatchTooLarge):
        Frame.of(batch, limits=TIGHT)
    with pytest.raises(BatchTooLarge):
        Frame.accept(Frame.of(batch).data, TIGHT)
    if len(rows) == 1:
        with pytest.raises(BatchTooLarge):
            Frame.of_message(rows[0], now_us=1, limits=TIGHT)


def test_messages_at_a_limit_are_taken() -> None:
    batch = Batch.from_messages([Message(b"x" * 280, headers=(("n", b"x" * 19),))] * 5, now_us=1)
    assert Frame.accept(Frame.of(batch, limits=TIGHT).data, TIGHT).count == 5


def test_a_slice_is_held_to_the_limits_by_its_own_rows() -> None:
    batch = Batch.from_columns([b"x" * 1000, b"small"], now_us=1)
    assert Frame.of(batch.slice(1, 2), limits=TIGHT).count == 1


def test_a_frame_beyond_the_limit_is_refused_when_made() -> None:
    batch = Batch.from_columns([b"x" * 290] * 5, keys=[b"k" * 10] * 5, now_us=1)
    Frame.of(batch, limits=TIGHT)
    with pytest.raises(FrameTooLarge):
        Frame.of(batch, limits=Limits(frame_bytes_max=1500, message_bytes_max=300))


@pytest.mark.parametrize("value", [0, -1])
def test_zero_is_not_unlimited(value: int) -> None:
    with pytest.raises(InvalidInput):
        Limits(message_bytes_max=value)


# --- anything at all ----------------------------------------------------------------------------------------


def only_typed_errors(action: Callable[[], object]) -> None:
    try:
        action()
    except (InvalidFrame, BatchTooLarge):
        pass


@settings(max_examples=500)
@given(st.binary(max_size=300))
def test_random_bytes_meet_typed_errors_only(data: bytes) -> None:
    only_typed_errors(lambda: Frame.accept(data))
    only_typed_errors(lambda: Frame.accept(b"PNS\x01" + data))


@settings(max_examples=1500)
@given(rows, codecs, st.data())
def test_a_hostile_producer_meets_typed_errors_or_stores_what_can_be_read(
    given_rows: list[Message], codec: int, data: st.DataObject
) -> None:
    """Bytes changed anywhere, with a checksum that fits: refused, or as good as any other frame."""
    frame = bytearray(Frame.of(Batch.from_messages(given_rows, now_us=1), codec=codec).data)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(36, len(frame) - 1))
        frame[at] = data.draw(st.integers(0, 255))
    hostile = resealed(frame)
    try:
        accepted = Frame.accept(hostile)
    except (InvalidFrame, BatchTooLarge):
        return
    batch = accepted.batch()
    batch.to_arrow().validate(full=True)
    assert len(list(batch.messages())) == accepted.count
    encode(batch)


@settings(max_examples=500)
@given(rows, st.data())
def test_a_hostile_body_meets_typed_errors_or_can_be_read(given_rows: list[Message], data: st.DataObject) -> None:
    """Whole words of the body replaced: the offsets are where it hurts."""
    frame = Frame.of(Batch.from_messages(given_rows, now_us=1))
    body = bytearray(frame.data[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = 4 * data.draw(st.integers(1, len(body) // 4 - 1))
        body[at : at + 4] = struct.pack("<i", data.draw(st.integers(-(1 << 31), (1 << 31) - 1)))
    try:
        accepted = Frame.accept(with_body(frame, bytes(body)))
    except (InvalidFrame, BatchTooLarge):
        return
    accepted.batch().to_arrow().validate(full=True)
    list(accepted.batch().messages())


# --- the short way for one message --------------------------------------------------------------------------


@given(
    st.one_of(st.none(), st.binary(max_size=20)),
    st.one_of(st.none(), st.binary(max_size=20)),
    st.lists(st.tuples(st.integers(0, 60), st.binary(min_size=1, max_size=4)), max_size=2),
    st.integers(-9, 9),
)
def test_the_short_way_takes_what_the_long_way_takes(
    key: bytes | None, value: bytes | None, changes: list[tuple[int, bytes]], longer: int
) -> None:
    """A frame of one message, damaged at will and sealed again."""
    frame = Frame.of_message(Message(value, key=key), now_us=5)
    body = bytearray(frame.data[HEADER_BYTES:])
    for at, change in changes:
        body[at : at + len(change)] = change
    body = body[:longer] if longer < 0 else body + bytes(longer)
    data = with_body(frame, bytes(body))

    def outcome() -> object:
        try:
            return list(Frame.accept(data).batch().messages())
        except PenstockError as error:
            return type(error)

    short = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_module, "is_plain_message", lambda body, limits: False)
        assert outcome() == short
