"""Publishing at an even pace to every partition of a topic, each for itself, and when each message was acknowledged.

A message counts from when it was due. One that is held up holds up those behind it, and all of them show that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import harness
from penstock.client.client import Client
from penstock.errors import PenstockError

INTERVAL_S = 0.04


class Told(NamedTuple):
    due: float
    at: float


class Load:
    def __init__(self, q: Client, topic: str, partitions: int) -> None:
        self._q = q
        self._topic = topic
        self.told: dict[int, list[Told]] = {number: [] for number in range(partitions)}
        self.refused = 0

    async def run(self, number: int) -> None:
        # Not all in the same moment.
        due = time.perf_counter() + INTERVAL_S * number / len(self.told)
        while True:
            due += INTERVAL_S
            await asyncio.sleep(max(0, due - time.perf_counter()))
            await self._publish(number)
            self.told[number].append(Told(due, time.perf_counter()))

    async def _publish(self, number: int) -> None:
        while True:
            try:
                await self._q.publish(self._topic, b"x" * harness.VALUE_BYTES, partition=number)
                return
            except PenstockError:
                self.refused += 1

    async def told_again(self, numbers: Iterable[int]) -> None:
        """In each of them something was acknowledged that was sent after now."""
        goals = {number: len(self.told[number]) + 2 for number in numbers}
        while any(len(self.told[number]) < goal for number, goal in goals.items()):
            await asyncio.sleep(INTERVAL_S / 2)

    async def caught_up(self, within_s: float) -> None:
        """Nothing waits any more behind something that was held up before; or no longer than this."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while any(told[-1].at - told[-1].due > INTERVAL_S for told in self.told.values()):
                    await asyncio.sleep(INTERVAL_S)

    def latencies(self, numbers: Iterable[int], since: float, until: float) -> list[float]:
        """Of what was due meanwhile, from due to told, in order of size. If nothing was told of, it took that long."""
        told = (one for number in numbers for one in self.told[number] if since <= one.due < until)
        return sorted(one.at - one.due for one in told) or [until - since]

    def longest(self, number: int, since: float, until: float) -> Told:
        """The longest time in which nothing was told: from when to when."""
        times = [since, *(one.at for one in self.told[number] if since < one.at < until)]
        return max(map(Told, times, times[1:]), key=lambda pause: pause.at - pause.due)


@asynccontextmanager
async def load(q: Client, topic: str, partitions: int) -> AsyncIterator[Load]:
    made = Load(q, topic, partitions)
    tasks = [asyncio.create_task(made.run(number)) for number in made.told]
    try:
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
