"""Errors on their way through Spark, which keeps nothing of them but their text: that begins with the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isgeneratorfunction
from typing import ParamSpec, TypeVar, cast

from penstock.errors import PenstockError

P = ParamSpec("P")
R = TypeVar("R")


def _coded(error: PenstockError) -> PenstockError:
    code = f"[{error.code}] "
    told = error.message if error.message.startswith(code) else code + error.message
    return type(error)(told, **error.details)


def telling(method: Callable[P, R]) -> Callable[P, R]:
    """For what Spark calls. A generator is told for as long as it is iterated."""
    if isgeneratorfunction(method):

        @wraps(method)
        def iterate(*args: P.args, **kwargs: P.kwargs) -> Iterator[object]:
            try:
                yield from cast(Iterator[object], method(*args, **kwargs))
            except PenstockError as error:
                raise _coded(error) from None

        return cast(Callable[P, R], iterate)

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except PenstockError as error:
            raise _coded(error) from None

    return call
