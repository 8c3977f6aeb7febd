"""The functions that users pass to `run`: checks before the first message is handed to them, and why they failed."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction

from penstock.errors import InvalidInput


def check_handler(handler: object, takes: str) -> None:
    """Raise InvalidInput if a call of `handler` would do no work. `takes` names its argument, for the message."""
    if not callable(handler):
        raise InvalidInput(
            f"the handler is a value of type {type(handler).__name__}, which can't be called: pass a function that "
            f"takes {takes}"
        )
    if _is(isgeneratorfunction, handler) or _is(isasyncgenfunction, handler):
        raise InvalidInput(
            "the handler contains `yield`, so a call would only create a generator and do no work: pass a function "
            "without `yield`"
        )


def is_async(handler: object) -> bool:
    return _is(iscoroutinefunction, handler)


def _is(kind: Callable[[object], bool], handler: object) -> bool:
    """Also of an object whose `__call__` is one."""
    return kind(handler) or kind(getattr(handler, "__call__", None))  # noqa: B004


def reason_of(error: BaseException) -> str:
    """What a handler raised, in words. The text of an exception is code of its own, which may raise, too."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:
        return name
