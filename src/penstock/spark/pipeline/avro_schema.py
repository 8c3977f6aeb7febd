"""Avro's schemas, as a file has them: what is none, or can't be rows, is told with where it is.

Nothing of Spark or fastavro is needed: files are checked where neither is installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from penstock.errors import InvalidInput
from penstock.spark.pipeline.avro_default import encoded
from penstock.spark.pipeline.avro_types import (
    NULL,
    PLAIN,
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
)

# Types that are named in several places count in each, and are as deep there.
TYPES_MAX = 10_000
# Arrow reads no more than 64. It has two for a map.
DEPTH_MAX = 50
DIGITS_MAX = 38
_SYMBOL = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def parse(schema: Any) -> Record:
    """InvalidInput if it is none, or none that can be a row."""
    found = _Parser().shape(schema, "", "", 0)
    if not isinstance(found, Record):
        raise InvalidInput("is no schema of a record")
    if not found.fields:
        raise InvalidInput("has no fields")
    return found


class _Parser:
    def __init__(self) -> None:
        # With how many types are in it, and how deep.
        self._named: dict[str, tuple[Shape, int, int]] = {}
        self._open: set[str] = set()
        self._types = 0
        self._deepest = 0

    def shape(self, raw: Any, namespace: str, path: str, depth: int) -> Shape:
        """`path` is where in the record it is."""
        self._reach(depth)
        self._count(1)
        if isinstance(raw, list):
            return self._union(raw, namespace, path, depth)
        if isinstance(raw, str):
            return Plain(raw) if raw in PLAIN else self._reference(raw, namespace, path, depth)
        if not isinstance(raw, dict) or not isinstance(raw.get("type"), str):
            raise InvalidInput(f"{_at(path)} has no type, but {_short(raw)}")
        match raw["type"]:
            case "record" | "error":
                return self._declared(raw, namespace, path, depth, lambda inner: self._record(raw, inner, path, depth))
            case "enum":
                return self._declared(raw, namespace, path, depth, lambda _: _enum(raw, path))
            case "fixed":
                return self._declared(raw, namespace, path, depth, lambda _: _fixed(raw, path))
            case "array":
                return self._array(raw, namespace, path, depth)
            case "map":
                return Map(self._inner(raw, "values", namespace, path, depth + 1))
            case "bytes" if raw.get("logicalType") == "decimal":
                return _digits(raw, None, path)
            case type if type in PLAIN:
                return NULL if type == "null" else Plain(type, str(raw.get("logicalType", "")))
            case type:
                return self._reference(type, namespace, path, depth)

    def _reach(self, depth: int) -> None:
        self._deepest = max(self._deepest, depth)
        if depth > DEPTH_MAX:
            raise InvalidInput(f"is nested too deeply: more than {DEPTH_MAX} types in each other")

    def _count(self, types: int) -> None:
        self._types += types
        if self._types > TYPES_MAX:
            raise InvalidInput(f"has more than {TYPES_MAX} types in it")

    def _reference(self, name: str, namespace: str, path: str, depth: int) -> Shape:
        for full in (_full(name, namespace), name):
            if full in self._open:
                raise InvalidInput(f"{_at(path)} is a {full} again, which is in itself: Spark has no such types")
            if full in self._named:
                found, types, height = self._named[full]
                self._count(types)
                self._reach(depth + height)
                return found
        raise InvalidInput(f"{_at(path)}: there is no type {name!r}")

    def _declared(
        self, raw: dict[str, Any], namespace: str, path: str, depth: int, read: Callable[[str], Shape]
    ) -> Shape:
        """`read` is told the namespace of what is within."""
        name = raw.get("name")
        inner = raw.get("namespace", namespace)
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise InvalidInput(f"{_at(path)} is a {raw['type']} without a name, or with {_short(name)} for one")
        if not isinstance(inner, str):
            raise InvalidInput(f"{_at(path)} has {_short(inner)} for a namespace")
        full = _full(name, inner)
        if full in PLAIN or full in self._named or full in self._open:
            raise InvalidInput(f"{_at(path)}: there is a type {full} already")
        before, deepest = self._types, self._deepest
        self._deepest = depth
        self._open.add(full)
        found = read(full.rpartition(".")[0])
        self._open.discard(full)
        self._named[full] = found, self._types - before, self._deepest - depth
        self._deepest = max(self._deepest, deepest)
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
                    default = encoded(shape, each["default"])
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
    if not isinstance(symbols, list) or not symbols:
        raise InvalidInput(f"{_at(path)} is an enum without symbols")
    for each in symbols:
        if not isinstance(each, str) or _SYMBOL.fullmatch(each) is None:
            raise InvalidInput(
                f"{_at(path)} is an enum with {_short(each)} for a symbol; they are letters, digits and _"
            )
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
