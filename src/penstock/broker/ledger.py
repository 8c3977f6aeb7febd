"""Writing down what happens to messages, in the order in which it was decided.

Some rows somebody waits for: an acknowledgement is told when it is on disk. Others nobody does: a lease that a crash
forgets only means that its messages are delivered again. Those are held back for a moment and written with whatever
comes next, so that tracing costs no sync of its own.

If a row can't be written, memory is ahead of the disk and nobody may build on it: nothing is written any more, and the
next start reads the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.broker.disk import Disk
from penstock.broker.events import AnyEvent, to_message, to_messages
from penstock.broker.journal import Journal
from penstock.clock import Clock
from penstock.errors import Fatal, LogClosed, Overloaded, PenstockError
from penstock.frame import Frame
from penstock.limits import MIB, Limits
from penstock.message import Message
from penstock.storage.commit import Committed
from penstock.storage.log import Log

HELD_BACK_MAX = 64
_ROW_BYTES_MAX = MIB
_HELD_BACK_S = 0.01


class Ledger:
    """Belongs to one event loop."""

    def __init__(self, log: Log, *, clock: Clock, disk: Disk, loop: asyncio.AbstractEventLoop, limits: Limits) -> None:
        # A row speaks of what those before it have made: behind one that is missing, no start could read it.
        self._journal = Journal(
            log, clock=clock, disk=disk, loop=loop, limits=limits, failed=self._stop, is_chained=True
        )
        self._loop = loop
        self._held_back: list[tuple[Sequence[AnyEvent], int]] = []
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped: PenstockError | None = None
        # Bytes of rows since the last snapshot.
        self.since_snapshot = 0

    @property
    def is_stopped(self) -> bool:
        return self._stopped is not None

    def check(self) -> None:
        if self._stopped is not None:
            raise self._stopped.again()

    def write(self, events: Sequence[AnyEvent], now_us: int) -> asyncio.Future[Committed]:
        """One row, done when it is on disk. If this raises, it will never be, and must not be applied."""
        self.check()
        self.flush()
        return self._commit(to_message(events, now_us))

    def note(self, events: Sequence[AnyEvent], now_us: int) -> None:
        """Nobody waits for it. If this raises, it must not be applied."""
        self.check()
        if len(self._held_back) >= HELD_BACK_MAX:
            self.flush()
        if not self._held_back:
            self._since = self._loop.time()
        self._held_back.append((events, now_us))
        if self._timer is None:
            self._timer = self._loop.call_later(_HELD_BACK_S, self._flush_later)

    def flush(self) -> None:
        """What was held back goes ahead of what comes now."""
        if self._held_back:
            rows = to_messages(self._held_back, bytes_max=_ROW_BYTES_MAX)
            self._journal.post(rows)
            self._held_back = []
            for row in rows:
                self._count(row)

    async def flushed(self) -> None:
        """Everything so far can be read from the log."""
        self.flush()
        await self._journal.settled()
        self.check()

    def _flush_later(self) -> None:
        self._timer = None
        if self._stopped is not None or not self._held_back:
            return
        left = self._since + _HELD_BACK_S - self._loop.time()
        if left <= 0:
            try:
                self.flush()
            except Overloaded:
                # More is waiting for the disk than may; it goes with the next row, or the next time.
                left = _HELD_BACK_S
            else:
                return
        # Others went with a row in the meantime; these have not waited long.
        self._timer = self._loop.call_later(left, self._flush_later)

    def snapshot(self, frames: Sequence[Frame]) -> asyncio.Future[list[Committed]]:
        """The state as it is now, behind the rows that led to it."""
        self.check()
        self.flush()
        self.since_snapshot = 0
        return asyncio.gather(*[self._journal.commit(frame) for frame in frames])

    def _commit(self, message: Message) -> asyncio.Future[Committed]:
        commit = self._journal.write(message)
        self._count(message)
        return commit

    def _count(self, message: Message) -> None:
        assert message.value is not None
        self.since_snapshot += len(message.value)

    def _stop(self, error: PenstockError) -> None:
        """A row could not be written: what was applied is not what is on disk."""
        # Nothing is wrong with a log that was closed; whoever still asks it for something hears so.
        kind = LogClosed if isinstance(error, LogClosed) else Fatal
        self._stopped = kind(f"what happened to messages could not be written: {error.message}", **error.details)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
