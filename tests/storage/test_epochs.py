"""The lineage of a log: which epoch begins where."""

from __future__ import annotations

import pytest

from penstock.errors import DiskFull, InvalidInput, SyncFailed, UnknownFormat
from penstock.frame import CONTROL
from penstock.storage import epochs
from penstock.storage.compaction import compact
from penstock.storage.epochs import Epoch, epoch_at, write_epochs
from penstock.storage.log import Log
from penstock.storage.merge import merge_small_frames
from penstock.testing import FaultyFiles, ManualClock, MemoryDisk, MemoryFiles, Operation
from replicas import all_frames, check_lineage
from support import fill, frame_of, open_log

LINEAGE = (Epoch(1, 0), Epoch(2, 11), Epoch(5, 22))


def reopened(disk: MemoryDisk) -> Log:
    return open_log(MemoryFiles(disk.after_kill()))


def log_of(files: MemoryFiles, *numbers: int) -> Log:
    """Ten messages of each epoch."""
    log = open_log(files)
    for number in numbers:
        log.append_epoch_start(number)
        fill(log, 10)
    return log


# --- what a lineage says ------------------------------------------------------------------------------------


def test_an_offset_is_of_the_epoch_that_began_last_before_it() -> None:
    assert [epoch_at(LINEAGE, offset) for offset in (0, 10, 11, 21, 22, 99)] == [1, 1, 2, 2, 5, 5]
    assert epoch_at((), 7) == 0


def test_a_log_without_epochs_is_of_epoch_0() -> None:
    files = MemoryFiles()
    log = open_log(files)
    assert (log.lineage, log.last_epoch) == ((), 0)
    fill(log, 3)
    assert (log.lineage, log.last_epoch) == ((Epoch(0, 0),), 0)
    assert epochs.NAME not in files.names()
    log.append_epoch_start(4)
    assert log.lineage == (Epoch(0, 0), Epoch(4, 3))


def test_opening_a_log_without_epochs_reads_no_more_than_before() -> None:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk))
    fill(log, 3)
    log.close()
    read: list[str] = []
    log = open_log(FaultyFiles(MemoryFiles(disk), lambda operation: read.append(operation.name)))
    assert not [name for name in read if name in ("epochs", "reset")]


# --- epochs -------------------------------------------------------------------------------------------------


def test_an_epoch_begins_with_a_frame_without_messages() -> None:
    log = log_of(MemoryFiles(), 1, 2)
    starts = [frame for frame in all_frames(log) if not frame.count]
    assert [(frame.leader_epoch, frame.base_offset, frame.span, frame.flags) for frame in starts] == [
        (1, 0, 1, CONTROL),
        (2, 11, 1, CONTROL),
    ]
    assert {frame.leader_epoch for frame in all_frames(log) if frame.base_offset > 11} == {2}
    assert len(log.read(0, until=1)) == 0, "readers do not see it"


@pytest.mark.parametrize("epoch", [0, 2, -1, 1 << 32, "3"])
def test_an_epoch_that_does_not_follow_the_last_is_refused(epoch: int) -> None:
    log = log_of(MemoryFiles(), 2)
    with pytest.raises(InvalidInput, match="does not follow"):
        log.append_epoch_start(epoch)
    assert log.end_offset == 11


def test_messages_of_an_earlier_epoch_are_refused() -> None:
    log = log_of(MemoryFiles(), 2)
    for epoch in (1, 1 << 32):
        with pytest.raises(InvalidInput, match="does not follow"):
            log.append([frame_of(b"late")], leader_epoch=epoch)
    log.append([frame_of(b"in time")], leader_epoch=2)
    assert log.end_offset == 12


def test_the_id_of_an_epoch_outlives_kills_cuts_and_resets() -> None:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk))
    for epoch, epoch_id in ((1, 77), (2, (1 << 32) - 1), (3, 0)):
        log.append_epoch_start(epoch, epoch_id)
        fill(log, 10)
    lineage = (Epoch(1, 0, 77), Epoch(2, 11, (1 << 32) - 1), Epoch(3, 22))
    assert log.lineage == reopened(disk).lineage == lineage
    log.truncate(20)
    assert log.lineage == reopened(disk).lineage == lineage[:2]
    log.reset(50, epoch=log.lineage[-1])
    assert log.lineage == reopened(disk).lineage == lineage[1:2]


def test_an_id_that_was_lost_with_the_file_is_not_known() -> None:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk))
    log.append_epoch_start(1, 77)
    fill(log, 10)
    log.close()
    files = MemoryFiles(disk)
    files.remove(epochs.NAME)
    assert open_log(files).lineage == (Epoch(1, 0),)


def test_an_epoch_is_on_disk_before_its_first_frame_is_written() -> None:
    disk = MemoryDisk()
    written: list[str] = []

    def before(operation: Operation) -> None:
        if operation.kind in ("write", "write_at", "rename", "sync", "sync directory"):
            written.append(f"{operation.kind} {operation.name}")

    log = open_log(FaultyFiles(MemoryFiles(disk), before))
    written.clear()
    log.append_epoch_start(1)
    assert [name.split()[0] for name in written] == ["write", "sync", "rename", "sync", "write"]
    assert "epochs" in written[2]
    assert written[4].endswith(".log")
    written.clear()
    log.append([frame_of(b"a")])
    assert len(written) == 1, "once for an epoch"


# --- what it survives ---------------------------------------------------------------------------------------


def test_it_survives_merging_compaction_and_restarts() -> None:
    files = MemoryFiles()
    log = log_of(files, 1, 2, 5)
    log.roll()
    for segment in log.segments[:-1]:
        assert merge_small_frames(log, segment)
    assert {(frame.leader_epoch, bool(frame.count)) for frame in all_frames(log)} == {
        (epoch, has) for epoch in (1, 2, 5) for has in (True, False)
    }
    assert log.lineage == LINEAGE
    compact(log, now_us=1 << 50, tombstone_age_us=1)
    check_lineage(log)
    assert log.lineage == reopened(files.disk).lineage == LINEAGE
    log.close()
    assert open_log(MemoryFiles(files.disk)).lineage == LINEAGE


def test_retention_leaves_the_epoch_of_the_start() -> None:
    files = MemoryFiles()
    log = log_of(files, 1, 2, 5)
    for start, lineage in ((10, LINEAGE), (11, LINEAGE), (12, LINEAGE[1:]), (33, LINEAGE[2:])):
        log.delete_prefix(start)
        assert log.lineage == reopened(files.disk).lineage == lineage
    assert (log.start_offset, log.end_offset, log.last_epoch) == (33, 33, 5)
    log.append_epoch_start(6)
    assert reopened(files.disk).lineage == log.lineage == (Epoch(5, 22), Epoch(6, 33))
    log.truncate(33)
    assert reopened(files.disk).lineage == log.lineage == (Epoch(5, 22),)


def test_a_truncation_takes_epochs_with_it_and_others_come_in_their_place() -> None:
    files = MemoryFiles()
    log = log_of(files, 1, 2, 5)
    log.truncate(22)
    assert (log.lineage, log.last_epoch) == (LINEAGE[:2], 2)
    assert reopened(files.disk).lineage == LINEAGE[:2]
    log.append([frame_of(b"still of 2")])
    log.sync()
    # The file that knew of epoch 5 must not be believed now that the log has grown beyond it.
    assert reopened(files.disk).lineage == log.lineage == LINEAGE[:2]
    log.truncate(5)
    log.append_epoch_start(7)
    assert reopened(files.disk).lineage == log.lineage == (Epoch(1, 0), Epoch(7, 5))
    log.truncate(0)
    assert (log.lineage, log.last_epoch) == ((), 0)


def test_an_epoch_whose_first_frame_could_not_be_written_never_was() -> None:
    disk = MemoryDisk()
    is_full = False

    def before(operation: Operation) -> None:
        if is_full and operation.kind.startswith("write") and operation.name.endswith(".log"):
            raise DiskFull("no space left")

    log = open_log(FaultyFiles(MemoryFiles(disk), before))
    log.append_epoch_start(1)
    is_full = True
    with pytest.raises(DiskFull):
        log.append_epoch_start(2)
    is_full = False
    assert log.lineage == reopened(disk).lineage == (Epoch(1, 0),)
    log.append([frame_of(b"still of 1")])
    log.sync()
    assert log.lineage == reopened(disk).lineage == (Epoch(1, 0),)
    check_lineage(reopened(disk))


def test_a_log_whose_lineage_could_not_be_synced_stops() -> None:
    is_broken = False

    def before(operation: Operation) -> None:
        if is_broken and operation.kind == "sync":
            raise SyncFailed("fsync")

    log = open_log(FaultyFiles(MemoryFiles(), before))
    is_broken = True
    with pytest.raises(SyncFailed):
        log.append_epoch_start(1)
    with pytest.raises(SyncFailed):
        log.append([frame_of(b"a")])


# --- when the file is lost or damaged -----------------------------------------------------------------------


def damaged(disk: MemoryDisk, data: bytes | None) -> Log:
    copy = disk.after_kill()
    if data is None:
        del copy.names[epochs.NAME]
    else:
        copy.names[epochs.NAME].current[:] = data
    return open_log(MemoryFiles(copy))


def test_a_lineage_that_is_missing_or_damaged_is_rebuilt_from_the_frames() -> None:
    files = MemoryFiles()
    log = log_of(files, 1, 2, 5)
    data = bytes(files.disk.names[epochs.NAME].current)
    other = MemoryFiles()
    write_epochs(other, log.log_id, LINEAGE[:1])
    older = bytes(other.disk.names[epochs.NAME].current)
    write_epochs(other, bytes(16), LINEAGE)
    foreign = bytes(other.disk.names[epochs.NAME].current)
    write_epochs(other, log.log_id, LINEAGE[::-1])
    disordered = bytes(other.disk.names[epochs.NAME].current)
    for bad in (
        None,
        b"",
        data[:20],
        data[:-1],
        data + b"x",
        data[:40] + b"\1" + data[41:],
        older,
        foreign,
        disordered,
    ):
        found = damaged(files.disk, bad)
        assert found.lineage == LINEAGE
        assert "rebuilt from the frames" in found.recovery_notes[-1]
        found.append([frame_of(b"a")])
        found.sync()
        assert found.lineage == LINEAGE
        found.close()


def test_what_is_rebuilt_is_written_ahead_of_the_next_frame() -> None:
    files = MemoryFiles()
    log_of(files, 1, 2, 5)
    copy = files.disk.after_kill()
    del copy.names[epochs.NAME]
    found = open_log(MemoryFiles(copy))
    found.append_epoch_start(6)
    found = reopened(copy)
    assert found.lineage == (*LINEAGE, Epoch(6, 33))
    assert not [note for note in found.recovery_notes if "lineage" in note]


def test_a_log_whose_front_is_gone_is_of_the_epoch_of_its_first_frame() -> None:
    files = MemoryFiles()
    log = log_of(files, 1, 2, 5)
    log.delete_prefix(15)
    found = damaged(files.disk, None)
    assert [entry.epoch for entry in found.lineage] == [2, 5]
    assert found.lineage[0].first_offset <= 15
    assert found.lineage[1] == LINEAGE[2]


def test_a_lineage_of_a_later_version_is_refused() -> None:
    files = MemoryFiles()
    log_of(files, 1)
    data = bytes(files.disk.names[epochs.NAME].current)
    with pytest.raises(UnknownFormat, match="version 2"):
        damaged(files.disk, b"PNE\x02" + data[4:])


def test_offsets_that_were_passed_over_are_of_the_last_epoch() -> None:
    """A log that tells of messages before they are on disk, and loses power, goes on with a hole."""
    files, clock = MemoryFiles(), ManualClock()
    log = open_log(files, clock)
    log.append_epoch_start(3)
    log.sync_within(1_000_000)
    log.append([frame_of(b"lost")])
    found = reopened(files.disk)
    assert found.end_offset > 2
    assert found.lineage == (Epoch(3, 0),)
    check_lineage(found)
