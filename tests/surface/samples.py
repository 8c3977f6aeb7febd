"""A value of any type that is sent or stored, with every field set: encoded, it shows names, tags, order and form."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from pyroaring import BitMap64

from penstock.errors import InvalidInput

_LISTS = (list, tuple, frozenset, set)


class _Sampler:
    """Numbers are counted up, and text is the field's name, so that fields that change places are noticed."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._parameters: dict[Any, Any] = {}

    def of(self, kind: Any, name: str) -> Any:
        origin, given = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self.of(given[0], name)
        if origin is Literal:
            return given[0]
        if origin in (Union, types.UnionType):
            return self.of(next(one for one in given if one is not types.NoneType), name)
        if origin in _LISTS:
            return self._items(origin, given, name)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {self.of(given[0], "key"): self.of(given[1], name)}
        if isinstance(origin, type) and issubclass(origin, msgspec.Struct):
            self._parameters |= dict(zip(origin.__parameters__, given, strict=True))  # type: ignore[attr-defined]
            return self._plain(origin, name)
        if isinstance(kind, TypeVar):
            return self.of(self._parameters[kind], name)
        if kind is types.NoneType:
            return None
        return name if kind is Any else self._plain(kind, name)

    def _items(self, kind: type, given: tuple[Any, ...], name: str) -> Any:
        items = given[:1] if kind is not tuple or given[-1] is Ellipsis else given
        return kind(self.of(one, name) for one in items)

    def _plain(self, kind: type, name: str) -> Any:
        if issubclass(kind, msgspec.Struct) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
            hints = get_type_hints(kind, include_extras=True)
            fields = (
                [field.name for field in msgspec.structs.fields(kind)]
                if issubclass(kind, msgspec.Struct)
                else (kind._fields)
            )
            values = {field: self.of(hints[field], field) for field in fields}
            try:
                return kind(**values)
            except InvalidInput:
                # Settings, which have bounds: their defaults show their names as well.
                return kind()
        if issubclass(kind, enum.Enum):
            return next(iter(kind))
        if kind is bool:
            return True
        if kind is BitMap64:
            return BitMap64([next(self._numbers), 300, 301])
        if issubclass(kind, int | float):
            return kind(next(self._numbers))
        return name.encode() if kind is bytes else name


def sample(kind: Any) -> Any:
    return _Sampler().of(kind, "value")


class Sample(NamedTuple):
    label: str
    value: Any


def samples(labelled: Iterable[tuple[str, Any]]) -> Iterator[Sample]:
    """Of a union, each of its kinds."""
    for label, kind in labelled:
        if get_origin(kind) in (Union, types.UnionType):
            yield from (Sample(f"{label} {number}", sample(one)) for number, one in enumerate(get_args(kind)))
        else:
            yield Sample(label, sample(kind))
