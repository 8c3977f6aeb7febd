"""Fields of JSON records in etcd that this build does not know: a newer build has written them.

A node writes a record as a whole, by compare-and-swap on the one that it has read. So whoever reads a record to change
it keeps the unknown fields, and writes them back:

    record, unknown = decode(data, Kind)  …  data = encode(changed, unknown)

They are kept in the record itself, in structs within it, and in structs in its lists; those are found again by their
first field. A field of a struct that is not written any more is dropped with it.
"""

from __future__ import annotations

import typing
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from penstock.decoding import from_json

T = TypeVar("T", bound=Struct)

# Where a field is: names, and for structs in a list the value of their first field, in a tuple. Its value is JSON.
Path = tuple[str | tuple[str], ...]
Unknown = tuple[tuple[Path, bytes], ...]


def decode(data: bytes | str, kind: type[T]) -> tuple[T, Unknown]:
    """msgspec's errors if it is no such record."""
    value = from_json(data, object)
    unknown: list[tuple[Path, bytes]] = []
    if isinstance(value, dict):
        _take_out(value, kind, (), unknown)
    if unknown:
        # The type may forbid them.
        data = msgspec.json.encode(value)
    return from_json(data, kind), tuple(unknown)


def encode(record: Struct, unknown: Unknown = ()) -> bytes:
    data = msgspec.json.encode(record)
    if not unknown:
        return data
    value = from_json(data, dict[str, Any])
    for path, raw in unknown:
        _put_back(value, type(record), path, raw)
    return msgspec.json.encode(value)


class _Known(typing.NamedTuple):
    """A field that is, or holds, a struct: of that type; in a list, or alone."""

    kind: type[Struct] | None
    is_list: bool


@cache
def _fields(kind: type[Struct]) -> dict[str, _Known]:
    return {field.encode_name: _known(field.type) for field in msgspec.structs.fields(kind)}


def _known(annotation: Any) -> _Known:
    """Of a type, of `type | None`, or of `tuple[type, ...]`."""
    is_list = typing.get_origin(annotation) in (tuple, list)
    for each in (annotation, *typing.get_args(annotation)):
        if isinstance(each, type) and issubclass(each, Struct):
            return _Known(each, is_list)
    return _Known(None, is_list)


def _take_out(value: dict[str, Any], kind: type[Struct], at: Path, unknown: list[tuple[Path, bytes]]) -> None:
    fields = _fields(kind)
    for name in list(value):
        known = fields.get(name)
        if known is None:
            unknown.append(((*at, name), msgspec.json.encode(value.pop(name))))
        elif known.kind is not None:
            within = value[name]
            if known.is_list and isinstance(within, list):
                for each in within:
                    if isinstance(each, dict):
                        _take_out(each, known.kind, (*at, name, (_identity(each, known.kind),)), unknown)
            elif isinstance(within, dict):
                _take_out(within, known.kind, (*at, name), unknown)


def _put_back(value: Any, kind: type[Struct], path: Path, raw: bytes) -> None:
    for step in path[:-1]:
        if isinstance(step, tuple):
            value = next((each for each in value if _identity(each, kind) == step[0]), None)
        else:
            value, kind = value.get(step), _fields(kind)[step].kind or kind
        if value is None:
            return
    name = path[-1]
    assert isinstance(name, str)
    value[name] = msgspec.Raw(raw)


def _identity(value: dict[str, Any], kind: type[Struct]) -> str:
    return str(value.get(next(iter(_fields(kind)))))
