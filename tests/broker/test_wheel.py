from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.wheel import Wheel
from penstock.clock import TIME_MAX_US

NOW = 1_700_000_000_000_000
delays = st.one_of(
    st.integers(-1000, 10_000),
    st.integers(0, 5_000_000),
    st.integers(0, 400_000_000),
    st.integers(0, 100_000_000_000),
    st.integers(0, TIME_MAX_US - NOW),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("one"), delays),
        st.tuples(st.just("many"), st.lists(delays, min_size=1, max_size=20)),
        st.tuples(st.just("advance"), delays),
    ),
    max_size=30,
)


@settings(max_examples=500)
@given(steps)
def test_the_wheel_is_a_sorted_list_in_disguise(given_steps: list[tuple[str, object]]) -> None:
    """Never early, never lost, in order; whatever was put in, at whatever time."""
    wheel = Wheel(NOW)
    now, offset = NOW, 0
    pending: list[tuple[int, int]] = []
    for kind, what in given_steps:
        if kind == "one":
            assert isinstance(what, int)
            wheel.add(now + what, offset)
            pending.append((now + what, offset))
            offset += 1
        elif kind == "many":
            assert isinstance(what, list)
            dues = np.array([now + delay for delay in what], np.int64)
            wheel.add_many(dues, np.arange(offset, offset + len(what)))
            pending += zip(dues.tolist(), range(offset, offset + len(what)), strict=True)
            offset += len(what)
        else:
            assert isinstance(what, int)
            now = max(now, min(now + what, TIME_MAX_US))
            dues, offsets = wheel.advance(now)
            expected = sorted(timer for timer in pending if timer[0] <= now)
            assert list(zip(dues.tolist(), offsets.tolist(), strict=True)) == expected
            pending = [timer for timer in pending if timer[0] > now]
        assert len(wheel) == len(pending)
        next_due = wheel.next_due()
        assert (next_due is None) == (not pending)
        if next_due is not None:
            assert next_due <= max(min(pending)[0], now)
    dues, _ = wheel.advance(1 << 61)
    assert dues.tolist() == sorted(due for due, _ in pending)


def test_waiting_for_what_is_next_gets_there_in_a_few_steps() -> None:
    """A timer years away is not asked for every few milliseconds."""
    wheel = Wheel(NOW)
    due = NOW + 3 * 365 * 86_400_000_000 + 12_345
    wheel.add(due, 7)
    now, looks = NOW, 0
    while True:
        next_due = wheel.next_due()
        assert next_due is not None
        now = max(next_due, now)
        dues, offsets = wheel.advance(now)
        looks += 1
        if len(dues):
            break
        assert looks < 20
    assert (now, offsets.tolist()) == (due, [7])


def test_a_clock_that_is_set_back_brings_nothing_early() -> None:
    wheel = Wheel(NOW)
    wheel.add(NOW + 100, 1)
    assert wheel.advance(NOW - 10_000_000)[1].tolist() == []
    assert wheel.advance(NOW + 99)[1].tolist() == []
    assert wheel.advance(NOW + 100)[1].tolist() == [1]


def test_a_million_timers_take_little_memory() -> None:
    dues = NOW + np.random.default_rng(1).integers(0, 86_400_000_000, 1_000_000)
    tracemalloc.start()
    try:
        wheel = Wheel(NOW)
        for start in range(0, 1_000_000, 1_000):
            wheel.add_many(dues[start : start + 1000], np.arange(start, start + 1000))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(wheel) == 1_000_000
    assert 16_000_000 < used < 32 << 20


@settings(max_examples=300)
@given(given_steps=steps, count_max=st.integers(1, 7))
def test_a_wheel_that_is_advanced_in_parts_loses_no_timer_and_is_never_early(
    given_steps: list[tuple[str, object]], count_max: int
) -> None:
    wheel = Wheel(NOW)
    now, offset = NOW, 0
    pending: set[tuple[int, int]] = set()
    for kind, what in given_steps:
        if kind == "advance":
            assert isinstance(what, int)
            if what < 0:
                now += what
                wheel.turn_back(now)
            now = min(now + abs(what), TIME_MAX_US)
            dues, offsets = wheel.advance(now, count_max)
            assert len(dues) <= count_max
            came = set(zip(dues.tolist(), offsets.tolist(), strict=True))
            assert came <= pending
            assert all(due <= now for due, _ in came)
            pending -= came
        else:
            delays = what if isinstance(what, list) else [what]
            dues = np.array([now + delay for delay in delays], np.int64)
            wheel.add_many(dues, np.arange(offset, offset + len(delays)))
            pending |= set(zip(dues.tolist(), range(offset, offset + len(delays)), strict=True))
            offset += len(delays)
        assert len(wheel) == len(pending)
    while (next_due := wheel.next_due()) is not None and next_due <= now:
        dues, offsets = wheel.advance(now, count_max)
        pending -= set(zip(dues.tolist(), offsets.tolist(), strict=True))
    assert not [due for due, _ in pending if due <= now]
