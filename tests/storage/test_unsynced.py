"""A log whose file is synced by somebody else, who says so afterwards."""

from __future__ import annotations

from random import Random

import pytest

from penstock.errors import DeviceFailed, LogClosed, SyncFailed
from penstock.storage.log import Log
from penstock.storage.mark import read_mark
from penstock.testing import Fault, FaultyFiles, MemoryDisk, MemoryFiles, Operation
from support import frame_of, open_log, values_of


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def log(files: MemoryFiles) -> Log:
    return open_log(files)


def marked(files: MemoryFiles, log: Log) -> int:
    mark = read_mark(files, log.log_id)
    assert mark is not None
    return mark.next_offset


def test_what_was_written_until_then_is_on_disk_and_no_more(files: MemoryFiles, log: Log) -> None:
    log.append([frame_of(b"a")])
    unsynced = log.unsynced()
    assert unsynced is not None
    assert log.synced_offset == 0
    log.append([frame_of(b"b")])
    unsynced.file.sync()
    log.synced(unsynced)
    assert (log.synced_offset, log.end_offset, marked(files, log)) == (1, 2, 1)
    assert values_of(log) == [b"a"]
    log.sync()
    assert (log.synced_offset, marked(files, log)) == (2, 2)


def test_a_log_that_is_on_disk_has_nothing_to_sync(log: Log) -> None:
    assert log.unsynced() is None
    log.append([frame_of(b"a")])
    log.sync()
    assert log.unsynced() is None


def test_a_sync_of_the_log_itself_meanwhile_is_not_taken_back(log: Log) -> None:
    log.append([frame_of(b"a")])
    unsynced = log.unsynced()
    assert unsynced is not None
    log.append([frame_of(b"b")])
    log.sync()
    log.synced(unsynced)
    assert log.synced_offset == 2


def test_a_segment_that_was_sealed_meanwhile_changes_nothing(files: MemoryFiles, log: Log) -> None:
    log.append([frame_of(b"a")])
    unsynced = log.unsynced()
    assert unsynced is not None
    log.roll()
    log.append([frame_of(b"b")])
    log.synced(unsynced)
    assert log.synced_offset == 1
    assert values_of(open_log(MemoryFiles(files.disk.after_kill()))) == [b"a", b"b"]


def test_what_was_taken_back_meanwhile_and_written_anew_is_not_taken_for_synced(log: Log) -> None:
    log.append([frame_of(b"a")])
    log.sync()
    log.append([frame_of(b"b")])
    unsynced = log.unsynced()
    assert unsynced is not None
    log.truncate(1)
    log.append([frame_of(b"c"), frame_of(b"d")])
    log.synced(unsynced)
    assert (log.synced_offset, log.end_offset) == (1, 3)


def test_a_failure_is_final(log: Log) -> None:
    log.append([frame_of(b"a")])
    unsynced = log.unsynced()
    assert unsynced is not None
    with pytest.raises(SyncFailed):
        log.synced(unsynced, SyncFailed("fdatasync: Input/output error"))
    assert log.synced_offset == 0
    for again in (lambda: log.append([frame_of(b"b")]), log.sync, log.unsynced, lambda: log.synced(unsynced)):
        with pytest.raises(SyncFailed):
            again()


def test_a_failure_is_told_though_the_log_was_closed_meanwhile(log: Log) -> None:
    log.append([frame_of(b"a")])
    unsynced = log.unsynced()
    assert unsynced is not None
    log.close()
    with pytest.raises(SyncFailed):
        log.synced(unsynced, SyncFailed("fdatasync: Input/output error"))


def test_what_is_more_than_a_write_is_known_before(files: MemoryFiles, log: Log) -> None:
    assert log.merely_writes(100)
    assert log.merely_writes(1 << 20), "a segment that is empty takes anything"
    log.append([frame_of(b"a" * 1000)])
    assert log.merely_writes(100)
    assert not log.merely_writes(4000)


def test_a_log_that_failed_by_itself_meanwhile_believes_no_success(log: Log) -> None:
    log.append([frame_of(b"a")])
    unsynced = log.unsynced()
    assert unsynced is not None
    log._stop(SyncFailed("fdatasync: Input/output error"))
    with pytest.raises(SyncFailed):
        log.synced(unsynced)
    assert log.synced_offset == 0


def test_a_closed_log_has_nothing_to_say(log: Log) -> None:
    log.append([frame_of(b"a")])
    unsynced = log.unsynced()
    assert unsynced is not None
    log.close()
    with pytest.raises(LogClosed):
        log.unsynced()
    with pytest.raises(LogClosed):
        log.synced(unsynced)


def test_a_sync_in_memory_makes_durable_what_was_there_when_it_began() -> None:
    disk = MemoryDisk()
    file = MemoryFiles(disk).open("a", "create")
    disk.sync_names()
    file.write([b"one"])
    end, later = file.begin_sync(), file.begin_sync()
    file.write([b"two"])

    def left() -> set[bytes]:
        return {bytes(disk.after_power_loss(Random(seed)).names["a"].current) for seed in range(50)}

    assert b"" in left()
    end()
    assert {found[:3] for found in left()} == {b"one"}
    assert {b"one", b"onetwo"} <= left()
    last = file.begin_sync()
    last()
    later()
    assert left() == {b"onetwo"}


def test_a_mark_that_can_not_be_written_stops_the_log_and_whoever_writes_next_learns_why() -> None:
    """Nobody waits for a mark that is written later."""
    fails = False

    def before(operation: Operation) -> Fault | None:
        return Fault(DeviceFailed("Input/output error")) if fails and operation == ("write_at", "synced") else None

    log = open_log(FaultyFiles(MemoryFiles(), before))
    log.append([frame_of(b"one")])
    log.marks_later = True
    log.sync()
    log.marks_later = False
    fails = True
    log.mark()
    with pytest.raises(DeviceFailed):
        log.append([frame_of(b"two")])
