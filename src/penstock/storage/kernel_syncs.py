"""Files synced by the kernel while the event loop goes on: Linux's own asynchronous I/O, by `ctypes`.

    begin(file) ─┐
    begin(file) ─┴─ end of the turn ─► io_submit ─► workers of the kernel sync ─► eventfd ─► io_getevents ─► done

No thread of ours is woken, waits for the interpreter's lock, and wakes the loop again: that takes a process four times
as much of a processor as the sync itself does. Syncs of several files are under way at the same time. Those of a turn
are handed over together, when the rest of its work is done: the kernel's workers come first, and would interrupt it.

A kernel that has no such thing, or does not let us (another system, an old one, a sandbox), is found out at first try.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from errno import EAGAIN, EBADF, EINTR, ENOMEM
from time import perf_counter
from typing import Any, ClassVar, NamedTuple, Protocol

from penstock.errors import SyncFailed
from penstock.storage.files import DiskFile, File

log = logging.getLogger("penstock.storage")

Done = Callable[[SyncFailed | None], None]
Refused = Callable[[], None]

# As many as may be under way at a time. The kernel counts them, for all processes together.
AT_ONCE = 64
_KEPT = 8
_FDSYNC = 3
_TELL_EVENTFD = 1


class _Calls(NamedTuple):
    """Their numbers."""

    setup: int
    destroy: int
    getevents: int
    submit: int


_CALLS = {"x86_64": _Calls(206, 207, 208, 209), "aarch64": _Calls(0, 1, 4, 2)}


class Syncs(Protocol):
    @property
    def is_there(self) -> bool:
        """As far as is known. If not, it never will be."""

    def begin(self, file: File, done: Done, refused: Refused) -> None:
        """One of the two is called, later, by the event loop. `done`: what is written to the file by now is on disk, or
        why not. `refused`: nothing has happened, and `File.sync` is there."""

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


class _Begun(NamedTuple):
    """A file that is kept open until its sync has ended."""

    file: DiskFile
    # What `DiskFile.begin_sync` returned.
    changes: int
    done: Done
    refused: Refused
    at: float

    def refuse(self) -> None:
        self.file.end_sync(self.changes, is_synced=False)
        self.refused()


class KernelSyncs:
    """Belongs to the event loop that is running when it is made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun: list[_Begun] = []
        self._under_way: dict[int, _Begun] = {}
        self._count = 0
        # Until it is known better.
        self._is_there = sys.platform == "linux" and sys.maxsize > 2**32 and platform.machine() in _CALLS
        self._context: _Context | None = None

    @property
    def is_there(self) -> bool:
        return self._is_there

    def begin(self, file: File, done: Done, refused: Refused) -> None:
        is_room = len(self._under_way) + len(self._begun) < AT_ONCE
        if not isinstance(file, DiskFile) or not is_room or not self._has_context():
            self._loop.call_soon(refused)
            return
        try:
            # Opened again now: an error that others hear of from here on is told to this opening as well.
            changes = file.begin_sync()
        except OSError:
            # It is closed, too many files are open, there is no /proc, or syncing it has failed before.
            self._loop.call_soon(refused)
            return
        if not self._begun:
            self._loop.call_soon(self._submit)
        self._begun.append(_Begun(file, changes, done, refused, perf_counter()))

    def _has_context(self) -> bool:
        if self._context is None and self._is_there:
            try:
                context = _Context.taken(_CALLS[platform.machine()])
            except OSError:
                # Too many files are open. Maybe not for long.
                return False
            if context is None:
                self._end("the kernel has no room for it, or none for us")
                return False
            self._loop.add_reader(context.eventfd, self._came)
            self._context = context
        return self._is_there

    def _end(self, why: str) -> None:
        if self._is_there:
            self._is_there = False
            log.info("files are synced by threads, which takes more of a processor: %s", why)

    def _submit(self) -> None:
        begun, self._begun = self._begun, []
        if not begun or self._context is None:
            # They were handed over at the end.
            return
        numbered: dict[int, _Begun] = {}
        files: list[tuple[int, int]] = []
        for one in begun:
            self._count += 1
            numbered[self._count] = one
            # One that was closed meanwhile has no number any more, and is refused. Whoever closes it on another thread
            # at this very moment has synced it: a log does not believe us then (`Log.synced`).
            files.append((self._count, one.file.opened_again()))
        refusals = self._context.submit(files)
        self._under_way |= {number: one for number, one in numbered.items() if number not in refusals}
        for number, refusal in refusals.items():
            if refusal not in (EAGAIN, EBADF, ENOMEM):
                self._end(os.strerror(refusal))
            self._loop.call_soon(numbered[number].refuse)

    def _came(self) -> None:
        assert self._context is not None
        os.eventfd_read(self._context.eventfd)
        self._tell(0)

    def _tell(self, at_least: int) -> None:
        assert self._context is not None
        # As they are now: whoever is told may begin another, or end it all.
        ended = [(self._under_way.pop(number), result) for number, result in self._context.ended(at_least)]
        for (file, changes, done, _, began), result in ended:
            failure = None
            file.end_sync(changes, is_synced=not result)
            if result:
                failure = SyncFailed(f"fdatasync of {file.path}: {os.strerror(-result)}", file=file.path)
            try:
                if failure is None:
                    file.took(perf_counter() - began)
                done(failure)
            except Exception as error:
                # Others are to be told, too.
                self._loop.call_exception_handler({"message": "whoever waited for a sync failed", "exception": error})

    def close(self) -> None:
        self._is_there = False
        if self._context is None:
            return
        self._submit()
        while self._under_way and self._context is not None:
            self._tell(len(self._under_way))
        if self._context is not None:
            self._loop.remove_reader(self._context.eventfd)
            self._context.give_back()
            self._context = None

    def __del__(self) -> None:
        # Its loop has ended without a word. With the process, everything does.
        if self._context is not None and not sys.is_finalizing():
            self._context.close()


class _Context:
    """What the kernel keeps for us, and how it is called.

    To end one takes the kernel 30 ms. So some are kept for whoever needs one next.
    """

    _free: ClassVar[list[_Context]] = []

    def __init__(self, calls: _Calls, eventfd: int, context: ctypes.c_ulong) -> None:
        self._calls = calls
        self.eventfd = eventfd
        self._context = context
        self._process = os.getpid()
        self._events = (_Event * AT_ONCE)()
        self._requests = [_Request(opcode=_FDSYNC, flags=_TELL_EVENTFD, eventfd=eventfd) for _ in range(AT_ONCE)]
        self._pointers = (ctypes.POINTER(_Request) * AT_ONCE)(*map(ctypes.pointer, self._requests))
        self._pointer_bytes = ctypes.sizeof(ctypes.POINTER(_Request))

    @classmethod
    def taken(cls, calls: _Calls) -> _Context | None:
        """None if the kernel gives none; OSError if too many files are open."""
        with suppress(IndexError):
            return cls._free.pop()
        eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        context = ctypes.c_ulong(0)
        if _at_once(ctypes.c_long(calls.setup), ctypes.c_long(AT_ONCE), ctypes.byref(context)) != 0:
            os.close(eventfd)
            return None
        return cls(calls, eventfd, context)

    def submit(self, files: list[tuple[int, int]]) -> dict[int, int]:
        """Numbers of requests and of their files, at most AT_ONCE; why some of them were refused."""
        for request, (number, file) in zip(self._requests, files, strict=False):
            request.data = number
            # None that is open has this one.
            request.file = file if file >= 0 else 0xFFFFFFFF
        refusals = {}
        at = 0
        while at < len(files):
            first = ctypes.byref(self._pointers, at * self._pointer_bytes)
            count = ctypes.c_long(len(files) - at)
            taken = _at_once(ctypes.c_long(self._calls.submit), self._context, count, first)
            if taken > 0:
                at += taken
            else:
                refusals[files[at][0]] = ctypes.get_errno() or EAGAIN
                at += 1
        return refusals

    def ended(self, at_least: int) -> list[tuple[int, int]]:
        """Numbers of requests, and their results: 0, or below it what went wrong."""
        call = _waiting if at_least else _at_once
        least, most = ctypes.c_long(at_least), ctypes.c_long(AT_ONCE)
        count = call(ctypes.c_long(self._calls.getevents), self._context, least, most, self._events, None)
        if count < 0 and ctypes.get_errno() != EINTR:
            raise OSError(ctypes.get_errno(), "io_getevents")
        return [(event.data, event.result) for event in self._events[: max(count, 0)]]

    def give_back(self) -> None:
        """Nothing of it is under way."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.eventfd)
        if len(self._free) < _KEPT:
            self._free.append(self)
        else:
            self.close()

    def close(self) -> None:
        """In the process that made it: the memory that it is in is not that of a child."""
        if self.eventfd >= 0 and self._process == os.getpid():
            os.close(self.eventfd)
            self.eventfd = -1
            _waiting(ctypes.c_long(self._calls.destroy), self._context)


def _syscall(library: ctypes.CDLL) -> Any:
    call = library.syscall
    call.restype = ctypes.c_long
    return call


# With the interpreter's lock, for calls that wait for nothing, and without.
_at_once = _syscall(ctypes.PyDLL(None, use_errno=True))
_waiting = _syscall(ctypes.CDLL(None, use_errno=True))
os.register_at_fork(after_in_child=_Context._free.clear)
