from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import InvalidInput
from penstock.storage.log import Log
from penstock.storage.retention import Retention, apply_retention
from penstock.testing import ManualClock, MemoryFiles
from support import fill, open_log, rows_of, values_of

HOUR = 3_600_000_000
YEAR = 365 * 24 * HOUR


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock) -> Log:
    log = open_log(MemoryFiles(), clock)
    for _ in range(5):
        fill(log, 20)
        log.roll()
        clock.advance_us(HOUR)
    return log


def retain(log: Log, clock: ManualClock, keep_from: int | None = None, **bounds: int) -> int:
    return apply_retention(log, Retention(**bounds), now_us=clock.now_us(), keep_from=keep_from)


def test_without_bounds_everything_stays(log: Log, clock: ManualClock) -> None:
    assert retain(log, clock) == 0


def test_segments_older_than_the_bound_go(log: Log, clock: ManualClock) -> None:
    assert retain(log, clock, age_us_max=3 * HOUR) == 40
    assert len(values_of(log)) == 60


def test_a_segment_goes_when_its_newest_message_is_too_old(clock: ManualClock) -> None:
    log = open_log(MemoryFiles(), clock)
    fill(log, 1)
    clock.advance_us(2 * HOUR)
    fill(log, 1)
    log.roll()
    assert retain(log, clock, age_us_max=HOUR) == 0


def test_segments_go_until_the_rest_fits_into_the_bytes(log: Log, clock: ManualClock) -> None:
    one = log.segments[0].size
    assert retain(log, clock, bytes_max=2 * one) == 60
    assert log.size >= 2 * one, "whole segments: never less than the bound while there was more"


def test_the_oldest_offset_still_needed_stays(log: Log, clock: ManualClock) -> None:
    assert retain(log, clock, keep_from=25, age_us_max=1, bytes_max=1) == 20


def test_a_log_that_nobody_writes_to_empties(clock: ManualClock) -> None:
    log = open_log(MemoryFiles(), clock)
    fill(log, 3)
    clock.advance_us(2 * HOUR)
    assert retain(log, clock, age_us_max=HOUR) == 3
    assert values_of(log) == []
    assert fill(log, 1) == values_of(log)


def test_the_start_does_not_go_back(log: Log, clock: ManualClock) -> None:
    log.delete_prefix(45)
    assert retain(log, clock, age_us_max=4 * HOUR) == 45


@pytest.mark.parametrize("bounds", [{"age_us_max": 0}, {"bytes_max": 0}, {"bytes_max": -1}])
def test_a_bound_that_is_not_positive_is_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        Retention(**bounds)


def test_single_messages_that_must_stay_do_not_keep_the_others(log: Log, clock: ManualClock) -> None:
    size = log.size
    wanted = np.array([23, 67])
    retention, now = Retention(age_us_max=1), clock.now_us()
    start = apply_retention(log, retention, now_us=now, protected=lambda offsets: np.isin(offsets, wanted))
    assert start == 20
    assert [row.offset for row in rows_of(log)] == [23, 67]
    assert log.size < size / 5
    assert apply_retention(log, retention, now_us=now, protected=lambda offsets: offsets < 0) == 100


def test_segments_of_which_most_must_stay_are_left_alone(log: Log, clock: ManualClock) -> None:
    before = log.segments
    apply_retention(log, Retention(age_us_max=1), now_us=clock.now_us(), protected=lambda offsets: offsets % 4 > 0)
    assert log.segments == before


def test_a_small_bound_is_kept_though_the_segment_being_written_is_large(clock: ManualClock) -> None:
    log = open_log(MemoryFiles(), clock)
    fill(log, 1)
    bound = 10 * log.size
    for _ in range(100):
        fill(log, 5)
        retain(log, clock, bytes_max=bound)
    assert bound <= log.size < 2.5 * bound


def test_a_short_age_is_kept_though_something_is_always_being_written(clock: ManualClock) -> None:
    log = open_log(MemoryFiles(), clock)
    for _ in range(60):
        fill(log, 1)
        clock.advance_us(HOUR // 6)
        retain(log, clock, age_us_max=HOUR)
    assert 6 <= log.end_offset - log.start_offset <= 10


def test_what_was_written_last_stays_however_small_the_bound(clock: ManualClock) -> None:
    log = open_log(MemoryFiles(), clock)
    fill(log, 3)
    log.roll()
    fill(log, 2)
    for _ in range(3):
        retain(log, clock, bytes_max=1)
    assert len(values_of(log)) == 2


@pytest.mark.parametrize("is_idle", [True, False])
def test_one_message_that_was_appended_while_the_clock_was_ahead_does_not_end_retention_by_age(
    clock: ManualClock, is_idle: bool
) -> None:
    log = open_log(MemoryFiles(), clock)
    fill(log, 10)
    clock.step_us(10 * YEAR)
    fill(log, 1)
    clock.step_us(-10 * YEAR)
    for _ in range(30):
        if not is_idle:
            fill(log, 10)
        clock.advance_us(HOUR)
        retain(log, clock, age_us_max=24 * HOUR)
    # A segment is sealed after a quarter of the age, so what is left is at most half a day older.
    assert len(values_of(log)) <= (0 if is_idle else 10 * 31)
    assert log.start_offset >= 11


def test_segments_that_were_sealed_while_the_clock_was_ahead_do_not_end_retention_by_age(clock: ManualClock) -> None:
    log = open_log(MemoryFiles(), clock)
    clock.step_us(YEAR)
    for _ in range(3):
        fill(log, 10)
        log.roll()
    clock.step_us(-YEAR)
    fill(log, 10)
    for _ in range(60):
        clock.advance_us(HOUR)
        retain(log, clock, age_us_max=24 * HOUR)
    assert log.start_offset == 40


def test_nothing_is_deleted_early_though_the_clock_was_behind_for_a_moment(clock: ManualClock) -> None:
    log = open_log(MemoryFiles(), clock)
    fill(log, 10)
    log.roll()
    clock.step_us(-HOUR)
    fill(log, 1)
    log.roll()
    clock.step_us(HOUR - 1)
    assert retain(log, clock, age_us_max=HOUR // 4) == 0


def test_nothing_is_deleted_early_though_the_clock_was_ahead(clock: ManualClock) -> None:
    log = open_log(MemoryFiles(), clock)
    clock.step_us(10 * YEAR)
    fill(log, 1)
    clock.step_us(-10 * YEAR)
    fill(log, 10)
    log.roll()
    clock.advance_us(24 * HOUR)
    fill(log, 1)
    assert retain(log, clock, age_us_max=24 * HOUR) == 0
    # It may have been right, and the clock behind when the segment was sealed.
    clock.advance_us(4 * HOUR + 1)
    assert retain(log, clock, age_us_max=24 * HOUR) == 11
