"""The disk, as storage sees it. But for `kernel_syncs`, the only module that touches `os`, and meets an OSError.

`Files` is one directory, `File` one file in it. Two rules of durability live here and nowhere else: bytes are on
disk after `File.sync`, and a created, renamed or removed name is on disk after `Files.sync`. Nothing else is
promised: not that writes reach the disk in order, nor whole.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Literal, NamedTuple, NoReturn, Protocol

from penstock.errors import DeviceFailed, DirectoryLocked, DiskFull, StorageError, StorageReadOnly, SyncFailed

Buffer = bytes | bytearray | memoryview
PathLike = os.PathLike
Mode = Literal["read", "append", "create"]


class Space(NamedTuple):
    """Bytes that can still be written, and those that there would be on an empty disk; 0 if nobody knows."""

    free: int
    total: int


class File(Protocol):
    def write(self, buffers: Sequence[Buffer]) -> None:
        """Appends all of them; on an error some may have been written."""

    def write_at(self, position: int, data: Buffer) -> None: ...
    def read_at(self, position: int, length: int) -> bytes:
        """Fewer bytes only at the end of the file."""

    def size(self) -> int: ...
    def truncate(self, size: int) -> None: ...
    def sync(self) -> None:
        """Contents and size are on disk when this returns. SyncFailed is final: never call it again."""

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
    def remove_directory(self, name: str) -> None:
        """With everything in it."""

    def space(self) -> Space:
        """Of the disk that the directory is on."""

    def lock(self) -> None:
        """Keeps the directory for this process; DirectoryLocked if another has it. `close` gives it up."""

    def close(self) -> None: ...


# Linux refuses more buffers than this in one writev.
_BUFFERS_MAX = 1024
_FLAGS = {
    "read": os.O_RDONLY,
    "append": os.O_RDWR,
    "create": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}


class DiskFiles:
    """A real directory."""

    def __init__(
        self, path: str | PathLike[str], *, create: bool = True, synced: Callable[[float], None] | None = None
    ) -> None:
        """`synced` is told how many seconds each sync took, by whatever thread it was on."""
        self.path = os.fspath(path)
        self._synced = synced
        self._fd = -1
        try:
            if create:
                _make_directories(os.path.abspath(path))
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except (FileExistsError, NotADirectoryError) as error:
            raise StorageError(f"{self.path} is not a directory", file=self.path) from error
        except ValueError as error:
            raise StorageError(f"{self.path!r} can't be a path: {error}", file=self.path) from error
        except OSError as error:
            _fail(error, self.path)

    def names(self) -> list[str]:
        return self._entries(directories=False)

    def directories(self) -> list[str]:
        return self._entries(directories=True)

    def _entries(self, *, directories: bool) -> list[str]:
        try:
            # How far a directory is read belongs to what was opened: two threads that shared one would each miss some.
            own = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
            try:
                with os.scandir(own) as entries:
                    if directories:
                        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
                    return sorted(entry.name for entry in entries if entry.is_file())
            finally:
                os.close(own)
        except OSError as error:
            _fail(error, self.path)

    def directory(self, name: str) -> DiskFiles:
        return DiskFiles(os.path.join(self.path, name), synced=self._synced)

    def remove_directory(self, name: str) -> None:
        try:
            shutil.rmtree(name, dir_fd=self._fd)
        except OSError as error:
            _fail(error, os.path.join(self.path, name))

    def open(self, name: str, mode: Mode) -> DiskFile:
        try:
            fd = os.open(name, _FLAGS[mode] | os.O_CLOEXEC, 0o644, dir_fd=self._fd)
        except OSError as error:
            _fail(error, os.path.join(self.path, name))
        return DiskFile(fd, os.path.join(self.path, name), self._synced)

    def rename(self, old: str, new: str) -> None:
        try:
            os.rename(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError as error:
            _fail(error, os.path.join(self.path, new))

    def remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._fd)
        except OSError as error:
            _fail(error, os.path.join(self.path, name))

    def sync(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise SyncFailed(f"fsync of {self.path}: {error.strerror}", file=self.path) from error

    def space(self) -> Space:
        try:
            found = os.fstatvfs(self._fd)
        except OSError as error:
            _fail(error, self.path)
        # As `df` counts: what is kept for root is neither free nor used.
        used = found.f_blocks - found.f_bfree
        return Space(found.f_bavail * found.f_frsize, (used + found.f_bavail) * found.f_frsize)

    def lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DirectoryLocked(
                f"{self.path} is open already, here or in another process", directory=self.path
            ) from error
        except OSError as error:
            _fail(error, self.path)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class DiskFile:
    """A real file. Closed when nobody refers to it, so a reader may keep one that has been replaced on disk."""

    __slots__ = ("_again", "_end", "_fd", "_synced", "path")

    def __init__(self, fd: int, path: str, synced: Callable[[float], None] | None = None) -> None:
        self._fd = fd
        self._again = -1
        self._synced = synced
        self._end = os.fstat(fd).st_size
        self.path = path

    def write(self, buffers: Sequence[Buffer]) -> None:
        try:
            for start in range(0, len(buffers), _BUFFERS_MAX):
                self._write_all(buffers[start : start + _BUFFERS_MAX])
        except OSError as error:
            _fail(error, self.path)

    def _write_all(self, buffers: Sequence[Buffer]) -> None:
        written = os.pwritev(self._fd, buffers, self._end)
        self._end += written
        if written < sum(map(len, buffers)):
            rest = memoryview(b"".join(buffers))[written:]
            while rest:
                written = os.pwrite(self._fd, rest, self._end)
                self._end += written
                rest = rest[written:]

    def write_at(self, position: int, data: Buffer) -> None:
        try:
            if os.pwrite(self._fd, data, position) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            _fail(error, self.path)

    def read_at(self, position: int, length: int) -> bytes:
        try:
            data = os.pread(self._fd, length, position)
            if len(data) < length:
                while more := os.pread(self._fd, length - len(data), position + len(data)):
                    data += more
        except OSError as error:
            _fail(error, self.path)
        return data

    def size(self) -> int:
        try:
            return os.fstat(self._fd).st_size
        except OSError as error:
            _fail(error, self.path)

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
            self._end = size
        except OSError as error:
            _fail(error, self.path)

    def sync(self) -> None:
        began = perf_counter()
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise SyncFailed(f"fdatasync of {self.path}: {error.strerror}", file=self.path) from error
        self.took(perf_counter() - began)

    def opened_again(self) -> int:
        """For whoever syncs it some other way: the number of a second opening, -1 if it is closed. Each opening is told
        of an error once. By the same one, two that sync it at the same time would not both hear of it."""
        if self._again < 0 <= self._fd:
            self._again = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)
        return self._again

    def took(self, seconds: float) -> None:
        """So long it was until it was synced."""
        if self._synced is not None:
            self._synced(seconds)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._again >= 0:
            os.close(self._again)
            self._again = -1

    def __del__(self) -> None:
        self.close()


def replace_file(files: Files, name: str, contents: Sequence[Buffer]) -> None:
    """A small file replaced as a whole: after a crash it is the old one or the new one."""
    temporary = f"{name}.new"
    if temporary in files.names():
        files.remove(temporary)
    file = files.open(temporary, "create")
    try:
        file.write(contents)
        file.sync()
    finally:
        file.close()
    files.rename(temporary, name)
    files.sync()


def random_id() -> bytes:
    """Sixteen bytes nobody else has."""
    return os.urandom(16)


def _make_directories(path: str) -> None:
    """Makes what is missing of a path, each name durable in the directory above it."""
    above = os.path.dirname(path)
    if not os.path.isdir(path):
        if not os.path.isdir(above):
            _make_directories(above)
        os.mkdir(path)
    # Also when it was there: whoever made it may have been killed before this.
    _sync_path(above)


def _sync_path(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _fail(error: OSError, path: str) -> NoReturn:
    details = {"file": path, "errno": errno.errorcode.get(error.errno or 0, str(error.errno))}
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise DiskFull(f"no space left for {path}", **details) from error
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        raise StorageReadOnly(f"{path}: {error.strerror}", **details) from error
    if error.errno == errno.EIO:
        raise DeviceFailed(f"{path}: {error.strerror}", **details) from error
    raise StorageError(f"{path}: {error.strerror}", **details) from error
