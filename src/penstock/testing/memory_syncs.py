"""Syncs of a disk in memory that take their time: what the kernel does for real files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.errors import SyncFailed
from penstock.storage.files import File
from penstock.storage.kernel_syncs import Done, Refused
from penstock.testing.faulty_files import FaultyFile
from penstock.testing.memory_files import MemoryFile


class MemorySyncs:
    """Belongs to the event loop that is running when it is made. `turns` says after how many of its turns each ends."""

    is_there = True

    def __init__(self, turns: Callable[[], int] = lambda: 1) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns = turns
        self._ending: dict[int, Callable[[], None]] = {}
        self._begun = 0

    def begin(self, file: File, done: Done, refused: Refused) -> None:
        if not self.is_there or not isinstance(file, MemoryFile | FaultyFile):
            self._loop.call_soon(refused)
            return
        self._begun += 1
        end = file.begin_sync()

        def ended() -> None:
            try:
                end()
            except SyncFailed as error:
                done(error)
            else:
                done(None)

        self._ending[self._begun] = ended
        self._loop.call_soon(self._turn, self._begun, self._turns())

    def _turn(self, number: int, left: int) -> None:
        if left > 1:
            self._loop.call_soon(self._turn, number, left - 1)
        elif (ended := self._ending.pop(number, None)) is not None:
            ended()

    def close(self) -> None:
        self.is_there = False
        while self._ending:
            self._ending.pop(next(iter(self._ending)))()
