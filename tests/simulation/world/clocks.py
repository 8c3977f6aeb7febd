"""The clocks of a machine: its wall clock may be wrong, and be set; the other one begins when it was booted.

Both may go too fast or too slow, and timers with them.
"""

from __future__ import annotations

from random import Random

from simulation.world.loop import WorldLoop

# When a run begins, by a clock that is right.
EPOCH_US = 1_790_000_000_000_000


def true_us(loop: WorldLoop) -> int:
    return EPOCH_US + loop.now_us


class WorldClock:
    def __init__(self, loop: WorldLoop, rng: Random, skew_us_max: int = 0) -> None:
        self._loop = loop
        self._ahead_us = rng.randint(-skew_us_max, skew_us_max)
        self._boot_us = rng.randrange(1_000_000, 1_000_000_000)
        # How fast it goes, since when, and what it was then.
        self._rate = 1.0
        self._since_us = self._local_us = loop.now_us
        # Whether it has always gone at the right speed.
        self.is_even = True
        # By how much the wall clock was wrong, at most, behind and ahead.
        self.wrong_us = min(self._ahead_us, 0), max(self._ahead_us, 0)

    def local_us(self) -> int:
        """What timers of this machine wait by."""
        if self.is_even:
            return self._loop.now_us
        return self._local_us + int((self._loop.now_us - self._since_us) * self._rate)

    def true_us(self, local_us: float) -> int:
        """When it will be that late here, rounded up."""
        return self._loop.now_us - int((self.local_us() - local_us) / self._rate // 1)

    def now_us(self) -> int:
        return EPOCH_US + self.local_us() + self._ahead_us

    def monotonic_us(self) -> int:
        return self._boot_us + self.local_us()

    def step_us(self, by: int) -> None:
        self._ahead_us += by
        self.note_error()

    def drift(self, rate: float) -> None:
        self._local_us, self._since_us = self.local_us(), self._loop.now_us
        self._rate, self.is_even = rate, False
        self.note_error()

    def note_error(self) -> None:
        behind, ahead = self.wrong_us
        wrong_us = self.now_us() - true_us(self._loop)
        self.wrong_us = min(behind, wrong_us), max(ahead, wrong_us)
