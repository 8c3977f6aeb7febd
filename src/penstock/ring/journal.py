"""The journal of a ring: what a restart has to know, written behind its back.

    put, taken, done …  ─► pending ─ flush ─► a frame or two ─► log ─► fdatasync
    (under the ring's lock)          (every half interval, or when asked)

A job that was put and acknowledged between two flushes is never written. What is older than the interval is on disk:
flushes start after half of it, and so have the other half to finish. If they take longer, `unflushed_s` shows it.

Old segments go when none of their jobs is left. Where a few jobs keep a large log, they are written again at its end
(`moved`), and their old place goes; so the log stays below COMPACT_FACTOR times what is in it, or COMPACT_BYTES_MIN.

Invariants: `_open` are the numbers that are in the log and not done; every one of them is in an entry of `_stored`;
`_stored` is in the order of the log, and the log starts at or before its first entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from os import PathLike
from threading import Event, Lock, Thread
from time import perf_counter
from typing import Any

from pyroaring import BitMap64

from penstock.clock import Clock
from penstock.errors import Fatal, InvalidSetting, StorageError
from penstock.frame import Frame
from penstock.limits import MIB
from penstock.message import Message
from penstock.ring import records
from penstock.ring.batch import Run
from penstock.ring.pending import Pending, state_records
from penstock.ring.records import JobCodec, Piece
from penstock.ring.replay import Found, State, Stored, replay
from penstock.ring.stats import JournalStats
from penstock.storage.files import Files
from penstock.storage.log import Log, LogSettings

INTERVAL_S_MIN, INTERVAL_S_MAX = 0.001, 60.0
# What may wait in memory: beyond it puts wait for the disk.
UNFLUSHED_BYTES_MAX = 64 * MIB
SEGMENT_BYTES_MAX = 32 * MIB
COMPACT_BYTES_MIN = 64 * MIB
COMPACT_FACTOR = 4


class Journal:
    """All but `flush`, `close` and `stats` are called under the ring's lock."""

    def __init__(
        self,
        log: Log,
        codec: JobCodec,
        *,
        lock: Lock,
        interval_s: float,
        clock: Clock,
        flushed: Callable[[], None],
        compact_bytes_min: int,
    ) -> None:
        self._log = log
        self._codec = codec
        self._lock = lock
        self._interval_s = interval_s
        self._clock = clock
        self._flushed = flushed
        self._compact_bytes_min = compact_bytes_min
        self._flushing = Lock()
        self._replayed = replay(log)
        self._pending = Pending(self._replayed.next_number)
        # Of all jobs that are not fresh and not held for the first time, whether written or not.
        self._states: dict[int, State] = {
            number: state for number, state in self._replayed.states.items() if number not in self._replayed.done
        }
        self._held = self._replayed.held - self._replayed.done
        self._open = BitMap64()
        self._stored: deque[Stored] = deque(self._replayed.stored)
        for stored in self._stored:
            self._open |= stored.numbers
        self._open -= self._replayed.done
        # Framed, and not written because the disk was full.
        self._unwritten: list[tuple[Frame, list[Message]]] = []
        self._error: StorageError | None = None
        self._flushes = self._compactions = 0
        self._flush_s_last = self._flush_s_max = 0.0
        self._jobs_written, self._bytes_written = 0, 0
        # When the oldest thing happened that is not on disk; 0 if all is. Beside it, of what is just being written.
        self._since_s = self._writing_since_s = 0.0
        self._asked = Event()
        self._stopped = Event()
        self._thread: Thread | None = None
        self.is_closed = False

    @classmethod
    def open(
        cls,
        files: Files | str | PathLike[str],
        *,
        lock: Lock,
        interval_s: float,
        job_type: Any,
        clock: Clock,
        flushed: Callable[[], None],
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        compact_bytes_min: int = COMPACT_BYTES_MIN,
        is_threaded: bool = True,
    ) -> Journal:
        if not INTERVAL_S_MIN <= interval_s <= INTERVAL_S_MAX:
            raise InvalidSetting(f"flush_interval is from 1ms to 1m, not {interval_s:g}s")
        codec = JobCodec(job_type)
        log = Log.open(files, clock=clock, settings=LogSettings(segment_bytes_max=segment_bytes_max))
        try:
            journal = cls(
                log,
                codec,
                lock=lock,
                interval_s=interval_s,
                clock=clock,
                flushed=flushed,
                compact_bytes_min=compact_bytes_min,
            )
        except BaseException:
            log.close()
            raise
        if is_threaded:
            journal._thread = Thread(target=journal._run, name="penstock-ring-journal", daemon=True)
            journal._thread.start()
        return journal

    def recovered(self) -> Found:
        """Once, at the start: they are let go of."""
        found = self._replayed.found(self._codec)
        del self._replayed
        return found

    # --- what happens --------------------------------------------------------------------------------------

    def encode(self, jobs: list[Any]) -> list[Piece]:
        """InvalidInput if one can't be written. Without the lock."""
        return self._codec.pieces(jobs)

    def put(self, pieces: list[Piece]) -> Run:
        """The numbers they get."""
        if self._error is not None:
            raise self._error.again()
        run = self._pending.put(pieces)
        self._ask()
        return run

    def taken(self, runs: Sequence[Run], attempts: Sequence[int] | None) -> None:
        if attempts is None:
            for first, count in runs:
                self._held.add_range(first, first + count)
                self._pending.held.add_range(first, first + count)
        else:
            numbers = (number for first, count in runs for number in range(first, first + count))
            for number, tries in zip(numbers, attempts, strict=True):
                if tries == 1:
                    self._held.add(number)
                    self._pending.held.add(number)
                else:
                    self._note(number, State(tries, is_held=True))
        self._ask()

    def retried(self, number: int, attempts: int, due_us: int) -> None:
        self._note(number, State(attempts, due_us=due_us))
        self._ask()

    def failed(self, number: int, attempts: int, failed_at: int, reason: str) -> None:
        self._note(number, State(attempts, failed_at=failed_at, reason=reason))
        self._ask()

    def _note(self, number: int, state: State) -> None:
        self._held.discard(number)
        self._pending.held.discard(number)
        self._states[number] = state
        self._pending.changed.add(number)

    def done(self, runs: Sequence[Run]) -> None:
        for first, count in runs:
            self._held.remove_range(first, first + count)
            self._pending.done_with(first, count)
            if self._states:
                for number in range(first, first + count):
                    self._states.pop(number, None)
        self._ask()

    @property
    def is_behind(self) -> bool:
        return self._pending.size > UNFLUSHED_BYTES_MAX

    # --- writing it down -----------------------------------------------------------------------------------

    def _ask(self) -> None:
        if not self._asked.is_set():
            self._since_s = self._since_s or perf_counter()
            self._asked.set()

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._stopped.wait(0 if self.is_behind else self._interval_s / 2)
            if self._stopped.is_set():
                return
            try:
                self.flush()
            except StorageError:
                # Told by `put`, `flush` and `stats`. A full disk may have room later; nothing else changes by waiting.
                if self._is_broken():
                    return
                self._asked.set()

    def _is_broken(self) -> bool:
        return isinstance(self._error, Fatal)

    def flush(self) -> None:
        """Everything that happened before this call is on disk when it returns."""
        with self._flushing:
            if self._is_broken():
                assert self._error is not None
                raise self._error.again()
            began_s = perf_counter()
            with self._lock:
                pending, self._pending = self._pending, Pending(self._pending.next_number)
                states = {number: self._states[number] for number in pending.changed if number in self._states}
                self._asked.clear()
                self._writing_since_s, self._since_s = self._since_s, 0.0
            written = pending.records(states)
            try:
                self._write(written)
                self._clear_away()
            except StorageError as error:
                self._error = error
                self._since_s = self._writing_since_s
                raise error.again() from error
            finally:
                self._writing_since_s = 0.0
                self._flush_s_last = perf_counter() - began_s
                self._flush_s_max = max(self._flush_s_max, self._flush_s_last)
        self._flushed()

    def _write(self, written: list[Message]) -> None:
        waiting = self._unwritten + records.framed(written, self._clock.now_us())
        if not waiting:
            return
        self._unwritten = waiting
        appended = self._log.append([frame for frame, _ in waiting])
        self._log.sync()
        self._unwritten, self._error = [], None
        self._flushes += 1
        for (_, framed), base_offset in zip(waiting, appended.base_offsets, strict=True):
            for at, record in enumerate(framed):
                self._note_written(base_offset + at, record)

    def _note_written(self, offset: int, record: Message) -> None:
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

    def _clear_away(self) -> None:
        """Lets go of segments that no job needs; of the oldest one also the jobs, if they are few."""
        while self._stored and self._stored[0].numbers.isdisjoint(self._open):
            self._stored.popleft()
        while len(self._log.segments) > 1 and self._is_wasteful():
            self._move_oldest()
        needed = self._stored[0].offset if self._stored else self._log.end_offset
        if len(self._log.segments) > 1 and needed >= self._log.segments[1].base_offset:
            self._log.delete_prefix(needed)
            self._compactions += 1

    def _is_wasteful(self) -> bool:
        """Judged by what is between the first job that is left and the end: what is before it goes by itself."""
        if not self._stored or self._stored[0].offset >= self._log.segments[1].base_offset:
            return False
        live_bytes = len(self._open) * self._bytes_written / max(self._jobs_written, 1)
        return self._log.size > max(self._compact_bytes_min, COMPACT_FACTOR * live_bytes)

    def _move_oldest(self) -> None:
        """The jobs that are left in the oldest segment go to the end of the log."""
        until = self._log.segments[1].base_offset
        numbers: list[int] = []
        jobs: list[bytes] = []
        while self._stored and self._stored[0].offset < until:
            stored = self._stored.popleft()
            for number, job in self._left_of(stored):
                numbers.append(number)
                jobs.append(job)
        with self._lock:
            states = {number: self._states[number] for number in numbers if number in self._states}
            held = self._held & BitMap64(numbers)
        self._write([*records.moved_records(numbers, jobs), *state_records(states, held)])

    def _left_of(self, stored: Stored) -> list[tuple[int, bytes]]:
        left = stored.numbers & self._open
        if not left:
            return []
        frame = next(iter(self._log.frames(stored.offset)))
        _, kind, value = records.records_of(frame)[stored.offset - frame.base_offset]
        array = records.read_put(value)[2] if kind == records.PUT else records.read_moved(value)[1]
        pairs = zip(stored.numbers, records.raw_jobs(array), strict=True)
        return [(number, job) for number, job in pairs if number in left]

    # --- the whole of it -----------------------------------------------------------------------------------

    def stats(self) -> JournalStats:
        since_s = self._writing_since_s or self._since_s
        return JournalStats(
            bytes_on_disk=self._log.size,
            unflushed_bytes=self._pending.size,
            unflushed_s=perf_counter() - since_s if since_s else 0.0,
            flushes=self._flushes,
            flush_s_last=self._flush_s_last,
            flush_s_max=self._flush_s_max,
            compactions=self._compactions,
            error=None if self._error is None else self._error.message,
        )

    def close(self) -> None:
        """The directory is free when this returns, also if the last flush failed, which is raised."""
        self._stopped.set()
        self._asked.set()
        if self._thread is not None:
            self._thread.join()
        if self.is_closed:
            return
        self.is_closed = True
        try:
            self.flush()
        finally:
            self._log.close()
