"""Reading requests, no more of one connection than may be in flight.

gRPC would read a request before anybody is asked whether it is wanted: a thousand calls of nine megabytes each, of
anybody. So all methods are streams to it, of which this reads the one request that there is, once the caller is known
and what its connection has sent before has been answered as far as need be. Until then the request stays where it is:
HTTP/2 does not let the caller send it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from penstock.errors import ProtocolError
from penstock.limits import Limits

# Of one connection at the same time: how large they are is known only when they are there.
READING_MAX = 16


class Sized(NamedTuple):
    """A request, and how many bytes it came in."""

    request: Any
    size: int


def reading(kind: type[Any]) -> Callable[[bytes], Any]:
    """How requests of this kind are read. ProtocolError if it is none."""

    def read(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except DecodeError as error:
            raise ProtocolError(f"not a {kind.__name__}") from error

    return read


def sized(kind: type[Any]) -> Callable[[bytes], Sized]:
    read = reading(kind)
    return lambda data: Sized(read(data), len(data))


class Account:
    """Of one connection: bytes of requests that are not answered, of all its calls together."""

    def __init__(self, in_flight_max: int) -> None:
        self.calls = 0
        self.reading = 0
        self.in_flight = 0
        self._in_flight_max = in_flight_max
        self._changed = asyncio.Event()

    @property
    def is_full(self) -> bool:
        return self.in_flight > self._in_flight_max

    def add(self, size: int) -> None:
        self.in_flight += size

    def settle(self, size: int) -> None:
        self.in_flight -= size
        self.note()

    def note(self) -> None:
        """Something is different: whoever waits looks again."""
        self._changed.set()

    async def change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Intake:
    """Belongs to one event loop."""

    def __init__(self, limits: Limits) -> None:
        self._in_flight_max = limits.in_flight_bytes_max
        self._accounts: dict[str, Account] = {}

    @property
    def in_flight(self) -> int:
        """Of all connections."""
        return sum(account.in_flight for account in self._accounts.values())

    @contextmanager
    def call(self, context: Any) -> Iterator[Account]:
        """The account of its connection, as long as it lasts."""
        peer = context.peer()
        account = self._accounts.setdefault(peer, Account(self._in_flight_max))
        account.calls += 1
        try:
            yield account
        finally:
            account.calls -= 1
            if not account.calls:
                del self._accounts[peer]

    @asynccontextmanager
    async def request(self, context: Any) -> AsyncIterator[Any]:
        """The only one of a call, as soon as there is room for it; it counts until this ends. ProtocolError if there is
        none."""
        with self.call(context) as account:
            while account.reading >= READING_MAX or account.is_full:
                await account.change()
            account.reading += 1
            try:
                came = await context.read()
            finally:
                account.reading -= 1
                account.note()
            if came is grpc.aio.EOF:
                raise ProtocolError("the call has no request")
            account.add(came.size)
            try:
                yield came.request
            finally:
                account.settle(came.size)
