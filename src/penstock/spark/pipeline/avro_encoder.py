"""Rows in Arrow to Avro's bytes, with fastavro. Whether the columns fit the schema is told before there are rows.

As for reading, fastavro is given a schema of the same bytes: texts as bytes, enums as numbers, no logical types. What
it would take for something else (a null for false) does not get there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import BytesIO
from itertools import count, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInput
from penstock.spark.pipeline.avro_default import number
from penstock.spark.pipeline.avro_schema import parse
from penstock.spark.pipeline.avro_types import (
    NULL,
    Array,
    Digits,
    Enum,
    Field,
    Fixed,
    Map,
    Plain,
    Record,
    Shape,
    Union,
    members,
)

# What can be written as what without a loss. The names are those of Spark's schemas in JSON.
_FIT = {
    "null": {"void"},
    "boolean": {"boolean"},
    "int": {"byte", "short", "integer", "date"},
    "long": {"byte", "short", "integer", "long"},
    "float": {"byte", "short", "float"},
    "double": {"byte", "short", "integer", "float", "double"},
    "bytes": {"binary"},
    "string": {"string"},
}
# To Spark's own package, a long that is nothing else has milliseconds.
_TIMES = {
    "timestamp": {"", "timestamp-millis", "timestamp-micros"},
    "timestamp_ntz": {"", "local-timestamp-millis", "local-timestamp-micros"},
}

# The values of a column that has no nulls, as fastavro takes them.
_Prepare = Callable[[pa.Array], Iterable[Any]]


class Encoder:
    """`struct` is the type of the rows, as Spark writes it in JSON. InvalidInput if they do not fit."""

    def __init__(self, schema: Any, struct: dict[str, Any]) -> None:
        from fastavro import parse_schema, schemaless_writer

        self._given = (schema, struct)
        shape, self._prepare = _Writing().plain(parse(schema), struct, "")
        self._schema = parse_schema(shape)
        self._write = schemaless_writer

    def __reduce__(self) -> Any:
        return Encoder, self._given

    def encode(self, rows: pa.StructArray) -> pa.Array:
        file, ends = BytesIO(), [0]
        write, schema, tell = self._write, self._schema, file.tell
        for row in self._prepare(rows):
            write(file, schema, row)
            ends.append(tell())
        offsets = pa.py_buffer(np.array(ends, np.int64))
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(rows), [None, offsets, pa.py_buffer(file.getbuffer())]
        ).cast(pa.binary())


class _Writing:
    """A type of the schema together with one of Spark's: the schema for fastavro, and how to make values for it."""

    def __init__(self) -> None:
        self._numbers = count()

    def any(self, shape: Shape, kind: Any, path: str) -> tuple[Any, _Prepare]:
        """Of a column that may have nulls."""
        if isinstance(shape, Union):
            return self._union(shape, kind, path)
        found, prepare = self.plain(shape, kind, path)

        def refuse_nulls(column: pa.Array) -> Iterable[Any]:
            if column.null_count and shape != NULL:
                raise InvalidInput(f"{path} is null in a row, and the schema does not let it be")
            return prepare(column)

        return found, refuse_nulls

    def plain(self, shape: Shape, kind: Any, path: str) -> tuple[Any, _Prepare]:
        match shape:
            case Plain(type, logical):
                return _plain(type, logical, kind, path)
            case Fixed(size):
                _check(kind == "binary", kind, f"a fixed of {size} bytes, which takes binary", path)
                return self._named("fixed", size=size), _fixed(size, path)
            case Digits():
                return self._decimal(shape, kind, path)
            case Enum(symbols):
                _check(kind == "string", kind, "an enum, which takes string", path)
                return "int", _enum(symbols, path)
            case Array(items):
                _check(_is(kind, "array"), kind, "an array", path)
                inner, prepare = self.any(items, kind["elementType"], f"{path}.element")
                return {"type": "array", "items": inner}, _array(prepare)
            case Map(values):
                is_map = _is(kind, "map") and kind["keyType"] == "string"
                _check(is_map, kind, "a map, which takes a map whose keys are string", path)
                inner, prepare = self.any(values, kind["valueType"], f"{path}.value")
                return {"type": "map", "values": inner}, _map(prepare)
            case Record(fields):
                _check(_is(kind, "struct"), kind, "a record, which takes struct", path)
                return self._record(fields, kind["fields"], path)
            case Union():
                raise AssertionError("unions are not plain")

    def _named(self, type: str, **more: Any) -> dict[str, Any]:
        return {"type": type, "name": f"t{next(self._numbers)}", **more}

    def _decimal(self, shape: Digits, kind: Any, path: str) -> tuple[Any, _Prepare]:
        told = f"decimal({shape.precision},{shape.scale})"
        digits = [int(part) for part in kind[8:-1].split(",")] if str(kind).startswith("decimal(") else [99, 0]
        is_less = digits[1] <= shape.scale and digits[0] - digits[1] <= shape.precision - shape.scale
        _check(is_less, kind, told, path)
        return "bytes" if shape.size is None else self._named("fixed", size=shape.size), _decimals(shape)

    def _record(self, fields: tuple[Field, ...], columns: list[Any], path: str) -> tuple[Any, _Prepare]:
        known = {field.name.lower() for field in fields}
        given: dict[str, int] = {}
        for place, column in enumerate(columns):
            name = column["name"]
            if name.lower() not in known:
                there = ", ".join(field.name for field in fields)
                raise InvalidInput(
                    f"{_at(path, name)} is not in the Avro schema, which has {there}: add it there, or leave it out"
                )
            if name.lower() in given:
                raise InvalidInput(f"two columns are called {_at(path, name)}: one is in the Avro schema")
            given[name.lower()] = place
        inner: list[dict[str, Any]] = []
        prepares: list[_Prepare | bytes] = []
        places: list[int] = []
        for field in fields:
            place = given.get(field.name.lower(), -1)
            if place >= 0:
                type, prepare = self.any(field.shape, columns[place]["type"], _at(path, field.name))
                prepares.append(prepare)
            else:
                default = _default(field, path)
                type = self._named("fixed", size=len(default))
                prepares.append(default)
            inner.append({"name": field.name, "type": type})
            places.append(place)
        return self._named("record", fields=inner), _rows([field.name for field in fields], places, prepares)

    def _union(self, union: Union, kind: Any, path: str) -> tuple[Any, _Prepare]:
        branches: list[Any] = ["null" if each == NULL else self._named("fixed", size=0) for each in union.branches]
        if union.single is not None:
            shape = union.single_shape
            assert shape is not None
            if union.may_be_null and kind == "void":
                return branches, lambda column: repeat(("null", None), len(column))
            found, prepare = self.plain(shape, kind, path)
            branches[union.single] = found
            return branches, _may_be_null(prepare, _called(found), union.may_be_null, path)
        names = [name for name, _ in members(union)]
        is_of_members = _is(kind, "struct") and [field["name"] for field in kind["fields"]] == names
        _check(is_of_members, kind, f"a union, which takes a struct of {', '.join(names)}", path)
        prepares: list[tuple[str, _Prepare]] = []
        for (name, place), field in zip(members(union), kind["fields"], strict=True):
            found, prepare = self.plain(union.branches[place], field["type"], _at(path, name))
            branches[place] = self._named("record", fields=[{"name": "value", "type": found}])
            prepares.append((branches[place]["name"], prepare))
        return branches, _members(prepares, union.may_be_null, path)


def _is(kind: Any, name: str) -> bool:
    return isinstance(kind, dict) and kind["type"] == name


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _check(fits: bool, kind: Any, told: str, path: str) -> None:
    if not fits:
        is_a = kind if isinstance(kind, str) else kind["type"]
        raise InvalidInput(f"{path} is {is_a}, and in the Avro schema it is {told}: cast it")


def _called(schema: Any) -> str:
    """How fastavro is told which branch it is."""
    return schema if isinstance(schema, str) else str(schema.get("name", schema["type"]))


def _default(field: Field, path: str) -> bytes:
    """Of a field for which there is no column."""
    if field.default is not None:
        return field.default
    if isinstance(field.shape, Union) and field.shape.may_be_null:
        return number(field.shape.branches.index(NULL))
    if field.shape == NULL:
        return b""
    raise InvalidInput(
        f"there is no column for {_at(path, field.name)} of the Avro schema, which has no default, and is never null"
    )


def _list(column: pa.Array) -> list[Any]:
    found: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return found


def _plain(type: str, logical: str, kind: Any, path: str) -> tuple[Any, _Prepare]:
    if type == "long" and isinstance(kind, str) and kind in _TIMES:
        _check(logical in _TIMES[kind], kind, logical, path)
        return type, _micros if logical.endswith("-micros") else _millis
    takes = _FIT[type]
    _check(
        isinstance(kind, str) and kind in takes,
        kind,
        f"{logical or type}, which takes {', '.join(sorted(takes))}",
        path,
    )
    match type:
        case "null":
            return type, lambda column: repeat(None, len(column))
        case "string":
            return "bytes", _texts(path)
        case "int" | "long":
            return type, lambda column: _list(column.cast(pa.int32() if kind == "date" else pa.int64()))
    return type, _list


def _micros(column: pa.Array) -> Iterable[Any]:
    return _list(column.cast(pa.int64()))


def _millis(column: pa.Array) -> Iterable[Any]:
    """Of a time before 1970, the millisecond that it is in, too."""
    found: list[int] = (column.cast(pa.int64()).to_numpy() // 1000).tolist()
    return found


def _texts(path: str) -> _Prepare:
    def prepare(column: pa.Array) -> Iterable[Any]:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            raise InvalidInput(f"{path} has a text in a row that is not UTF-8") from None
        return _list(column.cast(pa.binary()))

    return prepare


def _fixed(size: int, path: str) -> _Prepare:
    def prepare(column: pa.Array) -> Iterable[Any]:
        lengths = pc.unique(pc.binary_length(column)).to_pylist()
        if (other := next((each for each in lengths if each != size), None)) is not None:
            raise InvalidInput(f"{path} has {other} bytes in a row, and the schema has {size}")
        return _list(column)

    return prepare


def _enum(symbols: tuple[str, ...], path: str) -> _Prepare:
    numbers = {symbol: place for place, symbol in enumerate(symbols)}

    def prepare(column: pa.Array) -> Iterable[Any]:
        try:
            return [numbers[each] for each in column.to_pylist()]
        except KeyError as error:
            told = f"{path} is {error.args[0]!r} in a row, and the schema has {', '.join(symbols)}"
            raise InvalidInput(told) from None

    return prepare


def _decimals(shape: Digits) -> _Prepare:
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


def _array(items: _Prepare) -> _Prepare:
    def prepare(column: pa.Array) -> Iterable[Any]:
        lengths, begin, end = _lengths(column)
        flat = iter(items(column.values[begin:end]))
        return [[next(flat) for _ in range(length)] for length in lengths]

    return prepare


def _map(values: _Prepare) -> _Prepare:
    def prepare(column: pa.Array) -> Iterable[Any]:
        lengths, begin, end = _lengths(column)
        flat = zip(column.keys[begin:end].to_pylist(), values(column.items[begin:end]), strict=True)
        return [dict(next(flat) for _ in range(length)) for length in lengths]

    return prepare


def _rows(names: list[str], places: list[int], prepares: list[_Prepare | bytes]) -> _Prepare:
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


def _may_be_null(prepare: _Prepare, name: str, may_be: bool, path: str) -> _Prepare:
    none = ("null", None)

    def prepare_all(column: pa.Array) -> Iterable[Any]:
        if not column.null_count:
            return [(name, value) for value in prepare(column)]
        if not may_be:
            raise InvalidInput(f"{path} is null in a row, and the schema does not let it be")
        values = iter(prepare(column.drop_null()))
        return [(name, next(values)) if is_there else none for is_there in _list(column.is_valid())]

    return prepare_all


def _members(prepares: list[tuple[str, _Prepare]], may_be_null: bool, path: str) -> _Prepare:
    """The first of them that is not null."""

    def prepare(column: pa.Array) -> Iterable[Any]:
        found: list[Any] = [("null", None)] * len(column)
        is_open = np.ones(len(column), bool)
        for (name, inner), values in zip(prepares, column.flatten(), strict=True):
            is_this = is_open & values.is_valid().to_numpy(zero_copy_only=False)
            is_open &= ~is_this
            rows = np.flatnonzero(is_this)
            for row, value in zip(rows.tolist(), inner(values.take(pa.array(rows))), strict=True):
                found[row] = (name, {"value": value})
        if not may_be_null and is_open.any():
            raise InvalidInput(f"{path} is null in a row, and the schema does not let it be")
        return found

    return prepare
