"""A disk in memory that keeps apart what is durable and what is merely written.

What a process sees is the current state. Beside it the disk keeps, for every file, the contents at its last sync and
the writes since, and for the directory, the names at its last sync and the changes since. A power loss keeps what
was durable, and of the rest whatever the dice say:

    none, all, the first few, or any subset of the writes       a write is lost independently of the others
    a write torn at 512 or 4,096 bytes                          its front is there, its back is not; or its back is
    a sector of garbage within what was being written
    a file as long as it was to become, zeros where bytes are missing
    names created, renamed or removed: none, all, a prefix, or any subset

This is more than most file systems would do to us, and nothing that POSIX rules out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from penstock.errors import DirectoryLocked, StorageError
from penstock.storage.files import Buffer, Mode, Space

_ENDLESS = 1 << 40
SECTOR = 512
PAGE = 4096

T = TypeVar("T")


class Write(NamedTuple):
    position: int
    data: bytes


class Truncate(NamedTuple):
    size: int


class Rename(NamedTuple):
    old: str
    new: str


class Create(NamedTuple):
    name: str
    inode: Inode


class Remove(NamedTuple):
    name: str


class Inode:
    """The bytes of one file, whatever its name."""

    def __init__(self, durable: bytes = b"") -> None:
        self.current = bytearray(durable)
        self.durable = bytearray(durable)
        self.pending: list[Write | Truncate] = []
        # How many changes there were before those.
        self._settled = 0
        # Whether some of `current` will never be durable.
        self.has_lost = False

    def apply(self, change: Write | Truncate) -> None:
        _apply(self.current, change)
        self.pending.append(change)

    def sync(self) -> None:
        self.begin_sync()()

    def begin_sync(self) -> Callable[[], None]:
        """What is written by now is durable when the answer is called; of what comes until then nobody knows."""
        until = self._settled + len(self.pending)

        def end() -> None:
            count = until - self._settled
            if count > 0:
                for change in self.pending[:count]:
                    _apply(self.durable, change)
                del self.pending[:count]
                self._settled = until

        return end

    def lose_pending(self) -> None:
        """As a failed sync does: the pages are marked clean, so no later sync writes them. Readers see them until the
        power fails."""
        self._settled += len(self.pending)
        self.pending.clear()
        self.has_lost = True

    def drop_cache(self) -> None:
        self.sync()
        if self.has_lost:
            self.current[:] = self.durable
            self.has_lost = False


class MemoryDisk:
    """One directory, its files, and what of them is durable."""

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.durable_names: dict[str, Inode] = {}
        self.pending_names: list[Create | Rename | Remove] = []
        # Directories are durable once made, as `Files.directory` promises; removing one may be lost half-way.
        self.directories: dict[str, MemoryDisk] = {}
        self.is_locked = False
        # What a test says it is.
        self.space = Space(_ENDLESS, _ENDLESS)

    def change(self, change: Create | Rename | Remove) -> None:
        _apply_name(self.names, change)
        self.pending_names.append(change)

    def sync_names(self) -> None:
        self.durable_names = dict(self.names)
        self.pending_names = []

    def copy(self) -> MemoryDisk:
        """The same state, to go on from separately."""
        copies: dict[Inode, Inode] = {}

        def copied(inode: Inode) -> Inode:
            if inode not in copies:
                copy = Inode()
                copy.current, copy.durable = bytearray(inode.current), bytearray(inode.durable)
                copy.pending, copy.has_lost = list(inode.pending), inode.has_lost
                copies[inode] = copy
            return copies[inode]

        disk = MemoryDisk()
        disk.names = {name: copied(inode) for name, inode in self.names.items()}
        disk.durable_names = {name: copied(inode) for name, inode in self.durable_names.items()}
        disk.pending_names = [
            Create(change.name, copied(change.inode)) if isinstance(change, Create) else change
            for change in self.pending_names
        ]
        disk.directories = {name: inner.copy() for name, inner in self.directories.items()}
        return disk

    def after_kill(self) -> MemoryDisk:
        """What the next process finds after this one was killed: everything written, the lock gone."""
        disk = self.copy()
        disk.is_locked = False
        return disk

    def after_power_loss(self, random: Random) -> MemoryDisk:
        """One of the states a power loss may leave, by the dice."""
        names = dict(self.durable_names)
        for change in _survivors(self.pending_names, random):
            _apply_name(names, change)
        disk = MemoryDisk()
        remains = {inode: Inode(_remains(inode, random)) for inode in dict.fromkeys(names.values())}
        disk.names = {name: remains[inode] for name, inode in names.items()}
        disk.durable_names = dict(disk.names)
        disk.directories = {name: inner.after_power_loss(random) for name, inner in self.directories.items()}
        return disk


class MemoryFiles:
    """`Files` over a MemoryDisk."""

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self._has_lock = False

    def names(self) -> list[str]:
        return sorted(self.disk.names)

    def open(self, name: str, mode: Mode) -> MemoryFile:
        if mode == "create":
            if name in self.disk.names:
                raise StorageError(f"{name}: File exists", file=name, errno="EEXIST")
            self.disk.change(Create(name, Inode()))
        elif name not in self.disk.names:
            raise StorageError(f"{name}: No such file or directory", file=name, errno="ENOENT")
        return MemoryFile(self.disk.names[name], can_write=mode != "read")

    def directory(self, name: str) -> MemoryFiles:
        return MemoryFiles(self.disk.directories.setdefault(name, MemoryDisk()))

    def directories(self) -> list[str]:
        return sorted(self.disk.directories)

    def has_directory(self, name: str) -> bool:
        return name in self.disk.directories

    def remove_directory(self, name: str) -> None:
        if name not in self.disk.directories:
            raise StorageError(f"{name}: No such file or directory", file=name, errno="ENOENT")
        del self.disk.directories[name]

    def rename(self, old: str, new: str) -> None:
        self._check_exists(old)
        self.disk.change(Rename(old, new))

    def remove(self, name: str) -> None:
        self._check_exists(name)
        self.disk.change(Remove(name))

    def _check_exists(self, name: str) -> None:
        if name not in self.disk.names:
            raise StorageError(f"{name}: No such file or directory", file=name, errno="ENOENT")

    def sync(self) -> None:
        self.disk.sync_names()

    def space(self) -> Space:
        return self.disk.space

    def lock(self) -> None:
        if self.disk.is_locked:
            raise DirectoryLocked("the directory is open in another process")
        self.disk.is_locked = self._has_lock = True

    def close(self) -> None:
        if self._has_lock:
            self.disk.is_locked = self._has_lock = False


class MemoryFile:
    def __init__(self, inode: Inode, can_write: bool) -> None:
        self._inode = inode
        self._can_write = can_write
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        return not self._is_closed

    def write(self, buffers: Sequence[Buffer]) -> None:
        self._check(writing=True)
        self._inode.apply(Write(len(self._inode.current), b"".join(buffers)))

    def write_at(self, position: int, data: Buffer) -> None:
        self._check(writing=True)
        self._inode.apply(Write(position, bytes(data)))

    def write_hint(self, position: int, data: Buffer) -> None:
        self.write_at(position, data)

    def read_at(self, position: int, length: int) -> bytes:
        self._check()
        if position < 0 or length < 0:
            raise StorageError(f"{length} bytes at {position} can't be read")
        return bytes(self._inode.current[position : position + length])

    def is_cached(self, position: int, length: int) -> bool:
        return True

    def size(self) -> int:
        self._check()
        return len(self._inode.current)

    def truncate(self, size: int) -> None:
        self._check(writing=True)
        self._inode.apply(Truncate(size))

    def sync(self) -> None:
        self._check()
        self._inode.sync()

    def drop_cache(self) -> None:
        self._check()
        self._inode.drop_cache()

    def begin_sync(self) -> Callable[[], None]:
        """For `MemorySyncs`."""
        self._check()
        return self._inode.begin_sync()

    def lose_pending(self) -> None:
        """For a sync that fails."""
        self._inode.lose_pending()

    def close(self) -> None:
        self._is_closed = True

    def _check(self, writing: bool = False) -> None:
        if self._is_closed or (writing and not self._can_write):
            raise StorageError("Bad file descriptor", errno="EBADF")


def _apply(contents: bytearray, change: Write | Truncate) -> None:
    if isinstance(change, Truncate):
        del contents[change.size :]
        contents.extend(bytes(change.size - len(contents)))
    else:
        contents.extend(bytes(max(0, change.position - len(contents))))
        contents[change.position : change.position + len(change.data)] = change.data


def _apply_name(names: dict[str, Inode], change: Create | Rename | Remove) -> None:
    """A change whose own cause was lost does nothing."""
    if isinstance(change, Create):
        names[change.name] = change.inode
    elif isinstance(change, Rename):
        if change.old in names:
            names[change.new] = names.pop(change.old)
    else:
        names.pop(change.name, None)


def _survivors(changes: Sequence[T], random: Random) -> list[T]:
    fate = random.choice(("none", "all", "prefix", "subset"))
    if fate == "none":
        return []
    if fate == "prefix":
        return list(changes[: random.randint(0, len(changes))])
    if fate == "subset":
        return [change for change in changes if random.random() < 0.5]
    return list(changes)


def _remains(inode: Inode, random: Random) -> bytes:
    contents = bytearray(inode.durable)
    kept = _survivors(inode.pending, random)
    for change in kept:
        if isinstance(change, Write) and random.random() < 0.3:
            change = _torn(change, random)
        _apply(contents, change)
    if len(contents) < len(inode.current) and random.random() < 0.2:
        contents.extend(bytes(len(inode.current) - len(contents)))
    writes = [change for change in inode.pending if isinstance(change, Write)]
    if writes and random.random() < 0.15:
        _put_garbage(contents, random.choice(writes), random)
    return bytes(contents)


def _torn(write: Write, random: Random) -> Write:
    """Its first sectors or pages only, or its last ones."""
    unit = random.choice((SECTOR, PAGE))
    first = -write.position % unit
    cuts = [cut for cut in range(first, len(write.data), unit) if cut > 0]
    if not cuts:
        return write
    content = _content(write)
    cut = random.choice(random.choice((cuts, [cut for cut in cuts if cut < content] or cuts)))
    if random.random() < 0.3:
        return Write(write.position + cut, write.data[cut:])
    return Write(write.position, write.data[:cut])


def _put_garbage(contents: bytearray, write: Write, random: Random) -> None:
    """Over one sector, but never over bytes that had been durable before this write touched them."""
    length = random.choice((len(write.data), _content(write)))
    start = random.randrange(write.position, write.position + max(length, 1), 1)
    start -= start % SECTOR
    start = max(start, write.position)
    end = min(start - start % SECTOR + SECTOR, write.position + len(write.data), len(contents))
    if start < end:
        contents[start:end] = random.randbytes(end - start)


def _content(write: Write) -> int:
    """Its length without zeros at the end: harm to those is harmless, so the dice favour the rest."""
    return len(write.data.rstrip(b"\0"))
