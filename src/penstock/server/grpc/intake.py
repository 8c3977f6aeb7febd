"""Reading requests, no more of one connection than may be in flight.

gRPC would read a request before anybody is asked whether it is wanted: a thousand calls of nine megabytes each, of
anybody. So all methods are streams to it, of which this reads the one request that there is, or one after the other,
once the caller is known and what its connection has sent before has been answered as far as need be. Until then the
request stays where it is: HTTP/2 does not let the caller send it.

How large a request is is known only when it is there, and a reading that has begun can't be taken back. So a connection
may go beyond its bound by one request of each reading under way: `READING_MAX` of calls, which have a time limit, and
one of each of its streams, which may wait for their next request as long as they like: `STREAMS_MAX`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from penstock.errors import Overloaded, ProtocolError
from penstock.limits import Limits
from penstock.server.grpc.failures import TooSlow

# Of one connection at the same time. A hundred streams are what servers of HTTP/2 commonly allow.
READING_MAX = 16
STREAMS_MAX = 100


class Sized(NamedTuple):
    """A request, and how many bytes it came in."""

    request: Any
    size: int


def sized(kind: type[Any]) -> Callable[[bytes], Sized]:
    """How requests of this kind are read. ProtocolError if it is none."""

    def read(data: bytes) -> Sized:
        try:
            return Sized(kind.FromString(data), len(data))
        except DecodeError as error:
            raise ProtocolError(f"not a {kind.__name__}") from error

    return read


class Account:
    """Of one connection: bytes of requests that are not answered, of all its calls together. `over` hears of
    it when it has no calls, and nothing that they have left behind."""

    def __init__(self, in_flight_max: int, over: Callable[[Account], None]) -> None:
        self.calls = 0
        self.streams = 0
        self.reading = 0
        self.in_flight = 0
        self._in_flight_max = in_flight_max
        self._over = over
        self._changed = asyncio.Event()

    @property
    def is_full(self) -> bool:
        return self.in_flight > self._in_flight_max

    def add(self, size: int) -> None:
        self.in_flight += size

    def settle(self, size: int) -> None:
        self.in_flight -= size
        self.note()
        self._check()

    def begin(self) -> None:
        self.calls += 1

    def end(self) -> None:
        self.calls -= 1
        self._check()

    def _check(self) -> None:
        if not self.calls and not self.in_flight:
            self._over(self)

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
        self._patience_s = limits.stuck_us / 1e6
        self._accounts: dict[str, Account] = {}

    @property
    def in_flight(self) -> int:
        """Of all connections."""
        return sum(account.in_flight for account in self._accounts.values())

    @contextmanager
    def _call(self, context: Any) -> Iterator[Account]:
        """The account of its connection, as long as it lasts."""
        peer = context.peer()

        def forget(account: Account) -> None:
            # A request of no bytes may be left behind by one that is forgotten.
            if self._accounts.get(peer) is account:
                del self._accounts[peer]

        account = self._accounts.setdefault(peer, Account(self._in_flight_max, forget))
        account.begin()
        try:
            yield account
        finally:
            account.end()

    @contextmanager
    def stream(self, context: Any) -> Iterator[Account]:
        """The same, for one that reads its requests by itself. Overloaded if its connection has too many of them."""
        with self._call(context) as account:
            if account.streams >= STREAMS_MAX:
                raise Overloaded(f"a connection has at most {STREAMS_MAX} streams", streams_max=STREAMS_MAX)
            account.streams += 1
            try:
                yield account
            finally:
                account.streams -= 1

    @asynccontextmanager
    async def request(self, context: Any) -> AsyncIterator[Any]:
        """The only one of a call, as soon as there is room for it; it counts until this ends. ProtocolError if there is
        none, TooSlow if it does not come: others wait for its place."""
        with self._call(context) as account:
            while account.reading >= READING_MAX or account.is_full:
                await account.change()
            account.reading += 1
            try:
                async with asyncio.timeout(self._patience_s):
                    came = await context.read()
            except TimeoutError:
                raise TooSlow(f"the request of a call comes within {self._patience_s:g} s") from None
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
