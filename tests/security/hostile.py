"""Frames as a hostile client makes them: wrong, with checksums that fit."""

from __future__ import annotations

import struct

import pyarrow as pa
from crc32c import crc32c

from penstock.batch import Batch
from penstock.codec import LZ4, ZSTD
from penstock.frame import HEADER_BYTES, Frame
from penstock.limits import Limits

# So that they can be made here.
GENEROUS = Limits(
    frame_bytes_max=256 << 20,
    batch_messages_max=1 << 30,
    message_bytes_max=1 << 30,
    header_bytes_max=1 << 30,
    headers_max=1 << 30,
    decompression_ratio_max=1 << 30,
)


def resealed(data: bytes | bytearray | memoryview) -> bytes:
    frame = bytearray(data)
    frame[32:36] = struct.pack("<I", crc32c(bytes(frame[36:])))
    return bytes(frame)


def bomb(batch: Batch, codec: int, claimed: int | None = None) -> bytes:
    """A small frame that becomes a large one, and says so, or says something else."""
    plain = Frame.of(batch, limits=GENEROUS)
    body = pa.Codec({LZ4: "lz4", ZSTD: "zstd"}[codec]).compress(plain.data[HEADER_BYTES:], asbytes=True)
    frame = bytearray(plain.data[:HEADER_BYTES])
    frame[36:44] = struct.pack("<II", len(body), plain.raw_length if claimed is None else claimed)
    frame[54] = codec
    return resealed(bytes(frame) + body + bytes(-len(body) % 8))
