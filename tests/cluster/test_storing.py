"""By whom copies are written: by the event loop while that is quick, by threads otherwise."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.cluster.storing import FAST_S, SMALL_BYTES, TURN_S, Storing
from penstock.errors import DiskFull
from penstock.storage.log import Log
from penstock.testing import MemoryFiles
from support import open_log


class Disk:
    """Storing, with a clock that goes on by what each write takes; and by which threads it was done."""

    def __init__(self) -> None:
        self.takes_s = 0.0
        self.storing = Storing(asyncio.to_thread, self._now)
        self.log: Log = open_log(MemoryFiles())
        self._by: list[threading.Thread] = []
        self._time_s = 0.0

    def _now(self) -> float:
        return self._time_s

    def _write(self) -> int:
        self._by.append(threading.current_thread())
        self._time_s += self.takes_s
        return 7

    async def is_by_the_loop(self, size: int = 100) -> bool:
        """In a turn of its own."""
        await asyncio.sleep(0)
        assert await self.storing.store(self.log, self._write, size) == 7
        return self._by[-1] is threading.current_thread()

    @property
    def by_the_loop(self) -> int:
        return self._by.count(threading.current_thread())

    async def until(self, holds: Callable[[bool], bool]) -> int:
        """How many writes it took."""
        count = 1
        while not holds(await self.is_by_the_loop()):
            count += 1
        return count


def on_disk(work: Callable[[Disk], Any]) -> None:
    async def main() -> None:
        disk = Disk()
        await work(disk)
        disk.log.close()

    asyncio.run(main())


def test_what_is_small_is_written_by_the_loop_and_what_is_large_by_a_thread() -> None:
    async def work(disk: Disk) -> None:
        assert await disk.is_by_the_loop()
        assert await disk.is_by_the_loop(SMALL_BYTES)
        assert not await disk.is_by_the_loop(SMALL_BYTES + 1)

    on_disk(work)


def test_a_slow_disk_is_waited_for_by_threads_until_it_is_fast_again() -> None:
    async def work(disk: Disk) -> None:
        disk.takes_s = 4 * FAST_S
        assert 5 < await disk.until(lambda by_the_loop: not by_the_loop) < 50
        disk.takes_s = FAST_S / 2
        assert await disk.until(lambda by_the_loop: by_the_loop) < 50

    on_disk(work)


def test_some_slow_writes_of_a_fast_disk_change_nothing() -> None:
    async def work(disk: Disk) -> None:
        for number in range(1_000):
            disk.takes_s = 3 * FAST_S if number % 4 == 0 else FAST_S / 2
            assert await disk.is_by_the_loop()

    on_disk(work)


def test_the_loop_writes_no_more_in_one_turn_than_others_can_wait_for() -> None:
    async def work(disk: Disk) -> None:
        disk.takes_s = FAST_S / 2
        await asyncio.gather(*[disk.is_by_the_loop() for _ in range(100)])
        by_the_loop = disk.by_the_loop
        assert TURN_S <= by_the_loop * disk.takes_s < 2 * TURN_S
        assert await disk.is_by_the_loop()

    on_disk(work)


def test_the_loop_does_not_wait_for_somebody_else_who_writes_to_the_log() -> None:
    async def work(disk: Disk) -> None:
        is_held, is_over = threading.Event(), threading.Event()

        def hold() -> None:
            with disk.log.writing:
                is_held.set()
                is_over.wait()

        holding = threading.Thread(target=hold)
        holding.start()
        is_held.wait()
        try:
            assert not await disk.is_by_the_loop()
        finally:
            is_over.set()
            holding.join()
        assert await disk.is_by_the_loop()

    on_disk(work)


def test_what_can_not_be_written_is_told_and_the_log_is_free_again() -> None:
    async def work(disk: Disk) -> None:
        def fail() -> None:
            raise DiskFull("no room")

        for size in (100, SMALL_BYTES + 1):
            with pytest.raises(DiskFull):
                await disk.storing.store(disk.log, fail, size)

        def is_free() -> bool:
            with disk.log.writing:
                return True

        assert await asyncio.to_thread(is_free)

    on_disk(work)
