"""Close with a deadline: give up after a time without a reply from any broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from penstock.client.requests import DescribeTopic
from penstock.client.transport import Transport
from penstock.durations import duration_us
from penstock.errors import ConnectionLost, LogClosed

T = TypeVar("T")

# Without an answer. Kafka's consumers wait 30 s, its producers for ever.
CLOSE_TIMEOUT = "5s"
CLOSE_S = duration_us(CLOSE_TIMEOUT) / 1_000_000
# The delay before the first probe of the broker, and its share of a short timeout.
_UNASKED_S = 1.0
_UNASKED_SHARE = 0.2


async def while_answered(work: Awaitable[T], transport: Transport, topic: str, timeout_s: float = CLOSE_S) -> T:
    """Wait for `work`. TimeoutError after `timeout_s` without an answer of any broker; then `work` is cancelled.

    It is not waited for then: what it does in the end may need the broker, too.
    """
    unasked_s = min(_UNASKED_S, _UNASKED_SHARE * timeout_s)
    working = asyncio.ensure_future(work)
    working.add_done_callback(retrieve)
    try:
        await asyncio.wait([working], timeout=unasked_s)
        while not working.done():
            asking = asyncio.ensure_future(transport.call(DescribeTopic(topic, ())))
            asking.add_done_callback(retrieve)
            try:
                await asyncio.wait([working], timeout=timeout_s - unasked_s)
                if not working.done() and not _is_answered(asking):
                    raise TimeoutError
            finally:
                asking.cancel()
        return await working
    finally:
        working.cancel()


async def all_done(*work: Awaitable[object]) -> None:
    """At the same time, to the end of each. Raises the first error."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _is_answered(asking: asyncio.Future[Any]) -> bool:
    """True if any broker replied, even with an error."""
    if not asking.done() or asking.cancelled():
        return False
    return not isinstance(asking.exception(), ConnectionLost | LogClosed)


def retrieve(task: asyncio.Future[Any]) -> None:
    """Otherwise asyncio logs an error that has no caller any more."""
    if not task.cancelled():
        task.exception()
