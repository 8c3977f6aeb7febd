"""What a ring and a worker process say to each other, over a pipe and, if it is much, in memory that both have.

    ring ─► worker   parcel: msgpack [attempts | nil, [job, …]]     begins with 0x92, an array of two
                     S, u64 size                                    the parcel is in the shared memory
    worker ─► ring   R                                              ready: the handler is loaded
                     E, msgpack [reason, traceback]                 it can't be
                     A, msgpack [[answer, …], error | nil, raised]  the parcel is dealt with

One parcel at a time: the next is written when the last is answered. Jobs are never pickled.

Where memory pays, in µs from jobs to answers with a handler that does nothing, on a machine of two cores:

    jobs                  1 × 100 B   100 × 100 B   1,000 × 100 B   10,000 × 100 B
    all by the pipe              22            41             206            3,230
    by memory                    24            39             197            2,250

    jobs        1 × 10 KB   5 × 10 KB   10 × 10 KB   100 × 10 KB   1,000 × 10 KB   10,000 × 10 KB
    pipe               27          38           47           930          17,100          323,000
    memory             24          33           38           470           9,700          184,000
"""

from __future__ import annotations

import os
import sys
from mmap import mmap
from multiprocessing import reduction
from multiprocessing.connection import Connection
from struct import Struct
from typing import Any, Literal

import msgspec

from penstock.decoding import msgpack_decoder
from penstock.errors import InvalidInput
from penstock.limits import KIB, MIB

READY, BROKEN, ANSWERED, SHARED = b"R", b"E", b"A", b"S"
SHARED_BYTES_MIN = 32 * KIB
# What a worker keeps for good; more goes by the pipe.
SHARED_BYTES_MAX = 64 * MIB
_MEMORY_BYTES_MIN = 1 * MIB
_SIZE = Struct("<Q")
# Raised for a job that msgpack cannot express.
UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
_encoder = msgspec.msgpack.Encoder()


class Answer(msgspec.Struct, array_like=True, frozen=True):
    kind: Literal["ack", "retry", "fail"]
    # In the parcel.
    positions: list[int]
    delay_us: int | None = None
    reason: str = ""


class Outcome(msgspec.Struct, array_like=True, frozen=True):
    """What became of a parcel."""

    answers: list[Answer]
    # Why the others are to be tried again; None if they are done.
    error: str | None = None
    # What the handler raised, also if that was behind its last answer; and where.
    raised: tuple[str, str] | None = None


class Memory:
    """A file in memory that has no name: it is gone when both sides are, however they ended.

    Named segments (`multiprocessing.shared_memory`) outlive a kill, and writing to them is a SIGBUS where /dev/shm is
    small, as it is in containers.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map: mmap | None = None

    @classmethod
    def make(cls) -> Memory | None:
        """None where there is no such thing: then all goes by the pipe."""
        if sys.platform != "linux":
            return None
        return cls(os.memfd_create("penstock-ring"))

    def __reduce__(self) -> tuple[Any, ...]:
        """On the way to a process that is being started: it gets the same file."""
        return _received, (reduction.DupFd(self._fd),)

    def write(self, data: bytes) -> None:
        if self._map is None or len(self._map) < len(data):
            size = max(_MEMORY_BYTES_MIN, 1 << (len(data) - 1).bit_length())
            os.ftruncate(self._fd, size)
            self._remap(size)
            assert self._map is not None
        self._map[: len(data)] = data

    def view(self, size: int) -> memoryview:
        """To be released before the next one is asked for."""
        if self._map is None or len(self._map) < size:
            self._remap(os.fstat(self._fd).st_size)
            assert self._map is not None
        return memoryview(self._map)[:size]

    def _remap(self, size: int) -> None:
        if self._map is not None:
            self._map.close()
        self._map = mmap(self._fd, size)

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        os.close(self._fd)


def _received(duplicate: Any) -> Memory:
    return Memory(duplicate.detach())


def send(pipe: Connection, memory: Memory | None, parcel: bytes) -> None:
    if memory is None or not SHARED_BYTES_MIN <= len(parcel) <= SHARED_BYTES_MAX:
        pipe.send_bytes(parcel)
    else:
        memory.write(parcel)
        pipe.send_bytes(SHARED + _SIZE.pack(len(parcel)))


class Parcels:
    """Jobs as they come out of a parcel; `job_type` is what they are."""

    def __init__(self, job_type: Any) -> None:
        try:
            self._all = msgpack_decoder(tuple[list[int] | None, list[job_type]])
            self._one = msgpack_decoder(job_type)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"jobs can't be read as {job_type!r}: {error}") from error
        self._raw = msgpack_decoder(tuple[list[int] | None, list[msgspec.Raw]])
        # Jobs of other types may have views of what they were read from.
        self._is_copied = job_type is Any

    def receive(self, pipe: Connection, memory: Memory | None) -> tuple[list[int] | None, list[Any], dict[int, str]]:
        """Attempts, jobs, and why some can't be read: by their position, at which there is None."""
        message = pipe.recv_bytes()
        if message[:1] != SHARED:
            return self._decoded(message)
        assert memory is not None
        with memory.view(_SIZE.unpack_from(message, 1)[0]) as view:
            return self._decoded(view if self._is_copied else bytes(view))

    def _decoded(self, parcel: bytes | memoryview) -> tuple[list[int] | None, list[Any], dict[int, str]]:
        try:
            return *self._all.decode(parcel), {}
        except (msgspec.MsgspecError, RecursionError):
            attempts, raw = self._raw.decode(parcel)
        jobs: list[Any] = []
        unread: dict[int, str] = {}
        for at, job in enumerate(raw):
            try:
                jobs.append(self._one.decode(job))
            except (msgspec.MsgspecError, RecursionError) as error:
                jobs.append(None)
                unread[at] = f"{type(error).__name__}: {error}"
        return attempts, jobs, unread


def parcel_of(attempts: list[int] | None, jobs: list[Any]) -> tuple[bytes, dict[int, str]]:
    """The parcel, and why some are not in it, by their position: those of the others in the parcel move up."""
    try:
        return _encoder.encode((attempts, jobs)), {}
    except UNWRITABLE:
        pass
    good: list[msgspec.Raw] = []
    unwritten: dict[int, str] = {}
    for at, job in enumerate(jobs):
        try:
            good.append(msgspec.Raw(_encoder.encode(job)))
        except UNWRITABLE as error:
            unwritten[at] = f"a job can't be sent to a worker process: {error}"
    if attempts is not None:
        attempts = [count for at, count in enumerate(attempts) if at not in unwritten]
    return _encoder.encode((attempts, good)), unwritten


def as_text(value: object) -> str:
    """With question marks for what is no Unicode, as in names of files that an error speaks of."""
    return str(value).encode("utf-8", "replace").decode()
