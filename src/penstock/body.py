"""The body of a frame: a batch of messages as bytes, and back.

    body of a frame, uncompressed, little-endian; every buffer starts at a multiple of 8, gaps are zero

    ┌────────────┬──────────────┬──────────────────────────────────────────────────────────────┐
    │ u32 rows n │ u32 columns  │ the buffers of the columns present, in the order of the table │
    └────────────┴──────────────┴──────────────────────────────────────────────────────────────┘

    bit  column        buffers                                                   left out when
      0  key           [validity bits if bit 1]  i32 offsets × (n+1)  bytes      every key is null
      2  value         [validity bits if bit 3]  i32 offsets × (n+1)  bytes      every value is null
      4  headers       i32 offsets × (n+1) into m pairs, then
                       names:  i32 offsets × (m+1)  UTF-8 bytes
                       values: i32 offsets × (m+1)  bytes                        no row has headers
      5  timestamp     i64 × n                                                   all equal the frame's minimum
      6  deliver_at    i64 × n   0 = at once                                     all 0
      7  expires_at    i64 × n   0 = never                                       all 0
      8  priority      i8  × n   -1 low, 0 normal, 1 high                        all 0
      9  offset_delta  u32 × n   offset − base offset                            offsets are dense
     10  append_time   i64 × n                                                   all equal the frame's

Columns 9 and 10 are written by the log itself, when it removes or merges messages in sealed segments; a frame
from outside that has them is refused. Offset buffers start at 0, never run backwards and end where their data
ends. No length is stored twice: the last offset is the length of the data.

There is no checksum here: the frame around the body has it. A frame from outside is checked once, column by
column (`decode(..., limits)`); from then on its checksum vouches for it and `decode` trusts the offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.batch import Batch, bits
from penstock.clock import TIME_MAX_US
from penstock.columns import Binary, Headers
from penstock.errors import BatchTooLarge, CountMismatch, InvalidColumn, UnknownColumn
from penstock.limits import DEFAULT_LIMITS, Limits
from penstock.message import Message

Bytes = bytes | bytearray | memoryview

KEY, KEY_NULLS, VALUE, VALUE_NULLS, HEADERS = 1, 2, 4, 8, 16
TIMESTAMP, DELIVER_AT, EXPIRES_AT, PRIORITY = 32, 64, 128, 256
OFFSET_DELTA, APPEND_TIME = 512, 1024
_COLUMNS_FROM_OUTSIDE = 511
_COLUMNS_ALL = 2047

_DESCRIPTOR = struct.Struct("<II")
_PAIR = struct.Struct("<ii")
_LONG = struct.Struct("<q")
_PADDING = [b"\0" * n for n in range(8)]


def encode(batch: Batch) -> list[Bytes | npt.NDArray[Any]]:
    """The body as a list of buffers to be joined; their lengths add up to a multiple of 8."""
    start, stop = batch.start, batch.start + batch.count
    columns = 0
    parts: list[Bytes | npt.NDArray[Any]] = [b""]
    if batch.key is not None:
        columns |= KEY | _encode_binary(parts, batch.key, start, stop, KEY_NULLS)
    if batch.value is not None:
        columns |= VALUE | _encode_binary(parts, batch.value, start, stop, VALUE_NULLS)
    if batch.headers is not None:
        columns |= HEADERS
        first, last = int(batch.headers.offsets[start]), int(batch.headers.offsets[stop])
        _encode_offsets(parts, batch.headers.offsets, start, stop)
        _encode_binary(parts, batch.headers.names, first, last)
        _encode_binary(parts, batch.headers.values, first, last)
    for bit, column in (
        (TIMESTAMP, batch.timestamp_column),
        (DELIVER_AT, batch.deliver_at),
        (EXPIRES_AT, batch.expires_at),
        (PRIORITY, batch.priority),
        (OFFSET_DELTA, batch.offset_delta),
        (APPEND_TIME, batch.append_time),
    ):
        if column is not None:
            columns |= bit
            window = column[start:stop]
            parts += (window, _PADDING[-window.nbytes % 8])
    parts[0] = _DESCRIPTOR.pack(batch.count, columns)
    return parts


def decode(body: memoryview, *, count: int, timestamps: tuple[int, int], limits: Limits | None = None) -> Batch:
    """Views on `body`, no copy. With `limits`, every column is checked first, as for bytes from outside."""
    if len(body) < 8:
        raise InvalidColumn(f"a body of {len(body)} bytes has no descriptor")
    rows, columns = _DESCRIPTOR.unpack_from(body)
    if rows != count:
        raise CountMismatch(f"the header says {count} messages, the body has {rows}", header=count, body=rows)
    known = _COLUMNS_FROM_OUTSIDE if limits else _COLUMNS_ALL
    if columns & ~known:
        raise UnknownColumn(f"columns that are not ours: {columns & ~known:#x}", columns=columns & ~known)
    reader = _Reader(body, checked=limits is not None)
    try:
        batch = reader.batch(rows, columns, timestamps[0])
    except (ValueError, OverflowError) as error:
        raise InvalidColumn(f"a column runs out of the body: {error}") from error
    if reader.at != len(body):
        raise InvalidColumn(f"columns end at {reader.at}, the body at {len(body)}")
    if limits is not None:
        _check(batch, len(body), columns, timestamps, limits)
    return batch


def encode_message(message: Message) -> list[Bytes]:
    """The body of a batch of one, equal to what `Batch` makes of it, in a tenth of the time."""
    columns = 0
    parts: list[Bytes] = [b""]
    if message.key is not None:
        columns |= KEY
        size = len(message.key)
        parts += (_PAIR.pack(0, size), message.key, _PADDING[-size % 8])
    if message.value is not None:
        columns |= VALUE
        size = len(message.value)
        parts += (_PAIR.pack(0, size), message.value, _PADDING[-size % 8])
    if message.headers:
        columns |= HEADERS
        parts.append(_PAIR.pack(0, len(message.headers)))
        names = [name.encode() for name, _ in message.headers]
        for strings in (names, [value for _, value in message.headers]):
            offsets = [0, *accumulate(map(len, strings))]
            parts += (struct.pack(f"<{len(offsets)}i", *offsets), _PADDING[-4 * len(offsets) % 8])
            parts += (*strings, _PADDING[-offsets[-1] % 8])
    if message.deliver_at:
        columns |= DELIVER_AT
        parts.append(_LONG.pack(message.deliver_at))
    if message.expires_at:
        columns |= EXPIRES_AT
        parts.append(_LONG.pack(message.expires_at))
    if message.priority:
        columns |= PRIORITY
        parts += (bytes((message.priority & 255,)), _PADDING[7])
    parts[0] = _DESCRIPTOR.pack(1, columns)
    return parts


def encode_plain(values: Sequence[bytes], keys: Sequence[bytes] | None, timestamps: Sequence[int]) -> list[Bytes]:
    """The body of a batch of values, times and maybe keys, none of them null; equal to what `Batch` makes of it."""
    columns = VALUE
    parts: list[Bytes] = [b""]
    for strings in (keys, values):
        if strings is None:
            continue
        offsets = [0, *accumulate(map(len, strings))]
        parts += (struct.pack(f"<{len(offsets)}i", *offsets), _PADDING[-4 * len(offsets) % 8])
        parts += (*strings, _PADDING[-offsets[-1] % 8])
    if keys is not None:
        columns |= KEY
    if min(timestamps) != max(timestamps):
        columns |= TIMESTAMP
        parts.append(struct.pack(f"<{len(timestamps)}q", *timestamps))
    parts[0] = _DESCRIPTOR.pack(len(values), columns)
    return parts


def decode_message(body: memoryview) -> tuple[bytes | None, bytes | None] | None:
    """Key and value of a trusted batch of one that has nothing else; None if this is not one."""
    rows, columns = _DESCRIPTOR.unpack_from(body)
    if rows != 1 or columns & ~(KEY | VALUE):
        return None
    key = value = None
    at = 8
    if columns & KEY:
        size = _PAIR.unpack_from(body, at)[1]
        key = bytes(body[at + 8 : at + 8 + size])
        at += 8 + size + (-size % 8)
    if columns & VALUE:
        size = _PAIR.unpack_from(body, at)[1]
        value = bytes(body[at + 8 : at + 8 + size])
    return key, value


def is_plain_message(body: memoryview, limits: Limits) -> bool:
    """Whether this is a sound batch of one message with nothing but a key and a value; False does not mean damage.

    The short way for what is published one at a time: no arrays are made, nothing is decoded.
    """
    if len(body) < 8 or len(body) > limits.message_bytes_max:
        return False
    rows, columns = _DESCRIPTOR.unpack_from(body)
    if rows != 1 or columns & ~(KEY | VALUE):
        return False
    at = 8
    for column in (KEY, VALUE):
        if columns & column:
            if at + 8 > len(body):
                return False
            first, size = _PAIR.unpack_from(body, at)
            end = at + 8 + size
            at = end + (-end % 8)
            if first != 0 or size < 0 or at > len(body) or any(body[end:at]):
                return False
    return at == len(body)


def _encode_offsets(parts: list[Any], offsets: npt.NDArray[np.int32], start: int, stop: int) -> None:
    window = offsets[start : stop + 1]
    if window[0] != 0:
        window = window - window[0]
    parts += (window, _PADDING[-window.nbytes % 8])


def _encode_binary(parts: list[Any], column: Binary, start: int, stop: int, nulls_bit: int = 0) -> int:
    """Appends the buffers of rows start to stop; returns `nulls_bit` if they have validity bits."""
    has_nulls = False
    if column.validity is not None:
        validity = bits(column.validity, start, stop - start)
        has_nulls = not validity.all()
        if has_nulls:
            packed = np.packbits(validity, bitorder="little")
            parts += (packed, _PADDING[-packed.nbytes % 8])
    _encode_offsets(parts, column.offsets, start, stop)
    data = column.data[int(column.offsets[start]) : int(column.offsets[stop])]
    parts += (data, _PADDING[-len(data) % 8])
    return nulls_bit if has_nulls else 0


class _Reader:
    """Walks a body, column by column. `checked` when the bytes come from outside."""

    __slots__ = ("at", "body", "checked")

    def __init__(self, body: memoryview, checked: bool) -> None:
        self.body = body
        self.at = 8
        self.checked = checked

    def batch(self, rows: int, columns: int, timestamp: int) -> Batch:
        key = value = headers = None
        if columns & KEY:
            key = self.binary(rows, columns & KEY_NULLS)
        if columns & VALUE:
            value = self.binary(rows, columns & VALUE_NULLS)
        if columns & HEADERS:
            offsets = self.offsets(rows)
            pairs = int(offsets[-1])
            headers = Headers(offsets, self.binary(pairs, 0), self.binary(pairs, 0))
        return Batch(
            rows,
            timestamp=timestamp,
            key=key,
            value=value,
            headers=headers,
            timestamp_column=self.fixed(np.int64, rows) if columns & TIMESTAMP else None,
            deliver_at=self.fixed(np.int64, rows) if columns & DELIVER_AT else None,
            expires_at=self.fixed(np.int64, rows) if columns & EXPIRES_AT else None,
            priority=self.fixed(np.int8, rows) if columns & PRIORITY else None,
            offset_delta=self.fixed(np.uint32, rows) if columns & OFFSET_DELTA else None,
            append_time=self.fixed(np.int64, rows) if columns & APPEND_TIME else None,
        )

    def binary(self, rows: int, has_nulls: int) -> Binary:
        validity = self.fixed(np.uint8, (rows + 7) >> 3) if has_nulls else None
        offsets = self.offsets(rows)
        start, end = self.at, self.at + int(offsets[-1])
        if end > len(self.body):
            raise InvalidColumn(f"offsets end at {offsets[-1]}, beyond the {len(self.body) - start} bytes left")
        self.move_to(end)
        return Binary(offsets, self.body[start:end], validity)

    def offsets(self, rows: int) -> npt.NDArray[np.int32]:
        offsets = self.fixed(np.int32, rows + 1)
        if self.checked and (offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any()):
            raise InvalidColumn("offsets do not start at 0, or run backwards")
        return offsets

    def fixed(self, dtype: type[np.generic], rows: int) -> npt.NDArray[Any]:
        column = np.frombuffer(self.body, dtype, rows, self.at)
        self.move_to(self.at + column.nbytes)
        return column

    def move_to(self, end: int) -> None:
        self.at = end + (-end % 8)
        if self.checked and any(self.body[end : self.at]):
            raise InvalidColumn("bytes between two columns are not zero")


def _check(batch: Batch, size: int, columns: int, timestamps: tuple[int, int], limits: Limits) -> None:
    """What a frame from outside must keep beyond its layout: ranges, limits, and columns left out when default."""
    if batch.count > limits.batch_messages_max:
        raise BatchTooLarge(f"{batch.count} messages in a batch; batch_messages_max is {limits.batch_messages_max}")
    for column, nulls in ((KEY, KEY_NULLS), (VALUE, VALUE_NULLS)):
        if columns & nulls and not columns & column:
            raise InvalidColumn("validity bits without a column")
    if batch.timestamp_range() != timestamps:
        raise InvalidColumn(f"timestamps are {batch.timestamp_range()}, the header says {timestamps}")
    if not 0 <= timestamps[0] <= timestamps[1] <= TIME_MAX_US:
        raise InvalidColumn("timestamp is not within 1970–9999", column="timestamp")
    for name, times in (("deliver_at", batch.deliver_at), ("expires_at", batch.expires_at)):
        if times is not None and (int(times.min()) < 0 or int(times.max()) > TIME_MAX_US):
            raise InvalidColumn(f"{name} is not within 1970–9999", column=name)
    if batch.priority is not None and (int(batch.priority.min()) < -1 or int(batch.priority.max()) > 1):
        raise InvalidColumn("priority is not -1, 0 or 1", column="priority")
    if batch.headers is not None:
        _check_headers(batch.headers, limits)
    # A body that is smaller than the largest message allowed holds none that is larger.
    if size > limits.message_bytes_max:
        _check_message_sizes(batch, limits)


def _check_headers(headers: Headers, limits: Limits) -> None:
    offsets, names, values = headers
    if int(np.diff(offsets).max()) > limits.headers_max:
        raise BatchTooLarge(f"a message with more than {limits.headers_max} headers (headers_max)")
    sizes = np.diff(names.offsets[offsets].astype(np.int64)) + np.diff(values.offsets[offsets].astype(np.int64))
    if int(sizes.max()) > limits.header_bytes_max:
        raise BatchTooLarge(f"headers of {sizes.max()} bytes; header_bytes_max is {limits.header_bytes_max}")
    # Valid as a whole, and no name starting inside a character, is the same as each name being valid.
    try:
        str(names.data, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidColumn(f"a header name is not UTF-8: {error}", column="headers") from error
    data = np.frombuffer(names.data, np.uint8)
    starts = names.offsets[names.offsets < len(data)]
    if ((data[starts] & 0xC0) == 0x80).any():
        raise InvalidColumn("a header name starts inside a character", column="headers")


def _check_message_sizes(batch: Batch, limits: Limits) -> None:
    start, stop = batch.start, batch.start + batch.count
    columns = [c for c in (batch.key, batch.value) if c is not None]
    windows = [column.offsets[start : stop + 1] for column in columns]
    if batch.headers is not None:
        offsets, names, values = batch.headers
        window = offsets[start : stop + 1]
        windows += (names.offsets[window], values.offsets[window])
    # A batch that is smaller than the largest message allowed needs no look at its messages.
    if sum(int(window[-1]) - int(window[0]) for window in windows) <= limits.message_bytes_max:
        return
    sizes = np.zeros(batch.count, np.int64)
    for window in windows:
        sizes += np.diff(window)
    largest = int(sizes.max())
    if largest > limits.message_bytes_max:
        raise BatchTooLarge(
            f"a message of {largest} bytes; message_bytes_max is {limits.message_bytes_max}", size=largest
        )


def check_limits(batch: Batch, limits: Limits = DEFAULT_LIMITS) -> None:
    """The limits a frame from outside is held to, for a batch made here (before it is encoded)."""
    if batch.count > limits.batch_messages_max:
        raise BatchTooLarge(f"{batch.count} messages in a batch; batch_messages_max is {limits.batch_messages_max}")
    _check_message_sizes(batch, limits)
    if batch.headers is not None:
        _check_headers(batch.headers, limits)
