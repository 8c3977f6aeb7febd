"""Reading requests, no more of one connection than may be in flight.

gRPC would read a request before anybody is asked whether it is wanted: a thousand calls of nine megabytes each, of
anybody. So all methods are streams to it, of which this reads the one request that there is, or one after the other,
once the caller is known and what its connection has sent before has been answered as far as need be. Until then the
request stays where it is: HTTP/2 does not let the caller send it.

How large a request is is known only when it is there, and a reading that has begun can't be taken back. So a connection
may go beyond its bound by one request of each reading under way: `READING_MAX` of calls, which have a time limit, and
one of each of its streams, which may wait for their next request as long as they like: `STREAMS_MAX`.

Of one principal, all connections together, only a few requests may arrive slowly: see `ReadingLimits`.
Otherwise a client could have the broker hold any number of requests that it never ends.
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
from penstock.server.grpc.entries import entries_check
from penstock.server.grpc.failures import TooSlow

# Of one connection at the same time. A hundred streams are what servers of HTTP/2 commonly allow.
READING_MAX = 16
STREAMS_MAX = 100
QUICK_S = 0.05
# The oldest slow one fails for a new one only after this time.
PATIENCE_S = 1.0


class ReadingLimits(NamedTuple):
    """Of one principal. A request that has come along with its call is read within a millisecond: it is quick."""

    quick_max: int
    slow_max: int
    # Calls whose request is not read yet. gRPC takes the first 16 KiB of each (`door.py`).
    waiting_max: int


# Requests to publish and consume, and all others: those are small, and a principal may send them without any rights.
LARGE_REQUESTS = ReadingLimits(64, 16, 1_000)
OTHER_REQUESTS = ReadingLimits(2, 1, 100)


class Sized(NamedTuple):
    """A request, and how many bytes it came in."""

    request: Any
    size: int


def sized(kind: type[Any]) -> Callable[[bytes], Sized]:
    """How requests of this kind are read. ProtocolError if it is none."""
    check = entries_check(kind.DESCRIPTOR)

    def read(data: bytes) -> Sized:
        check(data)
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


class _Reading:
    """One request that is being read. `is_quick` until it has taken twice `QUICK_S`."""

    def __init__(self, limit: asyncio.Timeout, began: float) -> None:
        self.began = began
        self.is_quick = True
        self.timer: asyncio.TimerHandle
        self._limit = limit

    def end(self) -> None:
        """It fails with a TimeoutError."""
        if not self._limit.expired():
            self._limit.reschedule(self.began)


class Readings:
    """Requests of one principal that are being read."""

    def __init__(self, limits: ReadingLimits) -> None:
        self._limits = limits
        self._turns = asyncio.Semaphore(limits.quick_max)
        # In the order in which they began.
        self._slow: dict[_Reading, None] = {}
        self._calls = 0

    @property
    def is_idle(self) -> bool:
        return not self._calls

    @contextmanager
    def call(self) -> Iterator[None]:
        """From its beginning until its request is read. Overloaded if there are too many."""
        if self._calls >= sum(self._limits):
            raise Overloaded("too many calls wait until their request is read", calls_max=sum(self._limits))
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    @asynccontextmanager
    async def one(self, patience_s: float) -> AsyncIterator[None]:
        """TimeoutError after `patience_s` of reading, or earlier if too many are slow."""
        loop = asyncio.get_running_loop()
        await self._turns.acquire()
        async with asyncio.timeout(patience_s) as limit:
            reading = _Reading(limit, loop.time())
            # Twice: after a stall of the event loop, requests that have come are seen in between.
            reading.timer = loop.call_later(QUICK_S, self._look_again, reading, loop)
            try:
                yield
            finally:
                reading.timer.cancel()
                self._slow.pop(reading, None)
                if reading.is_quick:
                    self._turns.release()

    def _look_again(self, reading: _Reading, loop: asyncio.AbstractEventLoop) -> None:
        reading.timer = loop.call_later(QUICK_S, self._note_slow, reading)

    def _note_slow(self, reading: _Reading) -> None:
        """Others get its turn. If too many are slow, the oldest fails; or this one, if they all began lately."""
        if len(self._slow) >= self._limits.slow_max:
            oldest = next(iter(self._slow))
            if reading.began - oldest.began < PATIENCE_S:
                reading.end()
                return
            del self._slow[oldest]
            oldest.end()
        self._slow[reading] = None
        reading.is_quick = False
        self._turns.release()


class Intake:
    """Belongs to one event loop."""

    def __init__(self, limits: Limits) -> None:
        self._in_flight_max = limits.in_flight_bytes_max
        self._patience_s = limits.stuck_us / 1e6
        self._accounts: dict[str, Account] = {}
        self._readings: dict[tuple[str, ReadingLimits], Readings] = {}

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

    @contextmanager
    def _readings_of(self, principal: str, limits: ReadingLimits) -> Iterator[Readings]:
        whose = principal, limits
        readings = self._readings.setdefault(whose, Readings(limits))
        try:
            with readings.call():
                yield readings
        finally:
            if readings.is_idle:
                self._readings.pop(whose, None)

    @asynccontextmanager
    async def request(self, context: Any, principal: str, limits: ReadingLimits) -> AsyncIterator[Any]:
        """The only one of a call, as soon as there is room for it; it counts until this ends. ProtocolError if there is
        none, TooSlow if it does not come: others wait for its place."""
        with self._call(context) as account:
            with self._readings_of(principal, limits) as readings:
                came = await self._read(context, account, readings)
            if came is grpc.aio.EOF:
                raise ProtocolError("the call has no request")
            account.add(came.size)
            try:
                yield came.request
            finally:
                account.settle(came.size)

    async def _read(self, context: Any, account: Account, readings: Readings) -> Any:
        while account.reading >= READING_MAX or account.is_full:
            await account.change()
        account.reading += 1
        try:
            async with readings.one(self._patience_s):
                return await context.read()
        except TimeoutError:
            raise TooSlow(
                f"the request of a call comes within {self._patience_s:g} s, or {PATIENCE_S:g} s if others wait"
            ) from None
        finally:
            account.reading -= 1
            account.note()
