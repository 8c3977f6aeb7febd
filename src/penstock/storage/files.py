"""The disk, as storage sees it. But for `descriptors` and `kernel_syncs`, the only module that touches `os`, and meets
an OSError.

`Files` is one directory, `File` one file in it. Two rules of durability live here and nowhere else: bytes are on
disk after `File.sync`, and a created, renamed or removed name is on disk after `Files.sync`. Nothing else is
promised: not that writes reach the disk in order, nor whole.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from time import perf_counter
from typing import Literal, NamedTuple, NoReturn, Protocol, TypeVar

from penstock.errors import (
    DeviceFailed,
    DirectoryLocked,
    DiskFull,
    StorageError,
    StorageReadOnly,
    SyncFailed,
    TooManyOpenFiles,
)
from penstock.standard_files import reopen_closed
from penstock.storage.descriptors import Descriptors, Opening, is_exhausted, share_of_files

Buffer = bytes | bytearray | memoryview
PathLike = os.PathLike
Mode = Literal["read", "append", "create"]
T = TypeVar("T")


class Space(NamedTuple):
    """Bytes that can still be written, and those that there would be on an empty disk; 0 if nobody knows."""

    free: int
    total: int


class File(Protocol):
    """Open for its holder until `close`. Its descriptor may be closed and opened again in between: see `is_open`."""

    @property
    def is_open(self) -> bool:
        """Whether the next call may use it at once. Otherwise it opens the file first, for which others may have to be
        closed, or even synced: nothing for an event loop."""

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Appends all of them; on an error some may have been written."""

    def write_at(self, position: int, data: Buffer) -> None: ...
    def write_hint(self, position: int, data: Buffer) -> None:
        """As `write_at`, of bytes that may be lost without anybody being told: they alone do not keep it open."""

    def read_at(self, position: int, length: int) -> bytes:
        """Fewer bytes only at the end of the file."""

    def is_cached(self, position: int, length: int) -> bool:
        """Whether it can probably be read without waiting for the disk: it is open, and in the page cache."""

    def size(self) -> int: ...
    def truncate(self, size: int) -> None: ...
    def sync(self) -> None:
        """Contents and size are on disk when this returns. SyncFailed is final: never call it again."""

    def drop_cache(self) -> None:
        """Syncs the file; what is read from here on is what is on disk. After a failed sync, even of a process that has
        ended, the operating system may still show bytes that it will never write."""

    def close(self) -> None: ...


class Files(Protocol):
    def names(self) -> list[str]:
        """Of files; directories are not among them."""

    def open(self, name: str, mode: Mode) -> File:
        """`create` refuses a name that exists, `read` and `append` one that does not (StorageError)."""

    def rename(self, old: str, new: str) -> None:
        """Replaces `new` if it exists."""

    def remove(self, name: str) -> None: ...
    def sync(self) -> None:
        """Names created, renamed and removed are on disk when this returns."""

    def directory(self, name: str) -> Files:
        """A directory in this one, made if it is not there; durable under its name when this returns."""

    def directories(self) -> list[str]: ...
    def has_directory(self, name: str) -> bool: ...
    def remove_directory(self, name: str) -> None:
        """With everything in it."""

    def space(self) -> Space:
        """Of the disk that the directory is on."""

    def lock(self) -> None:
        """Keeps the directory for this process; DirectoryLocked if another has it. `close` gives it up."""

    def close(self) -> None: ...


# Linux refuses more buffers than this in one writev.
_BUFFERS_MAX = 1024
# Access of the group and of other users.
_OTHERS = 0o077
# Read without waiting, or not at all. And how far apart: the kernel reads ahead about as much.
_NOWAIT = os.RWF_NOWAIT
_PROBED_BYTES = 256 << 10
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FLAGS = {
    "read": os.O_RDONLY,
    "append": os.O_RDWR,
    "create": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}


class DiskFiles:
    """A real directory. It and the directories in it share one bound on open files (`descriptors.py`)."""

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        create: bool = True,
        synced: Callable[[float], None] | None = None,
        descriptors_max: int | None = None,
    ) -> None:
        """`synced` is called with the seconds that each sync took, on the thread that synced. At most `descriptors_max`
        files are kept open; by default half of what this process may open."""
        reopen_closed()
        self.path = os.fspath(path)
        self._synced = synced
        # Relative to the root of the tree, which this is.
        self._inner = ""
        self._locked: set[str] = set()
        self._has_lock = False
        self._lock_fd = -1
        with self._translated():
            if create:
                _make_directories(os.path.abspath(path))
            root = os.open(path, _DIRECTORY)
        self._descriptors = Descriptors(self.path, root, descriptors_max or share_of_files())

    @property
    def descriptors_max(self) -> int:
        return self._descriptors.count_max

    @property
    def descriptors(self) -> int:
        """In use now, for files."""
        return self._descriptors.count

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (FileExistsError, NotADirectoryError) as error:
            raise StorageError(f"{self.path} is not a directory", file=self.path) from error
        except ValueError as error:
            raise StorageError(f"{self.path!r} can't be a path: {error}", file=self.path) from error
        except OSError as error:
            _fail(error, self.path)

    def _at(self, name: str) -> str:
        return f"{self._inner}/{name}" if self._inner else name

    def _with_descriptor(self, call: Callable[[int], T]) -> T:
        """Open the directory for one call: the read position belongs to an opening, so threads must not share one. The
        kernel reports a write-back error that no opening has seen yet to a new opening."""

        def opened() -> T:
            fd = os.open(self._inner or ".", _DIRECTORY, dir_fd=self._descriptors.root)
            try:
                return call(fd)
            finally:
                os.close(fd)

        return self._descriptors.opened(opened)

    def names(self) -> list[str]:
        return self._listed(_names)

    def directories(self) -> list[str]:
        return self._listed(_directories)

    def _listed(self, kind: Callable[[int], list[str]]) -> list[str]:
        try:
            return self._with_descriptor(kind)
        except OSError as error:
            _fail(error, self.path)

    def has_directory(self, name: str) -> bool:
        try:
            root = self._descriptors.root
            return stat.S_ISDIR(os.stat(self._at(name), dir_fd=root, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False
        except OSError as error:
            _fail(error, os.path.join(self.path, name))

    def directory(self, name: str) -> DiskFiles:
        inner = copy(self)
        inner.path = os.path.join(self.path, name)
        inner._inner = self._at(name)
        inner._has_lock, inner._lock_fd = False, -1
        with inner._translated():
            with suppress(FileExistsError):
                os.mkdir(inner._inner, 0o700, dir_fd=self._descriptors.root)
            # Also when it was there: whoever made it may have been killed before this.
            self._with_descriptor(os.fsync)
            inner._with_descriptor(os.fstat)
        return inner

    def remove_directory(self, name: str) -> None:
        path, root = self._at(name), self._descriptors.root
        try:
            with self._descriptors.moving(_files_below(path, root)):
                self._descriptors.opened(lambda: shutil.rmtree(path, dir_fd=root))
        except OSError as error:
            _fail(error, os.path.join(self.path, name))

    def open(self, name: str, mode: Mode) -> DiskFile:
        try:
            return DiskFile(self._descriptors, self._at(name), _FLAGS[mode], self._synced)
        except OSError as error:
            _fail(error, os.path.join(self.path, name))

    def rename(self, old: str, new: str) -> None:
        before, after, root = self._at(old), self._at(new), self._descriptors.root
        try:
            with self._descriptors.moving((before, after)):
                os.rename(before, after, src_dir_fd=root, dst_dir_fd=root)
        except OSError as error:
            _fail(error, os.path.join(self.path, new))

    def remove(self, name: str) -> None:
        path = self._at(name)
        try:
            with self._descriptors.moving((path,)):
                os.unlink(path, dir_fd=self._descriptors.root)
        except OSError as error:
            _fail(error, os.path.join(self.path, name))

    def sync(self) -> None:
        try:
            self._with_descriptor(os.fsync)
        except OSError as error:
            if is_exhausted(error):
                _fail(error, self.path)
            raise SyncFailed(f"fsync of {self.path}: {error.strerror}", file=self.path) from error

    def space(self) -> Space:
        try:
            found = os.fstatvfs(self._descriptors.root)
        except OSError as error:
            _fail(error, self.path)
        # As `df` counts: what is kept for root is neither free nor used.
        used = found.f_blocks - found.f_bfree
        return Space(found.f_bavail * found.f_frsize, (used + found.f_bavail) * found.f_frsize)

    def lock(self) -> None:
        """In a tree whose root is locked no descriptor is needed: other processes are kept out by that."""
        try:
            if self._inner in self._locked:
                raise BlockingIOError
            if not self._inner:
                fcntl.flock(self._descriptors.root, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _tighten(self._descriptors.root)
            elif "" not in self._locked:
                self._lock_fd = os.open(self._inner, _DIRECTORY, dir_fd=self._descriptors.root)
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DirectoryLocked(
                f"{self.path} is already open in this process or another one. Close it there, or use that broker: "
                "penstock.connect, or --server instead of --data",
                directory=self.path,
            ) from error
        except OSError as error:
            _fail(error, self.path)
        self._locked.add(self._inner)
        self._has_lock = True

    def close(self) -> None:
        self._unlock()
        if not self._inner:
            self._descriptors.close()

    def _unlock(self) -> None:
        if self._has_lock:
            self._has_lock = False
            self._locked.discard(self._inner)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __del__(self) -> None:
        # The root stays open for as long as anything in the tree is used.
        self._unlock()


class DiskFile(Opening):
    """A real file. Closed when nobody refers to it, so a reader may keep one that has been replaced on disk."""

    __slots__ = ("_synced",)

    def __init__(
        self, descriptors: Descriptors, path: str, flags: int, synced: Callable[[float], None] | None = None
    ) -> None:
        super().__init__(descriptors, path, flags)
        self._synced = synced

    def write(self, buffers: Sequence[Buffer]) -> None:
        try:
            fd = self.pinned()
            try:
                for start in range(0, len(buffers), _BUFFERS_MAX):
                    self._write_all(fd, buffers[start : start + _BUFFERS_MAX])
            finally:
                # After the write: a sync that runs meanwhile does not cover it.
                self._changes += 1
                self.unpinned()
        except OSError as error:
            _fail(error, self.path)

    def _write_all(self, fd: int, buffers: Sequence[Buffer]) -> None:
        written = os.pwritev(fd, buffers, self._end)
        self._end += written
        if written < sum(map(len, buffers)):
            rest = memoryview(b"".join(buffers))[written:]
            while rest:
                written = os.pwrite(fd, rest, self._end)
                self._end += written
                rest = rest[written:]

    def write_at(self, position: int, data: Buffer) -> None:
        self._write_at(position, data, 1)

    def write_hint(self, position: int, data: Buffer) -> None:
        self._write_at(position, data, 0)

    def _write_at(self, position: int, data: Buffer, changes: int) -> None:
        try:
            fd = self.pinned()
            try:
                if os.pwrite(fd, data, position) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                self._changes += changes
                self.unpinned()
        except OSError as error:
            _fail(error, self.path)

    def read_at(self, position: int, length: int) -> bytes:
        try:
            fd = self.pinned()
            try:
                data = os.pread(fd, length, position)
                if len(data) < length:
                    while more := os.pread(fd, length - len(data), position + len(data)):
                        data += more
            finally:
                self.unpinned()
        except OSError as error:
            _fail(error, self.path)
        return data

    def is_cached(self, position: int, length: int) -> bool:
        if not self.is_open:
            return False
        try:
            fd = self.pinned()
            try:
                byte = bytearray(1)
                # Some pages of it: to look at each would cost more than to copy what is there.
                for at in range(position, position + length, _PROBED_BYTES):
                    os.preadv(fd, [byte], at, _NOWAIT)
            finally:
                self.unpinned()
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                _fail(error, self.path)
            # This file system does not tell.
        return True

    def size(self) -> int:
        try:
            fd = self.pinned()
            try:
                return os.fstat(fd).st_size
            finally:
                self.unpinned()
        except OSError as error:
            _fail(error, self.path)

    def truncate(self, size: int) -> None:
        try:
            fd = self.pinned()
            try:
                os.ftruncate(fd, size)
                self._end = size
            finally:
                self._changes += 1
                self.unpinned()
        except OSError as error:
            _fail(error, self.path)

    def sync(self) -> None:
        began = perf_counter()
        try:
            self.sync_changes()
        except OSError as error:
            if is_exhausted(error):
                _fail(error, self.path)
            raise SyncFailed(f"fdatasync of {self.path}: {error.strerror}", file=self.path) from error
        self.took(perf_counter() - began)

    def drop_cache(self) -> None:
        self.sync()
        if not hasattr(os, "posix_fadvise"):
            return
        try:
            fd = self.pinned()
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                self.unpinned()
        except OSError as error:
            _fail(error, self.path)

    def took(self, seconds: float) -> None:
        """So long it was until it was synced."""
        if self._synced is not None:
            self._synced(seconds)


def replace_file(files: Files, name: str, contents: Sequence[Buffer]) -> None:
    """A small file replaced as a whole: after a crash it is the old one or the new one."""
    temporary = f"{name}.new"
    if temporary in files.names():
        files.remove(temporary)
        # A power loss that forgets the removal, but not the rename, would give the name to what a killed process left.
        files.sync()
    file = files.open(temporary, "create")
    try:
        file.write(contents)
        file.sync()
    finally:
        file.close()
    files.rename(temporary, name)
    files.sync()


def _make_directories(path: str) -> None:
    """Makes what is missing of a path, each name durable in the directory above it."""
    above = os.path.dirname(path)
    if not os.path.isdir(path):
        if not os.path.isdir(above):
            _make_directories(above)
        os.mkdir(path, 0o700)
    # Also when it was there: whoever made it may have been killed before this.
    _sync_path(above)


def _tighten(root: int) -> None:
    """Take access from other users: older versions created files by the umask. The root comes last, and its mode says
    whether there is anything to do. What belongs to another user stays as it is."""
    if not os.fstat(root).st_mode & _OTHERS:
        return
    for _, _, names, directory in os.fwalk(".", topdown=False, dir_fd=root):
        for name in names:
            mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
            if stat.S_ISREG(mode) and mode & _OTHERS:
                with suppress(PermissionError):
                    os.chmod(name, stat.S_IMODE(mode) & ~_OTHERS, dir_fd=directory)
        with suppress(PermissionError):
            os.fchmod(directory, 0o700)


def _sync_path(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _names(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return sorted([entry.name for entry in entries if entry.is_file()])


def _directories(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return sorted([entry.name for entry in entries if entry.is_dir(follow_symlinks=False)])


def _files_below(path: str, root: int) -> Iterator[str]:
    for directory, _, names, _ in os.fwalk(path, dir_fd=root):
        for name in names:
            yield f"{directory}/{name}"


def _fail(error: OSError, path: str) -> NoReturn:
    details = {"file": path, "errno": errno.errorcode.get(error.errno or 0, str(error.errno))}
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise DiskFull(f"no space left for {path}", **details) from error
    if is_exhausted(error):
        whose = "this process has" if error.errno == errno.EMFILE else "this machine has"
        raise TooManyOpenFiles(
            f"{path} can't be opened: {whose} too many files open. Close connections, or raise the limit "
            "(`ulimit -n`; systemd: LimitNOFILE=; machine: sysctl fs.file-max)",
            **details,
        ) from error
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        raise StorageReadOnly(f"{path}: {error.strerror}", **details) from error
    if error.errno == errno.EIO:
        raise DeviceFailed(f"{path}: {error.strerror}", **details) from error
    raise StorageError(f"{path}: {error.strerror}", **details) from error
