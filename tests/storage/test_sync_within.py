"""A log that tells of messages before they are on disk: what it shows, what it reserves, and what a crash leaves."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from penstock.errors import DiskFull, LogClosed, SyncFailed
from penstock.frame import CONTROL
from penstock.storage.commit import Committed, GroupCommit
from penstock.storage.compaction import compact
from penstock.storage.inspect import frames, inspect
from penstock.storage.log import Log
from penstock.storage.manifest import read_manifest
from penstock.storage.merge import merge_small_frames
from penstock.storage.retention import Retention, apply_retention
from penstock.testing import Fault, FaultyFiles, ManualClock, MemoryDisk, MemoryFiles, Operation
from support import frame_of, open_log, rows_of, values_of

SECOND_US = 1_000_000


def lazy_log(disk: MemoryDisk) -> Log:
    log = open_log(MemoryFiles(disk))
    log.sync_within(SECOND_US)
    return log


def nothing_but_what_was_synced(disk: MemoryDisk) -> MemoryDisk:
    """The worst that a power loss can do."""
    left = MemoryDisk()
    for name, inode in disk.durable_names.items():
        file = MemoryFiles(left).open(name, "create")
        file.write([inode.durable])
        file.sync()
    left.sync_names()
    return left


def reserved(disk: MemoryDisk) -> int:
    manifest = read_manifest(MemoryFiles(disk.after_kill()))
    assert manifest is not None
    return manifest.reserved


def test_what_is_written_can_be_read_before_it_is_synced() -> None:
    log = lazy_log(MemoryDisk())
    log.append([frame_of(b"a", b"b")])
    assert (log.synced_offset, log.committed_offset) == (0, 2)
    assert [frame.count for frame in log.read(0)] == [2]
    assert [frame.count for frame in log.frames(0)] == [2]
    log.sync()
    assert (log.synced_offset, log.committed_offset) == (2, 2)


def test_without_it_what_is_not_synced_is_not_there() -> None:
    log = open_log(MemoryFiles())
    log.append([frame_of(b"a")])
    assert log.committed_offset == 0
    assert not log.read(0)


def test_a_kill_loses_nothing() -> None:
    disk = MemoryDisk()
    lazy_log(disk).append([frame_of(b"a", b"b")])
    assert values_of(open_log(MemoryFiles(disk.after_kill()))) == [b"a", b"b"]


def test_offsets_that_were_told_of_are_not_given_out_again_after_a_power_loss() -> None:
    disk = MemoryDisk()
    log = lazy_log(disk)
    log.append([frame_of(b"a")])
    log.sync()
    log.append([frame_of(b"b", b"c")])
    again = open_log(MemoryFiles(nothing_but_what_was_synced(disk)))
    assert values_of(again) == [b"a"]
    assert again.end_offset >= 3
    assert any("passed over" in note for note in again.recovery_notes)
    (offset,) = again.append([frame_of(b"d")]).base_offsets
    again.sync()
    assert [(row.offset, row.value) for row in rows_of(again)] == [(0, b"a"), (offset, b"d")]
    assert offset >= 3


def test_a_reader_in_the_middle_of_what_was_lost_goes_on_behind_it() -> None:
    disk = MemoryDisk()
    lazy_log(disk).append([frame_of(b"a", b"b", b"c")])
    log = open_log(MemoryFiles(nothing_but_what_was_synced(disk)))
    end = log.end_offset
    assert log.read(2).next_offset == end
    log.append([frame_of(b"d")])
    log.sync()
    assert [row.offset for row in rows_of(log, 2)] == [end]
    assert log.offset_at(0) == 0


def test_a_clean_end_leaves_no_hole_and_reserves_nothing() -> None:
    disk = MemoryDisk()
    log = lazy_log(disk)
    log.append([frame_of(b"a")])
    assert reserved(disk) > 1
    log.close()
    assert reserved(disk) == 0
    assert open_log(MemoryFiles(disk)).end_offset == 1


def test_a_quiet_log_reserves_few_offsets_and_a_busy_one_more() -> None:
    disk = MemoryDisk()
    log = lazy_log(disk)
    log.append([frame_of(b"a")])
    assert reserved(disk) - log.end_offset <= 1_000
    writes = 0
    before = reserved(disk)
    for _ in range(30):
        log.append([frame_of(*[b"x"] * 10_000)])
        writes += reserved(disk) != before
        before = reserved(disk)
    assert 10_000 < reserved(disk) - log.end_offset <= 100_000
    assert writes < 12


def test_a_change_syncs_first_in_both_directions() -> None:
    disk = MemoryDisk()
    log = lazy_log(disk)
    log.append([frame_of(b"a")])
    log.sync_within(None)
    assert (log.synced_offset, log.committed_offset) == (1, 1)
    assert reserved(disk) == 0
    log.append([frame_of(b"b")])
    assert log.committed_offset == 1
    log.sync_within(SECOND_US)
    assert (log.synced_offset, log.committed_offset) == (2, 2), "what is told of now was never reserved"


@pytest.mark.parametrize("within", [None, SECOND_US])
def test_a_log_never_starts_behind_what_is_synced(within: int | None) -> None:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk))
    log.sync_within(within)
    log.append([frame_of(b"a", b"b", b"c")])
    log.delete_prefix(2)
    again = open_log(MemoryFiles(nothing_but_what_was_synced(disk)))
    assert again.start_offset == 2
    assert again.end_offset >= 3
    assert [row.offset for row in rows_of(again) if row.offset >= 2] == [2]


def test_a_roll_syncs_what_it_seals() -> None:
    log = lazy_log(MemoryDisk())
    log.append([frame_of(b"a")])
    log.roll()
    assert log.synced_offset == 1


def test_a_group_is_told_when_it_is_written_and_nothing_was_synced() -> None:
    kinds: list[Operation] = []
    log = open_log(FaultyFiles(MemoryFiles(), before=lambda operation: kinds.append(operation)))
    log.sync_within(SECOND_US)
    log.append([frame_of(b"a")])
    kinds.clear()
    told: list[object] = []
    took: list[bool] = []
    commits: GroupCommit[str] = GroupCommit(
        log,
        clock=ManualClock(),
        run=lambda work: work(),
        tell=told.extend,
        took=lambda spent_us, is_synced: took.append(is_synced),
    )
    commits.commit("one", frame_of(b"b"))
    assert told == [("one", Committed(1, log.segments[-1].last_append_time))]
    assert [operation.kind for operation in kinds] == ["write_at"]
    assert took == [False], "it says nothing of how long a sync takes"


def test_what_can_not_be_reserved_is_not_written() -> None:
    is_full = False

    def before(operation: Operation) -> Fault | None:
        return Fault(DiskFull("no space left")) if is_full and operation.name.startswith("manifest") else None

    log = open_log(FaultyFiles(MemoryFiles(), before))
    log.sync_within(SECOND_US)
    is_full = True
    with pytest.raises(DiskFull):
        log.append([frame_of(b"a")])
    assert log.end_offset == 0
    is_full = False
    log.append([frame_of(b"a")])
    is_full = True
    log.sync_within(None)
    log.close()


def test_what_could_not_be_released_is_passed_over_and_does_no_harm() -> None:
    disk = MemoryDisk()
    is_full = False

    def before(operation: Operation) -> Fault | None:
        return Fault(DiskFull("no space left")) if is_full and operation.name.startswith("manifest") else None

    log = open_log(FaultyFiles(MemoryFiles(disk), before))
    log.sync_within(SECOND_US)
    log.append([frame_of(b"a")])
    is_full = True
    log.close()
    again = open_log(MemoryFiles(disk.after_kill()))
    again.append([frame_of(b"b")])
    again.sync()
    assert values_of(again) == [b"a", b"b"]


class FullDisk:
    """Nothing can be made or grow while it is full; what is there can be written over."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.is_full = True
        self.written = 0
        self.files = FaultyFiles(MemoryFiles(disk), self._before)

    def _before(self, operation: Operation) -> Fault | None:
        is_hit = self.is_full and operation.kind in ("write", "create")
        return Fault(DiskFull("no space left"), written=self.written) if is_hit else None


def full_after_a_power_loss() -> tuple[FullDisk, int]:
    """With one message left of three, and the offset that may be given out next."""
    disk = MemoryDisk()
    log = lazy_log(disk)
    log.append([frame_of(b"a")])
    log.sync()
    log.append([frame_of(b"b", b"c")])
    return FullDisk(nothing_but_what_was_synced(disk)), reserved(disk)


@pytest.mark.parametrize("within", [None, SECOND_US])
def test_a_log_without_room_for_its_hole_opens_and_writes_it_ahead_of_the_next_message(within: int | None) -> None:
    full, end = full_after_a_power_loss()
    log = open_log(full.files)
    log.sync_within(within)
    assert "there is no room yet" in log.recovery_notes[-1]
    assert (log.end_offset, log.synced_offset, log.committed_offset) == (end, end, end)
    assert list(log.unwritten_hole) == list(range(1, end))
    assert values_of(log) == [b"a"]
    assert (log.read(2).next_offset, log.read(end).next_offset) == (end, end)
    for full.written in (0, 10, 150):
        with pytest.raises(DiskFull):
            log.append([frame_of(b"d")])
        assert (log.end_offset, values_of(log)) == (end, [b"a"])
    full.is_full = False
    assert log.append([frame_of(b"d"), frame_of(b"e", b"f")]).base_offsets == [end, end + 1]
    assert log.append([frame_of(b"g")]).base_offsets == [end + 3]
    assert not log.unwritten_hole
    log.sync()
    expected = [(0, b"a"), (end, b"d"), (end + 1, b"e"), (end + 2, b"f"), (end + 3, b"g")]
    for opened in (log, open_log(MemoryFiles(full.disk.after_kill()))):
        assert [(row.offset, row.value) for row in rows_of(opened)] == expected
    found = [one.piece.frame for one in frames(MemoryFiles(full.disk.after_kill()))]
    assert [(one.base_offset, one.count) for one in found if one] == [
        (0, 1),
        (1, 0),
        (end, 1),
        (end + 1, 2),
        (end + 3, 1),
    ]
    log.close()
    assert reserved(full.disk) == 0


@pytest.mark.parametrize("is_closed", [False, True])
def test_an_unwritten_hole_outlives_a_kill_a_clean_end_and_a_change(is_closed: bool) -> None:
    full, end = full_after_a_power_loss()
    disk = full.disk
    for within in (None, SECOND_US, None):
        full = FullDisk(disk.after_kill())
        log = open_log(full.files)
        log.sync_within(within)
        assert log.end_offset == end
        if is_closed:
            log.close()
        disk = full.disk
    again = open_log(MemoryFiles(disk.after_kill()))
    assert (again.end_offset, values_of(again)) == (end, [b"a"])
    assert again.append([frame_of(b"d")]).base_offsets == [end]


def test_what_is_old_can_be_deleted_while_a_hole_has_no_room_and_then_there_is_some() -> None:
    disk = MemoryDisk()
    log = lazy_log(disk)
    for number in range(3):
        log.append([frame_of(b"%d" % number)])
        log.roll()
    log.append([frame_of(b"lost")])
    full = FullDisk(nothing_but_what_was_synced(disk))
    log = open_log(full.files)
    now = log.segments[-2].last_append_time
    assert apply_retention(log, Retention(age_us_max=1), now_us=now + 2) == 3
    assert values_of(log) == []
    full.is_full = False
    end = log.end_offset
    assert log.append([frame_of(b"new")]).base_offsets == [end]
    log.close()
    again = open_log(MemoryFiles(full.disk))
    assert [(row.offset, row.value) for row in rows_of(again)] == [(end, b"new")]


def test_a_segment_can_be_sealed_ahead_of_an_unwritten_hole() -> None:
    full, end = full_after_a_power_loss()
    log = open_log(full.files)
    full.is_full = False
    log.roll()
    assert (log.end_offset, [segment.base_offset for segment in log.segments]) == (end, [0, 1])
    assert open_log(MemoryFiles(full.disk.after_kill())).end_offset == end
    assert log.append([frame_of(b"d")]).base_offsets == [end]
    log.sync()
    assert values_of(open_log(MemoryFiles(full.disk.after_kill()))) == [b"a", b"d"]


@pytest.mark.parametrize("change", [Log.truncate, Log.delete_prefix])
def test_a_cut_into_an_unwritten_hole_waits_until_it_is_written(change: Callable[[Log, int], None]) -> None:
    full, end = full_after_a_power_loss()
    log = open_log(full.files)
    with pytest.raises(DiskFull):
        change(log, end - 5)
    assert (log.start_offset, log.end_offset, values_of(log)) == (0, end, [b"a"])
    full.is_full = False
    change(log, end - 5)
    is_truncated = change is Log.truncate
    assert (log.start_offset, log.end_offset) == ((0, end - 5) if is_truncated else (end - 5, end))
    (offset,) = log.append([frame_of(b"d")]).base_offsets
    assert offset == (end - 5 if is_truncated else end)
    log.close()
    again = open_log(MemoryFiles(full.disk.after_kill()))
    assert values_of(again) == ([b"a", b"d"] if is_truncated else [b"d"])


def test_a_sync_that_fails_stops_the_log() -> None:
    is_broken = False

    def before(operation: Operation) -> Fault | None:
        return Fault(SyncFailed("EIO")) if is_broken and operation.kind == "sync" else None

    log = open_log(FaultyFiles(MemoryFiles(), before))
    log.sync_within(SECOND_US)
    log.append([frame_of(b"a")])
    is_broken = True
    with pytest.raises(SyncFailed):
        log.sync()
    is_broken = False
    with pytest.raises(SyncFailed):
        log.append([frame_of(b"b")])
    log.close()
    with pytest.raises(LogClosed):
        log.sync_within(None)


def log_with_a_hole(values: int = 3) -> tuple[Log, int]:
    """Messages on both sides of what was lost, in a sealed segment, and its end."""
    disk = MemoryDisk()
    log = lazy_log(disk)
    for number in range(values):
        log.append([frame_of(b"%d" % number, keys=[b"k%d" % number])])
    log.sync()
    log.append([frame_of(b"lost", keys=[b"k0"])])
    log = open_log(MemoryFiles(nothing_but_what_was_synced(disk)))
    first = log.end_offset
    log.append([frame_of(b"after", keys=[b"k1"])])
    log.append([frame_of(b"last", keys=[b"z"])])
    log.roll()
    return log, first


def test_merging_leaves_the_hole_where_it_is() -> None:
    log, first = log_with_a_hole()
    before = rows_of(log)
    assert merge_small_frames(log, log.segments[0])
    assert rows_of(log) == before
    assert before[-2].offset == first
    assert log.end_offset == first + 2


def test_compaction_goes_over_the_hole() -> None:
    log, first = log_with_a_hole()
    assert compact(log, now_us=2, tombstone_age_us=1) is not None
    assert [(row.offset, row.value) for row in rows_of(log)] == [
        (0, b"0"),
        (2, b"2"),
        (first, b"after"),
        (first + 1, b"last"),
    ]


def test_retention_thins_a_segment_with_a_hole() -> None:
    log, first = log_with_a_hole(9)
    now = log.segments[0].last_append_time + 1_000
    apply_retention(
        log, Retention(age_us_max=1), now_us=now, keep_from=log.end_offset, protected=lambda offsets: offsets == first
    )
    assert [(row.offset, row.value) for row in rows_of(log)] == [(first, b"after")]


def test_a_truncation_into_the_hole_ends_the_log_there() -> None:
    log, first = log_with_a_hole()
    log.truncate(first - 5)
    assert log.end_offset == first - 5
    assert values_of(log) == [b"0", b"1", b"2"]
    assert log.append([frame_of(b"on")]).base_offsets == [first - 5]


def test_an_inspection_finds_the_hole_healthy_and_shows_it() -> None:
    disk = MemoryDisk()
    lazy_log(disk).append([frame_of(b"a")])
    left = nothing_but_what_was_synced(disk)
    open_log(MemoryFiles(left)).close()
    report = inspect(MemoryFiles(left))
    assert report is not None
    assert report.is_healthy
    (found,) = frames(MemoryFiles(left))
    assert found.piece.frame is not None
    assert (found.piece.frame.count, found.piece.frame.flags) == (0, CONTROL)


def test_unsynced_frames_that_are_damaged_are_a_torn_tail_and_synced_ones_are_not() -> None:
    """Of many frames that no sync covers, each says how far the log was synced: not as far as the one before it."""
    disk = MemoryDisk()
    log = lazy_log(disk)
    log.append([frame_of(b"safe")])
    log.sync()
    for number in range(20):
        log.append([frame_of(b"%d" % number * 100)])
    random = Random(1)
    found = set()
    for _ in range(200):
        again = open_log(MemoryFiles(disk.after_power_loss(random)))
        values = values_of(again)
        assert values == [b"safe", *(b"%d" % number * 100 for number in range(20))][: len(values)]
        found.add(len(values))
    assert len(found) > 3
    assert min(found) >= 1
