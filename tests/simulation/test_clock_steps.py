"""Delayed messages while the clock of the machine is set, back and forth (rule 10 of replication).

Time passes evenly, as for the event loop, and the wall clock says what it likes. Simulated are the two parts that have
to do with both: `Delays`, which know due times by the wall clock, and `LoopTimers`, which wait by the loop. Checked by
seeds: nothing comes before the wall clock says so, and nothing long after; and builds that do without what the rule
demands are caught.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.delays import Delays
from penstock.broker.timers import LoopTimers
from penstock.broker.wheel import Wheel
from penstock.clock import TIME_MAX_US

SECOND = 1_000_000
SEEDS = 1_000
# Looking once a second, and that a timer of the loop may be late by its resolution.
LATE_US = 1_100_000


class Violation(AssertionError):
    pass


class VirtualLoop(asyncio.SelectorEventLoop):
    """When nothing is to be done, it is later at once."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            timers = (each.when() for each in self._scheduled if not each.cancelled())  # type: ignore[attr-defined]
            self._now = max(self._now, min(timers, default=0))
        super()._run_once()  # type: ignore[misc]


class WallClock:
    """Goes with the loop, from wherever it was set to."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.set_by_us = 1_700_000_000 * SECOND

    def now_us(self) -> int:
        return self.set_by_us + int(self._loop.time() * SECOND)

    def monotonic_us(self) -> int:
        return int(self._loop.time() * SECOND)


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.loop = asyncio.get_running_loop()
        self.clock = WallClock(self.loop)
        self.delays = Delays(self.clock.now_us())
        self.timers = LoopTimers(self.clock)
        self.dues: dict[int, int] = {}
        # By the loop: since when the wall clock says that it is due, of those that did not come.
        self.overdue: dict[int, float] = {}
        self.came = 0
        self._ring: asyncio.Future[None] = self.loop.create_future()

    def publish(self) -> None:
        now_us, offset = self.clock.now_us(), len(self.dues)
        self.dues[offset] = due_us = now_us + int(self.random.choice([0.01, 1, 60, 3_600, 86_400, 10**8]) * SECOND)
        self.delays.add_one(offset, due_us, now_us)
        self._look_on()
        # As the broker does: whoever waits has to know that something else may be next.
        if not self._ring.done():
            self._ring.set_result(None)

    def set_clock(self) -> None:
        by_s = self.random.choice([0.5, 30, 3_600, 90_000]) * self.random.choice([-1, 1])
        self.clock.set_by_us += int(by_s * SECOND)
        self._look_on()

    def _look_on(self) -> None:
        now_us = self.clock.now_us()
        for offset in self.delays.pending:
            if self.dues[offset] > now_us:
                # Or no more, since the clock was set back.
                self.overdue.pop(offset, None)
            else:
                self.overdue.setdefault(offset, self.loop.time())

    async def deliver(self) -> None:
        while True:
            self._look_on()
            now_us = self.clock.now_us()
            due = self.delays.due(now_us)
            for offset in due:
                self._take(offset, now_us)
            self.delays.release(due)
            until_us, next_us = self.clock.monotonic_us() + 30 * SECOND, self.delays.next_due()
            self._ring = self.loop.create_future()
            await self.timers.wait(self._ring, until_us, TIME_MAX_US if next_us is None else next_us)

    def _take(self, offset: int, now_us: int) -> None:
        if now_us < self.dues[offset]:
            raise Violation(f"{offset} came {self.dues[offset] - now_us} us early")
        late_us = (self.loop.time() - self.overdue.pop(offset)) * SECOND
        if late_us > LATE_US:
            raise Violation(f"{offset} came {late_us:.0f} us late")
        self.came += 1

    async def play(self) -> None:
        delivering = self.loop.create_task(self.deliver())
        for _ in range(self.random.randrange(3, 30)):
            self.random.choice([self.publish, self.publish, self.set_clock])()
            pause = asyncio.sleep(self.random.choice([0.002, 0.7, 5, 70]))
            await asyncio.wait([delivering, asyncio.ensure_future(pause)], return_when=asyncio.FIRST_COMPLETED)
            self._check(delivering)
        # All there are, when it is later than any of them.
        self.clock.set_by_us += max(0, max(self.dues.values(), default=0) - self.clock.now_us())
        self._look_on()
        await asyncio.sleep(2)
        self._check(delivering)
        delivering.cancel()
        if self.came != len(self.dues):
            raise Violation(f"{len(self.dues) - self.came} of {len(self.dues)} never came")

    def _check(self, delivering: asyncio.Task[None]) -> None:
        if delivering.done():
            delivering.result()
        self._look_on()
        for offset, since in self.overdue.items():
            if (self.loop.time() - since) * SECOND > LATE_US:
                raise Violation(f"{offset} is late")


def run_seed(seed: int) -> int:
    """How many came."""

    async def main() -> int:
        world = World(seed)
        await world.play()
        return world.came

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def test_nothing_is_early_or_late_though_the_clock_is_set(scale: float, request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--seed")
    seeds = range(max(1, int(SEEDS * scale))) if seed is None else [seed]
    came = 0
    for each in seeds:
        try:
            came += run_seed(each)
        except Violation as error:
            raise AssertionError(
                f"seed {each}: {error}; again: pytest tests/simulation/test_clock_steps.py --seed {each}"
            ) from error
    assert came or seed is not None


# --- and without what the rule demands ----------------------------------------------------------------------


def sleeps_until_it_is_time_by_the_clock_of_before(patch: Callable[..., Any]) -> None:
    patch(LoopTimers, "_LONGEST_S", float("inf"))


def takes_the_end_of_a_sleep_for_the_time(patch: Callable[..., Any]) -> None:
    """What the wheel calls due is what it was told the time is: here, when it was to be woken."""
    real = Delays.due

    def due(self: Delays, now_us: int) -> Any:
        return real(self, max(now_us, self.next_due() or 0))

    patch(Delays, "due", due)


def does_not_turn_the_wheel_back(patch: Callable[..., Any]) -> None:
    patch(Delays, "_follow", lambda self, now_us: None)


def forgets_timers_when_the_wheel_is_turned_back(patch: Callable[..., Any]) -> None:
    def turn_back(self: Wheel, now_us: int) -> None:
        self.__init__(now_us)  # type: ignore[misc]

    patch(Wheel, "turn_back", turn_back)


@pytest.mark.parametrize(
    "mutant",
    [
        sleeps_until_it_is_time_by_the_clock_of_before,
        takes_the_end_of_a_sleep_for_the_time,
        does_not_turn_the_wheel_back,
        forgets_timers_when_the_wheel_is_turned_back,
    ],
    ids=lambda mutant: str(mutant.__name__),
)
def test_a_build_that_breaks_the_rule_is_caught(
    mutant: Callable[[Callable[..., Any]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch.setattr)
    with pytest.raises(Violation):
        for seed in range(SEEDS):
            run_seed(seed)
