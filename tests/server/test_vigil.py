"""Staying awake for whoever publishes one message after the other."""

from __future__ import annotations

import asyncio

from penstock.server.vigil import Vigil

AWAKE_US = 300
IN_TIME, LATE = 0.0001, 0.001


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Publisher:
    """One message after the other; each comes so long after the last answer."""

    def __init__(self, awake_us: int = AWAKE_US) -> None:
        self._clock = Clock()
        self.vigil = Vigil(asyncio.get_running_loop(), awake_us, self._clock)

    def publish(self, after_s: float, times: int = 1) -> None:
        for _ in range(times):
            self._clock.now += after_s
            self.vigil.heard()
            self.vigil.answered()

    async def is_kept_a_turn_later(self, after_s: float) -> bool:
        self._clock.now += after_s
        await asyncio.sleep(0)
        return self.vigil.is_kept


def test_it_is_kept_once_it_pays_and_for_no_longer_than_it_may() -> None:
    async def work() -> None:
        publisher = Publisher()
        publisher.publish(IN_TIME)
        assert not publisher.vigil.is_kept
        publisher.publish(IN_TIME, times=10)
        assert publisher.vigil.is_kept
        assert await publisher.is_kept_a_turn_later(IN_TIME)
        assert not await publisher.is_kept_a_turn_later(IN_TIME * 3)

    asyncio.run(work())


def test_every_answer_starts_it_anew() -> None:
    async def work() -> None:
        publisher = Publisher()
        publisher.publish(IN_TIME, times=10)
        for _ in range(10):
            publisher.publish(IN_TIME)
            assert await publisher.is_kept_a_turn_later(IN_TIME / 2)

    asyncio.run(work())


def test_whoever_takes_its_time_lets_the_broker_sleep() -> None:
    async def work() -> None:
        publisher = Publisher()
        publisher.publish(LATE, times=50)
        assert not publisher.vigil.is_kept
        publisher.publish(IN_TIME, times=10)
        publisher.publish(LATE, times=10)
        assert not await publisher.is_kept_a_turn_later(0)

    asyncio.run(work())


def test_it_can_be_turned_off() -> None:
    async def work() -> None:
        publisher = Publisher(awake_us=1)
        publisher.publish(IN_TIME, times=50)
        assert not publisher.vigil.is_kept

    asyncio.run(work())
