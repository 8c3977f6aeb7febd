"""A log that begins anew at another offset."""

from __future__ import annotations

import pytest

from penstock.errors import DiskFull, InvalidInput, LogCorrupt, OffsetOutOfRange, UnknownFormat
from penstock.storage import reset
from penstock.storage.epochs import Epoch
from penstock.storage.log import Log
from penstock.storage.reset import Reset, write_reset
from penstock.testing import FaultyFiles, MemoryDisk, MemoryFiles, Operation
from support import fill, frame_of, open_log, values_of


def test_a_reset_log_is_empty_and_goes_on_from_there() -> None:
    for start in (0, 3, 200, 5000):
        disk = MemoryDisk()
        log = open_log(MemoryFiles(disk))
        fill(log, 200)
        log.hold_back(100)
        log_id = log.log_id
        log.reset(start)
        assert (log.start_offset, log.committed_offset, log.end_offset, log.whole_from) == (start,) * 4
        assert log.log_id == log_id
        log.append_epoch_start(1)
        assert log.append([frame_of(b"new")]).base_offsets == [start + 1]
        log.hold_back(None)
        log.sync()
        for found in (log, open_log(MemoryFiles(disk.after_kill()))):
            assert values_of(found) == [b"new"]
            assert (found.start_offset, found.lineage) == (start, (Epoch(1, start),))
        assert reset.NAME not in disk.names
        log.close()
        assert open_log(MemoryFiles(disk)).recovered_cleanly


def test_it_may_know_of_which_epoch_what_lay_below_was() -> None:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk))
    log.append_epoch_start(9)
    log.reset(50, epoch=Epoch(4, 20))
    for found in (log, open_log(MemoryFiles(disk.after_kill()))):
        assert (found.lineage, found.last_epoch) == ((Epoch(4, 20),), 4)
    log.reset(60)
    for found in (log, open_log(MemoryFiles(disk.after_kill()))):
        assert (found.lineage, found.last_epoch) == ((), 0)


def test_readers_are_told_that_the_offset_is_gone() -> None:
    log = open_log(MemoryFiles())
    fill(log, 100)
    log.reset(500)
    with pytest.raises(OffsetOutOfRange):
        log.read(50)


@pytest.mark.parametrize("start", [-1, 1 << 63, "7", None])
def test_an_offset_that_is_none_is_refused(start: int) -> None:
    log = open_log(MemoryFiles())
    fill(log, 3)
    with pytest.raises(InvalidInput):
        log.reset(start)
    assert len(values_of(log)) == 3


@pytest.mark.parametrize("epoch", [Epoch(1, 7), Epoch(-1, 0), Epoch(1, -1), Epoch(1 << 32, 0)])
def test_an_epoch_that_did_not_begin_below_is_refused(epoch: Epoch) -> None:
    log = open_log(MemoryFiles())
    with pytest.raises(InvalidInput):
        log.reset(7, epoch=epoch)


def test_without_room_for_its_file_nothing_happens() -> None:
    def before(operation: Operation) -> None:
        if operation.name.startswith("reset"):
            raise DiskFull("no space left")

    log = open_log(FaultyFiles(MemoryFiles(), before))
    fill(log, 3)
    with pytest.raises(DiskFull):
        log.reset(7)
    fill(log, 3)
    assert len(values_of(log)) == 6


def test_a_reset_that_was_cut_short_is_carried_out_by_whoever_opens_the_log() -> None:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk))
    fill(log, 100)
    write_reset(MemoryFiles(disk), Reset(log.log_id, 400, Epoch(2, 9)))
    found = open_log(MemoryFiles(disk.after_kill()))
    assert (found.start_offset, found.end_offset, found.lineage) == (400, 400, (Epoch(2, 9),))
    assert "reset to offset 400" in found.recovery_notes[-1]


def test_a_damaged_or_foreign_file_of_a_reset_is_refused_and_nothing_is_removed() -> None:
    disk = MemoryDisk()
    log = open_log(MemoryFiles(disk))
    fill(log, 100)
    write_reset(MemoryFiles(disk), Reset(log.log_id, 400, None))
    good = bytes(disk.names[reset.NAME].current)
    write_reset(MemoryFiles(disk), Reset(bytes(16), 400, None))
    foreign = bytes(disk.names[reset.NAME].current)
    for bad, error in (
        (b"", LogCorrupt),
        (good[:-1], LogCorrupt),
        (good[:24] + b"\7" + good[25:], LogCorrupt),
        (foreign, LogCorrupt),
        (b"PNR\x02" + good[4:], UnknownFormat),
    ):
        copy = disk.after_kill()
        copy.names[reset.NAME].current[:] = bad
        names = set(copy.names)
        with pytest.raises(error):
            open_log(MemoryFiles(copy))
        assert set(copy.names) == names


def test_a_log_whose_reset_fails_half_way_stops_and_the_next_start_goes_on() -> None:
    disk = MemoryDisk()

    def before(operation: Operation) -> None:
        if operation.kind == "remove" and operation.name.endswith(".log"):
            raise DiskFull("no space left")

    log = open_log(FaultyFiles(MemoryFiles(disk), before))
    fill(log, 100)
    with pytest.raises(Exception, match="half-way"):
        log.reset(400)
    with pytest.raises(Exception, match="half-way"):
        log.append([frame_of(b"a")])
    assert open_log(MemoryFiles(disk.after_kill())).start_offset == 400


def test_indexes_and_rewrites_of_before_are_gone() -> None:
    disk = MemoryDisk()
    log: Log = open_log(MemoryFiles(disk))
    fill(log, 200)
    MemoryFiles(disk).open("00000000000000000000.log.rewrite", "create")
    log.reset(7)
    assert set(disk.names) == {"manifest", "manifest.new", "synced", "00000000000000000007.log"}
