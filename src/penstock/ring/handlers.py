"""What can be a handler, and what it must not return: work that nobody does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from penstock.errors import InvalidInput
from penstock.handlers import check_handler, is_async
from penstock.ring.batch import JobBatch

# What was not answered for is acknowledged when it returns.
Handler = Callable[[JobBatch], Any]
TAKES = "a batch"
AsyncHandler = Callable[[JobBatch], Awaitable[Any]]


def check_async(handler: object) -> None:
    check_handler(handler, TAKES)
    if not is_async(handler):
        raise InvalidInput(
            "`ring.aio.run` takes a coroutine function (`async def`), whose batches are handled in this event loop; "
            "`ring.run` takes other functions, and runs them in threads"
        )


def check_returned(returned: object) -> None:
    """InvalidInput if the work has yet to be done: nobody would do it, and the jobs would count as done."""
    if returned is None or not isinstance(returned, Awaitable | GeneratorType | AsyncGeneratorType | map | filter):
        return
    if isinstance(returned, Coroutine | GeneratorType):
        returned.close()
    raise InvalidInput(
        f"the handler returned a value of type {type(returned).__name__}, whose work is not done until somebody awaits "
        "it or goes through it, and nobody does; a coroutine function (`async def`) must be the handler itself"
    )
