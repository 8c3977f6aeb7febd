"""Files are for their user alone, whatever the umask, and what older versions left open is closed at the start."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from archive.support import rows
from penstock.archive import Archive, write_files


@pytest.fixture(autouse=True)
def umask_0() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(directory: Path) -> dict[str, str]:
    """What other users may do with the directory and what is in it."""
    found = [directory, *directory.rglob("*")]
    assert len(found) > 1
    modes = {str(path.relative_to(directory)): stat.S_IMODE(path.stat().st_mode) for path in found}
    return {name: oct(mode) for name, mode in modes.items() if mode & 0o077}


def use(directory: Path) -> None:
    with penstock.open(directory) as q:
        if "t" not in [topic.name for topic in q.topics()]:
            q.create_topic("t", 2)
        q.publish("t", b"x")
        assert q.consumer("g", "t").poll(wait="10s")


def test_data_is_for_its_user_alone(tmp_path: Path) -> None:
    use(tmp_path / "data")
    assert open_to_others(tmp_path / "data") == {}


def test_data_that_an_older_version_left_open_is_closed_at_the_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    use(data)
    for path in [data, *data.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    other = tmp_path / "other"
    other.write_text("not ours")
    other.chmod(0o644)
    (data / "link").symlink_to(other)
    use(data)
    (data / "link").unlink()
    assert open_to_others(data) == {}
    assert stat.S_IMODE(other.stat().st_mode) == 0o644


def write_archive(place: Path) -> None:
    archive = Archive.open(place, create=True)
    entries = write_files(
        place, [rows(0, 10)], topic="t", topic_id="t" * 32, partition=0, first_offset=0, end_offset=10
    )
    archive.commit("archiver", 0, entries)


def test_an_archive_is_for_its_user_alone(tmp_path: Path) -> None:
    write_archive(tmp_path / "archive")
    assert open_to_others(tmp_path / "archive") == {}


def test_an_archive_is_as_open_as_the_directory_that_was_created_for_it(tmp_path: Path) -> None:
    place = tmp_path / "archive"
    place.mkdir()
    place.chmod(0o750)
    write_archive(place)
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in place.rglob("*")}
    assert modes == {(True, 0o750), (False, 0o640)}
