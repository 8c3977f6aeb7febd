"""How much a consumer has said it can take."""

from __future__ import annotations

import asyncio

from penstock.errors import InvalidInput

CREDIT_MAX = 1 << 40


class Subscription:
    """Credit in messages and in bytes. A delivery may overdraw the bytes: a message is never cut in two."""

    def __init__(self, messages: int, bytes: int) -> None:
        self._messages = self._bytes = 0
        self._is_some = asyncio.Event()
        self.add(messages, bytes)

    def add(self, messages: int, bytes: int) -> None:
        if not 0 <= messages <= CREDIT_MAX or not 0 <= bytes <= CREDIT_MAX:
            raise InvalidInput(f"credit is 0 to {CREDIT_MAX}, not {messages} messages and {bytes} bytes")
        self._messages += messages
        self._bytes += bytes
        self._note()

    def spend(self, messages: int, bytes: int) -> None:
        self._messages -= messages
        self._bytes -= bytes
        self._note()

    def _note(self) -> None:
        if self._messages > 0 and self._bytes > 0:
            self._is_some.set()
        else:
            self._is_some.clear()

    async def credit(self) -> tuple[int, int]:
        """As soon as there is some of both."""
        await self._is_some.wait()
        return self._messages, self._bytes
