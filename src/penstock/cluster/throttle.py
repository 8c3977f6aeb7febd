"""How fast replicas that are moved may catch up: a bucket that fills at the rate an operator has set.

It is for one node's sending, to all others together. Who sends takes out as much as it sends and waits while less than
nothing is left, so a frame that is larger than the bucket goes, and is paid for afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.cluster.hosted import SENT_BYTES_MAX
from penstock.limits import KIB

# The least that can be asked for: below it, a partition that is written to would hardly ever catch up.
RATE_MIN = 64 * KIB
# What is sent at a time is a part of a second's worth, so that a replica that has nearly caught up is not kept waiting.
_PARTS_OF_A_SECOND = 4
_SECOND_US = 1_000_000


class Setting(msgspec.Struct, frozen=True):
    """In etcd."""

    bytes_per_s: int


class Throttle:
    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self.rate = 0
        self._left = 0.0
        self._at_us = now_us()

    def set(self, bytes_per_s: int) -> None:
        """0 for as fast as it goes."""
        self._fill()
        self.rate = bytes_per_s
        self._left = min(self._left, self._room)

    @property
    def at_once(self) -> int:
        """The most bytes to be sent at a time."""
        return self.rate // _PARTS_OF_A_SECOND if self.rate else SENT_BYTES_MAX

    def wait_us(self) -> int:
        """Until something may be sent."""
        if not self.rate:
            return 0
        self._fill()
        return 0 if self._left >= 0 else int(-self._left * _SECOND_US / self.rate) + 1

    def sent(self, size: int) -> None:
        self._left -= size

    @property
    def _room(self) -> float:
        return float(self.at_once)

    def _fill(self) -> None:
        now_us = self._now_us()
        self._left = min(self._room, self._left + (now_us - self._at_us) * self.rate / _SECOND_US) if self.rate else 0.0
        self._at_us = now_us
