"""The pytest plugin: fixtures with a queue in memory and a clock that moves when told.

    def test_a_reminder_comes_after_a_week(penstock_queue, penstock_clock):
        penstock_queue.create_topic("reminders")
        penstock_queue.publish("reminders", b"renew", delay="7d")
        penstock_clock.advance("7d")
        assert [m.value for m in penstock_queue.consumer("mailer", "reminders").poll()] == [b"renew"]

Loaded in every run of pytest wherever Penstock is installed, so it imports nothing until a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing.queue import VirtualClock, VirtualQueue


@pytest.fixture
def penstock_clock() -> VirtualClock:
    """Time for `penstock_queue`: `advance("7d")` moves it, and what was due by then has happened when that returns."""
    from penstock.testing.queue import VirtualClock

    return VirtualClock()


@pytest.fixture
def penstock_queue(penstock_clock: VirtualClock) -> Iterator[VirtualQueue]:
    """What `penstock.open` returns, on a disk in memory and with `penstock_clock`. `restart()` opens it again."""
    from penstock.testing.queue import VirtualQueue

    with VirtualQueue(penstock_clock) as queue:
        yield queue
