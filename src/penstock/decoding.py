"""What decodes: made of one type after the other, whichever thread asks.

msgspec finds out about a type when it first meets it, and other threads see what it has found before that is whole. Two
that decode a type for the first time at once can end the process with a segmentation fault. So nobody else in the
package makes a decoder of a type, or converts to one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

# The same thread may come again: what is collected as garbage meanwhile may have something to say, and to hear.
_making = threading.RLock()
_of_json: dict[tuple[Any, bool], msgspec.json.Decoder[Any]] = {}
_convertible: set[Any] = set()


def json_decoder(kind: type[T], strict: bool = True) -> msgspec.json.Decoder[T]:
    with _making:
        return msgspec.json.Decoder(kind, strict=strict)


def msgpack_decoder(kind: type[T], dec_hook: Callable[[type, Any], Any] | None = None) -> msgspec.msgpack.Decoder[T]:
    with _making:
        return msgspec.msgpack.Decoder(kind, dec_hook=dec_hook)


def from_json(data: bytes | str, kind: type[T], strict: bool = True) -> T:
    """msgspec's errors if it is none."""
    decoder = _of_json.get((kind, strict))
    if decoder is None:
        decoder = _of_json[kind, strict] = json_decoder(kind, strict)
    found: T = decoder.decode(data)
    return found


def convert(value: object, kind: type[T], **how: Any) -> T:
    """As msgspec.convert does it."""
    if kind not in _convertible:
        msgpack_decoder(kind)
        _convertible.add(kind)
    found: T = msgspec.convert(value, kind, **how)
    return found
