from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.errors import (
    DeviceFailed,
    DirectoryLocked,
    DiskFull,
    Fatal,
    InvalidInput,
    LogClosed,
    LogCorrupt,
    OffsetOutOfRange,
    StorageError,
    StorageReadOnly,
    SyncFailed,
)
from penstock.frame import Frame
from penstock.message import Message
from penstock.storage import segment as segments
from penstock.storage.cache import SegmentCache
from penstock.storage.compaction import compact
from penstock.storage.files import DiskFiles, Files
from penstock.storage.log import Log, LogSettings
from penstock.storage.merge import merge_small_frames
from penstock.storage.retention import Retention, apply_retention
from penstock.storage.segment import ROOM_BYTES
from penstock.testing import Fault, FaultyFiles, ManualClock, MemoryDisk, MemoryFiles, Operation
from penstock.testing.memory_files import MemoryFile
from support import SMALL_SEGMENTS, fill, frame_of, open_log, rows_of, values_of

ROOMY = LogSettings()


@pytest.fixture(params=["disk", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return DiskFiles(tmp_path / "log") if request.param == "disk" else MemoryFiles()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(files: Files, clock: ManualClock) -> Iterator[Log]:
    log = open_log(files, clock)
    yield log
    log.close()


# --- append and read ----------------------------------------------------------------------------------------


def test_a_new_log_is_empty(log: Log) -> None:
    assert (log.start_offset, log.synced_offset, log.end_offset) == (0, 0, 0)
    assert len(log.read(0)) == 0


def test_offsets_count_messages_not_frames(log: Log) -> None:
    appended = log.append([frame_of(b"a", b"b", b"c"), frame_of(b"d")])
    assert appended.base_offsets == [0, 3]
    assert appended.next_offset == log.end_offset == 4


def test_messages_can_be_read_once_they_are_synced(log: Log) -> None:
    log.append([frame_of(b"a")])
    assert values_of(log) == []
    log.sync()
    assert values_of(log) == [b"a"]


def test_what_is_written_but_not_synced_can_be_asked_for(log: Log) -> None:
    log.append([frame_of(b"a")])
    assert values_of(log, until=log.end_offset) == [b"a"]


def test_a_read_may_start_at_any_offset_across_segments(log: Log) -> None:
    values = fill(log, 200)
    assert len(log.segments) > 5
    for offset in range(0, 200, 7):
        assert values_of(log, offset) == values[offset:]


def test_a_read_hands_out_frames_as_they_lie_on_disk(files: Files, log: Log) -> None:
    fill(log, 3)
    run = log.read(0, bytes_max=1 << 20)
    file = files.open(log.segments[0].name, "read")
    assert bytes(run.data) == file.read_at(64, log.segments[0].size - 64)
    assert [frame.base_offset for frame in run] == [0, 1, 2]


def test_a_read_is_bounded_by_bytes_but_gives_at_least_one_frame(log: Log) -> None:
    log.append([frame_of(b"x" * 500) for _ in range(4)])
    log.sync()
    size = len(frame_of(b"x" * 500).data)
    assert [len(log.read(0, bytes_max=n)) for n in (1, size, 2 * size - 1, 2 * size, 9 * size)] == [1, 1, 1, 2, 4]


def test_a_read_is_bounded_by_messages(log: Log) -> None:
    log.append([frame_of(b"a", b"b") for _ in range(4)])
    log.sync()
    assert [len(log.read(0, count_max=n)) for n in (1, 2, 3, 8)] == [1, 1, 2, 4]


def test_a_read_stops_at_until(log: Log) -> None:
    log.append([frame_of(b"a"), frame_of(b"b"), frame_of(b"c")])
    log.sync()
    assert log.read(0, until=2).next_offset == 2
    assert len(log.read(0, until=0)) == 0


def test_a_read_inside_a_frame_gives_the_whole_frame(log: Log) -> None:
    log.append([frame_of(b"a", b"b", b"c"), frame_of(b"d")])
    log.sync()
    (first, _) = log.read(2)
    assert first.base_offset == 0
    assert values_of(log, 2) == [b"c", b"d"]


def test_a_frame_larger_than_a_segment_is_stored_alone(log: Log) -> None:
    large = b"x" * 10_000
    fill(log, 3)
    log.append([frame_of(large)])
    fill(log, 3, start=10)
    assert values_of(log, 3)[0] == large
    assert len(values_of(log)) == 7


@pytest.mark.parametrize("offset", [-1, 4])
def test_an_offset_out_of_range_is_refused_with_the_range(log: Log, offset: int) -> None:
    fill(log, 3)
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(offset)
    assert (caught.value.details["start"], caught.value.details["end"]) == (0, 3)


def test_reading_at_the_end_gives_nothing_and_stays_there(log: Log) -> None:
    fill(log, 3)
    assert log.read(3).next_offset == 3


def test_frames_of_both_codecs_and_none_live_side_by_side(log: Log) -> None:
    for codec in (0, 1, 2):
        log.append([frame_of(*[b"again and again"] * 20, codec=codec)])
    log.sync()
    assert values_of(log) == [b"again and again"] * 60


def test_readers_on_other_threads_see_whole_frames_while_a_writer_appends(log: Log) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def follow() -> None:
        at = 0
        try:
            while not (stop.is_set() and at == log.end_offset):
                run = log.read(at, bytes_max=2000)
                for frame in run:
                    assert frame.base_offset == at
                    assert frame.batch().values() == [b"%d" % at]
                    at = frame.next_offset
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=follow) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(400):
        log.append([frame_of(b"%d" % i)])
        if i % 10 == 0:
            log.sync()
    log.sync()
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures


# --- time ---------------------------------------------------------------------------------------------------


def test_a_time_leads_to_the_first_message_appended_at_or_after_it(log: Log, clock: ManualClock) -> None:
    times = []
    for i in range(150):
        clock.advance_us(1_000)
        times.append(clock.now_us())
        log.append([frame_of(b"%d" % i + b"x" * 60)])
    log.sync()
    assert len(log.segments) > 3
    for i, time in enumerate(times):
        assert log.offset_at(time) == i
        assert log.offset_at(time - 1) == i
    assert log.offset_at(0) == 0
    assert log.offset_at(times[-1] + 1) == 150


def test_messages_of_the_same_time_are_found_from_the_first_on(log: Log, clock: ManualClock) -> None:
    fill(log, 100)
    clock.advance_us(5)
    fill(log, 100)
    assert log.offset_at(clock.now_us() - 5) == 0
    assert log.offset_at(clock.now_us()) == 100


def test_append_times_never_run_backwards_when_the_clock_does(log: Log, clock: ManualClock) -> None:
    fill(log, 2)
    clock.advance_us(-1_000_000)
    fill(log, 2)
    log.roll()
    fill(log, 2)
    times = [row.append_time for row in rows_of(log)]
    assert times == sorted(times)
    assert len(set(times)) == 1


def test_append_times_do_not_run_backwards_across_a_restart(files: Files, clock: ManualClock) -> None:
    log = open_log(files, clock)
    fill(log, 1)
    log.roll()
    log.close()
    clock.advance_us(-1_000_000)
    again = open_log(_reopened(files), clock)
    fill(again, 1)
    first, second = rows_of(again)
    assert first.append_time == second.append_time


# --- roll ---------------------------------------------------------------------------------------------------


def test_a_segment_is_sealed_when_the_next_frame_does_not_fit(log: Log) -> None:
    fill(log, 200)
    assert all(segment.size <= SMALL_SEGMENTS.segment_bytes_max for segment in log.segments)
    ends = [segment.next_offset for segment in log.segments]
    assert ends[:-1] == [segment.base_offset for segment in log.segments[1:]]


def test_a_segment_is_sealed_when_it_is_old(clock: ManualClock) -> None:
    log = open_log(MemoryFiles(), clock, LogSettings(segment_age_us_max=1_000))
    fill(log, 1)
    clock.advance_us(1_000)
    fill(log, 1)
    assert len(log.segments) == 2


def test_rolling_an_empty_segment_does_nothing(log: Log) -> None:
    log.roll()
    assert len(log.segments) == 1


@pytest.mark.parametrize("wrong", [{"segment_bytes_max": 0}, {"segment_bytes_max": 1 << 40}, {"segment_age_us_max": 0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        LogSettings(**wrong)


# --- truncate and delete ------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 37, 150, 199, 200])
def test_truncate_removes_what_is_at_or_behind_the_offset(files: Files, log: Log, offset: int) -> None:
    values = fill(log, 200)
    log.truncate(offset)
    assert log.end_offset == log.synced_offset == offset
    assert values_of(log) == values[:offset]
    more = fill(log, 40, start=1000)
    assert values_of(log) == values[:offset] + more
    log.close()
    assert values_of(open_log(_reopened(files))) == values[:offset] + more


def test_truncate_inside_a_frame_keeps_its_first_messages(files: Files, log: Log) -> None:
    log.append([frame_of(b"a", b"b", b"c", b"d", keys=[b"1", None, b"3", None])])
    log.truncate(2)
    log.append([frame_of(b"new")])
    log.sync()
    assert values_of(log) == [b"a", b"b", b"new"]
    log.close()
    assert values_of(open_log(_reopened(files))) == [b"a", b"b", b"new"]


@pytest.mark.parametrize("offset", [1, 30, 99, 100])
def test_delete_prefix_hides_what_is_below_and_frees_whole_segments(files: Files, log: Log, offset: int) -> None:
    values = fill(log, 100)
    before = len(log.segments)
    log.delete_prefix(offset)
    assert log.start_offset == offset
    assert values_of(log) == values[offset:]
    assert len(log.segments) < before or offset == 1
    with pytest.raises(OffsetOutOfRange):
        log.read(offset - 1)
    log.close()
    again = open_log(_reopened(files))
    assert again.start_offset == offset
    assert again.end_offset == 100
    assert values_of(again) == values[offset:]


def test_a_log_that_was_emptied_goes_on_at_its_offset(log: Log) -> None:
    fill(log, 10)
    log.delete_prefix(10)
    assert log.append([frame_of(b"a")]).base_offsets == [10]


def test_a_time_before_the_start_leads_to_the_start(log: Log) -> None:
    fill(log, 100)
    log.delete_prefix(50)
    assert log.offset_at(0) == 50


@pytest.mark.parametrize("offset", [-1, 11])
def test_truncate_and_delete_refuse_offsets_out_of_range(log: Log, offset: int) -> None:
    fill(log, 10)
    for action in (log.truncate, log.delete_prefix):
        with pytest.raises(OffsetOutOfRange):
            action(offset)
    assert len(values_of(log)) == 10


def test_truncate_inside_a_gap_does_not_give_offsets_out_again_after_a_crash() -> None:
    disk, clock = MemoryDisk(), ManualClock()
    log = open_log(MemoryFiles(disk), clock)
    fill(log, 10)
    log.append([frame_of(*[b"x"] * 10, keys=[b"k"] * 10)])
    log.append([frame_of(b"last", keys=[b"k"])])
    log.roll()
    compact(log, now_us=clock.now_us(), tombstone_age_us=1)
    assert [row.offset for row in rows_of(log)][-1] == 20
    log.truncate(18)
    assert log.end_offset == 18
    again = open_log(MemoryFiles(disk.after_kill()), clock)
    assert again.end_offset == 18
    assert again.append([frame_of(b"next")]).base_offsets == [18]


def test_a_cache_given_to_several_logs_bounds_them_together(tmp_path: Path) -> None:
    cache = SegmentCache(segments_max=3)
    logs = [
        Log.open(DiskFiles(tmp_path / name), clock=ManualClock(), settings=SMALL_SEGMENTS, cache=cache) for name in "ab"
    ]
    for log in logs:
        values = fill(log, 100)
        assert values_of(log) == values
    assert len(cache) == 3


def test_any_bound_on_bytes_gets_on(log: Log) -> None:
    values = [b"x" * 16_200, b"y", b"z"]
    log.append([frame_of(value) for value in values])
    log.sync()
    for bytes_max in (1, 10, 87, 88, 100):
        assert [row.value for row in rows_of(log, 1, bytes_max=bytes_max)] == values[1:]


def test_readers_are_not_disturbed_by_truncation_rewriting_and_deletion(tmp_path: Path) -> None:
    """They see messages as they were or as they are, or hear that the offset is gone; never an error of the disk."""
    log = open_log(DiskFiles(tmp_path / "log"))
    fill(log, 300, size=20)
    stop = threading.Event()
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            while not stop.is_set():
                try:
                    rows = rows_of(log, log.start_offset, bytes_max=500)
                    assert [row.offset for row in rows] == sorted(row.offset for row in rows)
                    log.offset_at(1)
                except OffsetOutOfRange:
                    pass
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=follow) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(12):
        for segment in log.segments[:-1]:
            merge_small_frames(log, segment)
        log.delete_prefix(min(log.start_offset + 10, log.end_offset))
        compact(log, now_us=1, tombstone_age_us=1)
        log.truncate(max(log.end_offset - 15, log.start_offset))
        fill(log, 30, size=20)
    stop.set()
    for reader in readers:
        reader.join()
    log.close()
    assert not failures, failures


def test_truncation_keeps_rewriting_out_while_it_writes_its_own_copy() -> None:
    """Both write a temporary file of the same name."""
    held: list[bool] = []

    def before(operation: Operation) -> None:
        if operation.kind == "rename" and operation.name.endswith(".log"):
            held.append(not log._rewriting.acquire(blocking=False))

    log = open_log(FaultyFiles(MemoryFiles(), before))
    log.append([frame_of(b"a", b"b", b"c")])
    log.truncate(2)
    assert held == [True]
    assert values_of(log) == [b"a", b"b"]


def test_a_batch_taken_from_a_rewritten_frame_gets_offsets_of_its_own() -> None:
    source, target = open_log(MemoryFiles()), open_log(MemoryFiles())
    source.append([frame_of(b"1", b"2", b"3", b"4", keys=[b"a", b"a", b"b", b"a"])])
    source.roll()
    compact(source, now_us=1, tombstone_age_us=1)
    (frame,) = source.frames(0)
    assert frame.offsets(frame.batch()).tolist() == [2, 3]
    for _ in range(2):
        target.append([Frame.of(frame.batch())])
    target.sync()
    assert [(row.offset, row.value) for row in rows_of(target)] == [(0, b"3"), (1, b"4"), (2, b"3"), (3, b"4")]


def test_a_read_under_way_does_not_see_what_was_not_synced_after_a_truncation() -> None:
    log = open_log(MemoryFiles())
    fill(log, 10)
    read, looked = segments.read, []

    def read_after_a_truncation(*arguments: Any, **options: Any) -> Any:
        if not looked:
            looked.append(True)
            log.truncate(5)
            log.append([frame_of(b"not synced") for _ in range(5)])
        return read(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "read", read_after_a_truncation)
        run = log.read(0)
    assert run.next_offset == 5


def test_a_log_that_stopped_raises_a_fresh_error_each_time() -> None:
    log = open_log(MemoryFiles())
    log.close()
    raised = []
    for _ in range(3):
        with pytest.raises(LogClosed) as caught:
            log.append([frame_of(b"a")])
        raised.append(caught.value)
    assert len({id(error) for error in raised}) == 3


def test_an_index_that_does_not_fit_does_not_stop_a_merge() -> None:
    trouble = Trouble("write", DiskFull("no space left"), ending=".index")
    log = troubled(trouble)
    values = fill(log, 60)
    trouble.is_on = True
    assert merge_small_frames(log, log.segments[0])
    trouble.is_on = False
    assert values_of(log) == values
    log.append([frame_of(b"more")])


def test_a_mark_that_can_not_be_written_does_not_make_a_sync_fail() -> None:
    trouble = Trouble("write_at", StorageReadOnly("read-only"), ending="synced")
    log = troubled(trouble)
    trouble.is_on = True
    values = fill(log, 3)
    assert values_of(log) == values


def test_reading_below_the_start_is_told_the_range(log: Log) -> None:
    fill(log, 100)
    log.delete_prefix(80)
    with pytest.raises(OffsetOutOfRange):
        log.read(10)


# --- restart ------------------------------------------------------------------------------------------------


def _reopened(files: Files) -> Files:
    return MemoryFiles(files.disk) if isinstance(files, MemoryFiles) else DiskFiles(files.path)  # type: ignore[attr-defined]


def test_a_closed_log_opens_as_it_was(files: Files) -> None:
    log = open_log(files)
    values = fill(log, 100)
    identity = log.log_id
    log.close()
    again = open_log(_reopened(files))
    assert again.recovered_cleanly
    assert again.recovery_notes == []
    assert again.log_id == identity
    assert values_of(again) == values
    assert again.append([frame_of(b"more")]).base_offsets == [100]


def test_closing_twice_is_harmless_and_a_closed_log_says_so(log: Log) -> None:
    fill(log, 1)
    log.close()
    log.close()
    for action in (lambda: log.read(0), lambda: log.append([frame_of(b"a")]), log.sync, lambda: log.offset_at(0)):
        with pytest.raises(LogClosed):
            action()


def test_a_log_open_in_one_place_is_locked_for_others(files: Files, log: Log) -> None:
    with pytest.raises(DirectoryLocked):
        open_log(_reopened(files))
    log.close()
    open_log(_reopened(files)).close()


def test_a_log_that_is_refused_does_not_stay_locked() -> None:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk))
    fill(log, 100)
    log.close()
    names = MemoryFiles(disk)
    names.remove(log.segments[1].name)
    for _ in range(2):
        with pytest.raises(LogCorrupt):
            open_log(MemoryFiles(disk))


# --- faults -------------------------------------------------------------------------------------------------


class Trouble:
    """Fails operations of one kind on files with one ending while it is on."""

    def __init__(self, kind: str, error: StorageError, ending: str = ".log", written: int = 0) -> None:
        self.kind, self.ending = kind, ending
        self.left = 1 << 62
        self.fault = Fault(error, written)
        self.is_on = False

    def __call__(self, operation: Operation) -> Fault | None:
        hit = self.is_on and operation.kind == self.kind and operation.name.endswith(self.ending) and self.left > 0
        self.left -= hit
        return self.fault if hit else None


def troubled(trouble: Trouble, disk: MemoryDisk | None = None) -> Log:
    return open_log(FaultyFiles(MemoryFiles(disk), trouble))


@pytest.mark.parametrize("written", [0, 1, 50, 100])
@pytest.mark.parametrize("has_room", [False, True])
def test_a_full_disk_refuses_the_append_and_changes_nothing(written: int, has_room: bool) -> None:
    """Also on disks that write anew what is overwritten, and so need space for it."""
    disk = MemoryDisk()
    trouble = Trouble("write_at" if has_room else "write", DiskFull("no space left"), written=written)
    log = troubled(trouble, disk)
    values = fill(log, 5 if has_room else 6)
    assert (log.segments[-1].room >= len(frame_of(b"too much").data)) == has_room
    count, size = log.end_offset, log.size
    trouble.is_on = True
    with pytest.raises(DiskFull) as caught:
        log.append([frame_of(b"too much")])
    assert caught.value.retriable
    assert (log.end_offset, log.size) == (count, size)
    assert len(disk.names[log.segments[-1].name].current) == size
    assert values_of(log) == values
    trouble.is_on = False
    values += fill(log, 1, start=count)
    assert values_of(log) == values
    log.close()
    again = open_log(MemoryFiles(disk))
    assert again.recovered_cleanly
    assert values_of(again) == values


@pytest.mark.parametrize(
    ("kind", "ending"), [("create", ".log"), ("write", ".log"), ("create", ".index"), ("write", ".timeindex")]
)
def test_a_disk_too_full_for_the_next_segment_refuses_the_append_and_changes_nothing(kind: str, ending: str) -> None:
    trouble = Trouble(kind, DiskFull("no space left"), ending)
    log = troubled(trouble)
    fill(log, 1, size=3900)
    trouble.is_on = True
    with pytest.raises(DiskFull):
        log.append([frame_of(b"x" * 1000)])
    assert log.end_offset == 1
    assert len(log.segments) == 1
    trouble.is_on = False
    log.append([frame_of(b"x" * 1000)])
    log.sync()
    assert len(values_of(log)) == 2
    assert len(log.segments) == 2


def test_a_full_disk_can_be_freed_by_retention() -> None:
    """Nothing can be created or made longer; deleting must not need either."""
    disk, clock, state = MemoryDisk(), ManualClock(), {"full": False}

    def before(operation: Operation) -> Fault | None:
        return Fault(DiskFull("no space left")) if state["full"] and operation.kind in ("create", "write") else None

    log = open_log(FaultyFiles(MemoryFiles(disk), before), clock)
    values = fill(log, 100)
    state["full"] = True
    with pytest.raises(DiskFull):
        log.append([frame_of(b"no room")])
    clock.advance_us(10)
    start = apply_retention(log, Retention(bytes_max=5_000, age_us_max=1), now_us=clock.now_us())
    assert start > 0
    assert values_of(log) == values[start:]
    state["full"] = False
    log.append([frame_of(b"room")])
    log.close()
    assert open_log(MemoryFiles(disk)).start_offset == start


def test_a_failed_sync_is_final() -> None:
    disk = MemoryDisk()
    trouble = Trouble("sync", SyncFailed("input/output error"))
    log = troubled(trouble, disk)
    values = fill(log, 3)
    log.append([frame_of(b"lost")])
    trouble.is_on = True
    with pytest.raises(SyncFailed):
        log.sync()
    # The kernel may call the next one a success although the pages are gone: nobody asks it again.
    trouble.is_on = False
    for action in (log.sync, lambda: log.append([frame_of(b"more")]), log.roll, lambda: log.truncate(0)):
        with pytest.raises(Fatal):
            action()
    assert log.synced_offset == 3
    log.close()
    assert values_of(open_log(MemoryFiles(disk)))[:3] == values


def test_a_write_that_can_not_be_undone_is_fatal() -> None:
    state = {"on": False}

    def before(operation: Operation) -> Fault | None:
        if state["on"] and operation.kind in ("write", "write_at"):
            return Fault(DiskFull("no space left"), written=10)
        return Fault(StorageReadOnly("read-only")) if state["on"] and operation.kind == "truncate" else None

    log = open_log(FaultyFiles(MemoryFiles(), before))
    fill(log, 1)
    state["on"] = True
    with pytest.raises(DeviceFailed):
        log.append([frame_of(b"a")])
    state["on"] = False
    with pytest.raises(Fatal):
        log.append([frame_of(b"a")])


# --- room ahead in the active segment -----------------------------------------------------------------------


def file_size(disk: MemoryDisk, log: Log) -> int:
    return len(disk.names[log.segments[-1].name].current)


def test_small_appends_overwrite_zeros_written_before() -> None:
    disk, kinds = MemoryDisk(), []
    log = open_log(FaultyFiles(MemoryFiles(disk), lambda operation: kinds.append(operation.kind)), settings=ROOMY)
    log.append([frame_of(b"first")])
    size = file_size(disk, log)
    assert size == log.size + ROOM_BYTES
    kinds.clear()
    for _ in range(100):
        log.append([frame_of(b"next")])
    assert set(kinds) == {"write_at"}
    assert file_size(disk, log) == size
    assert log.segments[-1].room == size - log.size
    log.sync()
    assert len(values_of(log)) == 101


def test_a_large_append_leaves_no_room_behind_it() -> None:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk), settings=ROOMY)
    log.append([frame_of(b"small")])
    log.append([frame_of(b"x" * ROOM_BYTES)])
    assert file_size(disk, log) == log.size
    log.append([frame_of(b"x" * 5_000)])
    assert file_size(disk, log) == log.size
    log.sync()
    assert [len(value or b"") for value in values_of(log)] == [5, ROOM_BYTES, 5_000]


@pytest.mark.parametrize("end", [Log.roll, Log.close, lambda log: log.truncate(2)])
def test_no_room_is_left_at_the_end_of_a_segment_that_is_sealed_closed_or_truncated(end: Callable[[Log], None]) -> None:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk), settings=ROOMY)
    fill(log, 3)
    active = log.segments[-1]
    assert active.room
    end(log)
    assert len(disk.names[active.name].durable) == (active.size if end in (Log.roll, Log.close) else log.size)
    log.close()
    again = open_log(MemoryFiles(disk), settings=ROOMY)
    assert again.recovered_cleanly


def test_a_disk_too_full_for_room_takes_the_message_without() -> None:
    trouble = Trouble("write", DiskFull("no space left"), written=300)
    disk = MemoryDisk()
    log = troubled(trouble, disk)
    fill(log, 2)
    log.roll()
    active = log.segments[-1]
    trouble.is_on = True
    trouble.left = 1
    log.append([frame_of(b"it fits")])
    assert (active.room, file_size(disk, log)) == (0, log.segments[-1].size)
    log.sync()
    assert values_of(log)[-1] == b"it fits"


@pytest.mark.parametrize("end", [Log.roll, Log.close, lambda log: log.truncate(0)])
@pytest.mark.parametrize(("kind", "error"), [("truncate", DeviceFailed("EIO")), ("sync", SyncFailed("EIO"))])
def test_a_disk_that_fails_while_room_is_taken_away_is_fatal(
    kind: str, error: StorageError, end: Callable[[Log], None]
) -> None:
    disk = MemoryDisk()
    trouble = Trouble(kind, error)
    log = troubled(trouble, disk)
    values = fill(log, 2)
    assert log.segments[-1].room
    trouble.is_on = True
    with pytest.raises(Fatal):
        end(log)
    trouble.is_on = False
    if end is not Log.close:
        with pytest.raises(Fatal):
            log.append([frame_of(b"no more")])
    assert values_of(open_log(MemoryFiles(disk.after_kill()))) == values


@pytest.mark.parametrize("is_overwriting", [True, False])
def test_what_an_append_that_failed_left_is_off_the_disk_before_the_segment_is_sealed(is_overwriting: bool) -> None:
    """Else a power loss could bring it back, behind the frames of a segment that must be whole."""
    disk = MemoryDisk()
    trouble = Trouble("write_at" if is_overwriting else "write", DiskFull("no space left"), written=50)
    log = troubled(trouble, disk)
    values = fill(log, 5 if is_overwriting else 6)
    trouble.is_on = True
    with pytest.raises(DiskFull):
        log.append([frame_of(b"too much")])
    trouble.is_on = False
    sealed = log.segments[-1]
    log.roll()
    assert disk.names[sealed.name].pending == []
    for seed in range(20):
        assert values_of(open_log(MemoryFiles(disk.after_power_loss(Random(seed))))) == values


@pytest.mark.parametrize("kind", ["create", "lock"])
def test_a_read_only_directory_is_refused(kind: str) -> None:
    trouble = Trouble(kind, StorageReadOnly("read-only file system"), ending="")
    trouble.is_on = True
    with pytest.raises(StorageReadOnly):
        troubled(trouble)


def test_a_read_error_is_fatal_and_typed() -> None:
    trouble = Trouble("read", DeviceFailed("input/output error"))
    log = troubled(trouble)
    fill(log, 3)
    trouble.is_on = True
    with pytest.raises(DeviceFailed):
        log.read(0)


def test_damage_found_while_reading_is_named_by_file_position_and_nothing_wrong_is_handed_out() -> None:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk))
    fill(log, 3)
    size = len(frame_of(b"0-" + b"x" * 100, keys=[b"k0"]).data)
    disk.names[log.segments[0].name].current[64 + size + 10] ^= 1
    with pytest.raises(LogCorrupt) as caught:
        log.read(0)
    assert caught.value.details["file"] == log.segments[0].name
    assert caught.value.details["position"] == 64 + size


def test_two_logs_of_a_partition_are_two_instances_of_the_same_class(tmp_path: Path) -> None:
    messages, deliveries = (open_log(DiskFiles(tmp_path / name)) for name in ("messages", "deliveries"))
    messages.append([Frame.of_message(Message(b"m"), now_us=1)])
    deliveries.append([Frame.of_message(Message(b"d"), now_us=1)])
    messages.sync()
    deliveries.sync()
    assert (values_of(messages), values_of(deliveries)) == ([b"m"], [b"d"])
    assert messages.log_id != deliveries.log_id


def test_what_was_appended_last_is_read_without_what_lies_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(MemoryFiles(), settings=LogSettings())
    sizes = [len(frame.data) for frame in append_singly(log, 100)]
    lengths: list[int] = []
    real = MemoryFile.read_at

    def read_at(file: MemoryFile, position: int, length: int) -> bytes:
        lengths.append(length)
        return real(file, position, length)

    monkeypatch.setattr(MemoryFile, "read_at", read_at)
    for back in (1, 2, 8):
        lengths.clear()
        (frame, *_) = log.read(100 - back, bytes_max=1 << 20)
        assert frame.base_offset == 100 - back
        assert lengths == [sum(sizes[-back:])]
    log.close()


def test_where_the_last_appends_were_is_forgotten_with_what_is_cut_off() -> None:
    log = open_log(MemoryFiles(), settings=LogSettings())
    append_singly(log, 20)
    log.truncate(13)
    append_singly(log, 9, width=50)
    assert [row.value for row in rows_of(log)] == [*(b"%d" % n for n in range(13)), *(b"%050d" % n for n in range(9))]
    for offset, row in enumerate(rows_of(log)):
        assert rows_of(log, offset)[0] == row
    log.close()


def append_singly(log: Log, count: int, width: int = 0) -> list[Frame]:
    frames = [frame_of(b"%0*d" % (width, number)) for number in range(count)]
    for frame in frames:
        log.append([frame])
    log.sync()
    return frames
