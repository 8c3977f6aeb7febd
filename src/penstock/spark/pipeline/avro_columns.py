"""The values of columns in Arrow, as fastavro takes them. A row that can't be written is told by its field."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInput
from penstock.spark.pipeline.avro_types import Digits

# Of a column that has no nulls.
Prepare = Callable[[pa.Array], Iterable[Any]]


def null_in(path: str) -> InvalidInput:
    return InvalidInput(
        f"{path} is null in a row, and the schema does not let it be; a message without a value is a row of nulls"
    )


def listed(column: pa.Array) -> list[Any]:
    found: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return found


def micros(column: pa.Array) -> Iterable[Any]:
    return listed(column.cast(pa.int64()))


def millis(column: pa.Array) -> Iterable[Any]:
    """Of a time before 1970, the millisecond that it is in, too."""
    found: list[int] = (column.cast(pa.int64()).to_numpy() // 1000).tolist()
    return found


def texts(path: str) -> Prepare:
    def prepare(column: pa.Array) -> Iterable[Any]:
        _check_texts(column, path)
        return listed(column.cast(pa.binary()))

    return prepare


def _check_texts(column: pa.Array, path: str) -> None:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise InvalidInput(f"{path} has a text in a row that is not UTF-8") from None


def fixed(size: int, path: str) -> Prepare:
    def prepare(column: pa.Array) -> Iterable[Any]:
        lengths = pc.unique(pc.binary_length(column)).to_pylist()
        if (other := next((each for each in lengths if each != size), None)) is not None:
            raise InvalidInput(f"{path} has {other} bytes in a row, and the schema has {size}")
        return listed(column)

    return prepare


def enum(symbols: tuple[str, ...], path: str) -> Prepare:
    numbers = {symbol: place for place, symbol in enumerate(symbols)}

    def prepare(column: pa.Array) -> Iterable[Any]:
        _check_texts(column, path)
        try:
            return [numbers[each] for each in column.to_pylist()]
        except KeyError as error:
            told = f"{path} is {error.args[0]!r} in a row, and the schema has {', '.join(symbols)}"
            raise InvalidInput(told) from None

    return prepare


def decimals(shape: Digits) -> Prepare:
    kind = pa.decimal128(shape.precision, shape.scale)

    def encoded(value: int) -> bytes:
        size = shape.size
        if size is None:
            # As few as it takes, one bit being the sign's.
            size = (value if value >= 0 else ~value).bit_length() // 8 + 1
        return value.to_bytes(size, "big", signed=True)

    def prepare(column: pa.Array) -> Iterable[Any]:
        column = column.cast(kind)
        data = memoryview(column.buffers()[1] or b"")[column.offset * 16 : (column.offset + len(column)) * 16]
        numbers = (int.from_bytes(data[at : at + 16], "little", signed=True) for at in range(0, len(data), 16))
        return map(encoded, numbers)

    return prepare


def _lengths(column: pa.Array) -> tuple[list[int], int, int]:
    """Of the lists in it; and where the values begin and end that they have."""
    offsets = column.offsets.to_numpy()
    return np.diff(offsets).tolist(), int(offsets[0]), int(offsets[-1])


def arrays(items: Prepare) -> Prepare:
    def prepare(column: pa.Array) -> Iterable[Any]:
        lengths, begin, end = _lengths(column)
        flat = iter(items(column.values[begin:end]))
        return [[next(flat) for _ in range(length)] for length in lengths]

    return prepare


def maps(values: Prepare, path: str) -> Prepare:
    def prepare(column: pa.Array) -> Iterable[Any]:
        lengths, begin, end = _lengths(column)
        keys = column.keys[begin:end]
        _check_texts(keys, path)
        flat = zip(keys.to_pylist(), values(column.items[begin:end]), strict=True)
        return [dict(next(flat) for _ in range(length)) for length in lengths]

    return prepare


def rows_of(names: list[str], places: list[int], prepares: list[Prepare | bytes]) -> Prepare:
    def prepare(column: pa.Array) -> Iterable[Any]:
        given = column.flatten()
        values = [
            repeat(each, len(column)) if isinstance(each, bytes) else each(given[place])
            for place, each in zip(places, prepares, strict=True)
        ]
        if not values:
            return repeat({}, len(column))
        return (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True))

    return prepare


def may_be_null(prepare: Prepare, name: str, may_be: bool, path: str) -> Prepare:
    none = ("null", None)

    def prepare_all(column: pa.Array) -> Iterable[Any]:
        if not column.null_count:
            return [(name, value) for value in prepare(column)]
        if not may_be:
            raise null_in(path)
        values = iter(prepare(column.drop_null()))
        return [(name, next(values)) if is_there else none for is_there in listed(column.is_valid())]

    return prepare_all


def members_of(prepares: list[tuple[str, Prepare]], may_be_null: bool, path: str) -> Prepare:
    """The one of them that is not null."""

    def prepare(column: pa.Array) -> Iterable[Any]:
        found: list[Any] = [("null", None)] * len(column)
        is_open = np.ones(len(column), bool)
        for (name, inner), values in zip(prepares, column.flatten(), strict=True):
            is_this = values.is_valid().to_numpy(zero_copy_only=False)
            if (is_this & ~is_open).any():
                raise InvalidInput(f"{path} has several members in a row that are not null, and a union has one")
            is_open &= ~is_this
            rows = np.flatnonzero(is_this)
            for row, value in zip(rows.tolist(), inner(values.take(pa.array(rows))), strict=True):
                found[row] = (name, {"value": value})
        if not may_be_null and is_open.any():
            raise null_in(path)
        return found

    return prepare
