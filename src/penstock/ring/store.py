"""Where the jobs of a journal lie in its log, and what of the log is not needed any more.

Old segments go when none of their jobs is left. Where a few jobs keep a large log, they are written again at its end
(`moved`), and their old place goes; so the log stays below COMPACT_FACTOR times what is in it, or `compact_bytes_min`.

Invariants: `_open` are the numbers that are in the log and not done; every one of them is in an entry of `_stored`;
`_stored` is in the order of the log, and the log starts at or before its first entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile

from pyroaring import BitMap64

from penstock.frame import Frame
from penstock.message import Message
from penstock.ring import records
from penstock.ring.replay import Replayed, Stored
from penstock.storage.log import Log

COMPACT_FACTOR = 4

Framed = tuple[Frame, list[Message]]
# What has become of these numbers by now: which of them are done, and records of the state of the others.
Look = Callable[[BitMap64], tuple[BitMap64, list[Message]]]


class Store:
    """One thread at a time."""

    def __init__(self, log: Log, replayed: Replayed, *, compact_bytes_min: int) -> None:
        self.log = log
        self._compact_bytes_min = compact_bytes_min
        self._stored: deque[Stored] = deque(replayed.stored)
        self._open = BitMap64()
        for stored in self._stored:
            self._open |= stored.numbers
        self._open -= replayed.done
        # Of all that was ever written: together the size of a job, as far as it is known.
        self._jobs_written = sum(len(stored.numbers) for stored in self._stored)
        self._bytes_written = sum(map(len, replayed.arrays))
        self.compactions = 0

    def append(self, framed: Sequence[Framed]) -> None:
        """On disk when this returns. All or nothing."""
        appended = self.log.append([frame for frame, _ in framed])
        self.log.sync()
        for (_, group), base_offset in zip(framed, appended.base_offsets, strict=True):
            for at, record in enumerate(group):
                self._note(base_offset + at, record)

    def _note(self, offset: int, record: Message) -> None:
        assert record.value is not None
        if record.key == records.PUT:
            first, count, array = records.read_put(record.value)
            numbers = BitMap64(range(first, first + count))
        elif record.key == records.MOVED:
            listed, array = records.read_moved(record.value)
            numbers = BitMap64(listed)
        else:
            if record.key == records.DONE:
                self._open -= BitMap64.deserialize(record.value)
            return
        self._stored.append(Stored(offset, numbers))
        self._open |= numbers
        self._jobs_written += len(numbers)
        self._bytes_written += len(array)

    # --- compaction ----------------------------------------------------------------------------------------

    def clear_away(self, look: Look, now_us: int) -> None:
        """Lets go of segments that no job needs; of the oldest one also the jobs, if they are few."""
        while self._stored and self._stored[0].numbers.isdisjoint(self._open):
            self._stored.popleft()
        if self._is_wasteful():
            self._move_oldest(look, now_us)
        needed = self._stored[0].offset if self._stored else self.log.end_offset
        if len(self.log.segments) > 1 and needed >= self.log.segments[1].base_offset:
            self.log.delete_prefix(needed)
            self.compactions += 1

    def _is_wasteful(self) -> bool:
        """Whether jobs that are few keep the oldest segment: one without any goes by itself."""
        segments = self.log.segments
        if len(segments) < 2 or not self._stored or self._stored[0].offset >= segments[1].base_offset:
            return False
        live_bytes = len(self._open) * self._bytes_written / max(self._jobs_written, 1)
        return self.log.size > max(self._compact_bytes_min, COMPACT_FACTOR * live_bytes)

    def _move_oldest(self, look: Look, now_us: int) -> None:
        """The jobs that are left in the oldest segment go to the end of the log."""
        until = self.log.segments[1].base_offset
        oldest = list(takewhile(lambda stored: stored.offset < until, self._stored))
        jobs = self._left_of(oldest, until)
        done, states = look(BitMap64(jobs))
        # Nobody wants them back, and their state is not known any more.
        self._open -= done
        for number in done.to_array():
            del jobs[number]
        if jobs:
            self.append(records.framed(records.moved_records(list(jobs), list(jobs.values())) + states, now_us))
        # Only now: if that failed, they are where they were.
        for _ in oldest:
            self._stored.popleft()

    def _left_of(self, oldest: list[Stored], until: int) -> dict[int, bytes]:
        """Those that are not done."""
        jobs: dict[int, bytes] = {}
        left = {stored.offset: stored.numbers for stored in oldest if not stored.numbers.isdisjoint(self._open)}
        for frame in self.log.frames(min(left, default=until), until):
            for offset, kind, value in records.records_of(frame):
                if offset not in left:
                    continue
                array = records.read_put(value)[2] if kind == records.PUT else records.read_moved(value)[1]
                pairs = zip(left[offset].to_array(), records.raw_jobs(array), strict=True)
                jobs.update((number, job) for number, job in pairs if number in self._open)
        # A number may be there twice; a record has them in their order.
        return dict(sorted(jobs.items()))
