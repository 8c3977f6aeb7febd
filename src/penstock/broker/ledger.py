"""Writing down what happens to messages, in the order in which it was decided.

Some rows somebody waits for: an acknowledgement is told when it is on disk. Others nobody does: a lease that a crash
forgets only means that its messages are delivered again. Those are held back for a moment and written with whatever
comes next, so that tracing costs no sync of its own.

If the disk is full, rows wait for room in their order, and no further one is accepted until they are written: see
`Journal`. If a row can't be written for another reason, memory is ahead of the disk and nobody may build on it: nothing
is written any more, and the next start reads the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.broker.disk import Disk
from penstock.broker.events import AnyEvent, to_message, to_messages
from penstock.broker.journal import Journal
from penstock.clock import Clock
from penstock.errors import (
    ClusterError,
    DiskFull,
    Fatal,
    LeadershipLost,
    LogClosed,
    LogFollows,
    Overloaded,
    PenstockError,
)
from penstock.frame import Frame
from penstock.limits import MIB, Limits
from penstock.message import Message
from penstock.storage.commit import Committed
from penstock.storage.log import Log

HELD_BACK_MAX = 64
_ROW_BYTES_MAX = MIB
HELD_BACK_S = 0.01
# Who has which partition. A crash that forgets it costs at most a session: so long the partition is kept for somebody.
ASSIGNED_HELD_BACK_S = 0.5


class Ledger:
    """Belongs to one event loop."""

    def __init__(
        self,
        log: Log,
        *,
        clock: Clock,
        disk: Disk,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        wrote: Callable[[], None] | None = None,
    ) -> None:
        # A row speaks of what those before it have made: behind one that is missing, no start could read it.
        self.journal = Journal(
            log, clock=clock, disk=disk, loop=loop, limits=limits, failed=self._stop, is_chained=True, wrote=wrote
        )
        self._loop = loop
        self._held_back: list[tuple[Sequence[AnyEvent], int]] = []
        # When what is held back is to be written at the latest, and when the timer looks.
        self._due = self._looks_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped: PenstockError | None = None
        # Bytes of rows since the last snapshot.
        self.since_snapshot = 0

    @property
    def is_stopped(self) -> bool:
        return self._stopped is not None

    @property
    def lacks_room(self) -> bool:
        """Rows wait for room on the disk."""
        return self.journal.no_room is not None

    def check(self) -> None:
        if self._stopped is not None:
            raise self._stopped.again()
        if self.journal.no_room is not None:
            raise self.journal.no_room.again()

    def end_wait(self) -> None:
        """Before the end: rows that wait for room on the disk fail."""
        self.journal.end_wait(self.journal.no_room or DiskFull("there is no room on the disk"))

    def write(self, events: Sequence[AnyEvent], now_us: int) -> asyncio.Future[Committed]:
        """One row, done when it is on disk. If this raises, it will never be, and must not be applied."""
        self.check()
        self.flush()
        return self._commit(to_message(events, now_us))

    def note(self, events: Sequence[AnyEvent], now_us: int, within_s: float = HELD_BACK_S) -> None:
        """Nobody waits for it; written `within_s`. If this raises, it must not be applied."""
        self.check()
        if len(self._held_back) >= HELD_BACK_MAX:
            self.flush()
        due = self._loop.time() + within_s
        self._due = min(due, self._due) if self._held_back else due
        self._held_back.append((events, now_us))
        if self._timer is None or self._due < self._looks_at:
            self._look_at(self._due)

    def _look_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = due
        self._timer = self._loop.call_at(due, self._flush_later)

    def flush(self) -> None:
        """What was held back goes ahead of what comes now."""
        if self._held_back:
            rows = to_messages(self._held_back, bytes_max=_ROW_BYTES_MAX)
            self.journal.post(rows)
            self._held_back = []
            for row in rows:
                self._count(row)

    async def flushed(self) -> None:
        """Everything so far can be read from the log."""
        self.flush()
        await self.journal.settled()
        self.check()

    def _flush_later(self) -> None:
        self._timer = None
        if self._stopped is not None or not self._held_back:
            return
        # Others may have gone with a row in the meantime, and these not have waited long. A timer may be early by a
        # little: by its resolution.
        if self._loop.time() >= self._due:
            try:
                self.flush()
            except Overloaded:
                # More is waiting for the disk than may; it goes with the next row, or the next time.
                self._due = self._loop.time() + HELD_BACK_S
            else:
                return
        self._look_at(self._due)

    def snapshot(self, frames: Sequence[Frame]) -> asyncio.Future[list[Committed]]:
        """The state as it is now, behind the rows that led to it."""
        self.check()
        self.flush()
        self.since_snapshot = 0
        return asyncio.gather(*[self.journal.commit(frame) for frame in frames])

    def _commit(self, message: Message) -> asyncio.Future[Committed]:
        commit = self.journal.write(message)
        self._count(message)
        return commit

    def _count(self, message: Message) -> None:
        assert message.value is not None
        self.since_snapshot += len(message.value)

    def _stop(self, error: PenstockError) -> None:
        """A row could not be written: what was applied is not what is on disk."""
        if isinstance(self._stopped, LeadershipLost):
            # What becomes of rows after that is not told.
            return
        # Nothing is wrong with a log that was closed, or is led by another node now; whoever asks it hears so.
        kind = type(error) if isinstance(error, LogClosed | ClusterError | LogFollows) else Fatal
        self._stopped = kind(f"what happened to messages could not be written: {error.message}", **error.details)

    def resign(self) -> None:
        """What is held back is forgotten with the rest of this state: nobody was told of it."""
        self._stop(LeadershipLost("this node does not lead the partition any more"))
        self._held_back = []
        self.journal.resign()
        self.close()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
