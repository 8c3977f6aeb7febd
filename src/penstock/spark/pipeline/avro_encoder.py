"""Rows in Arrow to Avro's bytes, with fastavro. Whether the columns fit the schema is told before there are rows.

As for reading, fastavro is given a schema of the same bytes: texts as bytes, enums as numbers, no logical types. What
it would take for something else (a null for false) does not get there.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from io import BytesIO
from itertools import count, repeat
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInput
from penstock.spark.pipeline import avro_columns
from penstock.spark.pipeline.avro_columns import Prepare, null_in
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
from penstock.spark.pipeline.session import check_fastavro

# What can be written as what: nothing is lost, but of times what is smaller than the schema's unit. The names are those
# of Spark's schemas in JSON.
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
    "date": {"", "date"},
    "timestamp": {"", "timestamp-millis", "timestamp-micros"},
    "timestamp_ntz": {"", "local-timestamp-millis", "local-timestamp-micros"},
}


class Encoder:
    """`struct` is the type of the rows, as Spark writes it in JSON. InvalidInput if they do not fit."""

    def __init__(self, schema: Any, struct: dict[str, Any]) -> None:
        self._given = (schema, struct)
        self._shape, self._prepare = _Writing().plain(parse(schema), struct, "")

    @cached_property
    def _writer(self) -> tuple[Any, Any]:
        check_fastavro()
        from fastavro import parse_schema, schemaless_writer

        return schemaless_writer, parse_schema(self._shape)

    def __reduce__(self) -> Any:
        return Encoder, self._given

    def encode(self, rows: pa.StructArray) -> pa.Array:
        write, schema = self._writer
        file, ends = BytesIO(), [0]
        tell = file.tell
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

    def any(self, shape: Shape, kind: Any, path: str) -> tuple[Any, Prepare]:
        """Of a column that may have nulls."""
        if isinstance(shape, Union):
            return self._union(shape, kind, path)
        found, prepare = self.plain(shape, kind, path)

        def refuse_nulls(column: pa.Array) -> Iterable[Any]:
            if column.null_count and shape != NULL:
                raise null_in(path)
            return prepare(column)

        return found, refuse_nulls

    def plain(self, shape: Shape, kind: Any, path: str) -> tuple[Any, Prepare]:
        match shape:
            case Plain(type, logical):
                return _plain(type, logical, kind, path)
            case Fixed(size):
                _check(kind == "binary", kind, f"a fixed of {size} bytes, which takes binary", path)
                return self._named("fixed", size=size), avro_columns.fixed(size, path)
            case Digits():
                return self._decimal(shape, kind, path)
            case Enum(symbols):
                _check(kind == "string", kind, "an enum, which takes string", path)
                return "int", avro_columns.enum(symbols, path)
            case Array(items):
                _check(_is(kind, "array"), kind, "an array", path)
                inner, prepare = self.any(items, kind["elementType"], f"{path}.element")
                return {"type": "array", "items": inner}, avro_columns.arrays(prepare)
            case Map(values):
                is_map = _is(kind, "map") and kind["keyType"] == "string"
                _check(is_map, kind, "a map, which takes a map whose keys are string", path)
                inner, prepare = self.any(values, kind["valueType"], f"{path}.value")
                return {"type": "map", "values": inner}, avro_columns.maps(prepare, f"{path}.key")
            case Record(fields):
                _check(_is(kind, "struct"), kind, "a record, which takes struct", path)
                return self._record(fields, kind["fields"], path)
            case Union():
                raise AssertionError("unions are not plain")

    def _named(self, type: str, **more: Any) -> dict[str, Any]:
        return {"type": type, "name": f"t{next(self._numbers)}", **more}

    def _decimal(self, shape: Digits, kind: Any, path: str) -> tuple[Any, Prepare]:
        told = f"decimal({shape.precision},{shape.scale})"
        digits = [int(part) for part in kind[8:-1].split(",")] if str(kind).startswith("decimal(") else [99, 0]
        is_less = digits[1] <= shape.scale and digits[0] - digits[1] <= shape.precision - shape.scale
        _check(is_less, kind, told, path)
        return "bytes" if shape.size is None else self._named("fixed", size=shape.size), avro_columns.decimals(shape)

    def _record(self, fields: tuple[Field, ...], columns: list[Any], path: str) -> tuple[Any, Prepare]:
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
        prepares: list[Prepare | bytes] = []
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
        return self._named("record", fields=inner), avro_columns.rows_of(
            [field.name for field in fields], places, prepares
        )

    def _union(self, union: Union, kind: Any, path: str) -> tuple[Any, Prepare]:
        branches: list[Any] = ["null" if each == NULL else self._named("fixed", size=0) for each in union.branches]
        if union.single is not None:
            shape = union.single_shape
            assert shape is not None
            if union.may_be_null and kind == "void":
                return branches, lambda column: repeat(("null", None), len(column))
            found, prepare = self.plain(shape, kind, path)
            branches[union.single] = found
            return branches, avro_columns.may_be_null(prepare, _called(found), union.may_be_null, path)
        names = [name for name, _ in members(union)]
        is_of_members = _is(kind, "struct") and [field["name"] for field in kind["fields"]] == names
        _check(is_of_members, kind, f"a union, which takes a struct of {', '.join(names)}", path)
        prepares: list[tuple[str, Prepare]] = []
        for (name, place), field in zip(members(union), kind["fields"], strict=True):
            found, prepare = self.plain(union.branches[place], field["type"], _at(path, name))
            branches[place] = self._named("record", fields=[{"name": "value", "type": found}])
            prepares.append((branches[place]["name"], prepare))
        return branches, avro_columns.members_of(prepares, union.may_be_null, path)


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


def _plain(type: str, logical: str, kind: Any, path: str) -> tuple[Any, Prepare]:
    if type == "long" and isinstance(kind, str) and kind in ("timestamp", "timestamp_ntz"):
        _check(logical in _TIMES[kind], kind, logical, path)
        return type, avro_columns.micros if logical.endswith("-micros") else avro_columns.millis
    takes = {each for each in _FIT[type] if logical in _TIMES.get(each, {logical})}
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
            return "bytes", avro_columns.texts(path)
        case "int" | "long":
            return type, lambda column: avro_columns.listed(column.cast(pa.int32() if kind == "date" else pa.int64()))
    return type, avro_columns.listed
