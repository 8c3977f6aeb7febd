"""Defaults in a schema, which are JSON, as the bytes that Avro has for them."""

from __future__ import annotations

import struct
from typing import Any

from penstock.spark.pipeline.avro_types import Array, Digits, Enum, Field, Fixed, Map, Plain, Record, Shape, Union

_LONGS = {"int": 31, "long": 63}


def encoded(shape: Shape, raw: Any) -> bytes:
    """ValueError, TypeError or OverflowError if it is of another type."""
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
        case Digits(precision, _, size):
            data = _bytes(raw)
            _expect(data != b"" and abs(int.from_bytes(data, "big", signed=True)) < 10**precision)
            _expect(size is None or len(data) == size)
            return _sized(data) if size is None else data
        case Fixed(size):
            _expect(len(_bytes(raw)) == size)
            return _bytes(raw)
        case Enum(symbols):
            return number(symbols.index(raw))
        case Array(items):
            _expect(isinstance(raw, list))
            return _block([encoded(items, each) for each in raw])
        case Map(values):
            _expect(isinstance(raw, dict))
            return _block([_sized(name.encode()) + encoded(values, each) for name, each in raw.items()])
        case Record(fields):
            _expect(isinstance(raw, dict) and raw.keys() <= {field.name for field in fields})
            return b"".join(_encoded_field(field, raw) for field in fields)
        case Union(branches):
            for place, each in enumerate(branches):
                try:
                    return number(place) + encoded(each, raw)
                except (ValueError, TypeError, OverflowError):
                    continue
            raise ValueError


def _encoded_field(field: Field, raw: dict[str, Any]) -> bytes:
    if field.name in raw:
        return encoded(field.shape, raw[field.name])
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
