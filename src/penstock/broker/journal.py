"""The way into a log for code on an event loop: `await commit(…)`, and it is on disk.

`async` ends here. Below is plain Python; the disk is written and synced on a thread, and the loop hears of a whole
group of commits at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.frame import Frame
from penstock.limits import DEFAULT_LIMITS, Limits
from penstock.message import Message
from penstock.storage.commit import Committed, GroupCommit, Outcome
from penstock.storage.log import Log

_Waiter = asyncio.Future[Committed]


class Journal:
    """Belongs to one event loop."""

    def __init__(
        self,
        log: Log,
        *,
        clock: Clock,
        executor: Executor,
        loop: asyncio.AbstractEventLoop,
        limits: Limits = DEFAULT_LIMITS,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        """`told` is called on the loop when more is on disk, once for all that were written together."""
        self._loop = loop
        self._told = told
        self._commits: GroupCommit[_Waiter] = GroupCommit(
            log, clock=clock, run=executor.submit, tell=self._tell, limits=limits
        )

    def commit(self, item: Frame | Message) -> _Waiter:
        """Done when it is on disk; raises DiskFull if it could not be written, Fatal if nobody knows."""
        waiter: _Waiter = self._loop.create_future()
        self._commits.commit(waiter, item)
        return waiter

    def _tell(self, outcomes: Sequence[tuple[_Waiter, Outcome]]) -> None:
        self._loop.call_soon_threadsafe(self._resolve, outcomes)

    def _resolve(self, outcomes: Sequence[tuple[_Waiter, Outcome]]) -> None:
        for waiter, outcome in outcomes:
            # A caller that gave up waiting: its frame is written all the same.
            if waiter.cancelled():
                continue
            if isinstance(outcome, PenstockError):
                waiter.set_exception(outcome)
            else:
                waiter.set_result(outcome)
        self._told()
