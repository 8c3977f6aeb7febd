"""How users write what they hand in: keys, values, headers, priorities, times. Inside there is one form of each.

Text is stored as UTF-8. What can't be understood is refused with a sentence, before anything has happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Literal, TypedDict

from penstock.client.requests import Where
from penstock.durations import duration_text, duration_us, time_us
from penstock.errors import InvalidInput, InvalidMessage, InvalidName
from penstock.message import Message, Priority

Bytes = bytes | bytearray | memoryview | str
Duration = str | timedelta | Literal[0]
# As a number: microseconds since the epoch, as all times are given out.
Time = str | datetime | int
HeadersGiven = Mapping[str, Bytes] | Iterable[tuple[str, Bytes]]

# Said to those who forget it: what is open keeps its directory locked, and may hold what was never sent.
CLIENT_CLOSED = "the client is closed. Open another one with penstock.open or penstock.connect"
HOW_TO_CLOSE = "use it in a `with` (or `async with`), or call its close()"
LIMIT_DEFAULT = 1_000
LIMIT_MAX = 100_000
_PRIORITIES = {"low": Priority.LOW, "normal": Priority.NORMAL, "high": Priority.HIGH}


def duration_of(name: str, value: Duration) -> int:
    """In microseconds. `name` is what the caller called it."""
    try:
        return duration_us(value)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error.message}", argument=name) from error


def time_of(name: str, value: Time) -> int:
    """In microseconds since the epoch."""
    try:
        return time_us(value)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error.message}", argument=name) from error


def bytes_of(name: str, value: Bytes | None) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(f"{name} is text that can't be written as UTF-8: {error}", field=name) from error
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidMessage(f"{name} must be bytes or text, not {type(value).__name__}", field=name)


def headers_of(headers: HeadersGiven | None) -> tuple[tuple[str, bytes], ...]:
    if headers is None:
        return ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        return tuple((_header_name(name), _header_value(name, value)) for name, value in pairs)
    except (TypeError, ValueError) as error:
        raise InvalidMessage(
            "headers must be a mapping or pairs of names and values, as in {'source': 'web'}", field="headers"
        ) from error


def _header_name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidMessage(f"the name of a header must be text, not {type(name).__name__}", field="headers")
    return name


def _header_value(name: str, value: Bytes) -> bytes:
    found = bytes_of(f"header {name!r}", value)
    if found is None:
        raise InvalidMessage(f"header {name!r} must be bytes or text, not None", field="headers")
    return found


def priority_of(priority: str | int) -> Priority:
    if isinstance(priority, str) and priority in _PRIORITIES:
        return _PRIORITIES[priority]
    if isinstance(priority, int) and not isinstance(priority, bool) and -1 <= priority <= 1:
        return Priority(priority)
    raise InvalidMessage(f"priority is high, normal or low, not {priority!r}", field="priority")


def partition_given(partition: int | None) -> int | None:
    if partition is not None and (not isinstance(partition, int) or isinstance(partition, bool)):
        raise InvalidInput(f"a partition is a number, not {partition!r}", argument="partition")
    return partition


class MessageFields(TypedDict, total=False):
    """What a message may have besides its value.

    `delay` or `deliver_at` hold it back; after `ttl` from now, or from `expires_at` on, it is not delivered any more.
    `priority` is "high", "normal" or "low". `timestamp` is when what it tells of happened, if that is not now.
    """

    key: Bytes | None
    headers: HeadersGiven | None
    delay: Duration | None
    deliver_at: Time | None
    ttl: Duration | None
    expires_at: Time | None
    priority: str | int
    timestamp: Time | None


def message_of(value: Bytes | None, now_us: int, fields: MessageFields) -> Message:
    """`delay` and `ttl` count from `now_us` on."""
    if not fields:
        return Message(bytes_of("value", value))
    unknown = fields.keys() - MessageFields.__annotations__.keys()
    if unknown:
        known = ", ".join(MessageFields.__annotations__)
        raise InvalidMessage(f"a message has no {min(unknown)!r}; it may have {known}", field=min(unknown))
    timestamp = fields.get("timestamp")
    due_us = _due_us(now_us, fields.get("delay"), fields.get("deliver_at"))
    return Message(
        bytes_of("value", value),
        bytes_of("key", fields.get("key")),
        headers_of(fields.get("headers")),
        0 if timestamp is None else _time_not_zero("timestamp", timestamp),
        due_us,
        _expires_us(now_us, due_us, fields.get("ttl"), fields.get("expires_at")),
        priority_of(fields.get("priority", Priority.NORMAL)),
    )


def _due_us(now_us: int, delay: Duration | None, deliver_at: Time | None) -> int:
    if delay is not None and deliver_at is not None:
        raise InvalidMessage("a message has a delay or a deliver_at, not both", field="deliver_at")
    if delay is not None:
        wait_us = duration_of("delay", delay)
        return now_us + wait_us if wait_us else 0
    return 0 if deliver_at is None else time_of("deliver_at", deliver_at)


def _expires_us(now_us: int, due_us: int, ttl: Duration | None, expires_at: Time | None) -> int:
    if ttl is not None and expires_at is not None:
        raise InvalidMessage("a message has a ttl or an expires_at, not both", field="expires_at")
    if ttl is None:
        # It may be over: a copy of a message expires when the original does.
        return 0 if expires_at is None else _time_not_zero("expires_at", expires_at)
    ttl_us = duration_of("ttl", ttl)
    if now_us + ttl_us <= max(now_us, due_us):
        raise InvalidMessage(
            f"the ttl of {duration_text(ttl_us)} counts from now on, and would be over before the message is due. "
            "Set a longer one",
            field="ttl",
        )
    return now_us + ttl_us


def _time_not_zero(name: str, time: Time) -> int:
    """A message stores 0 if it has no such time."""
    time_us = time_of(name, time)
    if not time_us:
        raise InvalidMessage(
            f"{name} can't be 1970-01-01T00:00:00Z exactly. Leave it out, or use a later time", field=name
        )
    return time_us


def name_of(kind: str, name: str) -> str:
    """Text, at least; what it may be made of is the broker's to know."""
    if not isinstance(name, str):
        raise InvalidName(f"a {kind} name must be text, not {type(name).__name__}", kind=kind)
    return name


def names_of(topics: str | Iterable[str]) -> tuple[str, ...]:
    """One name stands for itself; its letters are not names."""
    if isinstance(topics, str):
        return (topics,)
    if not isinstance(topics, Iterable):
        raise InvalidInput(f"topics are a name or a list of names, not {type(topics).__name__}")
    return tuple(name_of("topic", topic) for topic in topics)


def ids_of(ids: str | Iterable[str]) -> tuple[str, ...]:
    """One id stands for itself, too."""
    if not isinstance(ids, Iterable):
        raise InvalidInput(f"ids are an id or a list of ids, not {type(ids).__name__}")
    found = (ids,) if isinstance(ids, str) else tuple(ids)
    for each in found:
        if not isinstance(each, str):
            raise InvalidInput(f"ids: a message id is text, not {type(each).__name__}")
    return found


def count_of(name: str, count: int, most: int) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= most:
        raise InvalidInput(f"{name} is 1 to {most}, not {count!r}", argument=name)
    return count


def flag_of(name: str, flag: bool) -> bool:
    """ "no" is true, and an empty list is false: neither is meant."""
    if not isinstance(flag, bool):
        raise InvalidInput(f"{name} is True or False, not {flag!r}", argument=name)
    return flag


def text_of(name: str, text: str) -> str:
    if not isinstance(text, str):
        raise InvalidInput(f"{name} is text, not {type(text).__name__}", argument=name)
    return text


def limit_of(limit: int) -> int:
    return count_of("limit", limit, LIMIT_MAX)


def where(
    *,
    group: str | None = None,
    ids: str | Iterable[str] | None = None,
    key: Bytes | None = None,
    reason: str | None = None,
    since: Time | None = None,
    until: Time | None = None,
) -> Where:
    return Where(
        group=group,
        ids=None if ids is None else ids_of(ids),
        key=bytes_of("key", key),
        reason_contains=reason,
        since_us=None if since is None else time_of("since", since),
        until_us=None if until is None else time_of("until", until),
    )
