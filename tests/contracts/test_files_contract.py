"""One suite for every implementation of the `Files` port: the real disk, also with one descriptor for all files that
nobody is using at the moment, the disk in memory, the faulty one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.errors import DirectoryLocked, StorageError
from penstock.storage.files import DiskFiles, Files
from penstock.testing import FaultyFiles, MemoryDisk, MemoryFiles

Open = Callable[[], Files]


@pytest.fixture(params=["disk", "one descriptor", "memory", "faulty"])
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same directory each time it is called."""
    disk = MemoryDisk()
    return {
        "disk": lambda: DiskFiles(tmp_path / "files"),
        "one descriptor": lambda: DiskFiles(tmp_path / "files", descriptors_max=1),
        "memory": lambda: MemoryFiles(disk),
        "faulty": lambda: FaultyFiles(MemoryFiles(disk), before=lambda operation: None),
    }[request.param]


@pytest.fixture
def files(open_again: Open) -> Files:
    return open_again()


def write(files: Files, name: str, data: bytes) -> None:
    file = files.open(name, "create")
    file.write([data])
    file.close()


def read(files: Files, name: str) -> bytes:
    file = files.open(name, "read")
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def test_a_new_directory_is_empty(files: Files) -> None:
    assert files.names() == []


def test_writes_are_appended_in_order(files: Files) -> None:
    file = files.open("a", "create")
    file.write([b"one", memoryview(b"two")])
    file.write([b"three"])
    assert file.read_at(0, 100) == b"onetwothree"
    assert file.size() == 11


def test_more_buffers_than_one_system_call_takes_are_all_written(files: Files) -> None:
    file = files.open("a", "create")
    file.write([b"%04d" % i for i in range(5000)])
    assert file.read_at(0, 20_000) == b"".join(b"%04d" % i for i in range(5000))


def test_a_file_opened_for_append_goes_on_at_its_end(files: Files) -> None:
    write(files, "a", b"one")
    file = files.open("a", "append")
    file.write([b"two"])
    assert read(files, "a") == b"onetwo"


def test_write_at_replaces_bytes_in_the_middle(files: Files) -> None:
    file = files.open("a", "create")
    file.write([b"abcdef"])
    file.write_at(2, b"XY")
    file.write([b"g"])
    assert read(files, "a") == b"abXYefg"


def test_reads_beyond_the_end_are_short(files: Files) -> None:
    write(files, "a", b"abc")
    file = files.open("a", "read")
    assert file.read_at(1, 10) == b"bc"
    assert file.read_at(9, 10) == b""


def test_truncate_shortens_and_later_writes_follow(files: Files) -> None:
    file = files.open("a", "create")
    file.write([b"abcdef"])
    file.truncate(2)
    file.write([b"Z"])
    assert read(files, "a") == b"abZ"


def test_create_refuses_a_name_that_exists(files: Files) -> None:
    write(files, "a", b"")
    with pytest.raises(StorageError):
        files.open("a", "create")


@pytest.mark.parametrize("mode", ["read", "append"])
def test_open_refuses_a_name_that_does_not_exist(files: Files, mode: str) -> None:
    with pytest.raises(StorageError) as caught:
        files.open("a", mode)  # type: ignore[arg-type]
    assert caught.value.details["errno"] == "ENOENT"


def test_a_file_opened_for_reading_can_not_be_written(files: Files) -> None:
    write(files, "a", b"abc")
    with pytest.raises(StorageError):
        files.open("a", "read").write([b"x"])
    assert read(files, "a") == b"abc"


def test_rename_replaces_the_target(files: Files) -> None:
    write(files, "a", b"new")
    write(files, "b", b"old")
    files.rename("a", "b")
    assert files.names() == ["b"]
    assert read(files, "b") == b"new"


def test_a_reader_keeps_the_file_it_opened_when_the_name_is_replaced(files: Files) -> None:
    write(files, "a", b"old")
    reader = files.open("a", "read")
    write(files, "b", b"new")
    files.rename("b", "a")
    assert reader.read_at(0, 10) == b"old"
    files.remove("a")
    assert reader.read_at(0, 10) == b"old"


def test_many_files_are_used_in_turns(files: Files) -> None:
    names = [f"file-{number}" for number in range(20)]
    held = {name: files.directory(name).open("a", "create") for name in names}
    for turn in range(3):
        for name, file in held.items():
            file.write([name.encode(), b"%d" % turn])
            file.sync()
    for name, file in held.items():
        file.truncate(len(name))
        file.write_at(0, b"F")
        file.write_hint(1, b"I")
        file.write([b"!"])
    for name, file in held.items():
        assert file.read_at(0, 100) == b"FI" + name[2:].encode() + b"!"
        assert file.size() == len(name) + 1
        assert read(files.directory(name), "a") == file.read_at(0, 100)


def use_others(files: Files) -> None:
    """Whatever can be closed is closed then, where few may be open."""
    others = [files.open(f"other-{number}", "create") for number in range(3)]
    for other in others:
        other.write([b"x"])
        other.sync()
    for number in range(3):
        files.remove(f"other-{number}")


def test_a_reader_keeps_the_file_it_opened_whatever_happens_to_its_name(files: Files) -> None:
    write(files, "a", b"old")
    reader = files.open("a", "read")
    use_others(files)
    write(files, "b", b"new")
    later = files.open("b", "read")
    use_others(files)
    files.rename("b", "a")
    use_others(files)
    assert [reader.read_at(0, 10), later.read_at(0, 10), read(files, "a")] == [b"old", b"new", b"new"]
    files.remove("a")
    write(files, "a", b"newest")
    use_others(files)
    assert [reader.read_at(0, 10), later.read_at(0, 10), read(files, "a")] == [b"old", b"new", b"newest"]


def test_a_reader_keeps_its_file_when_the_directory_is_removed(files: Files) -> None:
    inner = files.directory("inner")
    write(inner.directory("deep"), "a", b"old")
    reader = inner.directory("deep").open("a", "read")
    use_others(files)
    files.remove_directory("inner")
    write(files.directory("inner").directory("deep"), "a", b"new")
    use_others(files)
    assert reader.read_at(0, 10) == b"old"


def test_a_writer_goes_on_in_its_file_when_that_is_renamed(files: Files) -> None:
    file = files.open("a", "create")
    file.write([b"one"])
    file.sync()
    use_others(files)
    files.rename("a", "b")
    write(files, "a", b"other")
    use_others(files)
    file.write([b"two"])
    assert read(files, "b") == b"onetwo"
    assert read(files, "a") == b"other"


def test_several_openings_of_a_file_are_the_same_file(files: Files) -> None:
    first = files.open("a", "create")
    first.write([b"one"])
    first.sync()
    second = files.open("a", "append")
    use_others(files)
    second.write([b"two"])
    second.sync()
    use_others(files)
    assert first.read_at(0, 10) == second.read_at(0, 10) == b"onetwo"
    first.close()
    use_others(files)
    assert second.read_at(0, 10) == b"onetwo"


def test_all_who_opened_a_file_keep_it_when_it_is_removed(files: Files) -> None:
    write(files, "a", b"old")
    readers = [files.open("a", "read") for _ in range(3)]
    use_others(files)
    files.remove("a")
    write(files, "a", b"new")
    use_others(files)
    assert [reader.read_at(0, 10) for reader in readers] == [b"old"] * 3


def test_a_file_that_was_closed_can_not_be_used_any_more(files: Files) -> None:
    file = files.open("a", "create")
    file.write([b"abc"])
    file.sync()
    assert file.is_open
    use_others(files)
    file.close()
    file.close()
    assert not file.is_open
    with pytest.raises(StorageError) as caught:
        file.read_at(0, 1)
    assert caught.value.details["errno"] == "EBADF"


def test_removing_what_is_not_there_is_an_error(files: Files) -> None:
    with pytest.raises(StorageError):
        files.remove("a")
    with pytest.raises(StorageError):
        files.rename("a", "b")


def test_what_one_opening_wrote_another_one_sees(open_again: Open) -> None:
    first = open_again()
    write(first, "a", b"abc")
    first.sync()
    first.close()
    assert read(open_again(), "a") == b"abc"


def test_a_directory_holds_files_of_its_own(open_again: Open) -> None:
    files = open_again()
    write(files, "a", b"outer")
    write(files.directory("inner"), "a", b"inner")
    again = open_again()
    assert again.names() == ["a"]
    assert again.directories() == ["inner"]
    assert [again.has_directory(name) for name in ("inner", "other", "a")] == [True, False, False]
    assert read(again.directory("inner"), "a") == b"inner"
    assert read(again, "a") == b"outer"


def test_a_directory_is_removed_with_everything_in_it(files: Files) -> None:
    inner = files.directory("inner")
    write(inner.directory("deep"), "a", b"x")
    write(inner, "b", b"x")
    files.remove_directory("inner")
    assert files.directories() == []
    assert files.directory("inner").names() == []
    with pytest.raises(StorageError):
        files.remove_directory("nowhere")


def test_threads_that_look_at_the_same_time_all_see_everything(files: Files) -> None:
    names = sorted(f"inner-{number}" for number in range(100))
    for name in names:
        files.directory(name).close()

    with ThreadPoolExecutor(4) as pool:
        seen = [look.result() for look in [pool.submit(files.directories) for _ in range(200)]]

    assert all(sorted(found) == names for found in seen)


def test_a_directory_tells_how_much_room_there_is_on_its_disk(files: Files) -> None:
    free, total = files.space()
    assert 0 <= free <= total
    assert files.directory("inner").space().total == total


def test_the_directory_can_be_locked_once(open_again: Open) -> None:
    first, second = open_again(), open_again()
    first.lock()
    with pytest.raises(DirectoryLocked):
        second.lock()
    first.close()
    second.lock()


def test_a_directory_in_another_can_be_locked_once_whether_that_is_locked_or_not(open_again: Open) -> None:
    files = open_again()
    for is_locked in (False, True):
        if is_locked:
            files.lock()
        first, second = files.directory("inner"), files.directory("inner")
        first.lock()
        with pytest.raises(DirectoryLocked):
            second.lock()
        first.close()
        second.lock()
        second.close()


def test_to_drop_the_cache_changes_nothing_a_reader_sees(files: Files) -> None:
    write(files, "a", b"one")
    for mode in ("append", "read"):
        file = files.open("a", mode)
        file.drop_cache()
        assert file.read_at(0, 10) == b"one"
        file.close()


def test_sync_changes_nothing_a_reader_sees(files: Files) -> None:
    file = files.open("a", "create")
    file.write([b"abc"])
    file.sync()
    files.sync()
    assert read(files, "a") == b"abc"
