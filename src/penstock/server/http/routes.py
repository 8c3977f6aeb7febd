"""The table of routes: what the door does, and what its description says it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from penstock.errors import PenstockError
from penstock.limits import KIB, MIB, Limits
from penstock.server.access import Operation
from penstock.server.http import shapes
from penstock.server.http.desk import AnyAsked, Desk

BODY_MAX = 4 * MIB
Act = Callable[[Desk, AnyAsked], Awaitable[Any]]


def body_max(limits: Limits) -> int:
    return BODY_MAX


def message_max(limits: Limits) -> int:
    """A message in base64 is a third larger, and of text each byte may be written as an escape of six."""
    return 6 * (limits.message_bytes_max + limits.header_bytes_max) + 64 * KIB


def batch_max(limits: Limits) -> int:
    """What a connection may have under way; a batch that is written with many escapes may have to be sent in parts."""
    return min(2 * limits.frame_bytes_max + 64 * KIB, max(limits.in_flight_bytes_max, message_max(limits)))


class Route(NamedTuple):
    """`act` gives what is answered, of type `reply`; None is an answer without a body.

    `described` is what the description calls the body, where decoding looks at less of it at first. `errors` are those
    that can be expected here, besides those that every route may have. `is_open`: nobody is asked who they are.
    `needs` is the right without which a body is not read.
    """

    method: str
    path: str
    act: Act
    summary: str
    body: type | None = None
    described: type | None = None
    query: type = shapes.NoQuery
    reply: Any = None
    status: int = 200
    errors: tuple[type[PenstockError], ...] = ()
    example: Any = None
    reply_example: Any = None
    body_max: Callable[[Limits], int] = body_max
    is_stream: bool = False
    is_open: bool = False
    needs: Operation = Operation.ADMIN

    @property
    def only_reads(self) -> bool:
        return self.method == "GET" and not self.is_stream
