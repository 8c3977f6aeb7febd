"""Close with a deadline: give up after 5 s without a reply from any broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from penstock.client.requests import DescribeTopic
from penstock.client.transport import Transport
from penstock.errors import ConnectionLost, LogClosed

T = TypeVar("T")

# Without an answer. Kafka's consumers wait 30 s, its producers for ever.
CLOSE_S = 5.0
# The delay before the first probe of the broker.
_UNASKED_S = 1.0


async def while_answered(work: Awaitable[T], transport: Transport, topic: str) -> T:
    """Wait for `work`. TimeoutError after CLOSE_S without an answer of any broker; then `work` is cancelled.

    It is not waited for then: what it does in the end may need the broker, too.
    """
    working = asyncio.ensure_future(work)
    working.add_done_callback(retrieve)
    try:
        await asyncio.wait([working], timeout=_UNASKED_S)
        while not working.done():
            asking = asyncio.ensure_future(transport.call(DescribeTopic(topic, ())))
            asking.add_done_callback(retrieve)
            try:
                await asyncio.wait([working], timeout=CLOSE_S - _UNASKED_S)
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
