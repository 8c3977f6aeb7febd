"""The types of an Avro schema, and what their values are in Arrow, and so in Spark.

They are those that Spark's own package makes of a schema:

    int, long, float, double, boolean, null     the same
    int as date                                 date32
    long as timestamp-millis, -micros           timestamp in microseconds, UTC; local-timestamp-…: without a zone
    string, enum                                string
    bytes, fixed                                binary; decimal128 if they are a decimal
    record, array, map                          struct, list, map
    [null, X]                                   X that may be null
    [int, long], [float, double]                long, double
    other unions                                struct with member0, member1, …, of which one is not null
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_WIDER = {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}


@dataclass(frozen=True)
class Plain:
    """`logical` is kept where it changes no type, too: what is written there must be meant."""

    type: str
    logical: str = ""


@dataclass(frozen=True)
class Fixed:
    size: int


@dataclass(frozen=True)
class Digits:
    """A decimal: a whole number in bytes, the first being the highest, and how many of its digits are a fraction."""

    precision: int
    scale: int
    # None: as many bytes as it takes.
    size: int | None


@dataclass(frozen=True)
class Enum:
    symbols: tuple[str, ...]


@dataclass(frozen=True)
class Array:
    items: Shape


@dataclass(frozen=True)
class Map:
    values: Shape


@dataclass(frozen=True)
class Field:
    """`default` is encoded."""

    name: str
    shape: Shape
    default: bytes | None


@dataclass(frozen=True)
class Record:
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Union:
    branches: tuple[Shape, ...]

    @property
    def others(self) -> list[int]:
        """The numbers of those that are not null."""
        return [number for number, each in enumerate(self.branches) if each != NULL]

    @property
    def may_be_null(self) -> bool:
        return NULL in self.branches

    @property
    def single(self) -> int | None:
        """The branch that has all values, null aside. None if there are several."""
        others = self.others
        if len(others) < 2:
            return others[0] if others else 0
        types = [each.type for each in map(self.branches.__getitem__, others) if isinstance(each, Plain)]
        wider = _WIDER.get(frozenset(types)) if len(types) == len(others) == 2 else None
        return None if wider is None else others[types.index(wider)]

    @property
    def single_shape(self) -> Shape | None:
        if self.single is None:
            return None
        found = self.branches[self.single]
        # Of int and long, neither is a date or a time.
        return Plain(found.type) if len(self.others) > 1 and isinstance(found, Plain) else found


Shape: TypeAlias = Plain | Fixed | Digits | Enum | Array | Map | Record | Union
NULL = Plain("null")


def arrow_type(shape: Shape) -> pa.DataType:
    """Everything may be null: of a bad row, or of a message without a value, everything is."""
    match shape:
        case Plain(type, logical):
            return LOGICAL.get((type, logical), PLAIN[type])
        case Fixed():
            return pa.binary()
        case Digits(precision, scale):
            return pa.decimal128(precision, scale)
        case Enum():
            return pa.string()
        case Array(items):
            return pa.list_(pa.field("element", arrow_type(items)))
        case Map(values):
            return pa.map_(pa.string(), pa.field("value", arrow_type(values)))
        case Record(fields):
            return pa.struct([(field.name, arrow_type(field.shape)) for field in fields])
        case Union():
            if (single := shape.single_shape) is not None:
                return arrow_type(single)
            return pa.struct([(name, arrow_type(shape.branches[number])) for name, number in members(shape)])


def members(union: Union) -> Iterator[tuple[str, int]]:
    """What the branches are called as fields. Null is none of them."""
    for place, number in enumerate(union.others):
        yield f"member{place}", number
