"""By whom copies are written: what is little by the event loop, which goes on while that is synced; more by threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.broker.disk import SMALL_BYTES, Disk
from penstock.cluster.storing import Storing
from penstock.errors import DiskFull, SyncFailed
from penstock.storage.log import Log, LogSettings
from penstock.testing import Fault, FaultyFiles, MemoryFiles, MemorySyncs, Operation
from support import frame_of, open_log, values_of


class Follower:
    """Copies to a log, and by which threads they were written."""

    def __init__(self, executor: ThreadPoolExecutor, *, has_syncs: bool = True) -> None:
        self.fault: Fault | None = None
        self.log: Log = open_log(FaultyFiles(MemoryFiles(), self._before), settings=LogSettings(256 * 1024))
        disk = Disk(executor, syncs=MemorySyncs() if has_syncs else None)
        self.storing = Storing(lambda: disk, asyncio.to_thread)
        self._by: list[threading.Thread] = []

    def _before(self, operation: Operation) -> Fault | None:
        return self.fault if operation.kind == "sync" else None

    def _append(self) -> int:
        self._by.append(threading.current_thread())
        return self.log.append([frame_of(b"x")]).next_offset

    async def is_by_the_loop(self, size: int = 100, *, begins_epoch: bool = False) -> bool:
        end = await self.storing.store(self.log, self._append, size, begins_epoch=begins_epoch)
        assert self.log.synced_offset == end
        return self._by[-1] is threading.current_thread()


def follows(work: Callable[[Follower], Any], *, has_syncs: bool = True) -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1) as executor:
            follower = Follower(executor, has_syncs=has_syncs)
            await work(follower)
            follower.log.close()

    asyncio.run(main())


def test_what_is_small_is_written_by_the_loop_and_what_is_large_by_a_thread() -> None:
    async def work(follower: Follower) -> None:
        assert await follower.is_by_the_loop()
        assert await follower.is_by_the_loop(SMALL_BYTES)
        assert not await follower.is_by_the_loop(SMALL_BYTES + 1)
        assert values_of(follower.log) == [b"x"] * 3

    follows(work)


def test_without_syncs_by_the_kernel_everything_is_written_by_threads() -> None:
    async def work(follower: Follower) -> None:
        assert not await follower.is_by_the_loop()

    follows(work, has_syncs=False)


def test_what_has_other_files_synced_first_is_written_by_a_thread() -> None:
    async def work(follower: Follower) -> None:
        assert not await follower.is_by_the_loop(begins_epoch=True)
        # The segment has no room for that.
        follower.log.append([frame_of(b"x" * 256 * 1024)])
        assert not await follower.is_by_the_loop()
        assert await follower.is_by_the_loop()

    follows(work)


def test_the_loop_does_not_wait_for_somebody_else_who_writes_to_the_log() -> None:
    async def work(follower: Follower) -> None:
        is_held, is_over = threading.Event(), threading.Event()

        def hold() -> None:
            with follower.log.writing:
                is_held.set()
                is_over.wait()

        holding = threading.Thread(target=hold)
        holding.start()
        is_held.wait()
        storing = asyncio.create_task(follower.is_by_the_loop())
        await asyncio.sleep(0.01)
        is_over.set()
        holding.join()
        assert not await storing
        assert await follower.is_by_the_loop()

    follows(work)


def test_what_can_not_be_written_is_told_and_the_log_is_free_again() -> None:
    async def work(follower: Follower) -> None:
        def fail() -> None:
            raise DiskFull("no room")

        for size in (100, SMALL_BYTES + 1):
            with pytest.raises(DiskFull):
                await follower.storing.store(follower.log, fail, size, begins_epoch=False)

        def is_free() -> bool:
            with follower.log.writing:
                return True

        assert await asyncio.to_thread(is_free)

    follows(work)


def test_what_can_not_be_synced_is_not_taken_for_stored() -> None:
    async def work(follower: Follower) -> None:
        follower.fault = Fault(SyncFailed("fdatasync: Input/output error"))
        with pytest.raises(SyncFailed):
            await follower.is_by_the_loop()
        assert follower.log.synced_offset == 0
        follower.fault = None
        with pytest.raises(SyncFailed):
            await follower.is_by_the_loop()

    follows(work)
