"""One suite for every implementation of the `Syncs` port: the kernel's, and that of the disk in memory."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import uvloop

from penstock.errors import SyncFailed
from penstock.storage import kernel_syncs
from penstock.storage.files import DiskFile, DiskFiles, File, Files
from penstock.storage.kernel_syncs import AT_ONCE, KernelSyncs, Syncs
from penstock.testing import Fault, FaultyFiles, MemoryFiles, MemorySyncs, Operation

Open = Callable[[], tuple[Syncs, Files]]


@pytest.fixture(params=["kernel", "one descriptor", "memory", "faulty"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return {
        "kernel": lambda: (KernelSyncs(), DiskFiles(tmp_path / "files")),
        "one descriptor": lambda: (KernelSyncs(), DiskFiles(tmp_path / "files", descriptors_max=1)),
        "memory": lambda: (MemorySyncs(), MemoryFiles()),
        "faulty": lambda: (MemorySyncs(), FaultyFiles(MemoryFiles(), before=lambda operation: None)),
    }[request.param]


Told = SyncFailed | Literal["refused"] | None


class Heard:
    """What was told of each sync."""

    def __init__(self, syncs: Syncs) -> None:
        self._syncs = syncs
        self.told: list[tuple[str, Told]] = []
        self._more = asyncio.Event()

    def begin(self, file: File, name: str) -> None:
        count = len(self.told)
        self._syncs.begin(file, partial(self.tell, name), partial(self.tell, name, "refused"))
        assert len(self.told) == count

    def tell(self, name: str, what: Told) -> None:
        self.told.append((name, what))
        self._more.set()

    async def all(self, count: int) -> list[tuple[str, Told]]:
        while len(self.told) < count:
            self._more.clear()
            await self._more.wait()
        return self.told


def written(files: Files, name: str) -> File:
    file = files.open(name, "create")
    file.write([name.encode()])
    return file


_run: list[Callable[[Coroutine[Any, Any, None]], None]] = []


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"], autouse=True)
def _loop(request: pytest.FixtureRequest) -> None:
    _run[:] = [request.param]


def run(work: Coroutine[Any, Any, None]) -> None:
    _run[0](work)


def test_a_sync_is_told_later_by_the_loop(opened: Open) -> None:
    async def main() -> None:
        syncs, files = opened()
        heard = Heard(syncs)
        assert syncs.is_there
        file = written(files, "a")
        heard.begin(file, "a")
        assert heard.told == []
        assert await heard.all(1) == [("a", None)]
        file.write([b"more"])
        heard.begin(file, "again")
        assert (await heard.all(2))[1] == ("again", None)
        syncs.close()

    run(main())


def test_syncs_of_many_files_are_under_way_together_and_each_is_told_once(opened: Open) -> None:
    async def main() -> None:
        syncs, files = opened()
        heard = Heard(syncs)
        names = [f"file-{number}" for number in range(20)]
        for name in names:
            heard.begin(written(files, name), name)
        assert sorted(await heard.all(len(names))) == sorted((name, None) for name in names)
        await asyncio.sleep(0.01)
        assert len(heard.told) == len(names)
        syncs.close()

    run(main())


def test_whoever_is_told_may_begin_the_next(opened: Open) -> None:
    async def main() -> None:
        syncs, files = opened()
        heard = Heard(syncs)
        file = written(files, "a")

        def again(error: SyncFailed | None) -> None:
            heard.tell("first", error)
            heard.begin(file, "second")

        syncs.begin(file, again, lambda: None)
        assert await heard.all(2) == [("first", None), ("second", None)]
        syncs.close()

    run(main())


def test_a_file_may_be_closed_while_it_is_being_synced(opened: Open) -> None:
    async def main() -> None:
        syncs, files = opened()
        heard = Heard(syncs)
        file = written(files, "a")
        heard.begin(file, "a")
        await asyncio.sleep(0)
        file.close()
        assert await heard.all(1) == [("a", None)]
        syncs.close()

    run(main())


def test_what_is_under_way_is_told_before_the_end_and_nothing_is_begun_afterwards(opened: Open) -> None:
    async def main() -> None:
        syncs, files = opened()
        heard = Heard(syncs)
        file = written(files, "a")
        for name in ("a", "b", "c"):
            heard.begin(file, name)
        syncs.close()
        assert sorted(heard.told) == [("a", None), ("b", None), ("c", None)]
        assert not syncs.is_there
        heard.begin(file, "d")
        syncs.close()
        assert (await heard.all(4))[3] == ("d", "refused")
        await asyncio.sleep(0.01)
        assert len(heard.told) == 4

    run(main())


def test_a_file_of_another_kind_is_left_to_its_own_sync(opened: Open, tmp_path: Path) -> None:
    async def main() -> None:
        syncs, files = opened()
        other = written(MemoryFiles() if isinstance(files, DiskFiles) else DiskFiles(tmp_path / "other"), "a")
        heard = Heard(syncs)
        heard.begin(other, "a")
        assert await heard.all(1) == [("a", "refused")]
        assert syncs.is_there
        syncs.close()

    run(main())


def test_whoever_fails_when_it_is_told_keeps_nobody_else_from_being_told(tmp_path: Path) -> None:
    async def main() -> None:
        caught: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: caught.append(context["exception"]))
        syncs = KernelSyncs()
        heard = Heard(syncs)
        file = written(DiskFiles(tmp_path), "a")

        def fail(error: SyncFailed | None) -> None:
            raise ValueError("a bug")

        syncs.begin(file, fail, lambda: None)
        heard.begin(file, "a")
        syncs.close()
        assert heard.told == [("a", None)]
        assert [type(error) for error in caught] == [ValueError]

    run(main())


def test_more_than_the_kernel_takes_are_left_to_others(tmp_path: Path) -> None:
    async def main() -> None:
        syncs = KernelSyncs()
        heard = Heard(syncs)
        file = written(DiskFiles(tmp_path), "a")
        for number in range(2 * AT_ONCE):
            heard.begin(file, str(number))
        told = dict(await heard.all(2 * AT_ONCE))
        assert [told[str(number)] for number in range(2 * AT_ONCE)] == [None] * AT_ONCE + ["refused"] * AT_ONCE
        assert syncs.is_there
        heard.begin(file, "again")
        assert (await heard.all(2 * AT_ONCE + 1))[-1] == ("again", None)
        syncs.close()

    run(main())


def test_a_file_that_was_closed_is_refused_and_others_are_not(tmp_path: Path) -> None:
    async def main() -> None:
        syncs = KernelSyncs()
        heard = Heard(syncs)
        files = [written(DiskFiles(tmp_path), name) for name in "abcde"]
        for file, name in zip(files, "abcde", strict=True):
            heard.begin(file, name)
        for number in (0, 3):
            files[number].close()
        expected = {"a": "refused", "b": None, "c": None, "d": "refused", "e": None}
        assert dict(await heard.all(5)) == expected
        assert syncs.is_there
        syncs.close()

    run(main())


def test_a_kernel_that_does_not_know_of_syncs_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No such request.
    monkeypatch.setattr(kernel_syncs, "_FDSYNC", 99)
    monkeypatch.setattr(kernel_syncs._Context, "_free", [])

    async def main() -> None:
        syncs = KernelSyncs()
        heard = Heard(syncs)
        file = written(DiskFiles(tmp_path), "a")
        heard.begin(file, "a")
        heard.begin(file, "b")
        assert await heard.all(2) == [("a", "refused"), ("b", "refused")]
        assert not syncs.is_there
        heard.begin(file, "c")
        assert (await heard.all(3))[2] == ("c", "refused")
        syncs.close()

    run(main())


def test_a_system_without_it_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(kernel_syncs.platform, "machine", lambda: "pdp11")
        syncs = KernelSyncs()
        heard = Heard(syncs)
        assert not syncs.is_there
        heard.begin(written(DiskFiles(tmp_path), "a"), "a")
        assert await heard.all(1) == [("a", "refused")]
        syncs.close()

    run(main())


def test_a_kernel_that_gives_nothing_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        # More than it ever gives.
        monkeypatch.setattr(kernel_syncs, "AT_ONCE", 1 << 28)
        monkeypatch.setattr(kernel_syncs._Context, "_free", [])
        syncs = KernelSyncs()
        heard = Heard(syncs)
        heard.begin(written(DiskFiles(tmp_path), "a"), "a")
        assert await heard.all(1) == [("a", "refused")]
        assert not syncs.is_there
        syncs.close()

    run(main())


def held(directory: Path) -> int:
    """What is open of the kind that is opened here: other threads open and close something, too."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            target = os.readlink(each)
            found += "eventfd" in target or target.startswith(str(directory))
    return found


def test_what_was_opened_is_given_back(tmp_path: Path) -> None:
    async def main() -> None:
        file = written(DiskFiles(tmp_path), "a")
        before = held(tmp_path)
        for turn in range(200):
            # More at the same time than are kept.
            some = [KernelSyncs() for _ in range(kernel_syncs._KEPT + (turn == 100))]
            for syncs in some:
                syncs.begin(file, lambda error: None, lambda: None)
                assert syncs.is_there
            for syncs in some:
                syncs.close()
        assert held(tmp_path) <= before + kernel_syncs._KEPT

    run(main())


@pytest.mark.parametrize(
    ("owner", "name"), [(os, "eventfd"), (DiskFile, "opened_again")], ids=["its own", "the file's"]
)
def test_while_too_many_files_are_open_it_is_refused_and_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    def too_many(*arguments: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def main() -> None:
        syncs = KernelSyncs()
        heard = Heard(syncs)
        file = written(DiskFiles(tmp_path), "a")
        with monkeypatch.context() as patch:
            patch.setattr(kernel_syncs._Context, "_free", [])
            patch.setattr(owner, name, too_many)
            heard.begin(file, "a")
            assert await heard.all(1) == [("a", "refused")]
        assert syncs.is_there
        heard.begin(file, "again")
        assert (await heard.all(2))[1] == ("again", None)
        syncs.close()

    run(main())


def test_whoever_is_told_may_end_it(tmp_path: Path) -> None:
    async def main() -> None:
        syncs = KernelSyncs()
        heard = Heard(syncs)
        file = written(DiskFiles(tmp_path), "a")

        def end(error: SyncFailed | None) -> None:
            heard.tell("end", error)
            syncs.close()

        syncs.begin(file, end, lambda: None)
        for name in ("a", "b"):
            heard.begin(file, name)
        assert sorted(await heard.all(3)) == [("a", None), ("b", None), ("end", None)]
        assert not syncs.is_there

    run(main())


def test_one_whose_loop_has_ended_gives_back_what_it_had(tmp_path: Path) -> None:
    async def main() -> None:
        syncs = KernelSyncs()
        heard = Heard(syncs)
        heard.begin(written(DiskFiles(tmp_path), "a"), "a")
        await heard.all(1)

    before = held(tmp_path)
    run(main())
    gc.collect()
    assert held(tmp_path) <= before


def test_each_who_syncs_a_file_has_an_opening_of_its_own(tmp_path: Path) -> None:
    file = DiskFiles(tmp_path).open("a", "create")
    numbers = {file._fd, file.opened_again()}
    assert len(numbers) == 2
    assert file.opened_again() in numbers
    assert len({os.fstat(number).st_ino for number in numbers}) == 1
    file.close()
    assert file.opened_again() == -1
    for number in numbers:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)


def test_a_process_that_was_forked_has_its_own(tmp_path: Path) -> None:
    script = """
import asyncio, os, sys
from penstock.storage.files import DiskFiles
from penstock.storage.kernel_syncs import KernelSyncs

async def main():
    syncs, told = KernelSyncs(), asyncio.get_running_loop().create_future()
    file = DiskFiles(".").open(str(os.getpid()), "create")
    file.write([b"x"])
    syncs.begin(file, told.set_result, lambda: told.set_result("refused"))
    assert await told is None
    syncs.close()

asyncio.run(main())
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
asyncio.run(main())
"""
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_sync_that_fails_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def before(operation: Operation) -> Fault | None:
        return Fault(SyncFailed("fdatasync: Input/output error")) if operation.kind == "sync" else None

    async def main() -> None:
        heard = Heard(MemorySyncs())
        heard.begin(written(FaultyFiles(MemoryFiles(), before), "a"), "a")
        ((_, error),) = await heard.all(1)
        assert isinstance(error, SyncFailed)

    async def by_the_kernel() -> None:
        syncs = KernelSyncs()
        heard = Heard(syncs)
        assert syncs._has_context()
        context = syncs._context
        assert context is not None
        ended = context.ended
        monkeypatch.setattr(context, "ended", lambda at_least: [(number, -5) for number, _ in ended(at_least)])
        heard.begin(written(DiskFiles(tmp_path), "a"), "a")
        ((_, error),) = await heard.all(1)
        assert isinstance(error, SyncFailed)
        assert error.message == f"fdatasync of {tmp_path}/a: Input/output error"
        syncs.close()

    run(main())
    run(by_the_kernel())
