"""Which kind of workers a handler gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidSetting
from penstock.handlers import check_handler, is_async
from penstock.ring.handlers import TAKES
from penstock.ring.settings import Duration
from penstock.ring.workers import Threads, Work, WorkerThreads

if TYPE_CHECKING:
    from penstock.ring.ring import Ring


def workers_for(
    ring: Ring, handler: Any, workers: int, batch: int, kind: str, until_idle: Duration | None
) -> WorkerThreads:
    """They have not begun."""
    check_handler(handler, TAKES)
    if kind not in ("threads", "processes"):
        raise InvalidSetting(f'kind is "threads" or "processes", not {kind!r}')
    work = Work(ring, workers, batch, until_idle)
    if kind == "processes":
        from penstock.ring.processes import Processes

        return Processes(work, handler, ring._job_type, is_async=is_async(handler))
    if is_async(handler):
        from penstock.ring.tasks import LoopThread

        return LoopThread(work, handler)
    return Threads(work, handler)
