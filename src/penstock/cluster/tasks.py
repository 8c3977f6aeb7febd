"""Tasks that nobody waits for: one that ends by an error ends the node, too.

Whatever a node leaves undone because a task of it is gone, others would wait for in vain as long as its session lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.errors import Fatal, PenstockError

log = logging.getLogger("penstock.cluster")

Broke = Callable[[PenstockError], None]


def failure_of(error: BaseException) -> PenstockError:
    """As it is told to others. A bug has its traceback in the log."""
    if isinstance(error, PenstockError):
        return error
    log.error("a bug", exc_info=error)
    fatal = Fatal(f"unexpected {error!r}")
    fatal.__cause__ = error
    return fatal


def start(work: Coroutine[Any, Any, None], broke: Broke) -> asyncio.Task[None]:
    def look_at(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            broke(failure_of(error))

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(look_at)
    return task
