"""Avro's schemas: what a file says, checked, and what its values are in Arrow, and so in Spark.

The types are those that Spark's own package makes of a schema:

    int, long, float, double, boolean, null     the same
    int as date                                 date32
    long as timestamp-millis, -micros           timestamp in microseconds, UTC; local-timestamp-…: without a zone
    string, enum                                string
    bytes, fixed                                binary; decimal128 if they are a decimal
    record, array, map                          struct, list, map
    [null, X]                                   X that may be null
    [int, long], [float, double]                long, double
    other unions                                struct with member0, member1, …, of which one is not null

Nothing of Spark or fastavro is needed here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.errors import InvalidInput

# Types that are named in several places count in each.
TYPES_MAX = 10_000
DEPTH_MAX = 50
DIGITS_MAX = 38
_LONGS = {"int": 31, "long": 63}
_ARROW = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_WIDER = {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}


@dataclass(frozen=True)
class Plain:
    """`logical` is empty for one that changes nothing."""

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


def parse(schema: Any) -> Record:
    """InvalidInput if it is none, or none that can be a row."""
    found = _Parser().shape(schema, "", "", 0)
    if not isinstance(found, Record):
        raise InvalidInput("is no schema of a record")
    if not found.fields:
        raise InvalidInput("has no fields")
    return found


def arrow_type(shape: Shape) -> pa.DataType:
    """Everything may be null: of a bad row, or of a message without a value, everything is."""
    match shape:
        case Plain(type, logical):
            return _LOGICAL.get((type, logical), _ARROW[type])
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


class _Parser:
    def __init__(self) -> None:
        # With how many types are in it.
        self._named: dict[str, tuple[Shape, int]] = {}
        self._open: set[str] = set()
        self._types = 0

    def shape(self, raw: Any, namespace: str, path: str, depth: int) -> Shape:
        """`path` is where in the record it is."""
        if depth > DEPTH_MAX:
            raise InvalidInput(f"is nested too deeply: more than {DEPTH_MAX} types in each other")
        self._count(1)
        if isinstance(raw, list):
            return self._union(raw, namespace, path, depth)
        if isinstance(raw, str):
            return Plain(raw) if raw in _ARROW else self._reference(raw, namespace, path)
        if not isinstance(raw, dict) or not isinstance(raw.get("type"), str):
            raise InvalidInput(f"{_at(path)} has no type, but {_short(raw)}")
        match raw["type"]:
            case "record" | "error":
                return self._declared(raw, namespace, path, lambda inner: self._record(raw, inner, path, depth))
            case "enum":
                return self._declared(raw, namespace, path, lambda _: _enum(raw, path))
            case "fixed":
                return self._declared(raw, namespace, path, lambda _: _fixed(raw, path))
            case "array":
                return self._array(raw, namespace, path, depth)
            case "map":
                return Map(self._inner(raw, "values", namespace, path, depth))
            case "bytes" if raw.get("logicalType") == "decimal":
                return _digits(raw, None, path)
            case type if type in _ARROW:
                logical = str(raw.get("logicalType", ""))
                return Plain(type, logical if (type, logical) in _LOGICAL else "")
            case type:
                return self._reference(type, namespace, path)

    def _count(self, types: int) -> None:
        self._types += types
        if self._types > TYPES_MAX:
            raise InvalidInput(f"has more than {TYPES_MAX} types in it")

    def _reference(self, name: str, namespace: str, path: str) -> Shape:
        for full in (_full(name, namespace), name):
            if full in self._open:
                raise InvalidInput(f"{_at(path)} is a {full} again, which is in itself: Spark has no such types")
            if full in self._named:
                found, types = self._named[full]
                self._count(types)
                return found
        raise InvalidInput(f"{_at(path)}: there is no type {name!r}")

    def _declared(self, raw: dict[str, Any], namespace: str, path: str, read: Callable[[str], Shape]) -> Shape:
        """`read` is told the namespace of what is within."""
        name = raw.get("name")
        inner = raw.get("namespace", namespace)
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise InvalidInput(f"{_at(path)} is a {raw['type']} without a name, or with {_short(name)} for one")
        if not isinstance(inner, str):
            raise InvalidInput(f"{_at(path)} has {_short(inner)} for a namespace")
        full = _full(name, inner)
        if full in _ARROW or full in self._named or full in self._open:
            raise InvalidInput(f"{_at(path)}: there is a type {full} already")
        before = self._types
        self._open.add(full)
        found = read(full.rpartition(".")[0])
        self._open.discard(full)
        self._named[full] = found, self._types - before
        return found

    def _record(self, raw: dict[str, Any], namespace: str, path: str, depth: int) -> Record:
        fields: dict[str, Field] = {}
        if not isinstance(raw.get("fields"), list):
            raise InvalidInput(f"{_at(path)} is a record without fields: {_short(raw)}")
        for each in raw["fields"]:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str) or not each["name"].isidentifier():
                raise InvalidInput(f"{_at(path)} has a field without a name: {_short(each)}")
            name = each["name"]
            inner = f"{path}.{name}" if path else name
            if name.lower() in fields:
                other = fields[name.lower()].name
                raise InvalidInput(f"{_at(path)} has the fields {other} and {name}: to Spark that is one name")
            if "type" not in each:
                raise InvalidInput(f"{_at(inner)} has no type")
            shape = self.shape(each["type"], namespace, inner, depth + 1)
            default = None
            if "default" in each:
                try:
                    default = _encoded(shape, each["default"])
                except (ValueError, TypeError, OverflowError):
                    raise InvalidInput(
                        f"{_at(inner)} has a default of another type: {_short(each['default'])}"
                    ) from None
            fields[name.lower()] = Field(name, shape, default)
        return Record(tuple(fields.values()))

    def _union(self, raw: list[Any], namespace: str, path: str, depth: int) -> Union:
        if not raw:
            raise InvalidInput(f"{_at(path)} is a union of nothing")
        found: list[Shape] = []
        kinds = set()
        for each in raw:
            if isinstance(each, list):
                raise InvalidInput(f"{_at(path)} is a union within a union")
            shape = self.shape(each, namespace, path, depth + 1)
            kind = each if isinstance(each, str) else each["type"]
            if kind in ("record", "error", "enum", "fixed"):
                kind = _full(each["name"], each.get("namespace", namespace))
            if kind in kinds:
                raise InvalidInput(f"{_at(path)} is a union that has {kind} twice")
            kinds.add(kind)
            found.append(shape)
        return Union(tuple(found))

    def _inner(self, raw: dict[str, Any], part: str, namespace: str, path: str, depth: int) -> Shape:
        if part not in raw:
            raise InvalidInput(f"{_at(path)} is a type {raw['type']} without {part}")
        return self.shape(raw[part], namespace, f"{path}.{part}", depth + 1)

    def _array(self, raw: dict[str, Any], namespace: str, path: str, depth: int) -> Array:
        items = self._inner(raw, "items", namespace, path, depth)
        if _takes_no_bytes(items):
            # A few bytes could claim any number of them.
            raise InvalidInput(f"{_at(path)} is an array of what takes no bytes")
        return Array(items)


def _takes_no_bytes(shape: Shape) -> bool:
    match shape:
        case Fixed(size) | Digits(size=size):
            return size == 0
        case Record(fields):
            return all(_takes_no_bytes(field.shape) for field in fields)
    return shape == NULL


def _full(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _at(path: str) -> str:
    return path or "the record"


def _short(raw: Any) -> str:
    text = json.dumps(raw)
    return text if len(text) <= 60 else text[:59] + "…"


def _enum(raw: dict[str, Any], path: str) -> Enum:
    symbols = raw.get("symbols")
    if not isinstance(symbols, list) or not symbols or not all(isinstance(each, str) for each in symbols):
        raise InvalidInput(f"{_at(path)} is an enum without symbols")
    if len(set(symbols)) < len(symbols):
        raise InvalidInput(f"{_at(path)} is an enum that has a symbol twice")
    return Enum(tuple(symbols))


def _fixed(raw: dict[str, Any], path: str) -> Shape:
    size = raw.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 31:
        raise InvalidInput(f"{_at(path)} is a fixed with {_short(size)} for a size")
    return _digits(raw, size, path) if raw.get("logicalType") == "decimal" else Fixed(size)


def _digits(raw: dict[str, Any], size: int | None, path: str) -> Digits:
    precision, scale = raw.get("precision"), raw.get("scale", 0)
    most = DIGITS_MAX if size is None else min(DIGITS_MAX, len(str(1 << max(8 * size - 1, 0))) - 1)
    if type(precision) is not int or not 0 < precision <= most:
        raise InvalidInput(f"{_at(path)} is a decimal with a precision of {_short(precision)}; it is 1 to {most}")
    if type(scale) is not int or not 0 <= scale <= precision:
        raise InvalidInput(f"{_at(path)} is a decimal with a scale of {_short(scale)}; it is 0 to {precision}")
    return Digits(precision, scale, size)


def _encoded(shape: Shape, raw: Any) -> bytes:
    """A default, as Avro writes it. ValueError if it is of another type."""
    match shape:
        case Plain("null"):
            _expect(raw is None)
            return b""
        case Plain("boolean"):
            _expect(isinstance(raw, bool))
            return bytes([raw])
        case Plain("int" | "long" as type):
            _expect(isinstance(raw, int) and not isinstance(raw, bool))
            _expect(-(1 << _LONGS[type]) <= raw < 1 << _LONGS[type])
            return number(raw)
        case Plain("float" | "double" as type):
            _expect(isinstance(raw, int | float) and not isinstance(raw, bool))
            return struct.pack("<f" if type == "float" else "<d", raw)
        case Plain("string"):
            return _sized(raw.encode() if isinstance(raw, str) else None)
        case Plain():
            return _sized(_bytes(raw))
        case Digits(size=size) if size is None:
            return _sized(_bytes(raw))
        case Fixed(size) | Digits(size=size):
            _expect(len(_bytes(raw)) == size)
            return _bytes(raw)
        case Enum(symbols):
            return number(symbols.index(raw))
        case Array(items):
            _expect(isinstance(raw, list))
            return _block([_encoded(items, each) for each in raw])
        case Map(values):
            _expect(isinstance(raw, dict))
            return _block([_sized(name.encode()) + _encoded(values, each) for name, each in raw.items()])
        case Record(fields):
            _expect(isinstance(raw, dict) and raw.keys() <= {field.name for field in fields})
            return b"".join(_encoded_field(field, raw) for field in fields)
        case Union(branches):
            for place, each in enumerate(branches):
                try:
                    return number(place) + _encoded(each, raw)
                except (ValueError, TypeError, OverflowError):
                    continue
            raise ValueError


def _encoded_field(field: Field, raw: dict[str, Any]) -> bytes:
    if field.name in raw:
        return _encoded(field.shape, raw[field.name])
    if field.default is None:
        raise ValueError
    return field.default


def _expect(holds: bool) -> None:
    if not holds:
        raise ValueError


def _bytes(raw: Any) -> bytes:
    """Each character is a byte."""
    _expect(isinstance(raw, str))
    return bytes(raw, "latin-1")


def _sized(data: bytes | None) -> bytes:
    if data is None:
        raise ValueError
    return number(len(data)) + data


def _block(items: list[bytes]) -> bytes:
    return (number(len(items)) if items else b"") + b"".join(items) + b"\0"


def number(value: int) -> bytes:
    """Zigzag, seven bits a byte, the lowest first."""
    rest = (value << 1) ^ (value >> 63)
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)
