"""What somebody asks for: the body and the query of a request, read no further than allowed, as structs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
import numpy as np

from penstock.client.words import Duration, duration_of
from penstock.decoding import convert
from penstock.durations import time_us
from penstock.errors import InvalidInput
from penstock.limits import KIB
from penstock.server.http.failures import BodyTooLarge
from penstock.server.http.invalid_body import invalid_body

Event = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

T = TypeVar("T")

_QUERY_FIELDS_MAX = 50
# Of a body, what is looked through without a break: a millisecond.
_LOOK_BYTES = 256 * KIB
# Where lists of a body are that may be long.
_LIST_DEPTH = 2


class Gone(Exception):
    """The client went before it had said what it wants: there is nobody to answer."""


async def body_of(receive: Receive, length: int | None, bytes_max: int) -> bytes:
    """All of it. What is announced to be too large is not read at all."""
    if length is not None and length > bytes_max:
        raise _too_large(bytes_max)
    event = await receive()
    body: bytes = event.get("body", b"")
    if event.get("more_body", False):
        parts, size = [body], len(body)
        while event.get("more_body", False) and size <= bytes_max:
            event = await receive()
            parts.append(event.get("body", b""))
            size += len(parts[-1])
        body = b"".join(parts)
    if event["type"] == "http.disconnect":
        raise Gone
    if len(body) > bytes_max:
        raise _too_large(bytes_max)
    return body


def _too_large(bytes_max: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body may have {bytes_max} bytes here", bytes_max=bytes_max)


async def decoded(body: bytes, decoder: msgspec.json.Decoder[T], nesting_max: int, items_max: int | None = None) -> T:
    """With `items_max`, its lists and objects have so many items, and then some: what is a little too long is for the
    decoder, or for what comes after it."""
    for _ in _looked_through(body, nesting_max, items_max):
        await asyncio.sleep(0)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid_body(error, decoder.type) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the body is not JSON: {error}") from error


def check_nesting(body: bytes, nesting_max: int) -> None:
    for _ in _looked_through(body, nesting_max, None):
        pass


def _looked_through(body: bytes, nesting_max: int, items_max: int | None) -> Iterator[None]:
    """InvalidInput if it is nested too deep, or has too many items. Yields after each part that was looked through:
    msgspec would find out only when all of it is in memory, as objects."""
    items_left = None if items_max is None or body.count(b",") <= items_max else 2 * items_max
    if items_left is None and body.count(b"{") + body.count(b"[") <= nesting_max:
        return
    depth, is_inside, is_escaped = 0, False, False
    for at in range(0, len(body), _LOOK_BYTES):
        part = body[at : at + _LOOK_BYTES]
        if is_escaped:
            part = b"_" + part[1:]
        is_escaped = (len(part) - len(part.rstrip(b"\\"))) % 2 == 1
        part = part.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        codes = np.frombuffer(part, np.uint8)
        insides = (np.cumsum(codes == ord('"'), dtype=np.int32) + is_inside) % 2
        outside = insides == 0
        opened = ((codes == ord("{")) | (codes == ord("["))) & outside
        closed = ((codes == ord("}")) | (codes == ord("]"))) & outside
        depths = depth + np.cumsum(opened.astype(np.int32) - closed)
        if depths.max() > nesting_max:
            raise InvalidInput(f"the body is nested more than {nesting_max} deep", nesting_max=nesting_max)
        if items_left is not None:
            items_left -= int(np.count_nonzero((codes == ord(",")) & outside & (depths == _LIST_DEPTH)))
            if items_left < 0:
                raise InvalidInput(f"the body has a list of more than {items_max} items", items_max=items_max)
        depth, is_inside = int(depths[-1]), bool(insides[-1])
        yield


def query_of(query: bytes, kind: type[T]) -> T:
    """Each name once; lists are written with commas."""
    try:
        pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_QUERY_FIELDS_MAX)
    except ValueError as error:
        raise InvalidInput(f"the query has more than {_QUERY_FIELDS_MAX} fields") from error
    given = dict(pairs)
    if len(given) < len(pairs):
        raise InvalidInput("the query has a field twice; lists are written with commas")
    try:
        return convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"in the query: {error}") from error


def us_of(name: str, value: Any) -> int | None:
    """A duration, if there is one."""
    given: Duration | None = value
    return None if given is None else duration_of(name, given)


def time_in(text: str | None) -> str | int | None:
    """In a query, numbers are text as well."""
    if text is not None and text.isascii() and text.isdigit() and len(text) < 20:
        return time_us(int(text))
    return text
