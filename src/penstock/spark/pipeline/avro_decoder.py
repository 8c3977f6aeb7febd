"""Avro's bytes to rows in Arrow, with fastavro, and which of them are bad.

What is in the bytes is not trusted. A row is read for as long as there are bytes for it, whatever they claim; but each
of them may be a record within an array, which takes some 250 bytes while it is read, and more of a record that has
fields of null. Of what is read, Arrow is made every PIECE_BYTES, and a row of more than ROW_BYTES_MAX is bad.

Good is a row of which nothing is left over. fastavro is lenient in what no writer makes: a number in more than ten
bytes is some number to it, a block of -2^63 items has none, of values under one name in a map it has the last only, and
a few negative numbers in three bytes or more are branches of a union (see _NO_BRANCH).

fastavro reads the schema that is made here, of which the bytes are the same: texts as bytes, enums as numbers, booleans
as one byte, since Arrow looks at all values of a column at once, and fastavro takes more than there is for one of them;
no logical types; and the branches of a union, if there are several, as records of one field, so that what is read is
the struct already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from io import BytesIO
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.spark.pipeline.avro_schema import parse
from penstock.spark.pipeline.avro_size import base, per_byte, sizing
from penstock.spark.pipeline.avro_types import (
    LOGICAL,
    Array,
    Digits,
    Enum,
    Fixed,
    Map,
    Plain,
    Record,
    Shape,
    Union,
    arrow_type,
    members,
)
from penstock.spark.pipeline.session import check_fastavro

# A union's branches are a list to fastavro, which counts from its end if the number is negative. Behind the branches
# are names of types that are not there: as many as numbers in two bytes can be negative. It looks for this one in each
# schema that it reads, and had to look through them all were they called anything else.
_NO_BRANCH = ["logicalType"] * 8192
_BOOLEANS = {b"\0": False, b"\1": True, None: None}
# Arrow's own are among them, but not that memory is short: that is no row's fault.
_UNFIT = (ValueError, KeyError, OverflowError, pa.ArrowIndexError)
# As Arrow, in about this many bytes. A piece is a batch to Spark, and its rows are forgotten before the next.
PIECE_BYTES = 8 << 20
# What one row may become: 256 times a message of the largest size that brokers take unless told otherwise. Spark copies
# rows, and has its limit at 2 GiB, as Arrow has for the texts of a column.
ROW_BYTES_MAX = 256 << 20


class Decoder:
    """For messages of one schema, on executors."""

    def __init__(self, schema: Any) -> None:
        self._given = schema
        self._record = parse(schema)
        self._base, self._per_byte = base(self._record), per_byte(self._record)
        self._size = sizing(self._record)
        self.type = arrow_type(self._record)

    @cached_property
    def _reader(self) -> tuple[Any, Any]:
        check_fastavro()
        from fastavro import parse_schema, schemaless_reader

        return schemaless_reader, _closed(parse_schema(_reading(self._record, count())))

    def __reduce__(self) -> Any:
        return Decoder, (self._given,)

    def decode(self, values: pa.Array) -> Iterator[tuple[pa.Array, pa.Array]]:
        """The rows, and which are bad, in pieces. Bad ones are null, as rows of nothing are."""
        read, schema = self._reader
        piece, size_of_piece, begin = _Piece(self._record), 0, 0
        for place, value in enumerate(values.to_numpy(zero_copy_only=False).tolist()):
            if value is None:
                continue
            file = BytesIO(value)
            try:
                row = read(file, schema, None)
            except MemoryError:
                raise
            except Exception:
                # Whatever fastavro comes upon.
                piece.bad.append(place - begin)
                continue
            if file.tell() != len(value):
                piece.bad.append(place - begin)
                continue
            row_size = self._base + self._per_byte * len(value)
            if row_size > PIECE_BYTES:
                row_size = self._size(row)
            if row_size > ROW_BYTES_MAX:
                piece.bad.append(place - begin)
                continue
            if size_of_piece + row_size > PIECE_BYTES and piece.rows:
                yield piece.built(place - begin)
                piece, size_of_piece, begin = _Piece(self._record), 0, place
            piece.rows.append(row)
            piece.places.append(place - begin)
            size_of_piece += row_size
        if begin < len(values):
            yield piece.built(len(values) - begin)


class _Piece:
    def __init__(self, record: Record) -> None:
        self._record = record
        self.rows: list[Any] = []
        self.places: list[int] = []
        self.bad: list[int] = []

    def built(self, length: int) -> tuple[pa.Array, pa.Array]:
        try:
            found = _built(self._record, self.rows)
        except _UNFIT:
            self._drop_unfit()
            # Once more is a bug, and no row's fault.
            found = _built(self._record, self.rows)
        is_bad = np.zeros(length, bool)
        is_bad[self.bad] = True
        if len(self.rows) < length:
            numbers = np.zeros(length, np.int64)
            numbers[self.places] = np.arange(len(self.rows))
            is_none = np.ones(length, bool)
            is_none[self.places] = False
            found = found.take(pa.array(numbers, mask=is_none))
        return found, pa.array(is_bad)

    def _drop_unfit(self) -> None:
        rows, places = self.rows, self.places
        self.rows, self.places = [], []
        for row, place in zip(rows, places, strict=True):
            if _fits(self._record, row):
                self.rows.append(row)
                self.places.append(place)
            else:
                self.bad.append(place)


def _fits(shape: Shape, value: Any) -> bool:
    """Whether _built takes it."""
    if value is None:
        return True
    match shape:
        case Plain("string"):
            return _is_utf_8(value)
        case Plain("boolean"):
            return value in _BOOLEANS
        case Plain("int"):
            return bool(-(1 << 31) <= value < 1 << 31)
        case Plain("long", logical) if ("long", logical) in LOGICAL and logical.endswith("-millis"):
            return bool(-(1 << 63) <= value * 1000 < 1 << 63)
        case Digits(precision):
            return len(value) > 0 and abs(int.from_bytes(value, "big", signed=True)) < 10**precision
        case Enum(symbols):
            return bool(0 <= value < len(symbols))
        case Array(items):
            return all(_fits(items, each) for each in value)
        case Map(values):
            return all(_fits(values, each) for each in value.values())
        case Record(fields):
            return all(_fits(field.shape, value[field.name]) for field in fields)
        case Union(branches):
            if (single := shape.single_shape) is not None:
                return _fits(single, value)
            return all(_fits(branches[number], value.get(name)) for name, number in members(shape))
    return True


def _is_utf_8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _reading(shape: Shape, numbers: count[int]) -> Any:
    """As fastavro reads it. Names are numbers: each is used once."""
    match shape:
        case Plain("string"):
            return "bytes"
        case Plain("boolean"):
            return {"type": "fixed", "name": _name(numbers), "size": 1}
        case Plain(type):
            return type
        case Enum():
            return "int"
        case Digits(size=size) if size is None:
            return "bytes"
        case Fixed(size) | Digits(size=size):
            return {"type": "fixed", "name": _name(numbers), "size": size}
        case Array(items):
            return {"type": "array", "items": _reading(items, numbers)}
        case Map(values):
            return {"type": "map", "values": _reading(values, numbers)}
        case Record(fields):
            return _record({field.name: _reading(field.shape, numbers) for field in fields}, numbers)
        case Union(branches):
            found = [_reading(each, numbers) for each in branches]
            if shape.single is None:
                for name, number in members(shape):
                    found[number] = _record({name: found[number]}, numbers)
            return found


def _name(numbers: count[int]) -> str:
    return f"t{next(numbers)}"


def _record(fields: dict[str, Any], numbers: count[int]) -> dict[str, Any]:
    inner = [{"name": name, "type": type} for name, type in fields.items()]
    return {"type": "record", "name": _name(numbers), "fields": inner}


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        for each in schema:
            _closed(each)
        schema.extend(_NO_BRANCH)
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            _closed(field["type"])
        _closed(schema.get("items"))
        _closed(schema.get("values"))
    return schema


def _built(shape: Shape, values: Sequence[Any]) -> pa.Array:
    """One of _UNFIT if a value is none of the type."""
    match shape:
        case Plain(type, logical):
            return _plain(type, logical, values)
        case Fixed():
            return pa.array(values, pa.binary())
        case Digits():
            return _decimals(shape, values)
        case Enum(symbols):
            # Checked against their number.
            return pa.DictionaryArray.from_arrays(pa.array(values, pa.int32()), list(symbols)).cast(pa.string())
        case Array(items):
            flat = [item for value in values if value is not None for item in value]
            inner = _built(items, flat)
            return pa.ListArray.from_arrays(_offsets(values), inner, type=arrow_type(shape), mask=_nulls(values))
        case Map(inner_shape):
            names = [name for value in values if value is not None for name in value]
            inner = _built(inner_shape, [item for value in values if value is not None for item in value.values()])
            keys = pa.array(names, pa.string())
            return pa.MapArray.from_arrays(_offsets(values), keys, inner, type=arrow_type(shape), mask=_nulls(values))
        case Record(fields):
            return _struct(shape, [(field.name, field.shape) for field in fields], values)
        case Union(branches):
            if (single := shape.single_shape) is not None:
                return _built(single, values)
            return _struct(shape, [(name, branches[number]) for name, number in members(shape)], values)


def _plain(type: str, logical: str, values: Sequence[Any]) -> pa.Array:
    kind = arrow_type(Plain(type, logical))
    if type == "boolean":
        return pa.array([_BOOLEANS[value] for value in values], kind)
    if (type, logical) not in LOGICAL:
        return pa.array(values, kind)
    if logical.endswith("-millis"):
        return pa.array(values, pa.int64()).cast(pa.timestamp("ms", kind.tz)).cast(kind)
    return pa.array(values, arrow_type(Plain(type))).cast(kind)


def _decimals(shape: Digits, values: Sequence[bytes | None]) -> pa.Array:
    """From sixteen bytes each, the lowest first, which is how Arrow has them."""
    most = 10**shape.precision
    found = bytearray()
    for value in values:
        number = 0 if value is None else int.from_bytes(value, "big", signed=True)
        if not -most < number < most or value == b"":
            raise ValueError
        found += number.to_bytes(16, "little", signed=True)
    is_there = pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(arrow_type(shape), len(values), [is_there, pa.py_buffer(found)])


def _offsets(values: Sequence[Any]) -> pa.Array:
    lengths = [0 if value is None else len(value) for value in values]
    return pa.array(np.cumsum([0, *lengths], dtype=np.int64), pa.int32())


def _nulls(values: Sequence[Any]) -> pa.Array | None:
    return pa.array([value is None for value in values], pa.bool_()) if None in values else None


def _struct(shape: Shape, fields: list[tuple[str, Shape]], values: Sequence[Any]) -> pa.Array:
    kind = arrow_type(shape)
    columns = []
    for name, inner in fields:
        if isinstance(shape, Record) and None not in values:
            column = [value[name] for value in values]
        else:
            column = [None if value is None else value.get(name) for value in values]
        columns.append(_built(inner, column))
    if not columns:
        return pa.array([None if value is None else {} for value in values], kind)
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=_nulls(values))
