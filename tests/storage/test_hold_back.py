"""Readers see nothing of a log from where they are held back."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidInput
from penstock.storage.compaction import compact
from penstock.storage.log import Log
from penstock.storage.merge import merge_small_frames
from penstock.storage.replicated import copies
from penstock.storage.retention import Retention, apply_retention
from penstock.testing import ManualClock, MemoryFiles
from support import fill, frame_of, open_log, values_of


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock) -> Log:
    return open_log(MemoryFiles(), clock)


def test_readers_see_what_is_on_disk_and_below(log: Log) -> None:
    values = fill(log, 10)
    assert log.committed_offset == 10
    log.hold_back(4)
    assert (log.committed_offset, log.synced_offset, log.ceiling) == (4, 10, 4)
    assert [frame.base_offset for frame in log.frames(0)] == [0, 1, 2, 3]
    assert log.read(0, bytes_max=1 << 20).next_offset == 4
    assert len(log.read(4)) == 0
    assert values_of(log, until=10) == values, "who asks for more gets it"
    log.hold_back(50)
    assert log.committed_offset == 10
    log.append([frame_of(b"not synced")])
    assert log.committed_offset == 10
    log.sync()
    assert log.committed_offset == 11
    log.hold_back(None)
    assert log.committed_offset == 11


def test_it_never_goes_back_but_for_another_leader(log: Log) -> None:
    fill(log, 10)
    log.hold_back(6)
    with pytest.raises(InvalidInput, match="up to 6"):
        log.hold_back(5)
    assert log.committed_offset == 6
    log.hold_back(5, anew=True)
    assert log.committed_offset == 5


def test_a_truncation_takes_it_along(log: Log) -> None:
    fill(log, 10)
    log.hold_back(8)
    log.truncate(5)
    fill(log, 5)
    assert log.committed_offset == 5
    log.hold_back(7)
    assert log.committed_offset == 7


def test_it_is_never_below_the_start(log: Log) -> None:
    fill(log, 10)
    log.hold_back(2)
    log.delete_prefix(6)
    assert log.committed_offset == 6
    log.hold_back(3, anew=True)
    assert log.committed_offset == 6


def test_a_time_is_found_below_it(log: Log, clock: ManualClock) -> None:
    for _ in range(10):
        fill(log, 1)
        clock.advance_us(10)
    first = clock.now_us() - 100
    assert log.offset_at(first + 70) == 7
    log.hold_back(4)
    assert log.offset_at(first + 70) == 4
    assert log.offset_at(first + 20) == 2
    assert log.offset_at(clock.now_us()) == 4


def test_a_follower_is_given_what_readers_are_not(log: Log) -> None:
    fill(log, 10)
    log.append([frame_of(b"not synced")])
    log.hold_back(0)
    assert copies(log, 0, bytes_max=1 << 20).next_offset == 11


def test_what_is_held_back_is_not_merged_into_what_is_not(log: Log) -> None:
    fill(log, 10)
    log.roll()
    log.hold_back(9)
    assert not merge_small_frames(log, log.segments[0])
    log.hold_back(10)
    assert merge_small_frames(log, log.segments[0])


def test_what_is_held_back_replaces_nothing(log: Log, clock: ManualClock) -> None:
    log.append([frame_of(b"committed", keys=[b"k"])])
    log.roll()
    log.append([frame_of(b"may be truncated", keys=[b"k"])])
    log.roll()
    log.hold_back(1)
    compact(log, now_us=clock.now_us(), tombstone_age_us=1)
    log.truncate(1)
    assert values_of(log) == [b"committed"]
    log.append([frame_of(b"newer", keys=[b"k"])])
    log.roll()
    log.hold_back(2)
    compact(log, now_us=clock.now_us(), tombstone_age_us=1)
    assert values_of(log) == [b"newer"]


def test_retention_stops_at_it(log: Log, clock: ManualClock) -> None:
    for _ in range(5):
        fill(log, 10)
        log.roll()
    log.hold_back(25)
    clock.advance_us(10**9)
    assert apply_retention(log, Retention(age_us_max=1), now_us=clock.now_us()) == 20
    log.hold_back(50)
    assert apply_retention(log, Retention(age_us_max=1), now_us=clock.now_us()) == 50


def test_reads_at_what_is_held_back_find_nothing() -> None:
    """Though there are entries of the index in between: what is shown ends before where a read would start."""
    log = Log.open(MemoryFiles())
    log.append([frame_of(b"a")])
    log.sync()
    for _ in range(40):
        log.append([frame_of(b"x" * 1000)])
    assert log.committed_offset == 1
    assert [len(log.read(offset)) for offset in range(1, log.end_offset + 1)] == [0] * 41
    log.close()
