"""A bucket that fills at a rate, by a clock that moves when told."""

from __future__ import annotations

from penstock.cluster.throttle import Throttle
from penstock.limits import MIB


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def now_us(self) -> int:
        return self.now


def test_without_a_rate_nothing_waits() -> None:
    throttle = Throttle(Clock().now_us)
    throttle.sent(100 * MIB)
    assert throttle.wait_us() == 0


def test_what_was_sent_is_paid_for_before_more_is_sent() -> None:
    clock = Clock()
    throttle = Throttle(clock.now_us)
    throttle.set(MIB)
    throttle.sent(2 * MIB)
    assert 1_999_000 < throttle.wait_us() <= 2_000_001
    clock.now += 1_000_000
    assert 999_000 < throttle.wait_us() <= 1_000_001
    clock.now += throttle.wait_us()
    assert throttle.wait_us() == 0


def test_a_pause_is_not_saved_up_for_a_burst() -> None:
    clock = Clock()
    throttle = Throttle(clock.now_us)
    throttle.set(MIB)
    clock.now += 3_600_000_000
    assert throttle.wait_us() == 0
    throttle.sent(throttle.at_once)
    throttle.sent(MIB)
    assert throttle.wait_us() > 900_000


def test_a_rate_that_is_lifted_counts_at_once() -> None:
    throttle = Throttle(Clock().now_us)
    throttle.set(MIB)
    throttle.sent(100 * MIB)
    assert throttle.wait_us() > 0
    throttle.set(0)
    assert throttle.wait_us() == 0
    throttle.set(MIB)
    assert throttle.wait_us() == 0
