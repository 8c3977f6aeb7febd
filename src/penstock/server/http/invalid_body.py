"""Errors about JSON bodies of the wrong shape, with the fields that exist."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from penstock.errors import InvalidInput

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$(.*)`)?", re.DOTALL)
_SAID_MAX = 500
_STEP = re.compile(r"\.([^.\[]+)|\[[^]]*\]")


def invalid_body(error: msgspec.ValidationError, kind: Any) -> InvalidInput:
    """`kind` is the type that the body was to have."""
    said = str(error)
    unknown = _UNKNOWN_FIELD.fullmatch(said) if len(said) <= _SAID_MAX else None
    if unknown is None:
        # It may repeat what the client sent.
        said = said if len(said) <= _SAID_MAX else f"{said[:_SAID_MAX]}…"
        return InvalidInput(f"{said}. /openapi.json has the fields of each request")
    name, path = unknown[1], unknown[2] or ""
    known = _fields_at(_described(kind), path)
    text = f'unknown field "{name}" in {path.lstrip(".") or "the body"}.'
    for meant in get_close_matches(name, known, 1):
        text += f' Did you mean "{meant}"?'
    return InvalidInput(f"{text} The fields are {', '.join(known)}")


@cache
def _described(kind: Any) -> inspect.Type:
    """Takes a third of a millisecond, and each message of a batch may have an unknown field."""
    return inspect.type_info(kind)


def _fields_at(kind: inspect.Type, path: str) -> list[str]:
    """The names of fields of the object there, in any of its shapes."""
    kinds = [kind]
    for step in [*_STEP.finditer(path), None]:
        structs = [each for one in kinds for each in _shapes(one)]
        if step is None:
            break
        if step[1] is None:
            kinds = [each.item_type for each in structs if isinstance(each, inspect.CollectionType)]
        else:
            kinds = [field.type for each in structs for field in _fields(each) if field.encode_name == step[1]]
    return sorted({field.encode_name for each in structs for field in _fields(each)})


def _shapes(kind: inspect.Type) -> list[inspect.Type]:
    return [each for one in kind.types for each in _shapes(one)] if isinstance(kind, inspect.UnionType) else [kind]


def _fields(kind: inspect.Type) -> tuple[inspect.Field, ...]:
    return kind.fields if isinstance(kind, inspect.StructType) else ()
