"""A message, as a row: what a producer hands in and what a consumer gets out.

Inside, messages live in columns (`batch.py`); rows exist at the edges only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from penstock.clock import TIME_MAX_US
from penstock.errors import InvalidMessage


class Priority(IntEnum):
    """The lane a message travels in. Normal is zero, so a batch of normal messages needs no column."""

    LOW = -1
    NORMAL = 0
    HIGH = 1


@dataclass(frozen=True, slots=True)
class Message:
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

    def check(self) -> None:
        """Raises InvalidMessage when a field could not be stored and read back as it is."""
        if self.priority not in (-1, 0, 1):
            raise InvalidMessage(f"priority must be -1, 0 or 1, not {self.priority!r}", field="priority")
        for name in ("timestamp", "deliver_at", "expires_at"):
            value = getattr(self, name)
            if not 0 <= value <= TIME_MAX_US:
                raise InvalidMessage(f"{name} must be microseconds within 1970–9999, not {value!r}", field=name)
