"""The journal of a ring: what a restart has to know, written behind its back.

    put, taken, done …  ─► pending ─ flush ─► a frame or two ─► log ─► fdatasync
    (under the ring's lock)          (half an interval after it, earlier if flushes take long, or when asked)

A job that was put and acknowledged between two flushes is never written. What is older than the interval is on disk,
as long as a flush takes about half of it or less: see `flusher`. If flushes take longer, since the disk is slow or
other threads do not let go of the interpreter, `unflushed_s` shows it.

A disk that is full is written to again and again: meanwhile nothing more can be put, and all else goes on. After any
other error nothing does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from threading import Lock
from time import perf_counter
from typing import Any

from pyroaring import BitMap64

from penstock.clock import Clock
from penstock.errors import Fatal, InvalidSetting, RingClosed, StorageError
from penstock.limits import MIB
from penstock.message import Message
from penstock.ring import records
from penstock.ring.batch import Run
from penstock.ring.flusher import Flusher
from penstock.ring.pending import Pending, state_records
from penstock.ring.place import directory, named, place
from penstock.ring.records import JobCodec, Piece
from penstock.ring.replay import Found, State, replay
from penstock.ring.stats import JournalStats
from penstock.ring.store import Framed, Store
from penstock.storage.files import Files
from penstock.storage.log import Log, LogSettings

INTERVAL_S_MIN, INTERVAL_S_MAX = 0.001, 60.0
# What may wait in memory: beyond it puts wait for the disk.
UNFLUSHED_BYTES_MAX = 64 * MIB
SEGMENT_BYTES_MAX = 32 * MIB
COMPACT_BYTES_MIN = 64 * MIB


class Journal:
    """All but `open`, `encode`, `flush`, `close` and `stats` are called under the ring's lock."""

    def __init__(
        self,
        log: Log,
        files: Files,
        codec: JobCodec,
        *,
        lock: Lock,
        interval_s: float,
        clock: Clock,
        flushed: Callable[[], None],
        compact_bytes_min: int,
    ) -> None:
        self._files = files
        self._codec = codec
        self._lock = lock
        self._interval_s = interval_s
        self._clock = clock
        self._flushed = flushed
        self._replayed = replay(log)
        self._store = Store(log, self._replayed, compact_bytes_min=compact_bytes_min)
        self._pending = Pending(self._replayed.next_number)
        # Of all jobs that are not fresh and not held for the first time, whether written or not.
        self._states: dict[int, State] = {
            number: state for number, state in self._replayed.states.items() if number not in self._replayed.done
        }
        self._held = self._replayed.held - self._replayed.done
        # Framed, and not written because the disk was full.
        self._unwritten: list[Framed] = []
        # Of jobs that are being written, or could not be.
        self._writing_bytes = 0
        # Somebody was refused who has less to put than may wait.
        self._is_wanted = False
        self._error: StorageError | None = None
        self._flushes = 0
        self._flush_s_last = self._flush_s_max = 0.0
        # When the oldest thing happened that is not on disk; 0 if all is. Beside it, of what is just being written.
        self._since_s = self._writing_since_s = 0.0
        self._flusher: Flusher | None = None
        self._closed: RingClosed | None = None

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
    ) -> Journal:
        """Not flushed by itself until `start`. `flushed` is called after each flush, without the lock."""
        if not INTERVAL_S_MIN <= interval_s <= INTERVAL_S_MAX:
            raise InvalidSetting(f"flush_interval is from 1ms to 1m, not {interval_s:g}s")
        codec = JobCodec(job_type)
        files = place(files)
        with named(files):
            log = Log.open(files, clock=clock, settings=LogSettings(segment_bytes_max=segment_bytes_max))
            try:
                return cls(
                    log,
                    files,
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

    def recovered(self) -> Found:
        """Once, at the start: they are let go of."""
        with named(self._files):
            found = self._replayed.found(self._codec)
        del self._replayed
        return found

    @property
    def directory(self) -> str:
        return directory(self._files)

    def start(self) -> None:
        self._flusher = Flusher(
            self._interval_s,
            since=lambda: self._since_s,
            flush=self._flush,
            is_urgent=lambda: self._is_wanted or self.is_behind,
            finish=self._finish,
        )
        if self._since_s:
            self._flusher.ask()

    def check(self, *, can_write: bool = False) -> None:
        """Raises what is wrong with it; `can_write`: also what may pass."""
        if self._closed is not None:
            raise self._closed.again()
        if self._error is not None and (can_write or not self._error.retriable):
            raise self._error.again()

    # --- what happens --------------------------------------------------------------------------------------

    def encode(self, jobs: list[Any], first: int = 0) -> list[Piece]:
        """InvalidInput if one can't be written: which, counted from `first`. Without the lock."""
        return self._codec.pieces(jobs, first)

    def put(self, pieces: list[Piece]) -> Run:
        """The numbers they get."""
        run = self._pending.put(pieces)
        self._ask()
        if self.is_behind and self._flusher is not None:
            self._flusher.ask()
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
                    # It may have failed before, and be tried as if it were new.
                    self._states.pop(number, None)
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
    def next_number(self) -> int:
        return self._pending.next_number

    @property
    def is_behind(self) -> bool:
        return self._pending.size > UNFLUSHED_BYTES_MAX

    def room_bytes(self, *, is_begun: bool = False) -> int:
        """What may be put before more of it is on disk, or, below 0, must be on disk before more is put.

        A put that has begun waits also for what is just being written: so one that the disk has no room for learns of
        it, however much it is, and does not fill the memory.
        """
        return UNFLUSHED_BYTES_MAX - self._pending.size - (self._writing_bytes if is_begun else 0)

    def make_room(self) -> None:
        """Somebody was refused: what is there is written at once."""
        self._is_wanted = self._pending.size > 0
        if self._is_wanted and self._flusher is not None:
            self._flusher.ask()

    # --- writing it down -----------------------------------------------------------------------------------

    def _ask(self) -> None:
        if not self._since_s:
            # First, so that it is asked for again should this be interrupted.
            if self._flusher is not None:
                self._flusher.ask()
            self._since_s = perf_counter()

    def flush(self) -> None:
        """Everything that happened before this call is on disk when it returns."""
        error = self._flush() if self._flusher is None else self._flusher.flush()
        if error is not None:
            raise error.again()

    def _flush(self) -> StorageError | None:
        """By one thread only. The error, if it could not be done; what was to be written is kept."""
        if self._closed is not None or self.is_broken:
            return self._error
        return self._flush_now()

    def _flush_now(self) -> StorageError | None:
        began_s = perf_counter()
        with self._lock:
            pending, self._pending = self._pending, Pending(self._pending.next_number)
            self._writing_bytes += pending.size
            self._is_wanted = False
            states = {number: self._states[number] for number in pending.changed if number in self._states}
            self._writing_since_s, self._since_s = self._since_s, 0.0
        try:
            self._write(pending.records(states))
            self._store.clear_away(self._look, self._clock.now_us())
            self._error = None
        except StorageError as error:
            self._error = error
        except Exception as error:
            # A bug of ours. Going on would be to lose what was to be written without a word.
            self._error = Fatal(f"the journal could not be written: {type(error).__name__}: {error}")
            self._error.__cause__ = error
        with self._lock:
            if self._unwritten:
                self._since_s = self._writing_since_s or self._since_s
            else:
                self._writing_bytes = 0
            self._writing_since_s = 0.0
        self._flush_s_last = perf_counter() - began_s
        self._flush_s_max = max(self._flush_s_max, self._flush_s_last)
        self._flushed()
        return self._error

    def _write(self, written: list[Message]) -> None:
        self._unwritten += records.framed(written, self._clock.now_us())
        if not self._unwritten:
            return
        self._store.append(self._unwritten)
        self._unwritten = []
        self._flushes += 1

    def _look(self, numbers: BitMap64) -> tuple[BitMap64, list[Message]]:
        with self._lock:
            states = {number: self._states[number] for number in numbers.to_array() if number in self._states}
            return self._pending.done & numbers, state_records(states, self._held & numbers)

    # --- the whole of it -----------------------------------------------------------------------------------

    @property
    def is_broken(self) -> bool:
        """Nothing will be written any more."""
        return self._error is not None and not self._error.retriable

    def stats(self) -> JournalStats:
        since_s = self._writing_since_s or self._since_s
        return JournalStats(
            bytes_on_disk=self._store.log.size,
            unflushed_bytes=self._pending.size + self._writing_bytes,
            unflushed_s=perf_counter() - since_s if since_s else 0.0,
            flushes=self._flushes,
            flush_s_last=self._flush_s_last,
            flush_s_max=self._flush_s_max,
            compactions=self._store.compactions,
            error=None if self._error is None else self._error.message,
        )

    def close(self) -> None:
        """The directory is free when this returns, also if the last flush failed, which is raised."""
        error = self._finish() if self._flusher is None else self._flusher.end()
        if error is not None:
            raise error.again()

    def _finish(self) -> StorageError | None:
        if self._closed is not None:
            return None
        with self._lock:
            # Before the last flush: nobody is to think that it has what comes behind it.
            self._closed = RingClosed(
                "the ring is closed, and its journal with it: the jobs will be there when it is opened again"
            )
        error = self._error if self.is_broken else self._flush_now()
        try:
            self._store.log.close()
        except StorageError as failed:
            error = error or failed
        return error

    def disown(self, lock: Lock) -> None:
        """In a forked child: the log is its parent's, who goes on writing it."""
        self._lock = lock
        self._flusher = None
        self._closed = RingClosed(
            "the ring is that of the process this one was forked from: only there it can go on with its journal"
        )
        # The directory stays locked as long as anybody has this open.
        self._files.close()
