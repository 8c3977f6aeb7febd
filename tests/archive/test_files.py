"""The Parquet files: one a day, what is in them, and what becomes of files that are older, newer or damaged."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from archive.support import DAY_US, NOON_US, offsets_of, rows, written
from penstock.archive import COLUMNS, Archive, PartitionWriter, write_files
from penstock.archive.reading import footer_crc
from penstock.errors import ArchiveCorrupt, InvalidInput
from penstock.limits import MIB


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive.open(tmp_path, create=True)


def test_a_range_is_split_by_the_days_of_its_messages(archive: Archive, tmp_path: Path) -> None:
    entries = written(
        tmp_path, 0, 6, batches=[rows(0, 4, step_us=DAY_US // 2), rows(4, 5, time_us=NOON_US + 3 * DAY_US)]
    )
    days = [(entry.path.split("/")[1], entry.first_offset, entry.end_offset, entry.rows) for entry in entries]
    assert days == [
        ("date=2026-01-14", 0, 1, 1),
        ("date=2026-01-15", 1, 3, 2),
        ("date=2026-01-16", 3, 4, 1),
        ("date=2026-01-17", 4, 6, 1),
    ]
    assert entries[1].max_append_time - entries[1].min_append_time == DAY_US // 2
    archive.commit("w", 0, entries)
    assert offsets_of(archive, 0, 6) == [0, 1, 2, 3, 4]


def test_holes_are_covered_and_so_is_a_range_without_anything(archive: Archive, tmp_path: Path) -> None:
    entries = written(tmp_path, 0, 10, batches=[rows(2, 4), rows(7, 8)])
    (nothing,) = written(tmp_path, 10, 15, batches=[])
    assert (nothing.path, nothing.rows, nothing.first_offset, nothing.end_offset) == ("", 0, 10, 15)
    archive.commit("w", 0, [*entries, nothing])
    assert archive.covered("id") == {0: 15}
    assert offsets_of(archive, 0, 15) == [2, 3, 7]


def test_a_file_that_grows_large_is_followed_by_another(tmp_path: Path) -> None:
    entries = write_files(
        tmp_path,
        (rows(first, first + 40_000, size=400) for first in range(0, 160_000, 40_000)),
        topic="t",
        topic_id="id",
        partition=0,
        first_offset=0,
        end_offset=160_000,
        file_bytes=1,
    )
    assert [(entry.first_offset, entry.end_offset) for entry in entries] == [
        (0, 40_000),
        (40_000, 80_000),
        (80_000, 120_000),
        (120_000, 160_000),
    ]


def test_a_reader_from_the_middle_reads_no_more_groups_than_it_must(archive: Archive, tmp_path: Path) -> None:
    writer = PartitionWriter(tmp_path, topic="t", topic_id="id", partition=0, first_offset=0)
    for first in range(0, 150_000, 50_000):
        writer.write(rows(first, first + 50_000, size=400))
    entries = writer.finish(150_000)
    archive.commit("w", 0, entries)
    path = tmp_path / entries[0].path
    assert parquet.ParquetFile(path).num_row_groups == 3
    data = bytearray(path.read_bytes())
    data[200:4_000] = bytes(3_800)
    path.write_bytes(data)
    assert offsets_of(archive, 149_990, 149_995) == list(range(149_990, 149_995))
    with pytest.raises(ArchiveCorrupt):
        offsets_of(archive, 0, 10)


def test_large_messages_are_in_groups_of_their_own(tmp_path: Path) -> None:
    (entry,) = written(tmp_path, 0, 8, batches=[rows(0, 8, size=6 * MIB)])
    groups = parquet.ParquetFile(tmp_path / entry.path).metadata
    assert [groups.row_group(number).num_rows for number in range(groups.num_row_groups)] == [4, 4]


def test_a_damaged_file_is_named(archive: Archive, tmp_path: Path) -> None:
    archive.commit("w", 0, written(tmp_path, 0, 1000))
    (entry,) = archive.files()
    path = tmp_path / entry.path
    sound = path.read_bytes()
    footer = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    for place in (600, footer // 2, footer + 20, (footer + len(sound)) // 2, len(sound) - 6, len(sound) - 1):
        data = bytearray(sound)
        data[place] ^= 0xFF
        path.write_bytes(data)
        with pytest.raises(ArchiveCorrupt) as damaged:
            offsets_of(archive, 0, 1000)
        assert damaged.value.details["file"] == entry.path
        assert entry.path in damaged.value.message
    path.write_bytes(b"")
    with pytest.raises(ArchiveCorrupt, match=entry.path):
        offsets_of(archive, 0, 1000)
    path.unlink()
    with pytest.raises(ArchiveCorrupt, match="is missing"):
        offsets_of(archive, 0, 1000)


def _committed_as(archive: Archive, tmp_path: Path, table: pa.Table) -> None:
    """A file as another version of the writer would have made it."""
    (entry,) = written(tmp_path, 0, 5)
    parquet.write_table(table, tmp_path / entry.path)
    with pa.OSFile(str(tmp_path / entry.path)) as file:
        entry = msgspec.structs.replace(entry, bytes=file.size(), footer_crc=footer_crc(file))
    archive.commit("w", 0, [entry])


def test_columns_that_a_file_has_not_are_null_and_others_are_passed_over(archive: Archive, tmp_path: Path) -> None:
    plain = pa.Table.from_batches([rows(0, 5)])
    _committed_as(archive, tmp_path, plain.append_column("region", pa.array(["eu"] * 5)))
    (batch,) = archive.read("id", 0, 0, 5)
    assert batch.schema == COLUMNS
    assert batch.column("topic").to_pylist() == ["t"] * 5
    assert batch.column("partition").to_pylist() == [0] * 5
    assert batch.column("value").to_pylist() == plain.column("value").to_pylist()
    assert batch.column("headers").null_count == batch.column("expires_at").null_count == 5
    (some,) = archive.read("id", 0, 1, 3, ["key", "offset"])
    assert some.to_pydict() == {"key": [None, None], "offset": [1, 2]}


@pytest.mark.parametrize("column", ["offset", "append_time"])
def test_a_file_without_what_makes_a_row_a_message_is_refused(archive: Archive, tmp_path: Path, column: str) -> None:
    _committed_as(archive, tmp_path, pa.Table.from_batches([rows(0, 5)]).drop_columns([column]))
    with pytest.raises(ArchiveCorrupt, match=f"has no column {column}"):
        offsets_of(archive, 0, 5)


def test_what_does_not_fit_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    bad = [
        ([rows(0, 5), rows(3, 6)], "must ascend, from 5 on"),
        ([rows(0, 20)], "can't end at 10"),
        ([rows(0, 5).drop_columns(["append_time"])], "needs the column append_time"),
        ([rows(0, 5).set_column(2, "value", pa.array([1.5] * 5))], "column value is no binary"),
    ]
    for batches, reason in bad:
        with pytest.raises(InvalidInput, match=reason):
            written(tmp_path, 0, 10, batches=batches)
    assert not list(tmp_path.rglob("*.parquet"))


def test_an_unknown_column_is_refused(archive: Archive, tmp_path: Path) -> None:
    archive.commit("w", 0, written(tmp_path, 0, 5))
    with pytest.raises(InvalidInput, match="no column 'values'"):
        list(archive.read("id", 0, 0, 5, ["values"]))
