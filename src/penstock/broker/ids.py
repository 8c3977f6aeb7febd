"""Message ids: topic:partition:offset."""

from __future__ import annotations

from typing import NamedTuple

from penstock.broker.names import check_name
from penstock.errors import InvalidInput


class MessageId(NamedTuple):
    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"

    @classmethod
    def checked(cls, given: object) -> MessageId:
        """An id that somebody made, or its text."""
        if not isinstance(given, MessageId):
            return cls.parse(given)
        numbers = (given.partition, given.offset)
        if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 63 for n in numbers):
            raise InvalidInput(f"a message id has a partition and an offset, not {given.partition!r}, {given.offset!r}")
        return given

    @classmethod
    def parse(cls, text: object) -> MessageId:
        if not isinstance(text, str):
            raise InvalidInput(f"a message id is text, not {type(text).__name__}")
        parts = text.split(":")
        is_plain = len(parts) == 3 and all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts[1:])
        if not is_plain:
            raise InvalidInput(f"a message id is topic:partition:offset, not {text[:100]!r}")
        return cls(check_name("topic", parts[0]), int(parts[1]), int(parts[2]))
