"""The bytes of the journal: records, each a message of a log (`penstock.storage.log`) with its kind as the key.

    P  u64 first number, msgpack array of jobs            jobs that were put; their numbers follow each other
    S  u32 count, count × u64 numbers, msgpack array      the same of jobs that were moved out of an old segment
    T  Roaring bitmap of numbers                          handed out for the first time, and held since
    H  msgpack [[number, attempts]]                       handed out again, and held since
    R  msgpack [[number, attempts, due µs]]               to be tried again
    F  msgpack [[number, attempts, failed at µs, reason]] failed
    D  Roaring bitmap of numbers                          acknowledged, dropped, or forgotten: the job is gone

All are absolute: replaying one twice changes nothing. D is for ever, whatever comes before or behind it. Of T, H, R and
F the last one of a number counts. What a flush writes is one or more frames, each with a checksum, appended and synced
together; numbers are never used again as long as a record speaks of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any

import msgspec
import numpy as np
from pyroaring import BitMap64

from penstock.decoding import msgpack_decoder
from penstock.errors import BatchTooLarge, InvalidInput, UnknownFormat
from penstock.frame import Frame
from penstock.limits import MIB
from penstock.message import Message
from penstock.ring.exchange import UNWRITABLE

PUT, MOVED, HELD, HELD_AGAIN, RETRY, FAILED, DONE = b"P", b"S", b"T", b"H", b"R", b"F", b"D"
JOB_BYTES_MAX = 1 * MIB
RECORD_BYTES_MAX = 4 * MIB
# Jobs encoded together: what is put at once and done before the next flush is left out piece by piece.
PIECE_JOBS = 1_000

_FIRST = Struct("<Q")
_COUNT = Struct("<I")
_ARRAY = Struct(">BI")

# Whatever is written of these can be read back: it need not be tried.
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})

_raw_jobs = msgpack_decoder(list[msgspec.Raw])

# Jobs as they follow each other in an array, and how many.
Piece = tuple[int, bytes]


class JobCodec:
    """Jobs as msgpack; `job_type` is what they are turned back into."""

    def __init__(self, job_type: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._is_typed = job_type is not Any
        try:
            self._decoder = msgpack_decoder(list[job_type])
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"jobs can't be read back as {job_type!r}: {error}") from error

    def pieces(self, jobs: list[Any], first: int = 0) -> list[Piece]:
        """InvalidInput if one of them can't be written: which, counted from `first`."""
        if len(jobs) <= PIECE_JOBS:
            return self._piece(jobs, first)
        found: list[Piece] = []
        for at in range(0, len(jobs), PIECE_JOBS):
            found += self._piece(jobs[at : at + PIECE_JOBS], first + at)
        return found

    def _piece(self, jobs: list[Any], first: int) -> list[Piece]:
        try:
            encoded = self._encoded(jobs)
        except UNWRITABLE as error:
            at, why = self._first_bad(jobs) or (0, error)
            what = "can't be written to the journal"
            if isinstance(why, msgspec.DecodeError):
                what = "is not of the type that was given" if self._is_typed else "could not be read back"
            raise InvalidInput(f"the job at index {first + at} {what}: {why}", index=first + at) from why
        if len(encoded) <= JOB_BYTES_MAX:
            return [(len(jobs), encoded[_header_bytes(encoded) :])]
        if len(jobs) == 1:
            raise BatchTooLarge(
                f"the job at index {first} is of {len(encoded):,} bytes; the journal takes {JOB_BYTES_MAX:,}",
                index=first,
            )
        middle = len(jobs) // 2
        return self._piece(jobs[:middle], first) + self._piece(jobs[middle:], first + middle)

    def _encoded(self, jobs: list[Any]) -> bytes:
        encoded = self._encoder.encode(jobs)
        if self._is_typed or not _PLAIN.issuperset(map(type, jobs)):
            # One that can't be read back would be lost, and might keep all others from being read.
            self._decoder.decode(encoded)
        return encoded

    def _first_bad(self, jobs: list[Any]) -> tuple[int, Exception] | None:
        for at, job in enumerate(jobs):
            try:
                self._encoded([job])
            except UNWRITABLE as error:
                return at, error
        return None

    def jobs(self, array: bytes | memoryview) -> tuple[list[Any], dict[int, str]]:
        """And why some can't be read, by their position, at which there are their bytes.

        With a type it is all of them or an error: with another type they can be read.
        """
        try:
            return self._decoder.decode(array), {}
        except (msgspec.MsgspecError, RecursionError) as error:
            if self._is_typed and isinstance(error, msgspec.ValidationError):
                raise InvalidInput(
                    f"its jobs are not of the type that was given: {error}. "
                    "Open it with the type that they were put with"
                ) from error
            if self._is_typed:
                raise UnknownFormat(f"jobs of the journal can't be read back: {error}") from error
        return _one_by_one(array)


def _one_by_one(array: bytes | memoryview) -> tuple[list[Any], dict[int, str]]:
    try:
        found: list[Any] = raw_jobs(array)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UnknownFormat(f"jobs of the journal can't be told apart: {error}") from error
    unread: dict[int, str] = {}
    for at, raw in enumerate(found):
        try:
            found[at] = msgspec.msgpack.decode(raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            unread[at] = f"it can't be read back, so here are its bytes: {error}"
    return found, unread


def _header_bytes(array: bytes) -> int:
    return {0xDC: 3, 0xDD: 5}.get(array[0], 1)


def array_of(pieces: Iterable[bytes], count: int) -> bytes:
    return b"".join((_ARRAY.pack(0xDD, count), *pieces))


def put_record(first: int, count: int, pieces: Iterable[bytes]) -> Message:
    return Message(_FIRST.pack(first) + array_of(pieces, count), key=PUT)


def read_put(value: bytes) -> tuple[int, int, memoryview]:
    """The first number, how many, and the array."""
    (first,) = _FIRST.unpack_from(value)
    _, count = _ARRAY.unpack_from(value, _FIRST.size)
    if not 0 < count <= len(value):
        raise ValueError(f"{count:,} jobs in {len(value):,} bytes")
    return first, count, memoryview(value)[_FIRST.size :]


def _moved_record(numbers: Sequence[int], jobs: Sequence[bytes]) -> Message:
    head = _COUNT.pack(len(numbers)) + np.asarray(numbers, "<u8").tobytes()
    return Message(head + array_of(jobs, len(jobs)), key=MOVED)


def read_moved(value: bytes) -> tuple[list[int], memoryview]:
    (count,) = _COUNT.unpack_from(value)
    end = _COUNT.size + 8 * count
    numbers: list[int] = np.frombuffer(value, "<u8", count, _COUNT.size).tolist()
    return numbers, memoryview(value)[end:]


def bitmap_records(kind: bytes, numbers: BitMap64) -> list[Message]:
    """One, or as many as it takes that each goes into a frame."""
    if not numbers:
        return []
    numbers.run_optimize()
    serialized = numbers.serialize()
    if len(serialized) <= RECORD_BYTES_MAX:
        return [Message(serialized, key=kind)]
    middle = numbers[len(numbers) // 2]
    lower = numbers & BitMap64(range(numbers.min(), middle))
    return bitmap_records(kind, lower) + bitmap_records(kind, numbers - lower)


def rows_record(kind: bytes, rows: list[Any]) -> Message:
    return Message(msgspec.msgpack.encode(rows), key=kind)


def raw_jobs(array: bytes | memoryview) -> list[bytes]:
    """Each as it was encoded."""
    return [bytes(job) for job in _raw_jobs.decode(array)]


def moved_records(numbers: Sequence[int], jobs: Sequence[bytes]) -> list[Message]:
    found: list[Message] = []
    start = size = 0
    for at, job in enumerate(jobs):
        if size and size + len(job) > RECORD_BYTES_MAX // 2:
            found.append(_moved_record(numbers[start:at], jobs[start:at]))
            start, size = at, 0
        size += len(job) + 8
    if start < len(jobs):
        found.append(_moved_record(numbers[start:], jobs[start:]))
    return found


def framed(records: Sequence[Message], now_us: int) -> list[tuple[Frame, list[Message]]]:
    """As few frames as hold them, each with its records."""
    groups: list[list[Message]] = []
    size = 0
    for record in records:
        if not groups or size + record.size > RECORD_BYTES_MAX:
            groups.append([])
            size = 0
        groups[-1].append(record)
        size += record.size
    return [(Frame.of_messages(group, now_us=now_us), group) for group in groups]


def records_of(frame: Frame) -> list[tuple[int, bytes, bytes]]:
    """The offset, kind and bytes of each."""
    batch = frame.batch()
    found = []
    for at, (kind, value) in enumerate(zip(batch.keys(), batch.values(), strict=True)):
        if kind is None or value is None or kind not in (PUT, MOVED, HELD, HELD_AGAIN, RETRY, FAILED, DONE):
            raise UnknownFormat(
                f"the log has a record of kind {kind!r}: it is no journal of a ring, or of a later version"
            )
        found.append((frame.base_offset + at, kind, value))
    return found
