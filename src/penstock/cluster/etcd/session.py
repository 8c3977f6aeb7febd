"""A session: a lease in etcd that is kept alive from here, and until when that can be relied on.

    sent                        etcd has it              valid_until        etcd may let go
     ├─────────────────────────────┤                          ├─── margin ──────┤
     └──────────────────────────────── TTL ─────────────────────────────────────┘

etcd counts from when it got the request, which is after it was sent. So what counts here is when the last keepalive
that was answered well had been *sent*; an answer that took long is worth less. The time is the machine's boot time.

A session that is not valid at the moment is not lost: if etcd was away, the lease may still be there when it is back,
and the session is valid again with the next keepalive. It is lost when etcd says so. Nothing here makes anything safe:
etcd may let go of a lease early, and a deposed member may confirm one that is gone.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple, Protocol, Self

from penstock.clock import Clock, SystemClock
from penstock.errors import EtcdRefused, EtcdUnavailable, InternalError, InvalidInput, PenstockError, SessionLost

log = logging.getLogger("penstock.cluster")

# etcd raises a shorter one to its own least, which is 2 s with its default election time-out.
TTL_S_MAX = 3_600
KEEPALIVES_PER_TTL = 3
# After one that was not answered.
RETRIES_PER_TTL = 12
MARGINS_PER_TTL = 6


class Time(Protocol):
    """Of the machine's boot, in microseconds, and waiting by it."""

    def now_us(self) -> int: ...

    async def sleep_us(self, us: int) -> None: ...


class BootTime:
    """For how long something may be relied on, times of suspension included: a clock that is set, or one that stands
    still while a laptop or a virtual machine sleeps, could not tell."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    def now_us(self) -> int:
        return self._clock.monotonic_us()

    async def sleep_us(self, us: int) -> None:
        await asyncio.sleep(us / 1_000_000)


class Granted(NamedTuple):
    lease: int
    ttl_s: int


class Leases(Protocol):
    async def grant(self, ttl_s: int) -> Granted: ...

    async def keep(self, lease: int, within_us: int) -> int:
        """For how many seconds from now; 0 if there is no such lease any more."""

    async def revoke(self, lease: int) -> None: ...


class Session:
    """Made by `Store.session`. `lost` is set once etcd has let go of the lease, or it can't be kept; see `failure`."""

    def __init__(self, leases: Leases, time: Time, granted: Granted, sent_us: int) -> None:
        self.lease = granted.lease
        self.ttl_us = granted.ttl_s * 1_000_000
        self.lost = asyncio.Event()
        self.failure: PenstockError | None = None
        self._leases = leases
        self._time = time
        self._is_missed = False
        self._margin_us = self.ttl_us // MARGINS_PER_TTL
        self._valid_until_us = sent_us + self.ttl_us - self._margin_us
        self._keeping = asyncio.get_running_loop().create_task(self._keep())
        self._keeping.add_done_callback(self._ended)

    @classmethod
    async def open(cls, leases: Leases, time: Time, ttl_s: int) -> Self:
        if not 1 <= ttl_s <= TTL_S_MAX:
            raise InvalidInput(f"the TTL of a session is 1 to {TTL_S_MAX} s, not {ttl_s}")
        sent_us = time.now_us()
        return cls(leases, time, await leases.grant(ttl_s), sent_us)

    def valid_until_us(self) -> int:
        """By the clock it was made with. It may be past, and may move on from there."""
        return self._valid_until_us

    def is_valid(self) -> bool:
        return self._time.now_us() < self._valid_until_us

    async def close(self) -> None:
        """Gives the lease back, and what is bound to it goes. If etcd takes it not, that is when the TTL is over."""
        self._keeping.cancel()
        await asyncio.wait([self._keeping])
        try:
            await self._leases.revoke(self.lease)
        except (EtcdUnavailable, EtcdRefused) as error:
            log.debug("lease %x is not given back: %s", self.lease, error.message)
        if not self._keeping.cancelled():
            self._keeping.result()

    async def _keep(self) -> None:
        within_us = self.ttl_us // KEEPALIVES_PER_TTL
        pause_us = within_us
        while True:
            await self._time.sleep_us(pause_us)
            sent_us = self._time.now_us()
            try:
                ttl_s = await self._leases.keep(self.lease, within_us)
            except EtcdUnavailable as error:
                self._miss(error)
                pause_us = self.ttl_us // RETRIES_PER_TTL
                continue
            except PenstockError as error:
                self.failure = error
                break
            if self._is_missed:
                self._is_missed = False
                log.info("etcd is reached again")
            if ttl_s == 0:
                self.failure = SessionLost(f"etcd has let go of lease {self.lease:x}, and of what was bound to it")
                break
            self._valid_until_us = max(self._valid_until_us, sent_us + ttl_s * 1_000_000 - self._margin_us)
            pause_us = within_us

    def _miss(self, error: EtcdUnavailable) -> None:
        """Told once, and only of what takes longer than a moment."""
        if not self._is_missed and not self.is_valid():
            self._is_missed = True
            log.warning(
                "etcd can't be reached: nothing can be changed, and a node that fails is not replaced, until it is: %s",
                error.message,
            )

    def _ended(self, keeping: asyncio.Task[None]) -> None:
        if not keeping.cancelled() and keeping.exception():
            self.failure = InternalError(f"a session could not be kept: {keeping.exception()!r}")
        self._valid_until_us = 0
        self.lost.set()
