"""Any disk, with faults at chosen operations.

`before` is asked ahead of every operation that touches the disk. It may return a `Fault` to make the operation fail,
raise something of its own (a test's power loss), or just look on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.errors import PenstockError, SyncFailed
from penstock.storage.files import Buffer, File, Files, Mode, Space
from penstock.testing.memory_files import MemoryFile


class Operation(NamedTuple):
    kind: str
    name: str


class Fault(NamedTuple):
    """`written` bytes of a write reach the file before the error, as on a disk that runs full."""

    error: PenstockError
    written: int = 0


Before = Callable[[Operation], Fault | None]


class FaultyFiles:
    def __init__(self, inner: Files, before: Before) -> None:
        self._inner = inner
        self._before = before

    def _step(self, kind: str, name: str = "") -> None:
        fault = self._before(Operation(kind, name))
        if fault is not None:
            raise fault.error

    def names(self) -> list[str]:
        return self._inner.names()

    def open(self, name: str, mode: Mode) -> FaultyFile:
        self._step("create" if mode == "create" else "open", name)
        return FaultyFile(self._inner.open(name, mode), name, self._before)

    def directory(self, name: str) -> FaultyFiles:
        self._step("directory", name)
        return FaultyFiles(self._inner.directory(name), self._before)

    def directories(self) -> list[str]:
        return self._inner.directories()

    def has_directory(self, name: str) -> bool:
        return self._inner.has_directory(name)

    def remove_directory(self, name: str) -> None:
        self._step("remove directory", name)
        self._inner.remove_directory(name)

    def rename(self, old: str, new: str) -> None:
        self._step("rename", new)
        self._inner.rename(old, new)

    def remove(self, name: str) -> None:
        self._step("remove", name)
        self._inner.remove(name)

    def sync(self) -> None:
        self._step("sync directory")
        self._inner.sync()

    def space(self) -> Space:
        return self._inner.space()

    def lock(self) -> None:
        self._step("lock")
        self._inner.lock()

    def close(self) -> None:
        self._inner.close()


class FaultyFile:
    def __init__(self, inner: File, name: str, before: Before) -> None:
        self._inner = inner
        self._name = name
        self._before = before

    def _step(self, kind: str) -> None:
        fault = self._before(Operation(kind, self._name))
        if fault is not None:
            if isinstance(fault.error, SyncFailed) and isinstance(self._inner, MemoryFile):
                self._inner.lose_pending()
            raise fault.error

    @property
    def is_open(self) -> bool:
        return self._inner.is_open

    def write(self, buffers: Sequence[Buffer]) -> None:
        fault = self._before(Operation("write", self._name))
        if fault is not None:
            if fault.written:
                self._inner.write([b"".join(buffers)[: fault.written]])
            raise fault.error
        self._inner.write(buffers)

    def write_at(self, position: int, data: Buffer) -> None:
        fault = self._before(Operation("write_at", self._name))
        if fault is not None:
            if fault.written:
                self._inner.write_at(position, data[: fault.written])
            raise fault.error
        self._inner.write_at(position, data)

    def write_hint(self, position: int, data: Buffer) -> None:
        self.write_at(position, data)

    def read_at(self, position: int, length: int) -> bytes:
        self._step("read")
        return self._inner.read_at(position, length)

    def is_cached(self, position: int, length: int) -> bool:
        return self._inner.is_cached(position, length)

    def size(self) -> int:
        return self._inner.size()

    def truncate(self, size: int) -> None:
        self._step("truncate")
        self._inner.truncate(size)

    def sync(self) -> None:
        self._step("sync")
        self._inner.sync()

    def drop_cache(self) -> None:
        self._step("sync")
        self._inner.drop_cache()

    def begin_sync(self) -> Callable[[], None]:
        """For `MemorySyncs`, of a disk in memory. It fails when it ends."""
        assert isinstance(self._inner, MemoryFile)
        inner_end = self._inner.begin_sync()

        def end() -> None:
            self._step("sync")
            inner_end()

        return end

    def close(self) -> None:
        self._inner.close()
