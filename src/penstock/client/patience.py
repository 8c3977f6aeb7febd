"""Asking again what failed for a reason that passes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeVar

from penstock.errors import PenstockError, QuotaExceeded

R = TypeVar("R")

_PAUSE_S, _PAUSE_S_MAX = 0.01, 1.0
# By the clock of the event loop: until when somebody waits for what is being asked here.
_until: ContextVar[float] = ContextVar("until", default=math.inf)


def patience_left_s() -> float:
    """Of whoever asks patiently; without end if nobody does."""
    return max(_until.get() - asyncio.get_running_loop().time(), 0.0)


async def patiently(retry_s: float, ask: Callable[[], Awaitable[R]]) -> R:
    """With longer and longer pauses, for `retry_s`, and no attempt that may well take longer. A broker whose client has
    used up a quota says how long to wait.

    If nobody knows whether one of the attempts was carried out, that is what is raised in the end: by later ones,
    nothing is known of it.
    """
    loop = asyncio.get_running_loop()
    give_up, pause = loop.time() + retry_s, _PAUSE_S
    doubt: PenstockError | None = None
    before = _until.set(min(give_up, _until.get()))
    try:
        while True:
            began = loop.time()
            try:
                return await ask()
            except PenstockError as error:
                if not error.retriable:
                    raise
                doubt = doubt or (error if error.in_doubt else None)
                wait_s = max(pause, error.retry_after_s) if isinstance(error, QuotaExceeded) else pause
                # In a cluster each is patient itself, until there is a leader again.
                if loop.time() + max(wait_s, (loop.time() - began) / 2) > give_up:
                    raise doubt or error from None
                await asyncio.sleep(wait_s)
                pause = min(2 * pause, _PAUSE_S_MAX)
    finally:
        _until.reset(before)
