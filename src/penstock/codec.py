"""Compression of bodies, through Arrow's codecs: LZ4 in its frame format, and Zstandard."""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import DecompressionRefused
from penstock.limits import DEFAULT_LIMITS

NONE, LZ4, ZSTD = 0, 1, 2
CODECS = {"none": NONE, "lz4": LZ4, "zstd": ZSTD}
_ARROW = {LZ4: pa.Codec("lz4"), ZSTD: pa.Codec("zstd")}


def compress(codec: int, raw: memoryview) -> pa.Buffer | None:
    """None if it is better stored as it is.

    What does not shrink would only cost the readers; what shrinks as only a bomb may, no reader would take.
    """
    compressed = _ARROW[codec].compress(raw)
    smallest = len(raw) / DEFAULT_LIMITS.decompression_ratio_max
    return compressed if smallest <= len(compressed) < len(raw) else None


def decompress(codec: int, body: memoryview, raw_length: int) -> memoryview:
    """For bytes whose checksum was made by whoever compressed them: a raw length too large would not be noticed."""
    return memoryview(_decompress(codec, body, raw_length))


def _decompress(codec: int, body: memoryview, raw_length: int) -> pa.Buffer:
    if codec not in _ARROW:
        raise DecompressionRefused(f"codec {codec} is unknown")
    try:
        return _ARROW[codec].decompress(body, raw_length)
    except (OSError, pa.ArrowException) as error:
        raise DecompressionRefused(f"the body does not decompress: {error}") from error


def decompress_checked(codec: int, body: memoryview, raw_length: int) -> memoryview:
    """For bytes from outside, which may claim any length."""
    raw = _decompress(codec, body, raw_length)
    # Arrow's one-shot LZ4 does not say when the body is shorter than claimed; it hands out what the memory held
    # before. The stream does, but takes more than the one-shot decoder, which is what readers use: both must agree.
    # Buffers are compared without the interpreter's lock, which the event loop may wait for.
    if codec == LZ4 and not raw.equals(_streamed(body, raw_length)):
        raise DecompressionRefused(f"the body does not decompress to the {raw_length} bytes it claims")
    return memoryview(raw)


def _streamed(body: memoryview, raw_length: int) -> pa.Buffer:
    try:
        stream = pa.CompressedInputStream(pa.BufferReader(body), "lz4")
        return stream.read_buffer(raw_length + 1)
    except (OSError, pa.ArrowException) as error:
        raise DecompressionRefused(f"the body does not decompress: {error}") from error
