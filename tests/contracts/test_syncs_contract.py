"""One suite for every implementation of the `Syncs` port: the kernel's, and that of the disk in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import SyncFailed
from penstock.storage import kernel_syncs
from penstock.storage.files import DiskFiles, File, Files
from penstock.storage.kernel_syncs import KernelSyncs, Syncs
from penstock.testing import Fault, FaultyFiles, MemoryFiles, MemorySyncs, Operation

Open = Callable[[], tuple[Syncs, Files]]


@pytest.fixture(params=["kernel", "memory", "faulty"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return {
        "kernel": lambda: (KernelSyncs(), DiskFiles(tmp_path / "files")),
        "memory": lambda: (MemorySyncs(), MemoryFiles()),
        "faulty": lambda: (MemorySyncs(), FaultyFiles(MemoryFiles(), before=lambda operation: None)),
    }[request.param]


class Heard:
    """What was told of each sync, and whether somebody has waited for it."""

    def __init__(self) -> None:
        self.told: list[tuple[str, SyncFailed | None]] = []
        self._more = asyncio.Event()

    def of(self, name: str) -> Callable[[SyncFailed | None], None]:
        def done(error: SyncFailed | None) -> None:
            self.told.append((name, error))
            self._more.set()

        return done

    async def all(self, count: int) -> list[tuple[str, SyncFailed | None]]:
        while len(self.told) < count:
            self._more.clear()
            await self._more.wait()
        return self.told


def written(files: Files, name: str) -> File:
    file = files.open(name, "create")
    file.write([name.encode()])
    return file


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_a_sync_is_told_later_by_the_loop(opened: Open) -> None:
    async def main() -> None:
        syncs, files = opened()
        heard = Heard()
        assert syncs.is_there
        file = written(files, "a")
        assert syncs.begin(file, heard.of("a"))
        assert heard.told == []
        assert await heard.all(1) == [("a", None)]
        file.write([b"more"])
        assert syncs.begin(file, heard.of("again"))
        assert (await heard.all(2))[1] == ("again", None)
        syncs.close()

    run(main())


def test_syncs_of_many_files_are_under_way_together_and_each_is_told_once(opened: Open) -> None:
    async def main() -> None:
        syncs, files = opened()
        heard = Heard()
        names = [f"file-{number}" for number in range(20)]
        for name in names:
            assert syncs.begin(written(files, name), heard.of(name))
        assert sorted(await heard.all(len(names))) == sorted((name, None) for name in names)
        await asyncio.sleep(0.01)
        assert len(heard.told) == len(names)
        syncs.close()

    run(main())


def test_whoever_is_told_may_begin_the_next(opened: Open) -> None:
    async def main() -> None:
        syncs, files = opened()
        heard = Heard()
        file = written(files, "a")

        def again(error: SyncFailed | None) -> None:
            heard.of("first")(error)
            assert syncs.begin(file, heard.of("second"))

        assert syncs.begin(file, again)
        assert await heard.all(2) == [("first", None), ("second", None)]
        syncs.close()

    run(main())


def test_a_file_may_be_closed_while_it_is_being_synced(opened: Open) -> None:
    async def main() -> None:
        syncs, files = opened()
        heard = Heard()
        file = written(files, "a")
        assert syncs.begin(file, heard.of("a"))
        file.close()
        assert await heard.all(1) == [("a", None)]
        syncs.close()

    run(main())


def test_what_is_under_way_is_told_before_the_end_and_nothing_is_begun_afterwards(opened: Open) -> None:
    async def main() -> None:
        syncs, files = opened()
        heard = Heard()
        file = written(files, "a")
        for name in ("a", "b", "c"):
            assert syncs.begin(file, heard.of(name))
        syncs.close()
        assert sorted(heard.told) == [("a", None), ("b", None), ("c", None)]
        assert not syncs.is_there
        assert not syncs.begin(file, heard.of("d"))
        syncs.close()
        await asyncio.sleep(0.01)
        assert len(heard.told) == 3

    run(main())


def test_a_file_of_another_kind_is_left_to_its_own_sync(opened: Open, tmp_path: Path) -> None:
    async def main() -> None:
        syncs, files = opened()
        other = written(MemoryFiles() if isinstance(files, DiskFiles) else DiskFiles(tmp_path / "other"), "a")
        assert not syncs.begin(other, Heard().of("a"))
        assert syncs.is_there
        syncs.close()

    run(main())


def test_more_than_the_kernel_takes_are_left_to_others(tmp_path: Path) -> None:
    async def main() -> None:
        syncs, heard = KernelSyncs(), Heard()
        file = written(DiskFiles(tmp_path), "a")
        begun = [syncs.begin(file, heard.of(str(number))) for number in range(2 * kernel_syncs.AT_ONCE)]
        assert begun == [True] * kernel_syncs.AT_ONCE + [False] * kernel_syncs.AT_ONCE
        await heard.all(kernel_syncs.AT_ONCE)
        assert syncs.begin(file, heard.of("again"))
        assert (await heard.all(kernel_syncs.AT_ONCE + 1))[-1] == ("again", None)
        syncs.close()

    run(main())


def test_a_file_that_the_kernel_refuses_ends_it_and_the_others_go_on_by_themselves(tmp_path: Path) -> None:
    async def main() -> None:
        syncs, heard = KernelSyncs(), Heard()
        files = DiskFiles(tmp_path)
        file, closed = written(files, "a"), written(files, "b")
        closed.close()
        assert not syncs.begin(closed, heard.of("b"))
        assert not syncs.is_there
        assert not syncs.begin(file, heard.of("a"))
        file.sync()
        assert heard.told == []

    run(main())


def test_a_system_without_it_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(kernel_syncs.platform, "machine", lambda: "pdp11")
        syncs = KernelSyncs()
        assert not syncs.is_there
        assert not syncs.begin(written(DiskFiles(tmp_path), "a"), Heard().of("a"))
        syncs.close()

    run(main())


def test_a_kernel_that_gives_no_context_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        # More than it ever gives.
        monkeypatch.setattr(kernel_syncs, "AT_ONCE", 1 << 30)
        monkeypatch.setattr(kernel_syncs, "_EVENTS", 1)
        assert not KernelSyncs().is_there

    run(main())


def test_a_sync_that_fails_is_told_as_such(tmp_path: Path) -> None:
    def before(operation: Operation) -> Fault | None:
        return Fault(SyncFailed("fdatasync: Input/output error")) if operation.kind == "sync" else None

    async def main() -> None:
        syncs, heard = MemorySyncs(), Heard()
        assert syncs.begin(written(FaultyFiles(MemoryFiles(), before), "a"), heard.of("a"))
        ((_, error),) = await heard.all(1)
        assert isinstance(error, SyncFailed)

    async def by_the_kernel() -> None:
        syncs, heard = KernelSyncs(), Heard()
        file = written(DiskFiles(tmp_path), "a")
        told = syncs._call

        def failing(call: int, *arguments: Any) -> int:
            count = int(told(call, *arguments))
            if call == syncs._getevents:
                for event in syncs._events[:count]:
                    event.result = -5
            return count

        syncs._call = failing
        assert syncs.begin(file, heard.of("a"))
        ((_, error),) = await heard.all(1)
        assert isinstance(error, SyncFailed)
        assert error.message == f"fdatasync of {tmp_path}/a: Input/output error"
        syncs.close()

    run(main())
    run(by_the_kernel())
