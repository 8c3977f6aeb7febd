"""Make inherited clients unusable in a forked child.

The child inherits their sockets, files and buffers, but none of the threads that work on them. What it put into a
buffer would never be sent; what it sent would mix with what its parent sends.

Objects that a call can reach without the event loop are registered with `guard`. In a child each of them turns into an
`Inherited`, whose every use raises ClientForked, whatever its methods are. The parent pays nothing for that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar
from weakref import WeakSet

from penstock.errors import ClientForked

T = TypeVar("T")

_guarded: WeakSet[Any] = WeakSet()


def guard(guarded: object) -> None:
    """Make it unusable in a forked child. If it has a method `disown`, that is called there first."""
    _guarded.add(guarded)


def is_inherited(guarded: object) -> bool:
    """Whether it belongs to the process from which this one was forked."""
    return type(guarded) is Inherited


def check(guarded: object) -> None:
    if is_inherited(guarded):
        raise forked()


def checked(items: Iterable[T], guarded: object) -> Iterator[T]:
    """The items. A forked child that goes on with them gets ClientForked instead of the next one."""
    for item in items:
        if type(guarded) is Inherited:
            raise forked()
        yield item


def forked() -> ClientForked:
    return ClientForked(
        "this client belongs to the process from which this one was forked: open another client in this process"
    )


class Inherited:
    """An object of the parent process. Only `repr`, `isinstance` and the like work."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        raise forked()


def _disown_all() -> None:
    for guarded in list(_guarded):
        if hasattr(guarded, "disown"):
            guarded.disown()
        guarded.__class__ = Inherited


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
