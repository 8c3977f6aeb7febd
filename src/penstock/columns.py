"""Columns of messages, and how they are made of what users have: Python sequences, numpy and Arrow arrays."""

from __future__ import annotations

import sys
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.clock import TIME_MAX_US
from penstock.errors import InvalidMessage

Ints = npt.NDArray[np.int64]

TIME = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("timestamp", TIME),
        ("deliver_at", TIME),
        ("expires_at", TIME),
        ("priority", pa.int8()),
    ]
)

# Up to so many, Python has counted before numpy has begun.
_FEW = 64
# Up to so many, doing without Arrow costs at most 30 ns each; beyond, several times what Arrow takes.
_MANY = 2_000
# Offsets have 32 bits.
_BYTES_MAX = (1 << 31) - 1
_NULL = type(None)


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


def _arrow(name: str, values: Any, target: pa.DataType) -> pa.Array:
    try:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if isinstance(values, pa.Array):
            return values if values.type == target else values.cast(target)
        return pa.array(values, type=target)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidMessage(f"{name}: {error}", column=name) from error


def _inferred(name: str, values: Any) -> pa.Array:
    """As an array of whatever type the values are."""
    try:
        if isinstance(values, pa.ChunkedArray):
            return values.combine_chunks()
        return values if isinstance(values, pa.Array) else pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidMessage(f"{name}: {error}", column=name) from error


def _whole_numbers(name: str, array: pa.Array, target: pa.DataType) -> pa.Array:
    """Arrow would cut 1.7 to 1 and take True for 1."""
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_null(kind) or pa.types.is_timestamp(kind)):
        raise InvalidMessage(f"{name} must be whole numbers, not {kind}", column=name)
    return _arrow(name, array, target)


def binary_column(name: str, values: Any) -> Binary | None:
    if values is None:
        return None
    if type(values) is list and (len(values) <= _FEW or (len(values) <= _MANY and "pandas" not in sys.modules)):
        kinds = list(map(type, values))
        nulls = kinds.count(_NULL)
        if nulls == len(values):
            return None
        if nulls + kinds.count(bytes) == len(values):
            return _of_some(values) if nulls else _of_bytes(values)
    array = _arrow(name, values, pa.binary())
    if array.null_count == len(array):
        return None
    return _binary_of(array)


def _of_bytes(values: list[bytes]) -> Binary:
    """Without Arrow: the first list that it is given makes it import pandas, wherever that is installed. That takes up
    to half a second, and whoever publishes would be held up by it. And a few are done before Arrow has begun.
    """
    data = memoryview(b"".join(values))
    if len(data) > _BYTES_MAX:
        raise InvalidMessage(f"{len(data)} bytes are more than one column can hold", limit=_BYTES_MAX)
    return Binary(_ends(values), data)


def _of_some(values: list[bytes | None]) -> Binary:
    offsets, data, _ = _of_bytes([value or b"" for value in values])
    return Binary(offsets, data, np.packbits([value is not None for value in values], bitorder="little"))


def _ends(values: list[bytes]) -> npt.NDArray[np.int32]:
    """Where the first one begins, and where each of them ends."""
    if len(values) <= _FEW:
        return np.array(list(accumulate(map(len, values), initial=0)), np.int32)
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=ends[1:])
    return ends


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


def headers_column(values: Any) -> Headers | None:
    """From rows of pairs or dicts, or an Arrow list of (key, value) structs or map."""
    if values is None:
        return None
    if isinstance(values, pa.Array | pa.ChunkedArray):
        array = _arrow("headers", _list_of_map(values), HEADERS)
    else:
        try:
            rows = [list(row.items() if isinstance(row, dict) else () if row is None else row) for row in values]
            if not any(rows):
                return None
            dicts = [[{"key": name, "value": value} for name, value in row] for row in rows]
        except (TypeError, ValueError) as error:
            raise InvalidMessage(f"headers: {error}", column="headers") from error
        array = _arrow("headers", dicts, HEADERS)
    if array.null_count:
        array = pc.fill_null(array, pa.scalar([], HEADERS))
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
    lists = pa.ListArray.from_arrays(values.offsets, pairs)
    # A map that is null may have entries beneath it all the same.
    return pc.if_else(values.is_valid(), lists, pa.scalar(None, lists.type)) if values.null_count else lists


def time_column(name: str, values: Any) -> Ints | None:
    if values is None:
        return None
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim == 1:
        times: Ints = np.ascontiguousarray(values)
    else:
        array = _inferred(name, values)
        if pa.types.is_timestamp(array.type):
            array = _arrow(name, array, TIME)
        times = pc.fill_null(_whole_numbers(name, array, pa.int64()), 0).to_numpy(zero_copy_only=False)
    if int(times.min()) < 0 or int(times.max()) > TIME_MAX_US:
        raise InvalidMessage(f"{name} must be microseconds within 1970–9999", column=name)
    return times


def priority_column(values: Any) -> npt.NDArray[np.int8] | None:
    if values is None:
        return None
    priorities: npt.NDArray[np.int8]
    if isinstance(values, np.ndarray) and values.dtype == np.int8 and values.ndim == 1:
        priorities = np.ascontiguousarray(values)
    else:
        array = _whole_numbers("priorities", _inferred("priorities", values), pa.int8())
        priorities = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
    if int(priorities.min()) < -1 or int(priorities.max()) > 1:
        raise InvalidMessage("priorities must be -1, 0 or 1", column="priorities")
    return priorities


def none_if_zero(column: Any) -> Any:
    return column if column is not None and column.any() else None
