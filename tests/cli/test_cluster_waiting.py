"""What those see who wait for a cluster without a terminal."""

from __future__ import annotations

from penstock.cli.cluster_waiting import Lines, Step
from penstock.testing import ManualClock


def test_what_is_waited_for_is_told_when_it_takes_long_and_when_it_is_something_else() -> None:
    clock, told = ManualClock(0), list[str]()
    lines = Lines("draining b", told.append, lambda: clock.now_us() / 1_000_000)
    for now_s, step in (
        (1.0, Step(0.0, "it still leads 2")),
        (4.0, Step(0.5, "no other replica of t:0 is in sync")),
        (8.0, Step(0.5, "no other replica of t:0 is in sync")),
        (9.0, Step(0.9, "t:1 waits for c")),
        (20.0, Step(1.0, "")),
    ):
        clock.advance_us(int(now_s * 1_000_000) - clock.now_us())
        lines.draw(step)
    assert told == ["draining b, 50%: no other replica of t:0 is in sync", "draining b, 90%: t:1 waits for c"]
