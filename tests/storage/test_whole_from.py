"""Where retention leaves single messages of what there was, the log says from where on nothing is missing."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import numpy.typing as npt
import pytest

from penstock.errors import DiskFull
from penstock.storage import log as log_module
from penstock.storage.compaction import compact
from penstock.storage.files import Files
from penstock.storage.log import Log
from penstock.storage.manifest import NAME, SPARE, Manifest, read_manifest
from penstock.storage.merge import merge_small_frames
from penstock.storage.retention import Retention, apply_retention
from penstock.testing import FaultyFiles, ManualClock, MemoryDisk, MemoryFiles, Operation
from support import fill, frame_of, open_log, rows_of

COUNT, SEGMENT = 100, 20
LOSSES_PER_STATE = 8


def protecting(*wanted: int) -> Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]:
    return lambda offsets: np.isin(offsets, wanted)


def filled(files: Files, clock: ManualClock) -> Log:
    log = open_log(files, clock)
    for _ in range(COUNT // SEGMENT):
        fill(log, SEGMENT)
        log.roll()
        clock.advance_us(1_000_000)
    return log


def thin(log: Log, clock: ManualClock, *wanted: int, keep_from: int | None = None) -> None:
    now = clock.now_us()
    apply_retention(log, Retention(age_us_max=1), now_us=now, keep_from=keep_from, protected=protecting(*wanted))


def offsets_of(log: Log) -> list[int]:
    return [row.offset for row in rows_of(log)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def log(disk: MemoryDisk, clock: ManualClock) -> Log:
    return filled(MemoryFiles(disk), clock)


def test_a_log_is_whole_from_its_start(log: Log) -> None:
    assert (log.start_offset, log.whole_from) == (0, 0)
    log.delete_prefix(30)
    assert (log.start_offset, log.whole_from) == (30, 30)


def test_what_is_left_around_a_message_that_must_stay_is_not_whole(
    log: Log, clock: ManualClock, disk: MemoryDisk
) -> None:
    thin(log, clock, 23, 67, keep_from=80)
    assert offsets_of(log) == [23, 67, *range(80, 100)]
    assert (log.start_offset, log.whole_from) == (20, 80)
    log.close()
    log = open_log(MemoryFiles(disk), clock)
    assert (log.start_offset, log.whole_from) == (20, 80)
    log.delete_prefix(60)
    assert (log.start_offset, log.whole_from) == (60, 80)
    thin(log, clock)
    assert (log.start_offset, log.whole_from) == (100, 100)


def test_segments_that_are_left_alone_are_whole(log: Log, clock: ManualClock) -> None:
    apply_retention(log, Retention(age_us_max=1), now_us=clock.now_us(), protected=lambda offsets: offsets % 4 > 0)
    assert log.whole_from == 0


def test_compaction_and_merging_take_nothing_that_anybody_misses(clock: ManualClock) -> None:
    log = open_log(MemoryFiles(), clock)
    for number in range(40):
        log.append([frame_of(b"%d" % number, keys=[b"key"])])
    log.roll()
    merge_small_frames(log, log.segments[0])
    compact(log, now_us=clock.now_us(), tombstone_age_us=1)
    assert offsets_of(log) == [39]
    assert log.whole_from == 0


def test_what_comes_behind_a_truncation_is_whole(
    log: Log, clock: ManualClock, disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    thin(log, clock, 23, 67, keep_from=80)
    log.truncate(90)
    assert log.whole_from == 80
    with monkeypatch.context() as patch:
        # Killed ahead of the last step of a truncation.
        patch.setattr(log, "_note_whole_from", lambda offset: None)
        log.truncate(70)
    disk = disk.after_kill()
    log = open_log(MemoryFiles(disk), clock)
    assert (log.end_offset, log.whole_from) == (70, 70)
    log.truncate(50)
    assert (log.end_offset, log.whole_from) == (50, 50)
    fill(log, 5)
    log.close()
    assert open_log(MemoryFiles(disk), clock).whole_from == 50


def test_a_manifest_that_was_written_before_there_was_such_a_field_is_read(log: Log, disk: MemoryDisk) -> None:
    log.delete_prefix(40)
    log.close()
    manifest = read_manifest(MemoryFiles(disk))
    assert manifest == Manifest(log.log_id, 40, 0), "bytes that were zero then are zero now"
    assert open_log(MemoryFiles(disk)).whole_from == 40


def test_a_disk_without_room_for_it_keeps_the_messages(disk: MemoryDisk, clock: ManualClock) -> None:
    is_full = False

    def before(operation: Operation) -> None:
        if is_full and operation.name in (NAME, SPARE) and operation.kind not in ("open", "read"):
            raise DiskFull("no room")

    log = filled(FaultyFiles(MemoryFiles(disk), before), clock)
    is_full = True
    with pytest.raises(DiskFull):
        thin(log, clock, 3, keep_from=80)
    assert log.whole_from == 0
    assert offsets_of(log) == list(range(100))
    is_full = False
    thin(log, clock, 3, keep_from=80)
    assert (log.whole_from, offsets_of(log)) == (80, [3, *range(80, 100)])


def check_every_crash(seed: int) -> int:
    """The number of states in which something was gone. Whatever the disk has kept, what is gone is known to be."""
    random, clock, disk = Random(seed), ManualClock(), MemoryDisk()
    states: list[MemoryDisk] = []
    is_watched = False

    def before(operation: Operation) -> None:
        if is_watched and operation.kind not in ("read", "open"):
            states.append(disk.copy())

    log = filled(FaultyFiles(MemoryFiles(disk), before), clock)
    is_watched = True
    thin(log, clock, 3, 23, 67, keep_from=40)
    thin(log, clock, 23, 67, keep_from=80)
    log.delete_prefix(21)
    states.append(disk.copy())
    gone = 0
    for state in states:
        for loss in range(LOSSES_PER_STATE):
            left = open_log(MemoryFiles(state.after_kill() if loss == 0 else state.after_power_loss(random)), clock)
            there = set(offsets_of(left))
            missing = sorted(set(range(COUNT)) - there)
            gone += bool(missing)
            assert not missing or missing[-1] < left.whole_from, f"{missing[-1]} is gone, whole from {left.whole_from}"
    return gone


def test_no_crash_leaves_a_hole_that_the_log_does_not_know_of() -> None:
    assert check_every_crash(0) > 100


def test_the_crashes_would_show_a_hole_that_is_noted_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    note, replace = Log._note_whole_from, Log._replace

    def late(log: Log, old: list[log_module.Segment], *rest: object) -> None:
        replace(log, old, *rest)  # type: ignore[arg-type]
        note(log, old[-1].next_offset)

    monkeypatch.setattr(Log, "_note_whole_from", lambda log, offset: None)
    monkeypatch.setattr(Log, "_replace", late)
    with pytest.raises(AssertionError, match="is gone"):
        check_every_crash(0)
