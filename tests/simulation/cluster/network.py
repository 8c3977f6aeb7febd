"""The network: late, lost, doubled, out of order, cut in both directions or in one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from simulation.cluster.loop import MS, SECOND, Loop


class Network:
    def __init__(self, loop: Loop, random: Random) -> None:
        self._loop = loop
        self._random = random
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

    def _delay(self) -> float:
        chance = self._random.random()
        if chance < self.slow:
            return self._long()
        return 200 + chance * 4 * MS

    def _long(self) -> float:
        return 20 * MS + self._random.random() ** 2 * 3 * SECOND

    def pairs(self, some: set[str], others: set[str], is_one_way: bool = False) -> set[tuple[str, str]]:
        pairs = {(a, b) for a in some for b in others}
        return pairs if is_one_way else pairs | {(b, a) for a, b in pairs}

    def heal(self) -> None:
        self.blocked.clear()
        self.loss = self.double = self.slow = 0.0
