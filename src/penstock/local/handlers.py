"""Who answers which request: each handler is one call of the broker, and the way to it and back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from penstock.broker.broker import Broker
from penstock.client.requests import Request
from penstock.clock import Clock

Q = TypeVar("Q", bound=Request[Any])
R = TypeVar("R")


class Site(NamedTuple):
    """What handlers work with."""

    broker: Broker
    clock: Clock
    new_id: Callable[[], bytes]
    on_a_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    archive_dir: str | None


Handler = Callable[[Site, Any], Awaitable[Any]]
HANDLERS: dict[type[Request[Any]], Handler] = {}


def handles(kind: type[Q]) -> Callable[[Callable[[Site, Q], Awaitable[R]]], Callable[[Site, Q], Awaitable[R]]]:
    def register(handler: Callable[[Site, Q], Awaitable[R]]) -> Callable[[Site, Q], Awaitable[R]]:
        assert kind not in HANDLERS, kind
        HANDLERS[kind] = handler
        return handler

    return register
