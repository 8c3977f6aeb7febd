"""Where an archive is: a directory, or a URI that pyarrow knows (file://, s3://, gs://, hdfs://).

What is there can be read wherever it is. It is written to in a directory of this machine only: a commit must appear as
a whole under a name that nobody else took, and a hard link does that; object stores have no such thing in pyarrow.
Whatever the umask, an archive that is created here is for its user alone. Other programs may be meant to read it: if
its directory was created with another mode, what is in it is as open as that and the umask allow.
Errors of the system are translated here, and nowhere else.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, NamedTuple

import pyarrow as pa
from pyarrow import fs

from penstock.archive.layout import MANIFEST, NEW
from penstock.errors import DiskFull, InvalidInput, StorageError, Unsupported

# Up to the last @ in front of a path: a secret may have one.
_SECRET = re.compile(r"^([a-z][a-z0-9+.-]*://)[^/?#]*:.*@", re.IGNORECASE)


class Found(NamedTuple):
    """A file: its path in the archive, its size and when it was last written."""

    path: str
    size: int
    written_us: int


def _is_unicode(text: str) -> bool:
    """Arrow knows no other paths."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Place:
    def __init__(self, uri: str | os.PathLike[str]) -> None:
        given = os.fspath(uri) if isinstance(uri, str | os.PathLike) else None
        if not isinstance(given, str) or not given or not _is_unicode(given):
            raise InvalidInput(f"an archive is in a directory or at a URI, not {uri!r}", argument="archive")
        # What messages show: s3://key:secret@bucket is written by people, and read by others.
        self.uri = _SECRET.sub(r"\1***@", given)
        if "://" in given:
            try:
                self._files, self._root = fs.FileSystem.from_uri(given)
            except (pa.ArrowException, OSError, ValueError) as error:
                told = str(error).replace(given, self.uri)
                raise InvalidInput(f"{self.uri} is no place for an archive: {told}", argument="archive") from error
        else:
            self._files, self._root = fs.LocalFileSystem(), os.path.abspath(given)
        self.is_local = isinstance(self._files, fs.LocalFileSystem)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.uri}>"

    def full(self, path: str) -> str:
        """As the file system knows it."""
        return f"{self._root.rstrip('/')}/{path}" if path else self._root

    # --- reading -----------------------------------------------------------------------------------------

    def open(self, path: str) -> pa.NativeFile:
        """FileNotFoundError if it is not there: whoever asks knows what that means."""
        with self.translated(path):
            return self._files.open_input_file(self.full(path))

    def read(self, path: str) -> bytes:
        with self.translated(path), self.open(path) as file:
            data: bytes = file.read()
            return data

    def names(self, directory: str) -> list[str]:
        """Of what is right in it; none if it is not there."""
        selector = fs.FileSelector(self.full(directory), allow_not_found=True)
        with self.translated(directory):
            return [info.base_name for info in self._files.get_file_info(selector)]

    def size(self, path: str) -> int | None:
        """None if there is no such file."""
        with self.translated(path):
            info = self._files.get_file_info(self.full(path))
        return info.size if info.type == fs.FileType.File else None

    def files(self, *, ending: str) -> list[Found]:
        """Everywhere below, with their paths relative to here."""
        selector = fs.FileSelector(self._root, allow_not_found=True, recursive=True)
        with self.translated(""):
            infos = self._files.get_file_info(selector)
        start = len(self.full("x")) - 1
        return [
            Found(info.path[start:], info.size, (info.mtime_ns or 0) // 1_000)
            for info in infos
            if info.type == fs.FileType.File and info.path.endswith(ending)
        ]

    # --- writing, on this machine ------------------------------------------------------------------------

    def check_writable(self) -> None:
        if not self.is_local:
            raise Unsupported(
                f"{self.uri} can be read, but not written: a commit there could replace another's. "
                "Write to a directory, and copy it"
            )

    def create(self, path: str) -> IO[bytes]:
        """A new file. It is on disk after `sync`."""
        with self.translated(path):
            self._make_directories(os.path.dirname(self.full(path)))
            return os.fdopen(os.open(self.full(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._mode & 0o666), "wb")

    def sync(self, path: str, file: IO[bytes]) -> None:
        with self.translated(path):
            file.flush()
            os.fsync(file.fileno())
            self._sync_directory(os.path.dirname(self.full(path)))

    def publish(self, path: str, data: bytes, *, replace: bool = False) -> bool:
        """A small file that is there as a whole or not at all, and on disk. False if somebody else has the name."""
        new = f"{os.path.dirname(path)}/{NEW}{secrets.token_hex(8)}"
        with self.create(new) as file:
            with self.translated(new):
                file.write(data)
            self.sync(new, file)
        try:
            with self.translated(path):
                if replace:
                    os.replace(self.full(new), self.full(path))
                else:
                    os.link(self.full(new), self.full(path))
        except FileExistsError:
            return False
        finally:
            with suppress(FileNotFoundError):
                os.unlink(self.full(new))
        self._sync_directory(os.path.dirname(self.full(path)))
        return True

    def remove(self, path: str) -> None:
        with self.translated(path), suppress(FileNotFoundError):
            os.unlink(self.full(path))

    def _make_directories(self, directory: str) -> None:
        if os.path.isdir(directory):
            return
        above = os.path.dirname(directory)
        self._make_directories(above)
        with suppress(FileExistsError):
            os.mkdir(directory, self._mode)
        self._sync_directory(above)

    @property
    def _mode(self) -> int:
        """Of a new directory: that of the archive's own, which is 0700 unless a user has created it."""
        try:
            return os.stat(self._root).st_mode & 0o777 | 0o700
        except FileNotFoundError:
            return 0o700

    def _sync_directory(self, directory: str) -> None:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def translated(self, path: str) -> Iterator[None]:
        """Errors of the system as ours."""
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            where = f"{self.uri}: {path}" if path else self.uri
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"{where}: there is no room", file=path) from error
            if error.errno in (errno.EPERM, errno.EOPNOTSUPP) and path.startswith(MANIFEST):
                raise Unsupported(f"{where}: commits need hard links, which this file system has not") from error
            raise StorageError(f"{where}: {error.strerror or error}", file=path) from error
