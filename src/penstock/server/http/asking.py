"""What somebody asks for: the body and the query of a request, read no further than allowed, as structs."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
import numpy as np

from penstock.client.words import Duration, duration_of
from penstock.decoding import convert
from penstock.durations import time_us
from penstock.errors import InvalidInput
from penstock.server.http.failures import BodyTooLarge

Event = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

T = TypeVar("T")

_QUERY_FIELDS_MAX = 50
# A string, also one that never ends: every byte is looked at once, whatever is in it.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


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


def decoded(body: bytes, decoder: msgspec.json.Decoder[T], nesting_max: int) -> T:
    check_nesting(body, nesting_max)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the body is not JSON: {error}") from error


def check_nesting(body: bytes, nesting_max: int) -> None:
    if body.count(b"{") + body.count(b"[") <= nesting_max:
        return
    codes = np.frombuffer(_STRING.sub(b"", body), np.uint8)
    opened = (codes == ord("{")) | (codes == ord("["))
    closed = (codes == ord("}")) | (codes == ord("]"))
    if np.cumsum(opened.astype(np.int32) - closed).max(initial=0) > nesting_max:
        raise InvalidInput(f"the body is nested more than {nesting_max} deep", nesting_max=nesting_max)


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
