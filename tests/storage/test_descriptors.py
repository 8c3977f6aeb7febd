"""A bounded number of open files: which are closed, which never, and what happens when the system gives no more."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.errors import DiskFull, StorageError, SyncFailed, TooManyOpenFiles
from penstock.frame import Frame
from penstock.message import Message
from penstock.storage.descriptors import shares
from penstock.storage.files import DiskFile, DiskFiles
from penstock.storage.kernel_syncs import KernelSyncs
from penstock.storage.log import Log

BOUND = 4


@pytest.fixture
def files(tmp_path: Path) -> DiskFiles:
    return DiskFiles(tmp_path, descriptors_max=BOUND)


def changed(files: DiskFiles, count: int, first: str = "file") -> list[DiskFile]:
    """Written, not synced."""
    made = []
    for number in range(count):
        made.append(files.open(f"{first}-{number}", "create"))
        made[-1].write([b"x"])
    return made


def unchanged(files: DiskFiles, count: int, first: str = "file") -> list[DiskFile]:
    """Each synced before the next is written."""
    made = []
    for number in range(count):
        made.append(files.open(f"{first}-{number}", "create"))
        made[-1].write([b"x"])
        made[-1].sync()
    return made


def opened_below(path: Path) -> int:
    targets = (os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
    return sum(target.startswith(f"{path}/") for target in targets)


def test_no_more_files_are_open_than_the_bound_and_those_that_were_used_last(files: DiskFiles, tmp_path: Path) -> None:
    made = unchanged(files, 20)
    assert opened_below(tmp_path) == files.descriptors == BOUND
    for file in made:
        assert file.read_at(0, 1) == b"x"
    assert [file.is_open for file in made] == [False] * 16 + [True] * 4
    hot = made[0]
    for file in made:
        assert hot.read_at(0, 1) == file.read_at(0, 1)
    assert hot.is_open
    assert opened_below(tmp_path) == files.descriptors == BOUND


def test_descriptors_are_given_back_when_files_are_closed_or_forgotten(files: DiskFiles, tmp_path: Path) -> None:
    made = unchanged(files, 10)
    made[-1].close()
    assert files.descriptors == opened_below(tmp_path) == BOUND - 1
    del made
    gc.collect()
    assert files.descriptors == opened_below(tmp_path) == 0
    assert not files._descriptors._resting
    assert not files._descriptors._open


def watched_syncs(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool] = lambda fd: False) -> list[str]:
    """Names of the files that are synced from here on."""
    names: list[str] = []
    real = os.fdatasync

    def sync(fd: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        if fails(fd):
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fdatasync", sync)
    return names


def test_a_file_with_changes_is_not_closed_while_another_can_be(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    (written,) = changed(files, 1, "changed")
    names = watched_syncs(monkeypatch)
    others = unchanged(files, 10)
    for file in others:
        assert file.read_at(0, 1) == b"x"
    assert written.is_open
    assert "changed-0" not in names
    written.sync()
    for file in others:
        file.read_at(0, 1)
    assert not written.is_open


def test_a_hint_does_not_keep_a_file_open(files: DiskFiles) -> None:
    (noted,) = unchanged(files, 1, "noted")
    noted.write_hint(0, b"y")
    unchanged(files, 10)
    assert not noted.is_open
    assert noted.read_at(0, 1) == b"y"


def test_if_all_have_changes_one_is_synced_before_it_is_closed(
    files: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = watched_syncs(monkeypatch)
    made = changed(files, 20)
    assert opened_below(tmp_path) == BOUND
    assert all(file.is_open for file in made if not names.count(Path(file.path).name))
    assert len(names) >= 16


def test_a_sync_that_failed_to_make_room_is_told_to_who_holds_the_file_and_for_good(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bad,) = changed(files, 1, "bad")
    bad_inode = os.stat(bad.path).st_ino
    with monkeypatch.context() as patch:
        names = watched_syncs(patch, fails=lambda fd: os.fstat(fd).st_ino == bad_inode)
        others = changed(files, 20)
    assert names.count("bad-0") == 1
    # The kernel would say by now that all is well.
    for _ in range(2):
        with pytest.raises(SyncFailed):
            bad.sync()
    with pytest.raises(OSError, match="Input/output error"):
        bad.begin_sync()
    assert bad.is_open
    for other in others:
        other.sync()


def test_a_file_stays_open_while_the_kernel_syncs_it(files: DiskFiles) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        syncs, told = KernelSyncs(), loop.create_future()
        (file,) = changed(files, 1, "slow")
        syncs.begin(file, told.set_result, lambda: told.set_result("refused"))
        unchanged(files, 10)
        assert file.is_open
        assert await told is None
        assert not file.is_dirty
        unchanged(files, 10, "more")
        assert not file.is_open
        # It can be synced again, and what was written until then is on disk.
        again = loop.create_future()
        file.write([b"y"])
        syncs.begin(file, again.set_result, lambda: again.set_result("refused"))
        file.write([b"z"])
        assert await again is None
        assert file.is_dirty
        syncs.close()

    asyncio.run(main())


def test_a_file_that_is_closed_while_a_call_uses_it_keeps_its_descriptor_until_the_call_ends(
    files: DiskFiles,
) -> None:
    file = files.open("a", "create")
    file.write([b"mine"])
    fd = file.pinned()
    file.close()
    file.close()
    other = files.open("b", "create")
    other.write([b"other"])
    assert os.pread(fd, 10, 0) == b"mine", "its number is not another file's"
    with pytest.raises(StorageError):
        file.read_at(0, 4)
    file.unpinned()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_file_that_was_replaced_by_another_process_is_not_taken_for_it(files: DiskFiles, tmp_path: Path) -> None:
    (file,) = unchanged(files, 1, "mine")
    unchanged(files, 10)
    assert not file.is_open
    (tmp_path / "new").write_bytes(b"theirs")
    (tmp_path / "new").replace(tmp_path / "mine-0")
    with pytest.raises(StorageError) as caught:
        file.read_at(0, 10)
    assert caught.value.details["errno"] == "ESTALE"


def exhausted(monkeypatch: pytest.MonkeyPatch, free: Callable[[], bool], number: int = errno.EMFILE) -> None:
    real = os.open

    def opened(*given: Any, **named: Any) -> int:
        if not free():
            raise OSError(number, os.strerror(number))
        return real(*given, **named)

    monkeypatch.setattr(os, "open", opened)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_when_the_system_gives_no_more_others_are_closed_and_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    files = DiskFiles(tmp_path, descriptors_max=100)
    made = unchanged(files, 10)
    with monkeypatch.context() as patch:
        # As if others had taken all but a few meanwhile.
        exhausted(patch, lambda: opened_below(tmp_path) < 5, number)
        more = unchanged(files, 10, "more")
        assert "file-0" in files.names()
        files.directory("inner").sync()
        for file in (*made, *more):
            assert file.read_at(0, 1) == b"x"
    assert files.descriptors <= 5


def test_when_nothing_can_be_closed_it_is_an_error_that_passes(
    files: DiskFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log.open(files.directory("log"))
    frame = Frame.of_messages([Message(b"value")], now_us=1)
    log.append([frame])
    log.sync()
    unchanged(files, 10)
    assert not log.is_open
    assert not log.merely_writes(100)
    with monkeypatch.context() as patch:
        exhausted(patch, lambda: False)
        with pytest.raises(TooManyOpenFiles, match="too many files open") as caught:
            log.append([frame])
        assert isinstance(caught.value, DiskFull)
        assert caught.value.retriable
        with pytest.raises(TooManyOpenFiles):
            log.read(0)
        with pytest.raises(TooManyOpenFiles):
            files.sync()
    assert log.append([frame]).base_offsets == [1]
    log.sync()
    assert [frame.base_offset for frame in log.read(0)] == [0, 1]
    log.close()


def test_a_file_that_was_synced_to_be_closed_needs_no_descriptor_to_be_synced(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error would say that nothing was written, and the caller would write it again."""
    first = changed(files, 1)[0]
    others = changed(files, BOUND, "other")
    assert not first.is_open
    exhausted(monkeypatch, lambda: False)
    first.sync()
    for other in others:
        other.sync()


def test_threads_read_and_write_files_that_others_close_for_them(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path, descriptors_max=2)
    made = [files.open(f"file-{number}", "create") for number in range(12)]
    lengths = [0] * len(made)

    def work(thread: int) -> None:
        random = Random(thread)
        for turn in range(300):
            # Each writes to its own, and reads all.
            number = random.randrange(3) * 4 + thread
            made[number].write([b"%d" % (number % 10)])
            lengths[number] += 1
            if turn % 3 == 0:
                made[number].sync()
            other = random.randrange(12)
            length = lengths[other]
            assert made[other].read_at(0, length) == b"%d" % (other % 10) * length
            if turn % 50 == 0:
                files.open(f"brief-{thread}-{turn}", "create").write([b"x"])
                files.rename(f"brief-{thread}-{turn}", f"gone-{thread}")
                files.remove(f"gone-{thread}")

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, thread) for thread in range(4)]:
            done.result()
    for file in made:
        file.sync()
    assert files.descriptors <= 2
    for number, file in enumerate(made):
        assert file.read_at(0, 10_000) == b"%d" % (number % 10) * lengths[number]


def test_a_log_goes_on_reading_and_rewriting_with_one_descriptor(tmp_path: Path) -> None:
    log = Log.open(DiskFiles(tmp_path, descriptors_max=1))
    frame = Frame.of_messages([Message(b"value")], now_us=1)
    for _ in range(4):
        log.append([frame])
        log.roll()
    old = log.segments[0]
    reading = log.scan(old)
    assert next(reading).base_offset == 0
    assert log.rewrite([old], list(log.scan(old)))
    log.delete_prefix(2)
    log.truncate(3)
    log.append([frame])
    log.sync()
    assert [frame.base_offset for frame in log.frames(2)] == [2, 3]
    assert list(reading) == []
    log.close()
    again = Log.open(DiskFiles(tmp_path, descriptors_max=1))
    assert (again.start_offset, again.end_offset, again.recovered_cleanly) == (2, 4, True)
    again.close()


def test_a_server_shares_its_descriptors_between_files_and_connections() -> None:
    assert shares(1 << 20, 30_000) == ((1 << 20) - 64 - 30_000, 30_000)
    assert shares(4_096, 30_000) == (2_016, 2_016)
    assert shares(256, 30_000) == (96, 96)
    # It starts all the same.
    assert shares(64, 30_000) == (48, 48)
    assert shares(1_024, 10) == (950, 10)


def test_the_limit_is_raised_to_the_hard_one_and_no_further() -> None:
    script = """
import resource
from penstock.storage.descriptors import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
assert raise_descriptor_limit() == 200
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (200, 200)
assert raise_descriptor_limit() == 200
"""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
