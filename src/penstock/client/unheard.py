"""What a producer that does not wait has sent, and not heard of yet.

Nobody is told of it message by message. It is counted, so that no more is under way than may be; and what the broker
says of it in the end is kept: the first error for whoever flushes or closes, all of them for the log.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.client.transport import Stored
from penstock.errors import PenstockError

log = logging.getLogger("penstock.client")

FRAMES_MAX = 64
# A broker that refuses everything is not worth a line for each.
_TOLD_EVERY_S = 1.0


class Unheard:
    """Belongs to one event loop. No more than FRAMES_MAX frames and `bytes_max`, unless a single one is larger."""

    def __init__(self, topic: str, bytes_max: int) -> None:
        self._topic = topic
        self._bytes_max = bytes_max
        self._bytes = 0
        # Its bytes and messages.
        self._sending: dict[asyncio.Task[Stored], tuple[int, int]] = {}
        self._error: PenstockError | None = None
        # Frames that were not stored, since that was last told.
        self._failed = 0
        self._told_at = float("-inf")
        # As many as the topic is known to have.
        self.partitions = 0

    async def room(self, size: int) -> None:
        """Until there is some for another frame."""
        while self._sending and (len(self._sending) >= FRAMES_MAX or self._bytes + size > self._bytes_max):
            await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)

    @property
    def messages(self) -> int:
        return sum(messages for _, messages in self._sending.values())

    def add(self, sending: asyncio.Task[Stored], size: int, messages: int) -> None:
        self._sending[sending] = size, messages
        self._bytes += size
        sending.add_done_callback(self._heard)

    async def settled(self) -> None:
        """Until there is word of all that was sent so far."""
        if self._sending:
            await asyncio.wait(self._sending)

    def check(self) -> None:
        """Raises what went wrong first, since this was last asked."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _heard(self, sending: asyncio.Task[Stored]) -> None:
        size, _ = self._sending.pop(sending)
        self._bytes -= size
        if sending.cancelled():
            return
        error = sending.exception()
        if error is None:
            self.partitions = max(self.partitions, sending.result().partitions)
        elif isinstance(error, PenstockError):
            self._error = self._error or error.again()
            self._failed += 1
            self._tell(sending.get_loop().time(), error)
        else:
            raise error

    def _tell(self, now_s: float, error: PenstockError) -> None:
        if now_s - self._told_at >= _TOLD_EVERY_S:
            log.warning("%d frames to %s, with acks=none, may be lost: %s", self._failed, self._topic, error.message)
            self._failed, self._told_at = 0, now_s
