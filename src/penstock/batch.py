"""A batch of messages as columns, in Arrow's memory layout, and the bytes it becomes.

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
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.clock import TIME_MAX_US
from penstock.errors import BatchTooLarge, CountMismatch, InvalidColumn, InvalidMessage, UnknownColumn
from penstock.limits import DEFAULT_LIMITS, Limits
from penstock.message import Message

Ints = npt.NDArray[np.int64]
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

_TIME = pa.timestamp("us", tz="UTC")
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
        ("timestamp", _TIME),
        ("deliver_at", _TIME),
        ("expires_at", _TIME),
        ("priority", pa.int8()),
    ]
)


class Binary(NamedTuple):
    """One column of byte strings: row i is data[offsets[i]:offsets[i+1]]; null where its validity bit is 0."""

    offsets: npt.NDArray[np.int32]
    data: memoryview
    validity: npt.NDArray[np.uint8] | None = None


class Headers(NamedTuple):
    """Row i has the pairs offsets[i] to offsets[i+1] of `names` and `values`."""

    offsets: npt.NDArray[np.int32]
    names: Binary
    values: Binary


class Batch:
    """Rows `start` to `start + count` of a set of columns. A slice is another window on the same columns.

    Invariant: a column is None exactly when its rows are all the default (null, no headers, 0; for timestamps:
    all equal `timestamp`). Only a slice may break that, harmlessly: it may hold a column it could do without.
    """

    __slots__ = (
        "append_time",
        "count",
        "deliver_at",
        "expires_at",
        "headers",
        "key",
        "offset_delta",
        "priority",
        "start",
        "timestamp",
        "timestamp_column",
        "value",
    )

    def __init__(
        self,
        count: int,
        *,
        timestamp: int,
        key: Binary | None = None,
        value: Binary | None = None,
        headers: Headers | None = None,
        timestamp_column: Ints | None = None,
        deliver_at: Ints | None = None,
        expires_at: Ints | None = None,
        priority: npt.NDArray[np.int8] | None = None,
        offset_delta: npt.NDArray[np.uint32] | None = None,
        append_time: Ints | None = None,
        start: int = 0,
    ) -> None:
        self.count = count
        self.start = start
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp_column = timestamp_column
        self.deliver_at = deliver_at
        self.expires_at = expires_at
        self.priority = priority
        self.offset_delta = offset_delta
        self.append_time = append_time

    # --- made from what users have -----------------------------------------------------------------------

    @classmethod
    def from_messages(cls, messages: Iterable[Message], now_us: int) -> Batch:
        """Rows to columns. A timestamp of 0 becomes `now_us`."""
        rows = list(messages)
        for row in rows:
            row.check()
        return cls.from_columns(
            [m.value for m in rows],
            keys=[m.key for m in rows],
            headers=[m.headers for m in rows],
            timestamps=[m.timestamp or now_us for m in rows],
            deliver_at=[m.deliver_at for m in rows],
            expires_at=[m.expires_at for m in rows],
            priorities=[m.priority for m in rows],
            now_us=now_us,
        )

    @classmethod
    def from_columns(
        cls,
        values: Any,
        *,
        keys: Any = None,
        headers: Any = None,
        timestamps: Any = None,
        deliver_at: Any = None,
        expires_at: Any = None,
        priorities: Any = None,
        now_us: int,
    ) -> Batch:
        """Columns as Python sequences, numpy or Arrow arrays; None for a column that is all default."""
        count = len(values)
        if count == 0:
            raise InvalidMessage("a batch needs at least one message")
        for name, column in (
            ("keys", keys),
            ("headers", headers),
            ("timestamps", timestamps),
            ("deliver_at", deliver_at),
            ("expires_at", expires_at),
            ("priorities", priorities),
        ):
            if column is not None and len(column) != count:
                raise InvalidMessage(f"{name} has {len(column)} rows, values has {count}", column=name)
        times = _times("timestamps", timestamps)
        timestamp, timestamp_column = now_us, None
        if times is not None:
            timestamp = int(times.min())
            if int(times.max()) != timestamp:
                timestamp_column = times
        return cls(
            count,
            timestamp=timestamp,
            key=_binary("keys", keys),
            value=_binary("values", values),
            headers=_headers(headers),
            timestamp_column=timestamp_column,
            deliver_at=_none_if_zero(_times("deliver_at", deliver_at)),
            expires_at=_none_if_zero(_times("expires_at", expires_at)),
            priority=_none_if_zero(_priorities(priorities)),
        )

    @classmethod
    def from_arrow(cls, table: pa.RecordBatch | pa.Table, now_us: int) -> Batch:
        """From any table with a `value` column; the other columns of SCHEMA are optional, others are refused."""
        unknown = set(table.schema.names) - set(SCHEMA.names)
        if unknown:
            names = ", ".join(sorted(unknown))
            raise UnknownColumn(f"columns that are not ours: {names}", columns=sorted(unknown))
        if "value" not in table.schema.names:
            raise InvalidMessage("a batch needs a column named value", column="value")
        columns = {name: table.column(name) for name in table.schema.names}
        return cls.from_columns(
            columns["value"],
            keys=columns.get("key"),
            headers=columns.get("headers"),
            timestamps=columns.get("timestamp"),
            deliver_at=columns.get("deliver_at"),
            expires_at=columns.get("expires_at"),
            priorities=columns.get("priority"),
            now_us=now_us,
        )

    # --- windows -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.count

    def slice(self, start: int, stop: int) -> Batch:
        """Rows start to stop, sharing this batch's memory."""
        assert 0 <= start < stop <= self.count, (start, stop, self.count)
        part = Batch.__new__(Batch)
        for name in Batch.__slots__:
            setattr(part, name, getattr(self, name))
        part.start = self.start + start
        part.count = stop - start
        return part

    @property
    def timestamps(self) -> Ints:
        if self.timestamp_column is None:
            return np.full(self.count, self.timestamp, np.int64)
        return self.timestamp_column[self.start : self.start + self.count]

    @property
    def offset_deltas(self) -> npt.NDArray[np.uint32]:
        if self.offset_delta is None:
            return np.arange(self.start, self.start + self.count, dtype=np.uint32)
        return self.offset_delta[self.start : self.start + self.count]

    def timestamp_range(self) -> tuple[int, int]:
        if self.timestamp_column is None:
            return self.timestamp, self.timestamp
        times = self.timestamps
        return int(times.min()), int(times.max())

    # --- to what users have ------------------------------------------------------------------------------

    def to_arrow(self) -> pa.RecordBatch:
        """The columns of SCHEMA over this batch's memory; only what was left out is made up."""
        return pa.RecordBatch.from_arrays(
            [
                self._binary_array(self.key),
                self._binary_array(self.value),
                self._headers_array(),
                self._timestamp_array(),
                self._optional_time_array(self.deliver_at),
                self._optional_time_array(self.expires_at),
                self._priority_array(),
            ],
            schema=SCHEMA,
        )

    def values(self) -> list[bytes | None]:
        values: list[bytes | None] = self._binary_array(self.value).to_pylist()
        return values

    def keys(self) -> list[bytes | None]:
        keys: list[bytes | None] = self._binary_array(self.key).to_pylist()
        return keys

    def key_array(self) -> pa.Array:
        return self._binary_array(self.key)

    def tombstones(self) -> npt.NDArray[np.bool_]:
        """True where the value is null."""
        if self.value is None:
            return np.ones(self.count, np.bool_)
        if self.value.validity is None:
            return np.zeros(self.count, np.bool_)
        return ~_bits(self.value.validity, self.start, self.count)

    def messages(self) -> Iterator[Message]:
        """As rows. Only for edges that speak rows."""
        window = slice(self.start, self.start + self.count)
        headers = self._headers_array().to_pylist() if self.headers is not None else None
        deliver_at = self.deliver_at[window].tolist() if self.deliver_at is not None else None
        expires_at = self.expires_at[window].tolist() if self.expires_at is not None else None
        priority = self.priority[window].tolist() if self.priority is not None else None
        rows = zip(self.values(), self.keys(), self.timestamps.tolist(), strict=True)
        for i, (value, key, timestamp) in enumerate(rows):
            yield Message(
                value=value,
                key=key,
                headers=tuple((h["key"], h["value"]) for h in headers[i]) if headers else (),
                timestamp=timestamp,
                deliver_at=deliver_at[i] if deliver_at else 0,
                expires_at=expires_at[i] if expires_at else 0,
                priority=priority[i] if priority else 0,
            )

    def _binary_array(self, column: Binary | None) -> pa.Array:
        if column is None:
            return pa.nulls(self.count, pa.binary())
        validity = None if column.validity is None else pa.py_buffer(column.validity)
        buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
        return pa.Array.from_buffers(pa.binary(), self.count, buffers, offset=self.start)

    def _headers_array(self) -> pa.Array:
        if self.headers is None:
            offsets = np.zeros(self.count + 1, np.int32)
            return pa.Array.from_buffers(
                _HEADERS, self.count, [None, pa.py_buffer(offsets)], children=[pa.array([], _HEADERS.value_type)]
            )
        offsets, names, values = self.headers
        pairs = len(names.offsets) - 1
        name_array = pa.Array.from_buffers(
            pa.string(), pairs, [None, pa.py_buffer(names.offsets), pa.py_buffer(names.data)]
        )
        value_array = pa.Array.from_buffers(
            pa.binary(), pairs, [None, pa.py_buffer(values.offsets), pa.py_buffer(values.data)]
        )
        struct_array = pa.StructArray.from_arrays([name_array, value_array], fields=list(_HEADERS.value_type))
        return pa.Array.from_buffers(
            _HEADERS, self.count, [None, pa.py_buffer(offsets)], offset=self.start, children=[struct_array]
        )

    def _timestamp_array(self) -> pa.Array:
        return pa.Array.from_buffers(_TIME, self.count, [None, pa.py_buffer(self.timestamps)])

    def _optional_time_array(self, column: Ints | None) -> pa.Array:
        if column is None:
            return pa.nulls(self.count, _TIME)
        times = column[self.start : self.start + self.count]
        validity = np.packbits(times != 0, bitorder="little")
        return pa.Array.from_buffers(_TIME, self.count, [pa.py_buffer(validity), pa.py_buffer(times)])

    def _priority_array(self) -> pa.Array:
        if self.priority is None:
            return pa.array(np.zeros(self.count, np.int8))
        return pa.array(self.priority[self.start : self.start + self.count])

    # --- rearranged (only by the log, in sealed segments) ------------------------------------------------

    def take(self, kept: npt.NDArray[np.bool_]) -> Batch:
        """The rows where `kept` is true, with the offsets they had."""
        rows = np.flatnonzero(kept)
        assert len(rows) > 0
        table = self.to_arrow().take(pa.array(rows))
        taken = Batch.from_arrow(table, now_us=self.timestamp)
        taken.offset_delta = self.offset_deltas[rows]
        if self.append_time is not None:
            taken.append_time = self.append_time[self.start : self.start + self.count][rows]
        return taken

    @classmethod
    def concat(cls, batches: Sequence[Batch]) -> Batch:
        """One after the other; offset deltas and append times are the caller's to set."""
        table = pa.Table.from_batches([batch.to_arrow() for batch in batches])
        return cls.from_arrow(table, now_us=batches[0].timestamp)

    # --- bytes -------------------------------------------------------------------------------------------

    def encode(self) -> list[Bytes | npt.NDArray[Any]]:
        """The body as a list of buffers to be joined; their lengths add up to a multiple of 8."""
        start, stop = self.start, self.start + self.count
        columns = 0
        parts: list[Bytes | npt.NDArray[Any]] = [b""]
        if self.key is not None:
            columns |= KEY | _encode_binary(parts, self.key, start, stop, KEY_NULLS)
        if self.value is not None:
            columns |= VALUE | _encode_binary(parts, self.value, start, stop, VALUE_NULLS)
        if self.headers is not None:
            columns |= HEADERS
            first, last = int(self.headers.offsets[start]), int(self.headers.offsets[stop])
            _encode_offsets(parts, self.headers.offsets, start, stop)
            _encode_binary(parts, self.headers.names, first, last)
            _encode_binary(parts, self.headers.values, first, last)
        for bit, column in (
            (TIMESTAMP, self.timestamp_column),
            (DELIVER_AT, self.deliver_at),
            (EXPIRES_AT, self.expires_at),
            (PRIORITY, self.priority),
            (OFFSET_DELTA, self.offset_delta),
            (APPEND_TIME, self.append_time),
        ):
            if column is not None:
                columns |= bit
                window = column[start:stop]
                parts += (window, _PADDING[-window.nbytes % 8])
        parts[0] = _DESCRIPTOR.pack(self.count, columns)
        return parts

    @classmethod
    def decode(
        cls, body: memoryview, *, count: int, timestamps: tuple[int, int], limits: Limits | None = None
    ) -> Batch:
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
            _check(batch, columns, timestamps, limits)
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


# --- from Python, numpy and Arrow to columns ----------------------------------------------------------------


def _arrow(name: str, values: Any, target: pa.DataType) -> pa.Array:
    try:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if isinstance(values, pa.Array):
            return values if values.type == target else values.cast(target)
        return pa.array(values, type=target)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidMessage(f"{name}: {error}", column=name) from error


def _binary(name: str, values: Any) -> Binary | None:
    if values is None:
        return None
    array = _arrow(name, values, pa.binary())
    if array.null_count == len(array):
        return None
    return _binary_of(array)


def _binary_of(array: pa.Array) -> Binary:
    _, offsets, data = array.buffers()
    validity = None
    if array.null_count:
        validity = np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    return Binary(
        np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset),
        memoryview(data if data is not None else b""),
        validity,
    )


def _headers(values: Any) -> Headers | None:
    """From rows of pairs or dicts, or an Arrow list of (key, value) structs or map."""
    if values is None:
        return None
    if isinstance(values, pa.Array | pa.ChunkedArray):
        array = _arrow("headers", _list_of_map(values), _HEADERS)
    else:
        if not any(values):
            return None
        rows = [list(row.items() if isinstance(row, dict) else row or ()) for row in values]
        try:
            dicts = [[{"key": name, "value": value} for name, value in row] for row in rows]
        except (TypeError, ValueError) as error:
            raise InvalidMessage(f"headers: {error}", column="headers") from error
        array = _arrow("headers", dicts, _HEADERS)
    if array.null_count:
        array = pc.fill_null(array, pa.scalar([], _HEADERS))
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
    pairs = array.values
    names, contents = pairs.flatten()
    if pairs.null_count or names.null_count or contents.null_count:
        raise InvalidMessage("headers: a name or value is null", column="headers")
    if offsets[0] == offsets[-1]:
        return None
    return Headers(offsets, _binary_of(names), _binary_of(contents))


def _list_of_map(values: Any) -> Any:
    """Spark and Arrow users often hold headers as a map, which Arrow does not cast to a list of structs."""
    if not pa.types.is_map(values.type):
        return values
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    pairs = pa.StructArray.from_arrays([values.keys, values.items], names=["key", "value"])
    return pa.ListArray.from_arrays(values.offsets, pairs)


def _times(name: str, values: Any) -> Ints | None:
    if values is None:
        return None
    if isinstance(values, np.ndarray) and values.dtype == np.int64:
        times: Ints = values
    else:
        if isinstance(values, pa.Array | pa.ChunkedArray) and pa.types.is_timestamp(values.type):
            values = _arrow(name, values, _TIME)
        array = _arrow(name, values, pa.int64())
        times = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
    if int(times.min()) < 0 or int(times.max()) > TIME_MAX_US:
        raise InvalidMessage(f"{name} must be microseconds within 1970–9999", column=name)
    return times


def _priorities(values: Any) -> npt.NDArray[np.int8] | None:
    if values is None:
        return None
    array = _arrow("priorities", values, pa.int8())
    priorities: npt.NDArray[np.int8] = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
    if int(priorities.min()) < -1 or int(priorities.max()) > 1:
        raise InvalidMessage("priorities must be -1, 0 or 1", column="priorities")
    return priorities


def _none_if_zero(column: Any) -> Any:
    return column if column is not None and column.any() else None


# --- columns to bytes and back ------------------------------------------------------------------------------


def _encode_offsets(parts: list[Any], offsets: npt.NDArray[np.int32], start: int, stop: int) -> None:
    window = offsets[start : stop + 1]
    if window[0] != 0:
        window = window - window[0]
    parts += (window, _PADDING[-window.nbytes % 8])


def _encode_binary(parts: list[Any], column: Binary, start: int, stop: int, nulls_bit: int = 0) -> int:
    """Appends the buffers of rows start to stop; returns `nulls_bit` if they have validity bits."""
    has_nulls = False
    if column.validity is not None:
        validity = _bits(column.validity, start, stop - start)
        has_nulls = not validity.all()
        if has_nulls:
            packed = np.packbits(validity, bitorder="little")
            parts += (packed, _PADDING[-packed.nbytes % 8])
    _encode_offsets(parts, column.offsets, start, stop)
    data = column.data[int(column.offsets[start]) : int(column.offsets[stop])]
    parts += (data, _PADDING[-len(data) % 8])
    return nulls_bit if has_nulls else 0


def _bits(bitmap: npt.NDArray[np.uint8], start: int, count: int) -> npt.NDArray[np.bool_]:
    first = start >> 3
    bits = np.unpackbits(bitmap[first : (start + count + 7) >> 3], bitorder="little")
    return bits[start - 8 * first :][:count].astype(np.bool_)


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


def _check(batch: Batch, columns: int, timestamps: tuple[int, int], limits: Limits) -> None:
    """What a frame from outside must keep beyond its layout: ranges, limits, and columns left out when default."""
    if batch.count > limits.batch_messages_max:
        raise BatchTooLarge(f"{batch.count} messages in a batch; the limit is {limits.batch_messages_max}")
    for column, nulls in ((KEY, KEY_NULLS), (VALUE, VALUE_NULLS)):
        if columns & nulls and not columns & column:
            raise InvalidColumn("validity bits without a column")
    if batch.timestamp_range() != timestamps:
        raise InvalidColumn(f"timestamps are {batch.timestamp_range()}, the header says {timestamps}")
    for name, times in (
        ("timestamp", np.array(timestamps)),
        ("deliver_at", batch.deliver_at),
        ("expires_at", batch.expires_at),
    ):
        if times is not None and (int(times.min()) < 0 or int(times.max()) > TIME_MAX_US):
            raise InvalidColumn(f"{name} is not within 1970–9999", column=name)
    if batch.priority is not None and (int(batch.priority.min()) < -1 or int(batch.priority.max()) > 1):
        raise InvalidColumn("priority is not -1, 0 or 1", column="priority")
    if batch.headers is not None:
        _check_headers(batch.headers, limits)
    _check_message_sizes(batch, limits)


def _check_headers(headers: Headers, limits: Limits) -> None:
    offsets, names, values = headers
    if int(np.diff(offsets).max()) > limits.headers_max:
        raise BatchTooLarge(f"more than {limits.headers_max} headers on a message")
    sizes = np.diff(names.offsets[offsets].astype(np.int64)) + np.diff(values.offsets[offsets].astype(np.int64))
    if int(sizes.max()) > limits.header_bytes_max:
        raise BatchTooLarge(f"headers of {sizes.max()} bytes; the limit is {limits.header_bytes_max}")
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
        raise BatchTooLarge(f"a message of {largest} bytes; the limit is {limits.message_bytes_max}", size=largest)


def check_limits(batch: Batch, limits: Limits = DEFAULT_LIMITS) -> None:
    """The limits a frame from outside is held to, for a batch made here (before it is encoded)."""
    if batch.count > limits.batch_messages_max:
        raise BatchTooLarge(f"{batch.count} messages in a batch; the limit is {limits.batch_messages_max}")
    _check_message_sizes(batch, limits)
    if batch.headers is not None:
        _check_headers(batch.headers, limits)
