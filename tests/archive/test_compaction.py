"""Small files made to large ones: the same messages, for readers that are at it, too."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from archive.support import DAY_US, NOON_US, offsets_of, rows, written
from penstock.archive import Archive, compact, vacuum
from penstock.archive.layout import FileEntry
from penstock.archive.reading import footer_crc
from penstock.testing import ManualClock

FAR_US = 4_000_000_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    # Later than the disk's own clock, which stamps files.
    return ManualClock(FAR_US)


@pytest.fixture
def archive(tmp_path: Path, clock: ManualClock) -> Archive:
    return Archive.open(tmp_path, create=True, clock=clock, checkpoint_every=4)


def _filled(archive: Archive, tmp_path: Path) -> list[tuple[object, ...]]:
    """Two days of one partition in many files, with holes, and another partition."""
    for batch in range(6):
        first, time_us = batch * 10, NOON_US + batch * DAY_US // 4
        some = rows(first, first + 7, time_us=time_us)
        archive.commit("w", batch, written(tmp_path, first, first + 10, batches=[] if batch == 1 else [some]))
    archive.commit("w", 6, written(tmp_path, 0, 5, partition=1))
    return _content(archive)


def _content(archive: Archive) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for partition, until in archive.covered("id").items():
        for batch in archive.read("id", partition, 0, until):
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def _ranges(files: list[FileEntry]) -> list[tuple[int, int, int]]:
    return [(each.partition, each.first_offset, each.end_offset) for each in files]


def test_compaction_keeps_every_message_and_every_range(archive: Archive, tmp_path: Path) -> None:
    content = _filled(archive, tmp_path)
    before = archive.covered("id")
    assert len(archive.files()) == 7
    assert compact(archive) == 4
    # The first day ends after the second batch with messages; its range without any goes with it.
    assert _ranges(archive.files()) == [(0, 0, 20), (0, 20, 60), (1, 0, 5)]
    assert _content(archive) == _content(Archive.open(tmp_path)) == content
    assert archive.covered("id") == before
    assert compact(archive) == 0


def test_files_with_columns_of_a_later_version_are_left_to_that(archive: Archive, tmp_path: Path) -> None:
    _filled(archive, tmp_path)
    (newer,) = written(tmp_path, 60, 70, batches=[rows(60, 70, time_us=NOON_US + 2 * DAY_US)])
    (older,) = written(tmp_path, 70, 80, batches=[rows(70, 80, time_us=NOON_US + 2 * DAY_US)])
    table = parquet.read_table(tmp_path / newer.path, partitioning=None)
    parquet.write_table(table.append_column("region", pa.array(["eu"] * 10)), tmp_path / newer.path)
    with pa.OSFile(str(tmp_path / newer.path)) as file:
        newer = msgspec.structs.replace(newer, bytes=file.size(), footer_crc=footer_crc(file))
    archive.commit("w", 7, [newer, older])
    compact(archive)
    assert [entry for entry in archive.files() if entry.partition == 0][-2:] == [newer, older]
    assert len(archive.files()) == 5


def test_large_files_are_left_alone(archive: Archive, tmp_path: Path) -> None:
    _filled(archive, tmp_path)
    assert compact(archive, small_bytes=10) == 0
    assert compact(archive, file_bytes=10) == 0


def test_files_to_which_more_may_come_wait_until_there_are_enough(archive: Archive, tmp_path: Path) -> None:
    content = _filled(archive, tmp_path)
    archive.commit("w", 7, written(tmp_path, 5, 9, partition=1))
    # The first day of partition 0 is over: nothing comes to it any more.
    assert compact(archive, last_min=5) == 1
    assert _ranges(archive.files())[:2] == [(0, 0, 20), (0, 20, 30)]
    assert compact(archive, last_min=4) == 3
    assert _ranges(archive.files()) == [(0, 0, 20), (0, 20, 60), (1, 0, 5), (1, 5, 9)]
    assert len(_content(archive)) == len(content) + 4


def test_merges_that_can_wait_are_left_for_another_time(archive: Archive, tmp_path: Path) -> None:
    content = _filled(archive, tmp_path)
    answers = iter([False, True])
    assert compact(archive, is_enough=lambda: next(answers)) == 1
    assert _ranges(archive.files())[:2] == [(0, 0, 20), (0, 20, 30)]
    assert compact(archive) == 3
    assert _content(archive) == content


def test_a_reader_in_the_middle_goes_on_after_compaction_and_vacuum(
    archive: Archive, tmp_path: Path, clock: ManualClock
) -> None:
    for batch in range(4):
        archive.commit("w", batch, written(tmp_path, batch * 10, batch * 10 + 10))
    reader = Archive.open(tmp_path)
    reading = reader.read("id", 0, 0, 40)
    found = next(reading).column("offset").to_pylist()
    compact(archive)
    clock.advance_us(2 * DAY_US)
    assert len(vacuum(archive)) == 4
    for some in reading:
        found += some.column("offset").to_pylist()
    assert found == list(range(40))


def test_vacuum_removes_what_nobody_needs_and_nothing_else(
    archive: Archive, tmp_path: Path, clock: ManualClock
) -> None:
    content = _filled(archive, tmp_path)
    (orphan,) = written(tmp_path, 100, 110)
    (tmp_path / "_penstock" / "new-0123").write_bytes(b"half")
    compact(archive)
    # Removed a moment ago: there may be readers at it. What nobody ever committed is older than that.
    gone = vacuum(archive)
    assert sorted(path for path in gone if not path.endswith(".commit")) == ["_penstock/new-0123", orphan.path]
    clock.advance_us(DAY_US + 1)
    gone = vacuum(archive)
    assert len([path for path in gone if path.endswith(".parquet")]) == 5
    assert {path.name for path in tmp_path.rglob("*.parquet")} == {Path(e.path).name for e in archive.files()}
    assert archive.ledger.removed == {}
    assert _content(Archive.open(tmp_path)) == content
    assert vacuum(archive) == []


def test_vacuum_removes_commits_that_checkpoints_replace(archive: Archive, tmp_path: Path) -> None:
    for batch in range(9):
        archive.commit("w", batch, written(tmp_path, batch * 10, batch * 10 + 10))
    vacuum(archive)
    left = sorted(path.name.lstrip("0") for path in (tmp_path / "_penstock").iterdir())
    assert left == [
        "4.checkpoint",
        "5.commit",
        "6.commit",
        "7.commit",
        "8.checkpoint",
        "8.commit",
        "9.commit",
        "format",
    ]
    assert offsets_of(Archive.open(tmp_path), 0, 90) == list(range(90))


def test_two_who_compact_at_the_same_time_do_it_once(archive: Archive, tmp_path: Path) -> None:
    content = _filled(archive, tmp_path)
    other = Archive.open(tmp_path)
    stale = other.ledger
    compact(archive)
    other._ledger = stale
    assert compact(other) == 0
    assert _content(other) == content
