"""A message, as a row: what a producer hands in and what a consumer gets out.

Inside, messages live in columns (`batch.py`); rows exist at the edges only.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from penstock.clock import TIME_MAX_US
from penstock.errors import InvalidMessage


class Priority(IntEnum):
    """The lane a message travels in. Normal is zero, so a batch of normal messages needs no column."""

    LOW = -1
    NORMAL = 0
    HIGH = 1


SHOWN_BYTES_MAX = 40
_NO_HEADERS: tuple[tuple[str, bytes], ...] = ()
_NO_TIME = 0


class Message(msgspec.Struct, frozen=True, gc=False):
    """Times are microseconds since the epoch; `deliver_at` and `expires_at` are 0 for "at once" and "never".

    A value of None is a tombstone: under key compaction it deletes its key.
    """

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp: int = 0
    deliver_at: int = 0
    expires_at: int = 0
    priority: int = Priority.NORMAL

    def __repr__(self) -> str:
        """What it has, and only the start of what is long."""
        parts = [f"value={shown(self.value)}"]
        parts += [f"key={shown(self.key)}"] if self.key is not None else []
        parts += [f"{len(self.headers)} headers"] if self.headers else []
        parts += [f"{name}={getattr(self, name)}" for name in self.__struct_fields__[3:] if getattr(self, name)]
        return f"<{type(self).__name__} {' '.join(parts)}>"

    @property
    def size(self) -> int:
        """Bytes of key, value and headers."""
        size = (len(self.value) if self.value else 0) + (len(self.key) if self.key else 0)
        if self.headers:
            size += self.header_size
        return size

    @property
    def header_size(self) -> int:
        return sum(len(name.encode()) + len(value) for name, value in self.headers)

    def check(self) -> None:
        """Raises InvalidMessage when a field could not be stored and read back as it is."""
        # Spelled out: this runs for every message that is published alone.
        if self.value is not None and not isinstance(self.value, bytes):
            raise _not_bytes("value", self.value)
        if self.key is not None and not isinstance(self.key, bytes):
            raise _not_bytes("key", self.key)
        if self.headers is not _NO_HEADERS:
            _check_headers(self.headers)
        if self.priority != 0 and not (_is_int(self.priority) and -1 <= self.priority <= 1):
            raise InvalidMessage(f"priority must be -1, 0 or 1, not {self.priority!r}", field="priority")
        if self.timestamp is not _NO_TIME and not (_is_int(self.timestamp) and 0 <= self.timestamp <= TIME_MAX_US):
            raise _out_of_range("timestamp", self.timestamp)
        if self.deliver_at is not _NO_TIME and not (_is_int(self.deliver_at) and 0 <= self.deliver_at <= TIME_MAX_US):
            raise _out_of_range("deliver_at", self.deliver_at)
        if self.expires_at is not _NO_TIME and not (_is_int(self.expires_at) and 0 <= self.expires_at <= TIME_MAX_US):
            raise _out_of_range("expires_at", self.expires_at)


def shown(value: bytes | None) -> str:
    """For people: the start of it, if it is long."""
    if not isinstance(value, bytes) or len(value) <= SHOWN_BYTES_MAX:
        return repr(value)
    return f"{value[:SHOWN_BYTES_MAX]!r}… ({len(value)} bytes)"


def _is_int(value: object) -> bool:
    """True and False are not numbers here, whatever Python says."""
    return type(value) is int or (isinstance(value, int) and not isinstance(value, bool))


def _check_headers(headers: tuple[tuple[str, bytes], ...]) -> None:
    if not isinstance(headers, tuple | list):
        # An iterator would be used up by looking at it.
        raise InvalidMessage(f"headers must be a tuple of pairs, not {type(headers).__name__}", field="headers")
    try:
        for name, value in headers:
            name.encode()
            if not isinstance(value, bytes):
                raise InvalidMessage(f"header {name!r} must be bytes, not {type(value).__name__}", field="headers")
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidMessage(f"headers must be pairs of text and bytes: {error}", field="headers") from error


def _not_bytes(name: str, value: object) -> InvalidMessage:
    return InvalidMessage(f"{name} must be bytes or None, not {type(value).__name__}", field=name)


def _out_of_range(name: str, value: int) -> InvalidMessage:
    return InvalidMessage(f"{name} must be microseconds within 1970–9999, not {value!r}", field=name)
