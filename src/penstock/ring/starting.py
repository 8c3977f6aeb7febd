"""Which kind of workers a handler gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidSetting
from penstock.ring.handlers import check_handler, is_async
from penstock.ring.settings import Duration
from penstock.ring.workers import Threads, Work, Workers

if TYPE_CHECKING:
    from penstock.ring.ring import Ring


def start(ring: Ring, handler: Any, workers: int, batch: int, kind: str, until_idle: Duration | None) -> Workers:
    check_handler(handler)
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
