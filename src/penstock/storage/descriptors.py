"""Open files within a bound: the least recently used one is closed, and opened again when it is needed.

    in use ── its bound is reached, and it is the one that rests longest ──► closed
      ▲                                                                        │
      └────────────── the next read, write or sync opens its path ─────────────┘

A file stays open
- while a call uses it, or the kernel syncs it (`Opening.pinned` to `Opening.unpinned`);
- while it has changes that are not synced: the kernel reports an error of writing them back to those descriptors that
  are open at that time, so `sync` after a reopening could succeed although the bytes are lost;
- if its path does not lead to it any more (removed, replaced, renamed): who holds it goes on reading what it opened.
So closing and reopening is never noticed. If every open file has unsynced changes, one of them is synced here, and a
failure is kept for its owner: the next `sync` of that file raises it.

The bound is on what one tree of directories has open, not on the process: sockets and libraries need descriptors as
well. `EMFILE` and `ENFILE` on opening a file therefore mean: close another one and try again.
"""

from __future__ import annotations

import os
import resource
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from errno import EBADF, EMFILE, ENFILE, ESTALE
from itertools import count
from threading import Lock
from typing import TypeVar
from weakref import ref

T = TypeVar("T")

# For threads that write and read, each with a file and a directory or two.
_FILES_MIN = 48
# For the event loop, listeners, logs, etcd, other nodes, and what libraries open.
_OTHERS = 64
# Attempts to find a file to close, while threads write to files that were just synced for that. After the last one the
# bound is exceeded.
_TRIES = 8


def descriptor_limit() -> int:
    """Of this process, as it is now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _finite(soft)


def raise_descriptor_limit() -> int:
    """Raise the soft limit on descriptors to the hard limit of this process; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _finite(hard)
    if wanted > _finite(soft):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            # Some systems have a lower bound than the one they tell.
            pass
    return descriptor_limit()


def shares(limit: int, connections: int) -> tuple[int, int]:
    """How many of so many descriptors a server has for files, and how many for connections, which are at most half."""
    left = max(limit - _OTHERS, 2 * _FILES_MIN)
    connections = min(connections, left // 2)
    return left - connections, connections


def share_of_files() -> int:
    """The same in a process that is not ours: half of what it may have."""
    return max(descriptor_limit() // 2, _FILES_MIN)


def _finite(limit: int) -> int:
    # Linux' own default of `fs.nr_open`.
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit


def is_exhausted(error: OSError) -> bool:
    """Whether this process or the system has too many files open."""
    return error.errno in (EMFILE, ENFILE)


class Opening:
    """A file that somebody holds, open or not. `path` is relative to the root of the tree."""

    __slots__ = (
        "__weakref__",
        "_again",
        "_changes",
        "_end",
        "_failure",
        "_fd",
        "_flags",
        "_inode",
        "_is_closed",
        "_is_recent",
        "_left",
        "_path",
        "_pins",
        "_serial",
        "_synced_changes",
        "_tree",
    )

    def __init__(self, tree: Descriptors, path: str, flags: int) -> None:
        self._tree = tree
        self._path = path
        # Creating is done once.
        self._flags = flags & ~(os.O_CREAT | os.O_EXCL)
        self._fd = self._again = -1
        self._is_closed = self._is_recent = False
        # Descriptors of a closed one that calls still use.
        self._left: list[int] = []
        self._failure: OSError | None = None
        # One entry for each call that uses the descriptor. A list, because to append and to pop are atomic.
        self._pins: list[None] = []
        # Writes and truncations so far, and those of them that are on disk.
        self._changes = self._synced_changes = 0
        self._serial = 0
        fd = tree.opened(lambda: os.open(path, flags | os.O_CLOEXEC, 0o600, dir_fd=tree.root))
        status = os.fstat(fd)
        self._inode = status.st_ino
        # Where the next write goes.
        self._end = status.st_size
        tree.hold(self, fd)

    @property
    def path(self) -> str:
        return os.path.join(self._tree.path, self._path)

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    @property
    def is_dirty(self) -> bool:
        return self._changes != self._synced_changes or self._failure is not None

    def pinned(self) -> int:
        """Its descriptor, which stays open until `unpinned`."""
        # In this order: see `Descriptors._close`.
        self._pins.append(None)
        fd = self._fd
        if fd < 0:
            try:
                fd = self._tree.reopened(self)
            except BaseException:
                self.unpinned()
                raise
        self._is_recent = True
        return fd

    def unpinned(self) -> None:
        self._pins.pop()
        if self._left:
            with self._tree.lock:
                self._close_left()

    def synced_to(self, changes: int) -> None:
        """As many changes are on disk. Of two threads that tell this at the same time the lower number may win: then
        the file counts as changed until it is synced once more, here at the latest."""
        if changes > self._synced_changes:
            self._synced_changes = changes

    def sync_changes(self) -> None:
        """Sync the file. An OSError is final: every later call raises it again."""
        if self._failure is not None:
            raise self._failure
        if self._fd < 0 < self._synced_changes == self._changes and not self._is_closed:
            # Synced to be closed. To open it again may fail, and the caller would take its changes for lost.
            return
        fd, changes = self.pinned(), self._changes
        try:
            os.fdatasync(fd)
            self.synced_to(changes)
        except OSError as error:
            self._failure = error
            raise
        finally:
            self.unpinned()

    def begin_sync(self) -> int:
        """It is going to be synced by the descriptor that `opened_again` returns, and stays open until `end_sync`.
        Returns how many changes that will bring to disk."""
        if self._failure is not None:
            raise self._failure
        changes = self._changes
        self.pinned()
        try:
            if self.opened_again() < 0:
                raise OSError(EBADF, os.strerror(EBADF))
        except BaseException:
            self.unpinned()
            raise
        return changes

    def end_sync(self, changes: int, *, is_synced: bool) -> None:
        self.unpinned()
        if is_synced:
            self.synced_to(changes)

    def opened_again(self) -> int:
        """Of one that is pinned: the descriptor of a second opening, -1 if it is closed. The kernel reports an error
        once to each opening: of two that sync it by the same one at the same time, one would miss it."""
        if self._again < 0 <= self._fd:
            fd = self._fd
            again = self._tree.opened(lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC))
            self._tree.hold_again(self, again)
        return self._again

    def close(self) -> None:
        with self._tree.lock:
            if not self._is_closed:
                self._release()

    def _release(self) -> None:
        self._is_closed = True
        self._left = [fd for fd in (self._fd, self._again) if fd >= 0]
        self._fd = self._again = -1
        self._tree.ended.append((self._serial, self._path, len(self._left)))
        self._close_left()

    def _close_left(self) -> None:
        """Close what is left open, unless a call still uses it: its number could become another file's meanwhile."""
        while self._left and not self._pins:
            os.close(self._left.pop())

    def __del__(self) -> None:
        # Nobody else refers to it. Without the lock: the thread that runs this may hold it.
        if not self._is_closed:
            self._release()


class Descriptors:
    """Those of the files in one tree of directories: at most `count_max`, unless more are in use at the same time.

    Invariant: `_count` is the number of descriptors of the openings in `_open`; every other opening that is not closed
    is in `_resting`, under its path, and its path leads to its file.
    """

    def __init__(self, path: str, root: int, count_max: int) -> None:
        """`root` is the descriptor of the tree's root, which stays open until `close`."""
        assert count_max > 0
        self.path = path
        self.root = root
        self.count_max = count_max
        self.lock = Lock()
        # Left by openings that have ended: a finalizer may run anywhere, and must not wait for the lock.
        self.ended: deque[tuple[int, str, int]] = deque()
        self._serials = count(1)
        # By serial number, next to be looked at first.
        self._open: OrderedDict[int, ref[Opening]] = OrderedDict()
        self._count = 0
        self._resting: dict[str, ref[Opening]] = {}
        # Paths that are about to lead elsewhere.
        self._moving: set[str] = set()

    @property
    def count(self) -> int:
        with self.lock:
            self._forget_ended()
            return self._count

    def close(self) -> None:
        """Files that are open can still be used; others can't be opened any more."""
        root, self.root = self.root, -1
        if root >= 0:
            os.close(root)

    def __del__(self) -> None:
        self.close()

    # --- opening -----------------------------------------------------------------------------------------

    def opened(self, call: Callable[[], T]) -> T:
        """What a call returns that needs a descriptor or two."""
        if self.ended or self._count >= self.count_max:
            self._make_room()
        while True:
            try:
                return call()
            except OSError as error:
                if not is_exhausted(error) or not self._close_one():
                    raise

    def hold(self, opening: Opening, fd: int) -> None:
        with self.lock:
            self._hold(opening, fd)

    def _hold(self, opening: Opening, fd: int) -> None:
        opening._serial = next(self._serials)
        opening._fd = fd
        self._open[opening._serial] = ref(opening)
        self._count += 1

    def hold_again(self, opening: Opening, fd: int) -> None:
        with self.lock:
            if opening._is_closed or opening._again >= 0:
                os.close(fd)
            else:
                opening._again = fd
                self._count += 1

    def reopened(self, opening: Opening) -> int:
        """The descriptor of one that is pinned."""
        while True:
            self._make_room()
            with self.lock:
                if opening._fd >= 0:
                    # By another thread; or it was just about to be closed.
                    return opening._fd
                if opening._is_closed:
                    raise OSError(EBADF, os.strerror(EBADF))
                try:
                    fd = os.open(opening._path, opening._flags | os.O_CLOEXEC, dir_fd=self.root)
                except OSError as error:
                    if not is_exhausted(error):
                        raise
                    exhausted = error
                else:
                    if os.fstat(fd).st_ino != opening._inode:
                        os.close(fd)
                        raise OSError(ESTALE, "replaced by another process")
                    self._resting.pop(opening._path, None)
                    self._hold(opening, fd)
                    return fd
            if not self._close_one():
                raise exhausted

    # --- closing -----------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        for _ in range(_TRIES):
            if self.ended:
                with self.lock:
                    self._forget_ended()
            if self._count < self.count_max or not self._close_one():
                return

    def _forget_ended(self) -> None:
        while self.ended:
            serial, path, descriptors = self.ended.popleft()
            self._count -= descriptors
            self._open.pop(serial, None)
            resting = self._resting.get(path)
            if resting is not None and ((held := resting()) is None or held._is_closed):
                del self._resting[path]

    def _close_one(self) -> bool:
        """False if all are in use, or have changes and can't be synced."""
        with self.lock:
            self._forget_ended()
            dirty: Opening | None = None
            # Twice: the first look at one that was used lately only notes that it was looked at.
            for _ in range(2 * len(self._open)):
                serial = next(iter(self._open))
                self._open.move_to_end(serial)
                opening = self._open[serial]()
                if opening is None or opening._pins:
                    continue
                if opening.is_dirty:
                    dirty = dirty or (opening if opening._failure is None else None)
                elif opening._is_recent:
                    opening._is_recent = False
                elif self._close(opening):
                    return True
            if dirty is None:
                return False
            dirty._pins.append(None)
        try:
            dirty.sync_changes()
        except OSError:
            # Its owner hears of it.
            pass
        finally:
            dirty.unpinned()
        return True

    def _close(self, opening: Opening) -> bool:
        if opening._path in self._moving or opening._path in self._resting or not self._is_named(opening):
            return False
        fd, opening._fd = opening._fd, -1
        # Who takes a pin from here on finds it closed, and waits for the lock. Who had one before is seen now.
        if opening._pins or opening.is_dirty:
            opening._fd = fd
            return False
        again, opening._again = opening._again, -1
        del self._open[opening._serial]
        for each in (fd, again):
            if each >= 0:
                os.close(each)
                self._count -= 1
        self._resting[opening._path] = ref(opening)
        return True

    def _is_named(self, opening: Opening) -> bool:
        """Whether its path leads to it: while it is open, no other file has its inode."""
        try:
            return os.stat(opening._path, dir_fd=self.root).st_ino == opening._inode
        except OSError:
            return False

    @contextmanager
    def moving(self, paths: Iterable[str]) -> Iterator[None]:
        """While these paths are removed or replaced: who holds what they lead to now goes on reading that."""
        paths = set(paths)
        with self.lock:
            self._moving |= paths
            held = [opening for path in paths if path in self._resting and (opening := self._resting[path]())]
        try:
            for opening in held:
                try:
                    opening.pinned()
                except OSError:
                    # It was closed meanwhile, or nothing can be opened. Its path goes all the same.
                    continue
                opening.unpinned()
            yield
        finally:
            with self.lock:
                self._moving -= paths
