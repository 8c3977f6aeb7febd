"""What clients may occupy at all listeners together.

    connections without rights    `strangers_max`: one more closes the oldest. Their client has shown no key, or one
                                  that no rule allows anything
    requests that still arrive    `PARTIAL_BYTES_MAX` for each principal: beyond it, only the oldest request is read,
                                  and senders that stall are closed; beyond `HELD_FACTOR` times that, every other one
    requests under way            of some kinds, a number for each principal: one more is refused

All belong to the broker's event loop. A limit that is reached is logged, at most every `LOG_INTERVAL_S` seconds.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

from penstock.errors import Overloaded
from penstock.limits import KIB, MIB, Limits

log = logging.getLogger("penstock.admission")

LOG_INTERVAL_S = 10.0
PARTIAL_BYTES_MAX = 16 * MIB
# Smaller ones are not counted: all connections that a principal may have hold less than 40 MiB of them.
PARTIAL_BYTES_MIN = 4 * KIB
# A sender is paused after one read from its socket, which brings up to 256 KiB.
HELD_FACTOR = 4
# What a sender must reach while others wait for the budget, measured over this time.
PARTIAL_BYTES_PER_S_MIN = 64 * KIB
PARTIAL_PATIENCE_S = 2.0
# Requests that look at everything there is: each holds a page of up to 4 MiB.
SLOW_MAX = 32


class Evictable(Protocol):
    def evict(self, reason: str) -> None:
        """Close the connection, and give the client this reason if the protocol allows it."""


class LimitLog:
    """Log lines about a limit, rate-limited: a client must not be able to fill the log."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._logged_at: float | None = None
        self._unlogged = 0

    def reached(self, message: str) -> None:
        self._unlogged += 1
        now = self._now()
        if self._logged_at is None or now - self._logged_at >= LOG_INTERVAL_S:
            log.warning("%s (connections affected since the last such line: %d)", message, self._unlogged)
            self._logged_at, self._unlogged = now, 0


class Strangers:
    """Connections of all listeners whose client has shown no key that has any right. Any client can open them.

    Invariant: they are in the order in which they were accepted, and at most `count_max` after `add`.
    """

    def __init__(self, limits: Limits, now: Callable[[], float] = monotonic) -> None:
        # At least half of each listener's connections are left to clients with rights.
        self.count_max = min(limits.strangers_max, max(limits.connections_max // 2, 1))
        self._connections: dict[Evictable, None] = {}
        self._log = LimitLog(now)

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: Evictable) -> None:
        """If there are too many, the oldest is closed: the new one may be a client with a key."""
        self._connections[connection] = None
        while len(self._connections) > self.count_max:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            reason = f"{self.count_max} connections have no key with any right: the oldest is closed for a new one"
            self._log.reached(f"strangers_max: {reason}")
            oldest.evict(reason)

    def discard(self, connection: Evictable) -> None:
        """Its client has rights, or it is closed."""
        self._connections.pop(connection, None)


class UnderWay:
    """Requests of one kind, of each principal."""

    def __init__(self, kind: str, count_max: int) -> None:
        """`kind` completes the sentence that refuses a request."""
        self._kind = kind
        self._count_max = count_max
        self.counts: Counter[str] = Counter()

    @contextmanager
    def one(self, principal: str) -> Iterator[None]:
        """Overloaded if the principal has too many."""
        if self.counts[principal] >= self._count_max:
            raise Overloaded(
                f"{principal} has {self._count_max} {self._kind} under way. Try again when some of them have ended",
                under_way_max=self._count_max,
            )
        self.counts[principal] += 1
        try:
            yield
        finally:
            self.counts[principal] -= 1
            if not self.counts[principal]:
                del self.counts[principal]


class PartialRequest:
    """A large request of which some bytes have arrived. `pause` and `resume` control reading from its connection."""

    def __init__(
        self,
        budget: PartialRequests,
        connection: Evictable,
        pause: Callable[[], None],
        resume: Callable[[], None],
        started_at: float,
    ) -> None:
        self._budget = budget
        self.connection = connection
        self.pause = pause
        self.resume = resume
        self.size = 0
        self.is_paused = False
        # When reading began or was resumed, or its rate was last looked at; and the size at that time.
        self.since = started_at
        self.size_then = 0

    @property
    def principal(self) -> str:
        return self._budget.principal

    def grow(self, size: int) -> None:
        """`size` bytes of it have arrived by now. May pause its connection, also before this returns."""
        self._budget.grow(self, size)

    def end(self) -> None:
        """It has arrived completely, or its connection is closed."""
        self._budget.end(self)


class PartialRequests:
    """Requests of one principal that have not arrived completely, in the order in which they began.

    Invariant: while the budget is exceeded, every request that grows is paused, except the oldest, so one always ends.
    All of them together hold no more than `HELD_FACTOR` times the budget, and the oldest.
    """

    def __init__(
        self, principal: str = "", bytes_max: int = PARTIAL_BYTES_MAX, now: Callable[[], float] = monotonic
    ) -> None:
        self.principal = principal
        self._bytes_max = bytes_max
        self._now = now
        self._requests: dict[PartialRequest, None] = {}
        self._log = LimitLog(now)
        self.size = 0

    @property
    def is_idle(self) -> bool:
        return not self._requests

    def begin(self, connection: Evictable, pause: Callable[[], None], resume: Callable[[], None]) -> PartialRequest:
        request = PartialRequest(self, connection, pause, resume, self._now())
        self._requests[request] = None
        return request

    def grow(self, request: PartialRequest, size: int) -> None:
        self.size += size - request.size
        request.size = size
        if self.size <= self._bytes_max:
            self._resume_one()
        elif request is next(iter(self._requests)):
            return
        elif self.size > HELD_FACTOR * self._bytes_max:
            self.end(request)
            request.connection.evict("requests that have arrived in part hold too much memory already. Try again later")
        elif not request.is_paused:
            self._log.reached(f"{self.size >> 20} MiB of requests have arrived in part: senders are paused")
            request.is_paused = True
            request.pause()

    def end(self, request: PartialRequest) -> None:
        if request in self._requests:
            del self._requests[request]
            self.size -= request.size
            self._resume_one()

    def _resume_one(self) -> None:
        """The others follow once this one has grown or ended; the oldest is read in any case."""
        if self.size > self._bytes_max:
            waiting = next(iter(self._requests), None)
            waiting = waiting if waiting is not None and waiting.is_paused else None
        else:
            waiting = next((one for one in self._requests if one.is_paused), None)
        if waiting is not None:
            waiting.is_paused = False
            waiting.since, waiting.size_then = self._now(), waiting.size
            waiting.resume()

    def check(self) -> None:
        """Every second or so: while requests are paused, close connections that hold memory and send too little."""
        now, is_short = self._now(), any(one.is_paused for one in self._requests)
        for request in list(self._requests):
            elapsed = now - request.since
            if request.is_paused or elapsed < PARTIAL_PATIENCE_S:
                continue
            arrived = request.size - request.size_then
            request.since, request.size_then = now, request.size
            if is_short and arrived < elapsed * PARTIAL_BYTES_PER_S_MIN:
                self.end(request)
                request.connection.evict("other requests wait for memory, and this one arrives too slowly")
