"""Packets: however they arrive, they come out whole; what is none is refused before anything is allocated for it."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PacketTooLarge, PenstockError, ProtocolError
from penstock.wire.packets import Decoder, Kind, Packet, packed

LIMIT = 10_000
PACKETS = st.lists(
    st.tuples(st.sampled_from(list(Kind)), st.integers(0, 2**32 - 1), st.binary(max_size=50), st.binary(max_size=200)),
    max_size=8,
)


def as_bytes(packets: list[tuple[Kind, int, bytes, bytes]]) -> bytes:
    return b"".join(packed(kind, number, header, len(payload)) + payload for kind, number, header, payload in packets)


def told(packet: Packet) -> tuple[Kind, int, bytes, bytes]:
    return packet.kind, packet.correlation, packet.header, bytes(packet.payload)


@given(PACKETS, st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_packets_come_out_whole_however_they_are_cut(
    packets: list[tuple[Kind, int, bytes, bytes]], cuts: list[int]
) -> None:
    data, found, at, turn = as_bytes(packets), [], 0, 0
    decoder = Decoder(LIMIT)
    while at < len(data):
        size = cuts[turn % len(cuts)]
        found += [told(packet) for packet in decoder.feed(data[at : at + size])]
        at, turn = at + size, turn + 1
    assert found == packets
    assert decoder.held == 0


@given(PACKETS, st.binary(min_size=1, max_size=100), st.integers(0, 400))
def test_garbage_raises_nothing_but_typed_errors(
    packets: list[tuple[Kind, int, bytes, bytes]], garbage: bytes, where: int
) -> None:
    data = as_bytes(packets)
    damaged = data[:where] + garbage + data[where + len(garbage) :]
    try:
        for _ in Decoder(LIMIT).feed(damaged):
            pass
    except PenstockError as error:
        assert isinstance(error, ProtocolError)


def test_a_length_beyond_the_limit_is_refused_before_the_bytes_have_come() -> None:
    prefix = struct.pack("<HBBIII", 0x5350, Kind.CALL, 0, 1, 2**32 - 1, 2**32 - 1)
    with pytest.raises(PacketTooLarge):
        list(Decoder(LIMIT).feed(prefix))


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(9)]
)
def test_another_protocol_is_told_apart(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="not the native protocol"):
        list(Decoder(LIMIT).feed(data))


def test_a_large_packet_that_comes_in_many_pieces_is_put_together_once() -> None:
    payload = bytes(range(256)) * 4_000
    data = packed(Kind.PUBLISH, 7, b"head", len(payload)) + payload
    decoder = Decoder(2_000_000)
    found = [packet for at in range(0, len(data), 1_000) for packet in decoder.feed(data[at : at + 1_000])]
    assert [told(packet) for packet in found] == [(Kind.PUBLISH, 7, b"head", payload)]


def test_a_small_payload_keeps_nothing_else_in_memory() -> None:
    large, small = packed(Kind.PUBLISH, 1, b"", 8_000) + bytes(8_000), packed(Kind.PUBLISH, 2, b"h", 10) + bytes(10)
    poll = packed(Kind.POLL, 3, b"h")
    first, second, third = Decoder(LIMIT).feed(large + small + poll)
    assert len(first.payload.obj) > 8_000
    assert (len(second.payload.obj), len(third.payload.obj)) == (10, 0)
