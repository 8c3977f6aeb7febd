"""Which kind of workers a handler gets."""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidSetting
from penstock.ring.settings import Duration
from penstock.ring.workers import Threads, Work, Workers, check_handler

if TYPE_CHECKING:
    from penstock.ring.ring import Ring


def start(ring: Ring, handler: Any, workers: int, batch: int, kind: str, until_idle: Duration | None) -> Workers:
    check_handler(handler)
    if kind not in ("threads", "processes"):
        raise InvalidSetting(f'kind is "threads" or "processes", not {kind!r}')
    work = Work(ring, workers, batch, until_idle)
    is_async = iscoroutinefunction(handler) or iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
    if kind == "processes":
        from penstock.ring.processes import Processes

        return Processes(work, handler, ring._job_type, is_async=is_async)
    if is_async:
        from penstock.ring.tasks import LoopThread

        return LoopThread(work, handler)
    return Threads(work, handler)
