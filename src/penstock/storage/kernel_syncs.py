"""Files synced by the kernel while the event loop goes on: Linux's own asynchronous I/O, by `ctypes`.

    begin(file, done) ─► io_submit ─► a worker of the kernel syncs ─► eventfd ─► io_getevents ─► done, on the loop

No thread of ours is woken, waits for the interpreter's lock, and wakes the loop again: that takes a process four times
as much of a processor as the sync itself does. Syncs of several files are under way at the same time.

A kernel that has it not, or does not let us (another system, an old one, a sandbox), is noticed at the first try, and
`begin` says no from then on.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from penstock.errors import SyncFailed
from penstock.storage.files import DiskFile, File

Done = Callable[[SyncFailed | None], None]

# As many as may be under way at a time. The kernel counts them, for all processes together.
AT_ONCE = 64
_EVENTS = AT_ONCE
_FDSYNC = 3
_TELL_EVENTFD = 1
# io_setup, io_destroy, io_getevents, io_submit.
_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}


class Syncs(Protocol):
    @property
    def is_there(self) -> bool:
        """As far as is known. If not, it never will be."""

    def begin(self, file: File, done: Done) -> bool:
        """What is written to the file so far is on disk when `done` is called, later, by the event loop; or it is told
        why not. False if this can't be had: `done` is not called then, and `File.sync` is there."""

    def close(self) -> None:
        """When what is under way has come to its end."""


class _Request(ctypes.Structure):
    """`struct iocb`, as the kernel has it where bytes are little-endian."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("file", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("eventfd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """`struct io_event`."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class _UnderWay(NamedTuple):
    file: DiskFile
    done: Done
    began: float


class KernelSyncs:
    """Belongs to the event loop that is running when it is made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[int, _UnderWay] = {}
        self._begun = 0
        self._eventfd = -1
        self._context = ctypes.c_ulong(0)
        self._events = (_Event * _EVENTS)()
        self._request = _Request(opcode=_FDSYNC, flags=_TELL_EVENTFD)
        self._pointer = ctypes.pointer(self._request)
        # With the interpreter's lock: but for the last, none of these calls waits for anything.
        self._call: Any = None
        calls = _CALLS.get(platform.machine())
        if sys.platform == "linux" and sys.byteorder == "little" and calls is not None and sys.maxsize > 2**32:
            self._setup, self._destroy, self._getevents, self._submit = calls
            self._open()

    def _open(self) -> None:
        call = ctypes.PyDLL(None, use_errno=True).syscall
        call.restype = ctypes.c_long
        if call(self._setup, AT_ONCE, ctypes.byref(self._context)) != 0:
            return
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._request.eventfd = self._eventfd
        self._call = call
        self._loop.add_reader(self._eventfd, self._came)

    @property
    def is_there(self) -> bool:
        return self._call is not None

    def begin(self, file: File, done: Done) -> bool:
        if self._call is None or not isinstance(file, DiskFile) or len(self._under_way) >= AT_ONCE:
            return False
        self._begun += 1
        # The kernel takes a copy.
        self._request.data = self._begun
        self._request.file = file.number
        began = perf_counter()
        if self._call(self._submit, self._context, 1, ctypes.byref(self._pointer)) != 1:
            if not self._under_way:
                # Not for want of room.
                self.close()
            return False
        self._under_way[self._begun] = _UnderWay(file, done, began)
        return True

    def _came(self) -> None:
        os.eventfd_read(self._eventfd)
        self._tell(0)

    def _tell(self, at_least: int) -> None:
        count = self._call(self._getevents, self._context, at_least, _EVENTS, self._events, None)
        # As they are now: whoever is told may begin another.
        ended = [(self._under_way.pop(event.data), event.result) for event in self._events[: max(count, 0)]]
        for (file, done, began), result in ended:
            if result == 0:
                file.took(perf_counter() - began)
                done(None)
            else:
                done(SyncFailed(f"fdatasync of {file.path}: {os.strerror(-result)}", file=file.path))

    def close(self) -> None:
        if self._call is not None:
            while self._under_way:
                self._tell(len(self._under_way))
            self._loop.remove_reader(self._eventfd)
            self._call(self._destroy, self._context)
            os.close(self._eventfd)
            self._call = None
