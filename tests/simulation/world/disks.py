"""The disk of a machine: how long it takes, what it does wrong, and when the machine dies while it is being used.

    slowness = 20               everything takes so much longer
    stall(us)                   nothing ends until then: a job of an executor waits, an event loop stands still
    is_full = True              nothing can be added; what is there can be overwritten
    fail(...)                   the next such operation fails, once
    crash_at(number, crash)     the machine dies right before the operation of that number

What a process does between its death and the end of its callback goes to a disk that nobody looks at any more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from penstock.errors import DiskFull, SyncFailed
from penstock.storage.files import Buffer, File, Mode, Space
from penstock.storage.kernel_syncs import Done, Refused
from penstock.testing.faulty_files import Fault, FaultyFile, FaultyFiles, Operation
from penstock.testing.memory_files import MemoryFile, MemoryFiles
from simulation.world.jobs import current_job, wait_here
from simulation.world.loop import Process, WorldLoop

_SYNC_US = (80, 800)
_SLOW, _SLOW_US = 0.01, (5_000, 60_000)
# A job is interrupted at every so many of its operations.
_INTERRUPTED, _INTERRUPTED_US = 0.2, (5, 400)
_GROWING = "write", "write_at", "create", "directory"
_SPACE_BYTES = 1 << 40


class Drive:
    """Of one machine; its processes come and go."""

    def __init__(self, loop: WorldLoop, rng: Random) -> None:
        self.slowness = 1
        self.is_full = False
        # What it failed at, of what it was to fail at.
        self.failed: list[Operation] = []
        self._loop = loop
        self._rng = rng
        self._stalls_until_us = 0
        self._fails: tuple[tuple[str, ...], Fault] | None = None
        self._left = 0
        self._crash: Callable[[], None] | None = None

    # --- faults ------------------------------------------------------------------------------------------

    def stall(self, us: int) -> None:
        self._stalls_until_us = max(self._stalls_until_us, self._loop.now_us + us)

    def fail(self, kinds: tuple[str, ...], fault: Fault) -> None:
        self._fails = kinds, fault

    def crash_at(self, number: int, crash: Callable[[], None]) -> None:
        self._left, self._crash = number, crash

    def mend(self) -> None:
        """Whatever has not happened yet does not."""
        self._fails = self._crash = None

    # --- operations --------------------------------------------------------------------------------------

    def stalled_us(self) -> int:
        return max(0, self._stalls_until_us - self._loop.now_us)

    def sync_us(self) -> int:
        return self.slowness * self._rng.randint(*(_SLOW_US if self._rng.random() < _SLOW else _SYNC_US))

    def before(self, process: Process, operation: Operation) -> Fault | None:
        if self._crash is not None and not process.is_dead:
            self._left -= 1
            if self._left <= 0:
                crash, self._crash = self._crash, None
                self._loop.note(f"{process.name} dies before {operation}")
                crash()
        job = current_job()
        if process.is_dead:
            if job is not None:
                job.leave()
            return None
        us = self.stalled_us() if self._stalls_until_us else 0
        if job is not None and self._rng.random() < _INTERRUPTED:
            us += self.slowness * self._rng.randint(*_INTERRUPTED_US)
        if us:
            wait_here(process, us)
        return self._fault(operation)

    def _fault(self, operation: Operation) -> Fault | None:
        if self._fails is not None and operation.kind in self._fails[0]:
            fault, self._fails = self._fails[1], None
            self._loop.note(f"{operation} fails: {fault.error!r}")
            self.failed.append(operation)
            return fault
        if self.is_full and operation.kind in _GROWING:
            self.failed.append(operation)
            return Fault(DiskFull(f"no space left for {operation.name}"), written=self._rng.choice((0, 0, 1, 100)))
        return None


class WorldFiles(FaultyFiles):
    """What a process has of them."""

    def __init__(self, inner: MemoryFiles, drive: Drive, process: Process) -> None:
        super().__init__(inner, self._before_each)
        self._memory = inner
        self._drive = drive
        self._process = process

    def _before_each(self, operation: Operation) -> Fault | None:
        return self._drive.before(self._process, operation)

    def open(self, name: str, mode: Mode) -> WorldFile:
        self._step("create" if mode == "create" else "open", name)
        return WorldFile(self._memory.open(name, mode), name, self._drive, self._process)

    def directory(self, name: str) -> WorldFiles:
        self._step("directory", name)
        return WorldFiles(self._memory.directory(name), self._drive, self._process)

    def space(self) -> Space:
        return Space(0 if self._drive.is_full else _SPACE_BYTES, _SPACE_BYTES)


class WorldFile(FaultyFile):
    def __init__(self, inner: MemoryFile, name: str, drive: Drive, process: Process) -> None:
        # Not a method of its own: a log closes a file by letting go of it, which a cycle would put off.
        super().__init__(inner, name, partial(drive.before, process))
        self._memory = inner
        self._drive = drive
        self._process = process
        process.files.add(self)

    def write_at(self, position: int, data: Buffer) -> None:
        """What is there already needs no room."""
        if position + len(data) > self._memory.size():
            super().write_at(position, data)
        else:
            self._step("overwrite")
            self._memory.write_at(position, data)

    def close(self) -> None:
        super().close()
        self._process.files.discard(self)

    def sync(self) -> None:
        """Of what is written by now."""
        end = self.begin_sync()
        if current_job() is not None:
            wait_here(self._process, self._drive.sync_us())
        end()


class WorldSyncs:
    """`Syncs` of a disk in memory."""

    is_there = True

    def __init__(self, process: Process, drive: Drive) -> None:
        self._process = process
        self._drive = drive
        self._under_way: dict[int, Callable[[], None]] = {}
        self._begun = 0

    def begin(self, file: File, done: Done, refused: Refused) -> None:
        assert isinstance(file, FaultyFile)
        end = file.begin_sync()

        def ended() -> None:
            try:
                end()
            except SyncFailed as error:
                done(error)
            else:
                done(None)

        self._begun += 1
        self._under_way[self._begun] = ended
        self._process.call_later(self._drive.sync_us(), self._end, self._begun)

    def _end(self, number: int) -> None:
        stalled_us = self._drive.stalled_us()
        if stalled_us:
            self._process.call_later(stalled_us, self._end, number)
            return
        ended = self._under_way.pop(number, None)
        if ended is not None:
            ended()

    def close(self) -> None:
        self.is_there = False
        while self._under_way:
            self._under_way.pop(next(iter(self._under_way)))()
