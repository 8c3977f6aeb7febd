"""A batch of messages as columns, in Arrow's memory layout.

The broker works on batches, never on single messages; `body.py` turns them into bytes and back without copying the
columns, so a batch read from disk, sent to a client or handed to Spark is the same memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.clock import TIME_MAX_US
from penstock.columns import (
    HEADERS,
    SCHEMA,
    TIME,
    Binary,
    Headers,
    Ints,
    binary_column,
    headers_column,
    none_if_zero,
    priority_column,
    time_column,
)
from penstock.errors import InvalidInput, InvalidMessage, UnknownColumn
from penstock.message import Message


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
    def from_messages(cls, messages: Iterable[Message], now_us: int, *, checked: bool = False) -> Batch:
        """Rows to columns. A timestamp of 0 becomes `now_us`. With `checked`, the caller has checked each row."""
        rows = list(messages)
        if not checked:
            for row in rows:
                if not isinstance(row, Message):
                    raise InvalidMessage(f"not a Message but {type(row).__name__}")
                row.check()
        # A column nobody uses is not even looked at a second time. Numbers go through numpy: Arrow would look for
        # their type first, and for pandas, which takes longer than all the rest for a few rows.
        return cls.from_columns(
            [m.value for m in rows],
            keys=[m.key for m in rows],
            headers=[m.headers for m in rows] if any(m.headers for m in rows) else None,
            timestamps=np.array([m.timestamp for m in rows], np.int64) if any(m.timestamp for m in rows) else None,
            deliver_at=np.array([m.deliver_at for m in rows], np.int64) if any(m.deliver_at for m in rows) else None,
            expires_at=np.array([m.expires_at for m in rows], np.int64) if any(m.expires_at for m in rows) else None,
            priorities=np.array([m.priority for m in rows], np.int8) if any(m.priority for m in rows) else None,
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
        """Columns as Python sequences, numpy or Arrow arrays; None for a column that is all default.

        Times are microseconds or Arrow or numpy timestamps; a timestamp of 0 or None becomes `now_us`.
        """
        if not isinstance(now_us, int) or not 0 <= now_us <= TIME_MAX_US:
            raise InvalidMessage(f"now_us must be microseconds within 1970–9999, not {now_us!r}")
        for name, column in (
            ("values", values),
            ("keys", keys),
            ("headers", headers),
            ("timestamps", timestamps),
            ("deliver_at", deliver_at),
            ("expires_at", expires_at),
            ("priorities", priorities),
        ):
            if column is not None and not hasattr(column, "__len__"):
                raise InvalidMessage(f"{name} must be a sequence or an array, not {type(column).__name__}", column=name)
            if column is not None and len(column) != len(values):
                raise InvalidMessage(f"{name} has {len(column)} rows, values has {len(values)}", column=name)
        count = 0 if values is None else len(values)
        if count == 0:
            raise InvalidMessage("a batch needs at least one message")
        times = time_column("timestamps", timestamps)
        timestamp, timestamp_column = now_us, None
        if times is not None:
            times = np.where(times == 0, now_us, times)
            timestamp = int(times.min())
            if int(times.max()) != timestamp:
                timestamp_column = times
        return cls(
            count,
            timestamp=timestamp,
            key=binary_column("keys", keys),
            value=binary_column("values", values),
            headers=headers_column(headers),
            timestamp_column=timestamp_column,
            deliver_at=none_if_zero(time_column("deliver_at", deliver_at)),
            expires_at=none_if_zero(time_column("expires_at", expires_at)),
            priority=none_if_zero(priority_column(priorities)),
        )

    @classmethod
    def from_arrow(cls, table: pa.RecordBatch | pa.Table, now_us: int) -> Batch:
        """From any table with a `value` column; the other columns of SCHEMA are optional, others are refused."""
        if not isinstance(table, pa.RecordBatch | pa.Table):
            raise InvalidMessage(f"not an Arrow table or record batch but {type(table).__name__}")
        if len(set(table.schema.names)) < len(table.schema.names):
            raise InvalidMessage("two columns have the same name")
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
        if not 0 <= start < stop <= self.count:
            raise InvalidInput(f"rows {start} to {stop} of a batch of {self.count}")
        part = Batch.__new__(Batch)
        for name in Batch.__slots__:
            setattr(part, name, getattr(self, name))
        part.start = self.start + start
        part.count = stop - start
        return part

    def only(self, names: Collection[str]) -> Batch:
        """These columns of SCHEMA, and the log's own; the others as if every row had the default."""
        part = self.slice(0, self.count)
        for name in SCHEMA.names:
            if name not in names:
                setattr(part, "timestamp_column" if name == "timestamp" else name, None)
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

    @property
    def latest_delivery(self) -> int:
        """The last time that a message of these is to be delivered at; 0 if none has one."""
        return 0 if self.deliver_at is None else int(self.deliver_at[self.start : self.start + self.count].max())

    # --- to what users have ------------------------------------------------------------------------------

    def to_arrow(self) -> pa.RecordBatch:
        """The columns of SCHEMA over this batch's memory; only what was left out is made up."""
        return pa.RecordBatch.from_arrays([self.column(name) for name in SCHEMA.names], schema=SCHEMA)

    def column(self, name: str) -> pa.Array:
        """One of those of SCHEMA."""
        match name:
            case "key":
                return self._binary_array(self.key)
            case "value":
                return self._binary_array(self.value)
            case "headers":
                return self._headers_array()
            case "timestamp":
                return self._timestamp_array()
            case "deliver_at":
                return self._optional_time_array(self.deliver_at)
            case "expires_at":
                return self._optional_time_array(self.expires_at)
            case _:
                assert name == "priority", name
                return self._priority_array()

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
        return ~bits(self.value.validity, self.start, self.count)

    def messages(self) -> Iterator[Message]:
        """As rows. Only for edges that speak rows."""
        if self.headers is None and self.deliver_at is None and self.expires_at is None and self.priority is None:
            return map(Message, self.values(), self.keys(), repeat(()), self.timestamps.tolist())
        return self._rich_messages()

    def _rich_messages(self) -> Iterator[Message]:
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
                HEADERS, self.count, [None, pa.py_buffer(offsets)], children=[pa.nulls(0, HEADERS.value_type)]
            )
        offsets, names, values = self.headers
        pairs = len(names.offsets) - 1
        name_array = pa.Array.from_buffers(
            pa.string(), pairs, [None, pa.py_buffer(names.offsets), pa.py_buffer(names.data)]
        )
        value_array = pa.Array.from_buffers(
            pa.binary(), pairs, [None, pa.py_buffer(values.offsets), pa.py_buffer(values.data)]
        )
        struct_array = pa.StructArray.from_arrays([name_array, value_array], fields=list(HEADERS.value_type))
        return pa.Array.from_buffers(
            HEADERS, self.count, [None, pa.py_buffer(offsets)], offset=self.start, children=[struct_array]
        )

    def _timestamp_array(self) -> pa.Array:
        return pa.Array.from_buffers(TIME, self.count, [None, pa.py_buffer(self.timestamps)])

    def _optional_time_array(self, column: Ints | None) -> pa.Array:
        if column is None:
            return pa.nulls(self.count, TIME)
        times = column[self.start : self.start + self.count]
        validity = np.packbits(times != 0, bitorder="little")
        return pa.Array.from_buffers(TIME, self.count, [pa.py_buffer(validity), pa.py_buffer(times)])

    def _priority_array(self) -> pa.Array:
        if self.priority is None:
            priority = np.zeros(self.count, np.int8)
        else:
            priority = np.ascontiguousarray(self.priority[self.start : self.start + self.count])
        return pa.Array.from_buffers(pa.int8(), self.count, [None, pa.py_buffer(priority)])

    def without_log_columns(self) -> Batch:
        """The same messages, for a place of their own: offsets and append times are those of the log they came from."""
        if self.offset_delta is None and self.append_time is None:
            return self
        plain = self.slice(0, self.count)
        plain.offset_delta = plain.append_time = None
        return plain

    def rows(self, rows: npt.NDArray[np.int64]) -> Batch:
        """These rows, in this order, as a batch of their own."""
        assert len(rows) > 0
        # Numbers by numpy: Arrow, asked to make an array or a scalar, looks whether it is of pandas, and imports that.
        indices = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))])

        def taken(column: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
            return None if column is None else column[self.start : self.start + self.count][rows]

        return Batch.from_columns(
            self._binary_array(self.value).take(indices),
            keys=None if self.key is None else self._binary_array(self.key).take(indices),
            headers=None if self.headers is None else self._headers_array().take(indices),
            timestamps=None if self.timestamp_column is None else self.timestamps[rows],
            deliver_at=taken(self.deliver_at),
            expires_at=taken(self.expires_at),
            priorities=taken(self.priority),
            now_us=self.timestamp,
        )

    # --- rearranged (only by the log, in sealed segments) ------------------------------------------------

    def take(self, kept: npt.NDArray[np.bool_]) -> Batch:
        """The rows where `kept` is true, with the offsets they had."""
        rows = np.flatnonzero(kept)
        taken = self.rows(rows)
        taken.offset_delta = self.offset_deltas[rows]
        if self.append_time is not None:
            taken.append_time = self.append_time[self.start : self.start + self.count][rows]
        return taken

    @classmethod
    def concat(cls, batches: Sequence[Batch]) -> Batch:
        """One after the other; offset deltas and append times are the caller's to set."""
        table = pa.Table.from_batches([batch.to_arrow() for batch in batches])
        return cls.from_arrow(table, now_us=batches[0].timestamp)


def bits(bitmap: npt.NDArray[np.uint8], start: int, count: int) -> npt.NDArray[np.bool_]:
    """`count` bits of an Arrow bitmap as booleans."""
    first = start >> 3
    unpacked = np.unpackbits(bitmap[first : (start + count + 7) >> 3], bitorder="little")
    return unpacked[start - 8 * first :][:count].astype(np.bool_)
