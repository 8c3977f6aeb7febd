"""The network: late, lost, doubled, out of order, cut in both directions or in one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from simulation.cluster.loop import MS, SECOND, Loop


class Network:
    def __init__(self, loop: Loop, random: Random, of_streams: Random) -> None:
        self._loop = loop
        self._random = random
        # Of their own: what goes by streams does not change what happens to all else in a seed.
        self._of_streams = of_streams
        self._arrivals: dict[tuple[str, str], int] = {}
        self.blocked: set[tuple[str, str]] = set()
        self.loss = 0.0
        self.double = 0.0
        # How many are held up, and overtaken by those that are sent later.
        self.slow = 0.0
        self.lost = 0

    def send(self, source: str, to: str, deliver: Callable[..., None], *args: Any) -> int:
        """How many of it will arrive."""
        random = self._random.random
        if (source, to) in self.blocked or random() < self.loss:
            self.lost += 1
            return 0
        self._loop.after(self._delay(), deliver, *args)
        if self.double and random() < self.double:
            self._loop.after(self._delay() if random() < 0.5 else self._long(), deliver, *args)
            return 2
        return 1

    def send_in_order(self, source: str, to: str, deliver: Callable[..., None], *args: Any) -> bool:
        """As by TCP: late, maybe, but behind all that was sent before. False if the connection breaks instead."""
        if (source, to) in self.blocked:
            return False
        random = self._of_streams.random
        delay = self._long_of(random()) if random() < self.slow else 200 + random() * 4 * MS
        at = max(self._loop.now + int(delay), self._arrivals.get((source, to), 0))
        self._arrivals[source, to] = at
        self._loop.after(at - self._loop.now, deliver, *args)
        return True

    def _delay(self) -> float:
        chance = self._random.random()
        if chance < self.slow:
            return self._long()
        return 200 + chance * 4 * MS

    def _long(self) -> float:
        return self._long_of(self._random.random())

    def _long_of(self, chance: float) -> float:
        return 20 * MS + chance**2 * 3 * SECOND

    def pairs(self, some: set[str], others: set[str], is_one_way: bool = False) -> set[tuple[str, str]]:
        pairs = {(a, b) for a in some for b in others}
        return pairs if is_one_way else pairs | {(b, a) for a, b in pairs}

    def heal(self) -> None:
        self.blocked.clear()
        self.loss = self.double = self.slow = 0.0
