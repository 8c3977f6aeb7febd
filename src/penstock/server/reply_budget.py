"""Bytes of replies that the broker holds for clients: those it prepares, and those that a client has not taken yet.

    one connection    `in_flight_bytes_max`
    one principal     `REPLY_BYTES_MAX`, with all its connections at all listeners

A reply reserves its bytes before its messages are leased or read, so that polls that wait for the same message do not
all lease when it comes. A reply that is larger than its budget goes out alone: every client makes progress.

While a principal's replies wait for its budget, `check` closes those of its connections that take too little.

Everything belongs to the broker's event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from penstock.client import requests as r
from penstock.client.requests import Request
from penstock.limits import KIB, MIB
from penstock.local.paging import BYTES_MAX, UNPAGED_BYTES_MAX
from penstock.server.admission import Evictable, LimitLog

REPLY_BYTES_MAX = 64 * MIB
# Of another node of the cluster, whose connections are few.
NODE_BYTES_MAX = 1024 * MIB
# A connection with less unsent than this may always have one reply prepared.
UNSENT_BYTES_MAX = 4 * MIB
# What a client must take while other replies wait, measured over this time.
TAKEN_BYTES_PER_S_MIN = 64 * KIB
PATIENCE_S = 5.0
# Their replies hold messages. None of them waits for anything but a disk.
_WITH_MESSAGES = (
    r.ListScheduled,
    r.ListSchedules,
    r.ListDeadLetters,
    r.GetScheduled,
    r.GetDeadLetter,
    r.GetMessage,
    r.ReadDeliveries,
)
# A poll leases one message at least, whatever `bytes_max` it gives.
_RESERVED_BYTES_MIN = 1 * MIB


def reply_bytes(request: Request[Any]) -> int:
    """The bytes that the reply to this request may have; 0 if it holds no messages."""
    if not isinstance(request, _WITH_MESSAGES):
        return 0
    return UNPAGED_BYTES_MAX if getattr(request, "after", "") is None else BYTES_MAX


class Reservation:
    """The bytes of one reply, from before its messages are leased until it is handed to the transport."""

    __slots__ = ("_account", "_size")

    def __init__(self, account: ReplyAccount) -> None:
        self._account = account
        self._size = 0

    async def reserve(self, size: int) -> None:
        """Wait for the budgets of the connection and of its principal; replaces what was reserved before."""
        self.release()
        size = max(size, _RESERVED_BYTES_MIN)
        await self._account.reserve(size)
        self._size += size

    def charge(self, size: int) -> None:
        """Count bytes that are here already, also beyond the budgets."""
        self._account.add(size)
        self._size += size

    def release(self) -> None:
        """The reply is with the transport, or there is none."""
        if self._size:
            size, self._size = self._size, 0
            self._account.release(size)


class ReplyAccount:
    """One connection of one principal.

    Invariant: `size` is what is reserved, and what was unsent when `refresh` was called last.
    """

    def __init__(
        self, budget: ReplyBudget, connection: Evictable, bytes_max: int, unsent: Callable[[], int] = lambda: 0
    ) -> None:
        """`unsent` returns the bytes that its transport has not sent."""
        self.connection = connection
        self.size = 0
        self._budget = budget
        self._bytes_max = bytes_max
        self._unsent = unsent
        self._reserved = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._is_closed = False
        # When its rate was last looked at, the unsent bytes at that time, and the fewest since.
        self._since = budget.now()
        self._unsent_then = self._unsent_min = 0
        budget.accounts.add(self)

    def reservation(self) -> Reservation:
        return Reservation(self)

    async def reserve(self, size: int) -> None:
        self.refresh()
        if self._is_closed or (not self._waiting and self._fits(size) and self._budget.has_room(size)):
            self.add(size)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, granted))
        self._ask()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(size)
            else:
                # Those behind it may fit.
                self.refresh()
            raise

    def add(self, size: int) -> None:
        self._reserved += size
        self._count()

    def release(self, size: int) -> None:
        self._reserved -= size
        self.refresh()

    def refresh(self) -> None:
        """Look at what is unsent by now; replies that wait may fit."""
        self._count()
        if self._waiting:
            self._ask()
        self._budget.grant()

    def close(self) -> None:
        """The connection is lost: replies that wait are cancelled, and nothing counts any more."""
        self._is_closed = True
        for _, granted in self._waiting:
            granted.cancel()
        self._waiting.clear()
        self._budget.accounts.discard(self)
        self._budget.waiting.pop(self, None)
        self.refresh()

    def _count(self) -> None:
        unsent = self._unsent()
        self._unsent_min = min(self._unsent_min, unsent)
        size = 0 if self._is_closed else self._reserved + unsent
        self._budget.size += size - self.size
        self.size = size

    def _fits(self, size: int) -> bool:
        return self.size + size <= self._bytes_max or (not self._reserved and self.size <= UNSENT_BYTES_MAX)

    @property
    def next_size(self) -> int | None:
        """The size of the first reply that waits, if the connection has room for it."""
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()
        return self._waiting[0][0] if self._waiting and self._fits(self._waiting[0][0]) else None

    def _ask(self) -> None:
        """It waits for the principal's budget if it has room itself."""
        if self.next_size is not None:
            self._budget.waiting.setdefault(self)

    def grant(self) -> None:
        size, granted = self._waiting.popleft()
        self.add(size)
        granted.set_result(None)

    def is_slow(self, now: float) -> bool:
        """Whether the client has taken too little since its rate was last looked at."""
        elapsed = now - self._since
        if elapsed < PATIENCE_S:
            return False
        taken, was_unsent = self._unsent_then - self._unsent_min, self._unsent_then > 0
        self._since, self._unsent_then = now, self._unsent()
        self._unsent_min = self._unsent_then
        return was_unsent and self._unsent_then > 0 and taken < elapsed * TAKEN_BYTES_PER_S_MIN


class ReplyBudget:
    """One principal. Connections take turns: each is granted one reply at a time."""

    def __init__(self, bytes_max: int = REPLY_BYTES_MAX, now: Callable[[], float] = monotonic) -> None:
        self.size = 0
        self.now = now
        self.accounts: set[ReplyAccount] = set()
        # Accounts that have room for a reply, in the order in which they are granted one.
        self.waiting: dict[ReplyAccount, None] = {}
        self._bytes_max = bytes_max
        self._log = LimitLog(now)

    @property
    def is_idle(self) -> bool:
        return not self.accounts and not self.size

    def has_room(self, size: int) -> bool:
        return not self.waiting and self._has_room(size)

    def _has_room(self, size: int) -> bool:
        return not self.size or self.size + size <= self._bytes_max

    def grant(self) -> None:
        while self.waiting:
            account = next(iter(self.waiting))
            size = account.next_size
            if size is not None and not self._has_room(size):
                return
            del self.waiting[account]
            if size is not None:
                account.grant()
                if account.next_size is not None:
                    self.waiting[account] = None

    def check(self) -> None:
        """Every second or so: transports do not report when the last of their bytes are sent."""
        for account in list(self.accounts):
            account.refresh()
        if not self.waiting:
            return
        self._log.reached(f"{self.size >> 20} MiB of replies wait for their clients: others are not prepared")
        now = self.now()
        for account in [account for account in self.accounts if account.is_slow(now)]:
            account.connection.evict("other replies wait for memory, and the client takes this one too slowly")
