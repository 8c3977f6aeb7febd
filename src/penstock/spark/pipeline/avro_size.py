"""How large a row becomes, in bytes of Arrow: told from the schema and the message's length, or by looking at it.

A byte of a message may be a whole record of nulls, or the number of a symbol of a thousand letters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.spark.pipeline.avro_types import Array, Digits, Enum, Fixed, Map, Plain, Record, Shape, Union, members

# Of a number, of where a text begins, and of a null.
_SLOT = 8
_LEAST = {"null": 0, "float": 4, "double": 8}


def base(shape: Shape) -> int:
    """Without the items of arrays and maps, and without the bytes of texts. The same for null."""
    match shape:
        case Digits():
            return 2 * _SLOT
        case Enum(symbols):
            return _SLOT + max(map(len, symbols))
        case Record(fields):
            return _SLOT + sum(base(field.shape) for field in fields)
        case Union(branches):
            if (single := shape.single_shape) is not None:
                return base(single)
            return _SLOT + sum(base(branches[number]) for _, number in members(shape))
    return _SLOT


def per_byte(shape: Shape) -> int:
    """More than this, beside the base, no byte of a message becomes."""
    return 1 + max(_ratios(shape), default=0)


def _ratios(shape: Shape) -> Iterator[int]:
    match shape:
        case Array(items):
            yield -(-base(items) // _least(items))
            yield from _ratios(items)
        case Map(values):
            yield -(-(_SLOT + base(values)) // (1 + _least(values)))
            yield from _ratios(values)
        case Record(fields):
            for field in fields:
                yield from _ratios(field.shape)
        case Union(branches):
            for each in branches:
                yield from _ratios(each)


def _least(shape: Shape) -> int:
    """The bytes of its shortest value. Of an array's items it is not 0: the schema would be refused."""
    match shape:
        case Plain(type):
            return _LEAST.get(type, 1)
        case Fixed(size):
            return size
        case Digits(size=size):
            return 1 if size is None else size
        case Record(fields):
            return sum(_least(field.shape) for field in fields)
        case Union(branches):
            return 1 + min(map(_least, branches))
    return 1


def sizing(shape: Shape) -> Callable[[Any], int]:
    """For values as fastavro reads them. What the schema tells is worked out before: there may be many of them."""
    least = base(shape)
    match shape:
        case Plain("string" | "bytes") | Fixed():
            return lambda value: least if value is None else least + len(value)
        case Array(items):
            item = sizing(items)
            return lambda value: least if value is None else least + sum(map(item, value))
        case Map(values):
            item = sizing(values)
            return lambda value: (
                least if value is None else least + sum(_SLOT + len(key) + item(each) for key, each in value.items())
            )
        case Record(fields):
            return _of_fields([(field.name, sizing(field.shape)) for field in fields], least)
        case Union(branches):
            if (single := shape.single_shape) is not None:
                return sizing(single)
            return _of_fields([(name, sizing(branches[number])) for name, number in members(shape)], least)
    return lambda _: least


def _of_fields(fields: list[tuple[str, Callable[[Any], int]]], least: int) -> Callable[[Any], int]:
    # Of a union, one is there.
    return lambda value: least if value is None else _SLOT + sum(inner(value.get(name)) for name, inner in fields)
