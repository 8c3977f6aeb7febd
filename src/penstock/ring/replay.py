"""From the records of a journal to the jobs that are left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from pyroaring import BitMap64

from penstock.errors import UnknownFormat
from penstock.ring import records
from penstock.ring.batch import Run
from penstock.ring.failed import FailedJob
from penstock.ring.records import JobCodec
from penstock.storage.log import Log


class Tried(NamedTuple):
    job: Any
    sequence: int
    attempts: int
    due_us: int


class Held(NamedTuple):
    """Jobs that were being worked on when the process ended; numbers that follow each other."""

    run: Run
    jobs: list[Any]
    attempts: int


class Unread(NamedTuple):
    """A job that can't be read back, as it was written; and why."""

    raw: bytes
    sequence: int
    attempts: int
    reason: str


class State(NamedTuple):
    """What there is to know of a job that is not fresh. Either due again, held since its last attempt, or failed."""

    attempts: int
    due_us: int = 0
    is_held: bool = False
    failed_at: int = 0
    reason: str = ""


class Stored(NamedTuple):
    """A record with jobs: where it is, and their numbers."""

    offset: int
    numbers: BitMap64


@dataclass
class Replayed:
    """All of it, still encoded."""

    stored: list[Stored] = field(default_factory=list)
    arrays: list[memoryview] = field(default_factory=list)
    held: BitMap64 = field(default_factory=BitMap64)
    states: dict[int, State] = field(default_factory=dict)
    done: BitMap64 = field(default_factory=BitMap64)
    next_number: int = 1

    def apply(self, offset: int, kind: bytes, value: bytes) -> None:
        if kind == records.PUT:
            first, count, array = records.read_put(value)
            self._jobs(offset, BitMap64(range(first, first + count)), array)
        elif kind == records.MOVED:
            numbers, array = records.read_moved(value)
            self._jobs(offset, BitMap64(numbers), array)
        elif kind == records.DONE:
            done = BitMap64.deserialize(value)
            self.done |= done
            self._note_used(done.max())
        elif kind == records.HELD:
            held = BitMap64.deserialize(value)
            self.held |= held
            self._note_used(held.max())
            self._forget_states(held)
        else:
            for number, *rest in msgspec.msgpack.decode(value):
                self.held.discard(number)
                self.states[number] = _state(kind, rest)
                self._note_used(number)

    def _jobs(self, offset: int, numbers: BitMap64, array: memoryview) -> None:
        self.stored.append(Stored(offset, numbers))
        self.arrays.append(array)
        self._note_used(numbers.max())

    def _note_used(self, number: int) -> None:
        """By any record, also where there is no job any more: what it says must not be taken for another one's."""
        self.next_number = max(self.next_number, number + 1)

    def _forget_states(self, numbers: BitMap64) -> None:
        """Whichever are fewer are looked through."""
        for number in numbers.to_array() if len(numbers) < len(self.states) else list(self.states):
            if number in numbers:
                self.states.pop(number, None)

    def forget_gone(self) -> None:
        """What is said of jobs that are done, or not there."""
        there = BitMap64()
        for stored in self.stored:
            there |= stored.numbers
        there -= self.done
        self.held &= there
        self.states = {number: state for number, state in self.states.items() if number in there}

    def found(self, codec: JobCodec) -> Found:
        found = Found()
        special = self.held | BitMap64(self.states)
        seen = BitMap64()
        for (_, numbers), array in zip(self.stored, self.arrays, strict=True):
            # A job that was moved may be there twice, if its old place could not be cleared.
            left = numbers - self.done - seen
            seen |= left
            if not left:
                continue
            jobs, unread = codec.jobs(array)
            if len(jobs) != len(numbers):
                raise UnknownFormat(f"{len(jobs):,} jobs where {len(numbers):,} were due: it is no journal of a ring")
            # Many are alike, mostly: they are not looked at one by one.
            if not unread and len(left) == len(jobs) and left.max() - left.min() + 1 == len(left):
                run = (left.min(), len(left))
                if left.isdisjoint(special):
                    found.fresh.append((run, jobs))
                    continue
                if left.issubset(self.held):
                    found.held.append(Held(run, jobs, 1))
                    continue
            for at, (number, job) in enumerate(zip(numbers.to_array(), jobs, strict=True)):
                if number in left:
                    self._sort(found, number, job, unread.get(at))
        found.fresh.sort(key=lambda fresh: fresh[0][0])
        found.held.sort(key=lambda held: held.run)
        found.tried.sort(key=lambda tried: (tried.due_us, tried.sequence))
        found.failed.sort(key=lambda failed: (failed.failed_at, failed.sequence))
        return found

    def _sort(self, found: Found, number: int, job: Any, unread: str | None) -> None:
        state = State(1, is_held=True) if number in self.held else self.states.get(number)
        if state is not None and state.failed_at:
            found.failed.append(FailedJob(job, state.attempts, unread or state.reason, state.failed_at, number))
        elif unread is not None:
            found.unread.append(Unread(job, number, 0 if state is None else state.attempts, unread))
        elif state is None:
            found.fresh.append(((number, 1), [job]))
        elif state.is_held:
            found.held.append(Held((number, 1), [job], state.attempts))
        else:
            found.tried.append(Tried(job, number, state.attempts, state.due_us))


@dataclass
class Found:
    fresh: list[tuple[Run, list[Any]]] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    failed: list[FailedJob] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)


def _state(kind: bytes, row: list[Any]) -> State:
    if kind == records.HELD_AGAIN:
        return State(row[0], is_held=True)
    if kind == records.RETRY:
        return State(row[0], due_us=row[1])
    return State(row[0], failed_at=row[1], reason=row[2])


def replay(log: Log) -> Replayed:
    replayed = Replayed()
    for offset, kind, value in _records(log):
        try:
            replayed.apply(offset, kind, value)
        except Exception as error:
            # Whatever it is: the bytes are as they were written, so somebody else wrote them.
            raise UnknownFormat(
                f"the record at offset {offset} makes no sense ({error}): the log is no journal of a ring"
            ) from error
    replayed.forget_gone()
    return replayed


def _records(log: Log) -> Iterator[tuple[int, bytes, bytes]]:
    for frame in log.frames(log.start_offset):
        yield from records.records_of(frame)
