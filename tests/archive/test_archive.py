"""Commits: exactly once, all or nothing, one after the other whoever makes them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from threading import Barrier, Thread

import msgspec
import pytest

from archive.support import offsets_of, rows, written
from penstock.archive import Archive, PartitionWriter
from penstock.archive.layout import commit_name
from penstock.errors import (
    ArchiveConflict,
    ArchiveCorrupt,
    ArchiveNotFound,
    InvalidInput,
    MessagesMissing,
    UnknownFormat,
    Unsupported,
)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive.open(tmp_path, create=True)


def test_what_is_committed_is_read_by_whoever_opens_it_next(archive: Archive, tmp_path: Path) -> None:
    archive.commit("w", 0, written(tmp_path, 0, 10))
    archive.commit("w", 1, [*written(tmp_path, 10, 20), *written(tmp_path, 5, 7, partition=3)])
    again = Archive.open(tmp_path.as_uri())
    assert offsets_of(again, 0, 20) == list(range(20))
    assert offsets_of(again, 7, 12) == [7, 8, 9, 10, 11]
    assert again.covered("id") == {0: 20, 3: 7}
    assert again.covered("another") == {}
    assert again.topics() == {"id": "t"}
    assert again.last_batch("w") == 1
    assert [os.path.getsize(again.path_of(entry)) for entry in again.files()] == [e.bytes for e in again.files()]


def test_a_directory_that_is_no_archive_is_not_taken_for_one(tmp_path: Path) -> None:
    with pytest.raises(ArchiveNotFound, match=str(tmp_path)):
        Archive.open(tmp_path)
    with pytest.raises(ArchiveNotFound):
        Archive.open(tmp_path / "nowhere")


def test_a_place_without_atomic_commits_is_refused_before_anything_is_written() -> None:
    with pytest.raises(Unsupported, match="can be read, but not written"):
        Archive.open("mock:///archive", create=True)
    with pytest.raises(InvalidInput, match="no place for an archive"):
        Archive.open("nonsense://archive")


def test_a_batch_that_is_committed_again_changes_nothing(archive: Archive, tmp_path: Path) -> None:
    first = archive.commit("w", 0, written(tmp_path, 0, 10))
    # A task that was tried again has written its files anew.
    assert archive.commit("w", 0, written(tmp_path, 0, 10)) == first
    assert len(archive.files()) == 1
    assert offsets_of(archive, 0, 10) == list(range(10))
    with pytest.raises(ArchiveConflict, match="committed before, and had other offsets"):
        archive.commit("w", 0, written(tmp_path, 10, 20))


def test_a_commit_that_overlaps_is_refused_and_says_where_to_go_on(archive: Archive, tmp_path: Path) -> None:
    archive.commit("w", 0, written(tmp_path, 0, 10))
    for first, end in ((0, 10), (5, 15), (9, 10)):
        with pytest.raises(ArchiveConflict, match="archived up to 10") as refused:
            archive.commit("other", 0, written(tmp_path, first, end))
        assert refused.value.details["covered"] == 10
    with pytest.raises(ArchiveConflict):
        archive.commit("other", 0, [*written(tmp_path, 10, 20), *written(tmp_path, 15, 25)])
    assert archive.covered("id") == {0: 10}


def test_a_gap_is_refused_unless_it_is_known_to_be_one(archive: Archive, tmp_path: Path) -> None:
    archive.commit("w", 0, written(tmp_path, 5, 10))
    with pytest.raises(ArchiveConflict, match="gap"):
        archive.commit("w", 1, written(tmp_path, 12, 20))
    archive.commit("w", 1, written(tmp_path, 12, 20), allow_gaps=True)
    with pytest.raises(MessagesMissing, match="at offset 10") as missing:
        offsets_of(archive, 5, 20)
    assert (missing.value.details["first"], missing.value.details["end"]) == (10, 12)
    # What was found after all fits in between.
    archive.commit("w", 2, written(tmp_path, 10, 12))
    assert offsets_of(archive, 5, 20) == list(range(5, 20))


def test_a_topic_that_was_made_anew_is_another_one(archive: Archive, tmp_path: Path) -> None:
    archive.commit("w", 0, written(tmp_path, 0, 10))
    archive.commit("w", 1, written(tmp_path, 0, 3, topic_id="new"))
    assert archive.covered("new") == {0: 3}
    assert archive.covered("id") == {0: 10}
    assert offsets_of(archive, 0, 3, topic_id="new") == [0, 1, 2]


def test_what_is_left_of_a_writer_that_died_does_not_count(archive: Archive, tmp_path: Path) -> None:
    archive.commit("w", 0, written(tmp_path, 0, 10))
    written(tmp_path, 10, 20)
    (tmp_path / "_penstock" / "new-0123").write_bytes(b"half of a com")
    writer = PartitionWriter(tmp_path, topic="t", topic_id="id", partition=0, first_offset=10)
    writer.write(rows(10, 15))
    again = Archive.open(tmp_path)
    assert again.covered("id") == {0: 10}
    again.commit("w", 1, written(tmp_path, 10, 20))
    assert offsets_of(again, 0, 20) == list(range(20))
    writer.abort()
    # Of three attempts at 10 to 20 the two that are whole are there, and the first ten.
    assert len(list(tmp_path.glob("topic=t/date=*/*.parquet"))) == 3


def test_two_writers_at_the_same_time_and_one_of_them_loses(archive: Archive, tmp_path: Path) -> None:
    start, outcomes = Barrier(2), []

    def work(name: str) -> None:
        mine, entries = Archive.open(tmp_path), written(tmp_path, 0, 10)
        start.wait()
        try:
            outcomes.append(mine.commit(name, 0, entries))
        except ArchiveConflict as error:
            outcomes.append(error.code)

    threads = [Thread(target=work, args=[name]) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, outcomes)) == ["1", "archive_conflict"]
    assert offsets_of(Archive.open(tmp_path), 0, 10) == list(range(10))


def test_a_writer_that_was_overtaken_by_another_partition_goes_on_behind_it(archive: Archive, tmp_path: Path) -> None:
    slow = Archive.open(tmp_path)
    entries = written(tmp_path, 0, 5, partition=1)
    assert archive.commit("a", 0, written(tmp_path, 0, 10)) == 1
    assert slow.commit("b", 0, entries) == 2
    archive.refresh()
    assert archive.covered("id") == {0: 10, 1: 5}


def test_a_file_that_is_not_there_or_not_whole_is_not_committed(archive: Archive, tmp_path: Path) -> None:
    (entry,) = written(tmp_path, 0, 10)
    os.truncate(tmp_path / entry.path, entry.bytes - 1)
    with pytest.raises(InvalidInput, match="bytes"):
        archive.commit("w", 0, [entry])
    os.unlink(tmp_path / entry.path)
    with pytest.raises(InvalidInput, match="is not there"):
        archive.commit("w", 0, [entry])
    with pytest.raises(InvalidInput, match="within the archive"):
        archive.commit("w", 0, [msgspec.structs.replace(entry, path="../other")])
    with pytest.raises(InvalidInput, match="can't be in offsets"):
        archive.commit("w", 0, [msgspec.structs.replace(entry, end_offset=0)])
    assert archive.files() == []


def test_a_checkpoint_says_what_its_commits_say(tmp_path: Path) -> None:
    archive = Archive.open(tmp_path, create=True, checkpoint_every=3)
    for batch in range(7):
        archive.commit("w", batch, written(tmp_path, batch * 2, batch * 2 + 2))
    whole = [Archive.open(tmp_path).files()]
    names = sorted(path.name for path in (tmp_path / "_penstock").glob("*.checkpoint"))
    assert names == [f"{number:020d}.checkpoint" for number in (3, 6)]
    # Nobody needs the commits that it stands for, nor the checkpoints if all commits are there.
    for number in range(1, 7):
        (tmp_path / commit_name(number)).rename(tmp_path / f"kept-{number}")
    whole.append(Archive.open(tmp_path).files())
    assert Archive.open(tmp_path).last_batch("w") == 6
    for number in range(1, 7):
        (tmp_path / f"kept-{number}").rename(tmp_path / commit_name(number))
    for name in names:
        (tmp_path / "_penstock" / name).unlink()
    whole.append(Archive.open(tmp_path).files())
    assert whole[0] == whole[1] == whole[2] == archive.files()


def test_a_manifest_with_damage_or_a_hole_is_refused_by_name(archive: Archive, tmp_path: Path) -> None:
    for batch in range(3):
        archive.commit("w", batch, written(tmp_path, batch, batch + 1))
    commit = tmp_path / commit_name(2)
    sound = commit.read_bytes()
    commit.write_bytes(sound.replace(b'"batch":1', b'"batch":7'))
    with pytest.raises(ArchiveCorrupt, match=r"00002\.commit"):
        Archive.open(tmp_path)
    commit.unlink()
    with pytest.raises(ArchiveCorrupt, match=r"00002\.commit .* is missing"):
        Archive.open(tmp_path)
    commit.write_bytes(sound)
    Archive.open(tmp_path)


def test_an_archive_of_a_later_version_is_not_guessed_at(archive: Archive, tmp_path: Path) -> None:
    from penstock.archive.layout import FORMAT_NAME, Format, encoded

    (tmp_path / FORMAT_NAME).write_bytes(encoded(Format(version=2)))
    with pytest.raises(UnknownFormat, match="version 2"):
        Archive.open(tmp_path)


@pytest.mark.parametrize("commits", [3, 5, 8], ids=["fewer", "as many", "more"])
def test_an_archive_that_was_made_anew_is_seen_by_those_who_have_it_open(tmp_path: Path, commits: int) -> None:
    where = tmp_path / "a"
    writer = Archive.open(where, create=True)
    for batch in range(5):
        writer.commit("w", batch, written(where, batch * 10, batch * 10 + 10))
    reader = Archive.open(where)
    shutil.rmtree(where)
    with pytest.raises(ArchiveNotFound):
        reader.refresh()
    other = Archive.open(where, create=True)
    for batch in range(commits):
        other.commit("w", batch, written(where, batch * 2, batch * 2 + 2))
    reader.refresh()
    assert reader.files() == other.files()
    assert offsets_of(reader, 0, 6) == list(range(6))
    # Whoever writes does not go on as if nothing had happened.
    with pytest.raises(ArchiveConflict, match="was made anew, or set back"):
        writer.commit("w", 5, written(where, 50, 60))
    assert Archive.open(where).files() == other.files()


def test_an_archive_that_was_set_back_is_seen_by_those_who_have_it_open(tmp_path: Path) -> None:
    where = tmp_path / "a"
    writer = Archive.open(where, create=True)
    writer.commit("w", 0, written(where, 0, 10))
    shutil.copytree(where, tmp_path / "copy")
    writer.commit("w", 1, written(where, 10, 20))
    reader = Archive.open(where)
    shutil.rmtree(where)
    (tmp_path / "copy").rename(where)
    reader.refresh()
    assert reader.covered("id") == {0: 10}


def test_commits_that_are_vacuumed_away_under_an_open_archive_are_no_new_archive(tmp_path: Path) -> None:
    writer = Archive.open(tmp_path, create=True, checkpoint_every=2)
    writer.commit("w", 0, written(tmp_path, 0, 2))
    idle = Archive.open(tmp_path)
    for batch in range(1, 7):
        writer.commit("w", batch, written(tmp_path, batch * 2, batch * 2 + 2))
    (tmp_path / commit_name(1)).unlink()
    idle.commit("other", 0, written(tmp_path, 14, 16))
    assert idle.covered("id") == {0: 16}


def test_a_listing_that_is_not_of_one_moment_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = Archive.open(tmp_path, create=True), Archive.open(tmp_path)
    for batch in range(2):
        writer.commit("w", batch, written(tmp_path, batch, batch + 1))
    listings = [["00000000000000000002.commit"], reader.place.names("_penstock")]
    monkeypatch.setattr(reader.place, "names", lambda directory: listings.pop(0))
    reader.refresh()
    assert reader.covered("id") == {0: 2}


def test_a_batch_without_a_number_is_the_next_one_whoever_comes_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Archive.open(tmp_path, create=True), Archive.open(tmp_path)
    publish, entries = one.place.publish, written(tmp_path, 0, 5)

    def late(path: str, data: bytes, **more: bool) -> bool:
        if not other.files():
            other.commit("same name", None, written(tmp_path, 0, 5, topic_id="another"))
        return publish(path, data, **more)

    monkeypatch.setattr(one.place, "publish", late)
    one.commit("same name", None, entries)
    assert Archive.open(tmp_path).last_batch("same name") == 1
    assert {entry.topic_id for entry in one.files()} == {"id", "another"}


def test_secrets_in_a_uri_are_not_shown() -> None:
    with pytest.raises(InvalidInput) as raised:
        Archive.open("nosuch://AKIAKEY:SEC@RET@bucket/archive")
    assert "SEC" not in raised.value.message
    assert "***@bucket/archive" in raised.value.message
