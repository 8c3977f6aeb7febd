"""Renew the leases of messages that are handled, wait for their turn or are being settled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from penstock.client.lease import Lease
from penstock.errors import PenstockError

_INTERVAL_S_MIN, _INTERVAL_S_MAX = 0.01, 0.25
# A lease is looked at four times before it ends: it is renewed once half of its time is over.
_LOOKS = 4


class LeaseRenewal:
    """Belongs to the event loop."""

    def __init__(self, leases: Callable[[], set[Lease]]) -> None:
        """`leases` returns those that must not expire."""
        self._leases = leases
        self._interval_s = _INTERVAL_S_MAX
        # Set if a lease came that is too short for the current interval.
        self._hurry = asyncio.Event()
        self._renewing: dict[Lease, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            held = self._leases()
            self._renewing = {lease: task for lease, task in self._renewing.items() if not task.done()}
            for lease in held - self._renewing.keys():
                # Each by itself: the leader of another partition may be away.
                self._renewing[lease] = asyncio.ensure_future(_keep(lease))
            shortest_s = min(map(_interval_s, held), default=_INTERVAL_S_MAX)
            self._interval_s = min(max(shortest_s, _INTERVAL_S_MIN), _INTERVAL_S_MAX)
            self._hurry.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), self._interval_s)

    def expect(self, lease: Lease) -> None:
        """Messages of this lease are about to be handled."""
        if _interval_s(lease) < self._interval_s:
            self._hurry.set()


def _interval_s(lease: Lease) -> float:
    return lease.visibility_us / 1_000_000 / _LOOKS


async def _keep(lease: Lease) -> None:
    # A storage error is raised by the next answer.
    with suppress(PenstockError):
        await lease.keep()
