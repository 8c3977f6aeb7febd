"""One node, as far as one consumer is concerned: the poll that waits there, or when to ask it again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.client.transport import Delivery
from penstock.errors import PenstockError, QuotaExceeded
from penstock.net.routing.pace import Pace


class Poller:
    """Belongs to one event loop."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.task: asyncio.Task[Sequence[Delivery]] | None = None
        # For which call of the consumer it was asked last, and until when it was to wait.
        self.call = 0
        self._until = 0.0
        self.error: PenstockError | None = None
        self.failing_since = 0.0
        self.retry_at = 0.0
        self._pause_s = pace.pause_s

    def is_done_for(self, call: int, until: float) -> bool:
        """It was asked, and there was nothing."""
        return self.task is None and self.error is None and self.call >= call and self._until >= until

    def began(self, task: asyncio.Task[Sequence[Delivery]], call: int, until: float) -> None:
        self.task, self.call, self._until = task, call, until

    def answered(self) -> None:
        self.task = self.error = None
        self.retry_at, self._pause_s = 0.0, self._pace.pause_s

    def failed(self, error: PenstockError, now: float) -> None:
        if self.error is None:
            self.failing_since = now
        self.task, self.error = None, error
        pause_s = self._pause_s * (0.5 + self._pace.dice() / 2)
        self.retry_at = now + (max(pause_s, error.retry_after_s) if isinstance(error, QuotaExceeded) else pause_s)
        self._pause_s = min(2 * self._pause_s, self._pace.pause_s_max)
