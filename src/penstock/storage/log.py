"""An append-only log of frames over a directory of segments.

    append ─► active segment ─ roll ─► sealed segments ─ retention, compaction ─► fewer or smaller ones
                   │                         │
                 read                      read, one frame run at a time, as the bytes lie on disk

Knows offsets and bytes; not topics, groups or what a message means. Synchronous. One writer at a time (a lock sees
to it); readers on any thread, at any time, without a lock: they take the tuple of segments as it is at that moment.

Invariants: start_offset ≤ synced_offset ≤ committed_offset ≤ end_offset; segments cover [first base, end) without
overlap; append times never run backwards; after a failed sync nothing is written any more; an offset below
committed_offset is never given out again, not even if its message is lost with the power (`sync_within`); leader
epochs never descend, and `lineage` says where each begins. Where others hold copies of the log, `hold_back` keeps
committed_offset below what they have not; `replicated.py` is about those copies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock, RLock
from types import TracebackType
from typing import NamedTuple, NoReturn, TypeVar

from penstock.clock import Clock, SystemClock
from penstock.environment import random_id
from penstock.errors import (
    DeviceFailed,
    DiskFull,
    Fatal,
    InvalidFrame,
    InvalidInput,
    LogClosed,
    LogCorrupt,
    LogFollows,
    OffsetOutOfRange,
    StorageError,
)
from penstock.frame import MERGED, OFFSET_MAX, Frame, FrameInfo, FrameRun, check_appendable, hole, payload, stamp
from penstock.limits import MIB
from penstock.storage import reset as resets
from penstock.storage import segment as segments
from penstock.storage.cache import SegmentCache
from penstock.storage.epochs import EPOCH_MAX, Epoch, Epochs, Lineage, lineage_of
from penstock.storage.files import Buffer, DiskFiles, File, Files, PathLike
from penstock.storage.manifest import Manifest, write_manifest
from penstock.storage.mark import Mark, MarkFile
from penstock.storage.recovery import recover
from penstock.storage.rewrite import (
    Rewritten,
    must_rewrite,
    replace_segments,
    truncated_by_rewrite,
    truncated_in_place,
    write_rewritten,
)
from penstock.storage.segment import SEGMENT_HEADER_BYTES, Found, Opened, Segment, SegmentHeader

HOUR_US = 3_600_000_000
# Offsets that are reserved at a time: as many as were given out since the log was opened, within these bounds. So a
# busy log writes its manifest a few times a second, and after a crash a quiet one has no large hole.
_RESERVED_MIN = 1_000
_RESERVED_MAX = 100_000

T = TypeVar("T")
# A frame of another log, and what its header says; offset, append time and epoch stay.
Copy = tuple[Frame, FrameInfo]


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Kafka rolls at 1 GiB or 7 days; ours are smaller, since retention and recovery work on whole segments."""

    segment_bytes_max: int = 128 * MIB
    segment_age_us_max: int = 24 * HOUR_US

    def __post_init__(self) -> None:
        # Positions in an index are 32 bits wide.
        if not 4096 <= self.segment_bytes_max <= 2048 * MIB:
            raise InvalidInput(f"segment_bytes_max must be 4 KiB to 2 GiB, not {self.segment_bytes_max}")
        if self.segment_age_us_max < 1:
            raise InvalidInput(f"segment_age_us_max must be positive, not {self.segment_age_us_max}")


class Appended(NamedTuple):
    """Where frames went: base_offsets[i] is that of the i-th frame given."""

    base_offsets: list[int]
    next_offset: int
    append_time: int


class Unsynced(NamedTuple):
    """What a log has written by now, and is on disk once `file` is synced. One at a time."""

    file: File
    position: int
    next_offset: int
    # How often something was found to be on disk until then.
    syncs: int


class _StopsIfFatal:
    """What is on disk is not known after a fatal error: nothing is written any more.

    A class, and made once: as a generator it would cost a lone message three times what the checks around it do.
    """

    __slots__ = ("_stop",)

    def __init__(self, stop: Callable[[Fatal], None]) -> None:
        self._stop = stop

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Fatal):
            self._stop(error)


class Log:
    """Opened with `Log.open`."""

    def __init__(
        self, files: Files, clock: Clock, settings: LogSettings, manifest: Manifest, cache: SegmentCache
    ) -> None:
        self._files = files
        self._clock = clock
        self._settings = settings
        self._room = min(segments.ROOM_BYTES, settings.segment_bytes_max // 16)
        self._manifest = manifest
        self._cache = cache
        self._segments: tuple[Segment, ...] = ()
        self._mark: MarkFile
        self._synced_position = 0
        self._synced_offset = 0
        self._syncs = 0
        self._sync_within_us: int | None = None
        self._opened_at = 0
        self._epochs: Epochs
        # What comes next is copied from another log, until this one leads.
        self._follows = False
        self._ceiling: int | None = None
        # Not 0: the log is to end here with a hole for which there is no room yet. It is written ahead of whatever is
        # appended next; until then the manifest alone knows of it.
        self._hole_end = 0
        # While it is set, syncing does not move the mark: somebody waits for the sync, and nobody for the mark.
        self.marks_later = False
        self._due_mark: Mark | None = None
        # Held while something is written.
        self.writing = RLock()
        self._rewriting = Lock()
        # Counts up at the start and at the end of each truncation: odd while one is under way.
        self._truncations = 0
        self._stopped: StorageError | None = None
        self._stops_if_fatal = _StopsIfFatal(self._stop)
        self.recovery_notes: list[str] = []
        self.recovered_cleanly = True

    @classmethod
    def open(
        cls,
        files: Files | str | PathLike[str],
        *,
        clock: Clock | None = None,
        settings: LogSettings | None = None,
        cache: SegmentCache | None = None,
        new_log_id: Callable[[], bytes] = random_id,
    ) -> Log:
        """Opens the log in this directory, or makes one; `files` belongs to the log from here on."""
        if isinstance(files, str | PathLike):
            files = DiskFiles(files)
        clock = clock or SystemClock()
        files.lock()
        try:
            return cls._open(
                files, clock, settings or LogSettings(), SegmentCache() if cache is None else cache, new_log_id
            )
        except BaseException:
            files.close()
            raise

    @classmethod
    def _open(
        cls, files: Files, clock: Clock, settings: LogSettings, cache: SegmentCache, new_log_id: Callable[[], bytes]
    ) -> Log:
        under_way = resets.read_reset(files)
        if under_way is not None:
            resets.carry_out(files, under_way)
        recovered = recover(files)
        manifest = recovered.manifest if recovered else Manifest(new_log_id(), 0)
        log = cls(files, clock, settings, manifest, cache)
        log._segments = tuple(recovered.segments) if recovered else ()
        if not log._segments:
            log._segments = (log._create_segment(manifest.start_offset, 0),)
        log._mark = MarkFile(files, manifest.log_id)
        log._note_synced()
        log._epochs = Epochs.open(files, manifest.log_id, log)
        if manifest.whole_from > log.end_offset:
            # A truncation was cut short behind its last step but one.
            log._note_whole_from(log.end_offset)
        if manifest.reserved > log.end_offset:
            log._skip_reserved()
        log._opened_at = log.end_offset
        if recovered is None:
            # The last step of making a log: from here on, whatever is missing is damage.
            write_manifest(files, manifest)
            return log
        log.recovery_notes[:0] = recovered.notes
        if under_way is not None:
            log.recovery_notes.append(f"carried out a reset to offset {under_way.start_offset} that was cut short")
        log.recovered_cleanly = recovered.is_clean
        return log

    # --- what there is -----------------------------------------------------------------------------------

    @property
    def log_id(self) -> bytes:
        return self._manifest.log_id

    @property
    def start_offset(self) -> int:
        return self._manifest.start_offset

    @property
    def whole_from(self) -> int:
        """From here on retention has taken nothing out. Below it, single messages may be left of what there was.

        What compaction took out does not count: a newer message of the same key stands for it.
        """
        return max(self._manifest.whole_from, self._manifest.start_offset)

    @property
    def end_offset(self) -> int:
        """The offset the next message will get."""
        return self._hole_end or self._segments[-1].next_offset

    @property
    def synced_offset(self) -> int:
        """Messages below it are on disk."""
        return self._synced_offset

    @property
    def unwritten_hole(self) -> range:
        """Offsets at the end that hold no message, and of which no frame says so for want of room; mostly none."""
        end = self._segments[-1].next_offset
        return range(end, self._hole_end or end)

    @property
    def committed_offset(self) -> int:
        """Messages below it are there for everybody: on disk, or merely written where that is enough; and not held
        back."""
        reached = self._synced_offset if self._sync_within_us is None else self.end_offset
        return reached if self._ceiling is None or self._ceiling > reached else self._ceiling

    def hold_back(self, offset: int | None, *, anew: bool = False) -> None:
        """Readers see nothing from here on, and what is there is left as it is: others do not have it yet, and it may
        be truncated. None: no more than any log does.

        Never goes back, but in a truncation, or `anew`: for a log whose leader has changed.
        """
        if offset is not None and not anew and self._ceiling is not None and offset < self._ceiling:
            raise InvalidInput(f"readers were let up to {self._ceiling}, and can't be held back at {offset}")
        self._ceiling = offset if offset is None else max(offset, self.start_offset)

    @property
    def ceiling(self) -> int | None:
        """What `hold_back` was told last."""
        return self._ceiling

    @property
    def last_append_time(self) -> int:
        return self._segments[-1].last_append_time

    @property
    def lineage(self) -> Lineage:
        """Each epoch of the log and where it begins; the first may have begun below the start, and even ended there.

        Empty if nothing is known of any: a log that never held a message.
        """
        if not self._epochs.is_compared:
            with self.writing:
                self._epochs.compare()
        return lineage_of(self._epochs.entries, self.start_offset, self.end_offset)

    @property
    def last_epoch(self) -> int:
        """Of the last frame; 0 if there is none."""
        lineage = self.lineage
        return lineage[-1].epoch if lineage else 0

    @property
    def safe_offset(self) -> int:
        """Messages below it are on disk, here and wherever else they have to be."""
        return min(self._synced_offset, self.committed_offset)

    @property
    def sync_within_us(self) -> int | None:
        """None: nobody is told of a message before it is on disk. Otherwise once it is written, and it is to be synced
        within that time, by whoever writes."""
        return self._sync_within_us

    @property
    def segments(self) -> tuple[Segment, ...]:
        """In order, the active one last."""
        return self._segments

    @property
    def settings(self) -> LogSettings:
        return self._settings

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    # --- writing -----------------------------------------------------------------------------------------

    def append(self, frames: Sequence[Frame], *, leader_epoch: int | None = None) -> Appended:
        """Writes frames at the end, all or none. They are on disk only after `sync`. Of the last epoch, if not told."""
        with self.writing:
            if self._stopped is not None:
                raise self._stopped.again()
            epoch = self._epochs.last if leader_epoch is None else leader_epoch
            if self._follows or not self._epochs.last <= epoch <= EPOCH_MAX:
                if self._follows:
                    raise LogFollows("this log copies another, and takes messages only once it leads")
                self._refuse_epoch(epoch)
            frames = list(frames)
            counts = [check_appendable(frame) for frame in frames]
            if not counts:
                raise InvalidInput("nothing to append")
            if self._is_full(sum([len(frame.data) for frame in frames])):
                self.roll()
            if self._sync_within_us is not None:
                self._reserve(self.end_offset + sum(counts))
            return self._append(frames, counts, epoch)

    def append_epoch_start(self, epoch: int, epoch_id: int = 0) -> int:
        """The first frame of an epoch, of one offset and without a message; returns its offset. From here on this log
        leads: what is appended is of that epoch."""
        with self.writing:
            self._check_writable()
            if not isinstance(epoch, int) or not self.last_epoch < epoch <= EPOCH_MAX:
                self._refuse_epoch(epoch)
            start = hole(1, self._clock.now_us())
            if self._is_full(len(start.data)):
                self.roll()
            appended = self._append([start], [1], epoch, epoch_id)
            self._follows = False
            return appended.base_offsets[0]

    def follow(self) -> None:
        """From here on this log is a copy of another: nothing is appended but `append_copies`."""
        with self.writing:
            self._follows = True

    def append_copies(self, copies: Sequence[Copy], epoch_ids: Mapping[int, int]) -> None:
        """Frames of another log, under the offsets, append times and epochs that they have there, and which go on where
        this one ends. All or none; for `append_replicated`, which has checked them. From here on this log follows.
        `epoch_ids`: by epoch, of those that are known."""
        with self.writing:
            self._check_writable()
            self._write_hole()
            if self._is_full(sum(info.size for _, info in copies)):
                self.roll()
            active = self._segments[-1]
            offset = active.next_offset
            buffers: list[Buffer] = []
            infos: list[FrameInfo] = []
            for frame, info in copies:
                assert info.base_offset == offset
                _, offset, append_time, epoch, *_ = info
                stamped = stamp(frame, info.base_offset, append_time, epoch, self._synced_position, active.head_seed)
                buffers += (stamped, payload(frame))
                infos.append(info)
            if infos[-1].leader_epoch != self._epochs.last or not self._epochs.is_written:
                self._begin_epochs([(info.leader_epoch, info.base_offset) for info in infos], epoch_ids)
            with self._stops_if_fatal:
                segments.append(active, buffers, infos, self._room)
            if not self._epochs.is_written:
                self._epochs.settle()
            self._follows = True

    def _append(self, frames: list[Frame], spans: list[int], leader_epoch: int, epoch_id: int = 0) -> Appended:
        active = self._segments[-1]
        offset = active.next_offset
        append_time = max(self._clock.now_us(), active.last_append_time)
        given = len(frames)
        if self._hole_end:
            frames = [hole(self._hole_end - offset, append_time), *frames]
            spans = [self._hole_end - offset, *spans]
        buffers: list[Buffer] = []
        infos: list[FrameInfo] = []
        if leader_epoch != self._epochs.last or not self._epochs.is_written:
            self._begin_epochs([(leader_epoch, offset)], {leader_epoch: epoch_id})
        for frame, span in zip(frames, spans, strict=True):
            buffers += (
                stamp(frame, offset, append_time, leader_epoch, self._synced_position, active.head_seed),
                payload(frame),
            )
            infos.append(FrameInfo(offset, offset + span, append_time, leader_epoch, 0, span, len(frame.data)))
            offset += span
        try:
            segments.append(active, buffers, infos, self._room)
        except Fatal as error:
            # As `_stops_if_fatal` does, without two calls for each lone message.
            self._stop(error)
            raise
        if not self._epochs.is_written:
            self._epochs.settle()
        self._hole_end = 0
        return Appended([info.base_offset for info in infos[len(infos) - given :]], offset, append_time)

    def _reserve(self, end_offset: int) -> None:
        """Before anybody can hear of an offset below `end_offset`."""
        if end_offset > self._manifest.reserved:
            more = min(max(end_offset - self._opened_at, _RESERVED_MIN), _RESERVED_MAX)
            with self._stops_if_fatal:
                self._write_manifest(self._manifest._replace(reserved=end_offset + more))

    def _skip_reserved(self) -> None:
        """Somebody may have been told of messages that are lost. Others must not come under their offsets: whoever has
        read so far would never see them."""
        first, until = self.end_offset, self._manifest.reserved
        self._hole_end = until
        note = f"offsets {first} to {until - 1} may have been given out, and are passed over"
        try:
            self._write_hole()
        except DiskFull:
            # Whoever reads and deletes must get on, or there will never be room.
            self._synced_offset = until
            note += "; there is no room yet to write that down"
        self.recovery_notes.append(note)

    def _write_hole(self) -> None:
        """Before anything relies on it but an append, which takes it along."""
        if self._hole_end:
            self._append([], [], self._epochs.last)
            self.sync()

    def sync_within(self, time_us: int | None) -> None:
        """From now on; what was written before is on disk when this returns."""
        with self.writing:
            self.sync()
            self._sync_within_us = time_us
            if time_us is None:
                self._release_reserved()

    def _release_reserved(self) -> None:
        """All that was ever told is on disk."""
        assert self._synced_offset == self.end_offset
        if self._manifest.reserved and not self._hole_end:
            with self._stops_if_fatal, suppress(DiskFull):
                # What stays reserved is passed over by the next start; that does no harm.
                self._write_manifest(self._manifest._replace(reserved=0))

    def _is_full(self, more: int) -> bool:
        active = self._segments[-1]
        if active.size == SEGMENT_HEADER_BYTES:
            return False
        # Begun too long ago, or while the clock was far ahead.
        age = abs(self._clock.now_us() - active.header.created)
        return active.size + more > self._settings.segment_bytes_max or age >= self._settings.segment_age_us_max

    def sync(self) -> None:
        """What was appended before this call is on disk when it returns. A failure is final."""
        with self.writing:
            if self._stopped is not None:
                raise self._stopped.again()
            active = self._segments[-1]
            assert active.opened is not None
            if self._synced_position == active.size:
                return
            try:
                active.opened.file.sync()
            except Fatal as error:
                self._stop(error)
                raise
            self._note_synced()

    @property
    def is_open(self) -> bool:
        """Whether what is appended can be written without opening the file first."""
        opened = self._segments[-1].opened
        return opened is not None and opened.file.is_open

    def merely_writes(self, size: int) -> bool:
        """Whether to append so many bytes, of the last epoch, is a write and nothing else: it may take a sync or more,
        of other files, that the log waits for."""
        return self.is_open and not self._is_full(size) and self._epochs.is_written and not self._hole_end

    def unsynced(self) -> Unsynced | None:
        """For whoever syncs the file some other way, and says so then: `synced`. None if everything is on disk."""
        with self.writing:
            self._check_writable()
            active = self._segments[-1]
            assert active.opened is not None
            if self._synced_position == active.size:
                return None
            return Unsynced(active.opened.file, active.size, active.next_offset, self._syncs)

    def synced(self, what: Unsynced, failure: Fatal | None = None) -> None:
        """Its file was synced since, or that has failed, which is final as in `sync`, and told also if it is closed."""
        with self.writing:
            if failure is not None:
                if self._stopped is None:
                    self._stop(failure)
                raise failure
            self._check_writable()
            if what.syncs == self._syncs:
                self._note_synced_to(what.position, what.next_offset, what.next_offset)
            # Otherwise somebody has synced that and more, or has taken it back.

    def _note_synced(self) -> None:
        active = self._segments[-1]
        self._note_synced_to(active.size, active.next_offset, self.end_offset)

    def _note_synced_to(self, position: int, next_offset: int, synced_offset: int) -> None:
        self._syncs += 1
        self._synced_position = position
        self._synced_offset = synced_offset
        self._due_mark = Mark(self._segments[-1].base_offset, position, next_offset)
        if not self.marks_later:
            self._write_mark()

    def _write_mark(self) -> None:
        mark, self._due_mark = self._due_mark, None
        try:
            with self._stops_if_fatal:
                if mark is not None:
                    self._mark.write(mark)
        except Fatal:
            raise
        except StorageError:
            # The mark may lag behind; what it speaks of is on disk whether it says so or not.
            pass

    def mark(self) -> None:
        """What `marks_later` put off, unless somebody is just writing, and marks more than that.

        A failure stops the log: nobody waits for this, and whoever writes next is told.
        """
        if self.writing.acquire(blocking=False):
            try:
                if self._stopped is None:
                    with suppress(Fatal):
                        self._write_mark()
            finally:
                self.writing.release()

    def roll(self) -> None:
        """Seals the active segment and starts the next one; nothing happens if the active one is empty."""
        with self.writing:
            self.sync()
            active = self._segments[-1]
            if active.is_empty:
                return
            assert active.opened is not None
            self._trim()
            with self._stops_if_fatal:
                segments.write_indexes(self._files, active, active.opened)
                following = self._create_segment(active.next_offset, active.last_append_time)
            self._segments = (*self._segments, following)
            active.opened = None
            self._note_synced()

    def _trim(self) -> None:
        """The active segment ends where its last frame does, on disk too: nothing stands behind that any more."""
        active = self._segments[-1]
        assert active.opened is not None
        with self._stops_if_fatal:
            segments.trim(active)
            if active.is_cut:
                active.opened.file.sync()
                active.is_cut = False

    def _create_segment(self, base_offset: int, last_append_time: int) -> Segment:
        header = SegmentHeader(self._manifest.log_id, base_offset, 0, 0, 0, self._clock.now_us(), last_append_time)
        return segments.create_segment(self._files, header, last_append_time)

    def truncate(self, offset: int) -> None:
        """Removes the messages from `offset` on. For replication: nobody else may take back what was written."""
        with self._rewriting, self.writing:
            self._check_writable()
            self._check_range(offset)
            if offset == self.end_offset:
                return
            self._write_hole()
            self.sync()
            self._trim()
            target = self._segment_of(offset)
            keeps_target = offset > target.base_offset
            kept = [s for s in self._segments if s.base_offset < offset]
            position = SEGMENT_HEADER_BYTES
            if keeps_target:
                position = self._position_of(target, offset)
            with self._all_or_stop(), self._truncation_under_way():
                self._truncate(kept, target if keeps_target else None, offset, position)
                self._epochs.cut(offset)
                if self._ceiling is not None:
                    self._ceiling = min(self._ceiling, offset)
                if self._manifest.whole_from > offset:
                    # What comes next under these offsets is not what was taken out.
                    self._note_whole_from(offset)

    def _truncate(self, kept: list[Segment], target: Segment | None, offset: int, position: int) -> None:
        """Removes the segments behind `kept`, of which the last is `target` if that must be cut at `position`."""
        # A crash from here on must find nothing that vouches for what is being removed.
        mark = Mark(-1, 0, 0)
        if kept:
            mark = Mark(kept[-1].base_offset, position if target else kept[-1].size, offset)
        self._mark.lower(mark)
        for segment in reversed(self._segments[len(kept) :]):
            # The index first, and for good: one without its segment would say that the segment is missing.
            segments.remove_indexes(self._files, segment.base_offset)
            self._files.sync()
            self._remove_segment(segment)
            self._files.sync()
        if target is not None:
            kept[-1] = self._shorten(target, offset, position)
        if not kept or kept[-1].opened is None:
            kept.append(self._create_segment(offset, 0))
        kept[-1].last_append_time = max(segment.last_append_time for segment in kept)
        self._segments = tuple(kept)
        self._note_synced()

    def reset(self, start_offset: int, *, epoch: Epoch | None = None) -> None:
        """The log is empty and begins at `start_offset`, whatever it held: for a follower that ends before its leader's
        log starts. After a crash it is as it was, or reset. `epoch`: that of what lay below, and where it began."""
        with self._rewriting, self.writing:
            self._check_writable()
            if not isinstance(start_offset, int) or not 0 <= start_offset <= OFFSET_MAX:
                raise InvalidInput(f"a log can't begin at {start_offset!r}")
            if epoch is not None and not (0 <= epoch.epoch <= EPOCH_MAX and 0 <= epoch.first_offset < start_offset):
                raise InvalidInput(f"{epoch} is not an epoch that began below {start_offset}")
            under_way = resets.Reset(self.log_id, start_offset, epoch)
            with self._stops_if_fatal:
                resets.write_reset(self._files, under_way)
            with self._all_or_stop(), self._truncation_under_way():
                self._mark.close()
                for segment in self._segments:
                    self._cache.forget(segment)
                self._manifest = resets.carry_out(self._files, under_way)
                self._segments = (self._create_segment(start_offset, 0),)
                self._mark = MarkFile(self._files, self.log_id)
                self._hole_end = 0
                self._opened_at = start_offset
                self._epochs = Epochs.open(self._files, self.log_id, self)
                self._ceiling = None if self._ceiling is None else start_offset
                self._follows = True
                self._note_synced()

    def note_whole_from(self, offset: int) -> None:
        """Of the log that this one is a copy of: below it, single messages may be missing."""
        with self.writing:
            self._check_writable()
            if min(offset, self.end_offset) > self.whole_from:
                with self._stops_if_fatal:
                    self._note_whole_from(min(offset, self.end_offset))

    def delete_prefix(self, offset: int) -> None:
        """Messages below `offset` are gone: segments wholly below it from the disk, the rest from sight."""
        with self.writing:
            self._check_writable()
            self._check_range(offset)
            if offset == self.start_offset:
                return
            if offset > self._segments[-1].next_offset:
                self._write_hole()
            if offset > self._synced_offset:
                # A log that lost its end must not start behind it.
                self.sync()
            if offset == self.end_offset:
                self.roll()
            with self._stops_if_fatal:
                self._write_manifest(self._manifest._replace(start_offset=offset))
            if self._ceiling is not None:
                self._ceiling = max(self._ceiling, offset)
            removed = [s for s in self._segments[:-1] if s.next_offset <= offset]
            self._segments = self._segments[len(removed) :]
            with self._all_or_stop():
                for segment in removed:
                    self._remove_segment(segment)
                self._files.sync()

    def scan(self, segment: Segment) -> Iterator[Frame]:
        """Every frame of a sealed segment, all of it checked."""
        self._check_open()
        opened = self._cache.open(self._files, segment)
        for _, frame in segments.scan(segment, opened.file):
            yield frame

    def frame_sizes(self, segment: Segment) -> Iterator[int]:
        """Of every frame of a segment, by its headers."""
        self._check_open()
        opened = self._cache.open(self._files, segment)
        return (found.info.size for found in segments.headers(segment, opened.file, SEGMENT_HEADER_BYTES))

    def heads(self, *, since_us: int = 0, offset: int = 0) -> Iterator[Frame]:
        """The frames appended since then or from that offset on, each cut off behind its header.

        Good for their `facts` only.
        """
        for segment in self._segments:
            if segment.last_append_time < since_us or segment.next_offset <= offset or segment.is_empty:
                continue
            opened = self._cache.open(self._files, segment)
            at = max(opened.times.before(since_us) or 0, opened.offsets.at_or_before(offset) or 0, SEGMENT_HEADER_BYTES)
            for found, frame in segments.heads(segment, opened.file, at):
                if found.info.append_time >= since_us and found.info.next_offset > offset:
                    yield frame

    def heads_of(self, segment: Segment) -> Iterator[Frame]:
        """Of every frame of one segment."""
        self._check_open()
        opened = self._cache.open(self._files, segment)
        return (frame for _, frame in segments.heads(segment, opened.file, SEGMENT_HEADER_BYTES))

    @property
    def truncations(self) -> int:
        """Changes with every truncation: for `rewrite`."""
        return self._truncations

    def has_sealed(self, segment: Segment) -> bool:
        """Whether it is still there, and neither replaced nor active."""
        return segment in self._segments[:-1]

    def lost_to_others(self, error: StorageError, segments: Iterable[Segment]) -> bool:
        """Whether an error met in these sealed segments may only mean that they were removed meanwhile.

        Also damage: a file of the same name may have taken the place of one that was removed.
        """
        return not isinstance(error, Fatal | LogClosed) and not all(map(self.has_sealed, segments))

    def rewrite(
        self,
        old: Sequence[Segment],
        frames: Iterable[Frame],
        *,
        flags: int = 0,
        truncations: int | None = None,
        is_loss: bool = False,
    ) -> bool:
        """Replaces sealed neighbours by one segment with these frames.

        False if they were removed meanwhile; also, given the `truncations` at the time the frames were chosen, if the
        log was truncated since. Appends and reads go on while the frames are written; one rewrite at a time.
        `is_loss`: what is not among the frames is gone, and `whole_from` says so before it is.
        """
        header = SegmentHeader(
            log_id=self.log_id,
            base_offset=old[0].base_offset,
            end_offset=old[-1].next_offset,
            generation=max(segment.header.generation for segment in old) + 1,
            flags=flags,
            created=old[0].header.created,
            appended=old[0].header.appended,
        )
        with self._rewriting:
            try:
                with self._stops_if_fatal:
                    rewritten = write_rewritten(self._files, header, frames)
            except StorageError as error:
                if self.lost_to_others(error, old):
                    return False
                raise
            with self.writing:
                self._check_writable()
                if not all(map(self.has_sealed, old)) or truncations not in (None, self._truncations):
                    rewritten.discard(self._files)
                    return False
                try:
                    for segment in old:
                        # Readers that hold the old segment go on reading the old file.
                        segment.opened = self._cache.open(self._files, segment)
                    if is_loss:
                        with self._stops_if_fatal:
                            self._note_whole_from(max(header.end_offset, self.whole_from))
                except StorageError:
                    rewritten.discard(self._files)
                    raise
                with self._all_or_stop():
                    self._replace(old, rewritten)
        return True

    def _replace(self, old: Sequence[Segment], rewritten: Rewritten) -> None:
        first = self._segments.index(old[0])
        assert self._segments[first : first + len(old)] == tuple(old)
        replacement = replace_segments(self._files, old, rewritten)
        self._segments = (*self._segments[:first], replacement, *self._segments[first + len(old) :])
        for segment in old:
            self._cache.forget(segment)
        for segment in old[1:]:
            self._remove_segment(segment)
        self._files.sync()

    def close(self) -> None:
        """Syncs, writes the indexes of the active segment, and gives up the directory."""
        with self.writing:
            if isinstance(self._stopped, LogClosed):
                return
            try:
                if self._stopped is None:
                    self.sync()
                    self._trim()
                    active = self._segments[-1]
                    assert active.opened is not None
                    with suppress(DiskFull):
                        # They can be rebuilt; what they are of is safe.
                        segments.write_indexes(self._files, active, active.opened)
                    self._write_mark()
                    self._mark.sync()
                    self._release_reserved()
            finally:
                for segment in self._segments:
                    self._cache.forget(segment)
                self._segments[-1].opened = None
                self._mark.close()
                self._files.close()
                self._stopped = LogClosed("the log is closed")

    # --- reading -----------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        *,
        bytes_max: int = MIB,
        count_max: int = 1 << 62,
        until: int | None = None,
        holes: bool = False,
        waits: bool = True,
    ) -> FrameRun:
        """Whole frames from `offset` on, as they lie on disk, at least one if there is any below `until`.

        The first frame may start before `offset` and the last may end behind `until`; bounds are on whole frames.
        Without `until`, what is committed can be read. Headers are checked here, bodies by whoever decodes them.
        `holes`: frames without messages too. NotCached if it would wait for the disk, unless it `waits`.
        """
        self._check_open()
        self._check_range(offset)
        return self._reading(lambda held: self._read(held, offset, bytes_max, count_max, until, holes, waits), offset)

    def _reading(self, look: Callable[[tuple[Segment, ...]], T], offset: int | None = None) -> T:
        """Looks again if segments were removed, replaced or cut under the look."""
        while True:
            held, truncations = self._segments, self._truncations
            try:
                found = look(held)
                if truncations % 2 == 0 and truncations == self._truncations:
                    return found
            except StorageError:
                self._check_open()
                # Whoever is changing them may be in the middle of it.
                with self.writing:
                    if held is self._segments and truncations == self._truncations:
                        raise
            with self.writing:
                pass
            if offset is not None:
                self._check_range(offset)

    def frames(self, offset: int, until: int | None = None) -> Iterator[Frame]:
        """Every frame from the one that holds `offset` on, read as they are asked for, bodies checked too.

        The first may start before `offset`: `frame.offsets(batch)` tells which messages to skip. Without `until`, ends
        where the log was committed to when this was called.
        """
        end = self.committed_offset if until is None else until
        while offset < end:
            run = self.read(offset, until=end)
            for frame in run:
                try:
                    frame.check_body()
                except InvalidFrame as error:
                    raise self._damage(frame.base_offset, error) from error
                yield frame
            if not run:
                return
            offset = run.next_offset

    def _damage(self, offset: int, error: InvalidFrame) -> LogCorrupt:
        segment = self._segment_of(offset)
        return segments.corrupt(segment, self._position_of(segment, offset), offset, error.message)

    def _read(
        self,
        held: tuple[Segment, ...],
        offset: int,
        bytes_max: int,
        count_max: int,
        until: int | None,
        holes: bool,
        waits: bool,
    ) -> FrameRun:
        end = self.committed_offset if until is None else min(until, self.end_offset)
        if held is not self._segments:
            # What lies in a segment that was begun meanwhile is not passed over.
            end = min(end, held[-1].next_offset)
        first = max(bisect_right(held, offset, key=lambda s: s.base_offset) - 1, 0)
        for segment in held[first:]:
            if segment.base_offset >= end:
                break
            opened = self._cache.open(self._files, segment) if waits else self._cache.held(segment)
            run = segments.read(
                segment, opened, offset, until=end, bytes_max=bytes_max, count_max=count_max, holes=holes, waits=waits
            )
            if run is not None:
                return run
        return FrameRun(memoryview(b""), [], max(offset, end))

    def offset_at(self, time_us: int) -> int:
        """The first offset appended at or after `time_us`; the end offset if there is none. Where readers are held
        back, no later one."""
        self._check_open()
        if not isinstance(time_us, int):
            raise InvalidInput(f"a time is a whole number of microseconds, not {time_us!r}")
        found = self._reading(lambda held: self._offset_at(held, time_us))
        return found if self._ceiling is None else min(found, self.committed_offset)

    def _offset_at(self, held: tuple[Segment, ...], time_us: int) -> int:
        for segment in held:
            if segment.last_append_time < time_us or segment.is_empty:
                continue
            opened = self._cache.open(self._files, segment)
            found = segments.find_time(segment, opened, time_us)
            if found is not None:
                return max(self._offset_within(segment, opened, found, time_us), self.start_offset)
        return self.end_offset

    def _offset_within(self, segment: Segment, opened: Opened, found: Found, time_us: int) -> int:
        """A merged frame is stamped with its last message's time; earlier ones may be before `time_us`."""
        frame = Frame(memoryview(opened.file.read_at(found.position, found.info.size)))
        if len(frame.data) < found.info.size:
            raise segments.corrupt(segment, found.position, found.info.base_offset, "the frame runs out of the file")
        if not frame.flags & MERGED:
            return int(found.info.base_offset)
        try:
            batch = frame.batch()
        except InvalidFrame as error:
            raise segments.corrupt(segment, found.position, found.info.base_offset, error.message) from error
        row = int(frame.append_times(batch).searchsorted(time_us))
        return int(frame.offsets(batch)[row]) if row < batch.count else found.info.next_offset

    # --- helpers -----------------------------------------------------------------------------------------

    def last_head(self) -> Frame | None:
        """The last frame, cut off behind its header."""
        for segment in reversed(self._segments):
            opened = self._cache.open(self._files, segment)
            if opened.offsets.positions:
                *_, (_, head) = segments.heads(segment, opened.file, opened.offsets.positions[-1])
                return head
        return None

    def _begin_epochs(self, stamps: Sequence[tuple[int, int]], ids: Mapping[int, int]) -> None:
        """Before frames of these epochs and base offsets are written."""
        with self._stops_if_fatal:
            self._epochs.begin(stamps, ids)

    def _refuse_epoch(self, epoch: int) -> NoReturn:
        raise InvalidInput(f"epoch {epoch!r} does not follow the log's last, {self._epochs.last}")

    def _note_whole_from(self, offset: int) -> None:
        self._write_manifest(self._manifest._replace(whole_from=offset))

    def _write_manifest(self, manifest: Manifest) -> None:
        write_manifest(self._files, manifest)
        self._manifest = manifest

    @contextmanager
    def _truncation_under_way(self) -> Iterator[None]:
        self._truncations += 1
        try:
            yield
        finally:
            self._truncations += 1

    def _stop(self, error: Fatal) -> None:
        self._stopped = error

    @contextmanager
    def _all_or_stop(self) -> Iterator[None]:
        """For steps that leave disk and memory apart when they fail half-way. Recovery reads the disk."""
        try:
            yield
        except Fatal as error:
            self._stopped = error
            raise
        except StorageError as error:
            self._stopped = DeviceFailed(f"the log stopped half-way: {error.message}", **error.details)
            raise self._stopped from error

    def _check_open(self) -> None:
        if isinstance(self._stopped, LogClosed):
            raise self._stopped.again()

    def _check_writable(self) -> None:
        if self._stopped is not None:
            raise self._stopped.again()

    def _check_range(self, offset: int) -> None:
        if not isinstance(offset, int):
            raise InvalidInput(f"an offset is a whole number, not {offset!r}")
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is not within {self.start_offset} to {self.end_offset}",
                offset=offset,
                start=self.start_offset,
                end=self.end_offset,
            )

    def _segment_of(self, offset: int) -> Segment:
        return self._segments[max(bisect_right(self._segments, offset, key=lambda s: s.base_offset) - 1, 0)]

    def _position_of(self, segment: Segment, offset: int) -> int:
        """Where the frame of `offset` starts."""
        opened = self._cache.open(self._files, segment)
        at = opened.offsets.at_or_before(offset) or SEGMENT_HEADER_BYTES
        for found in segments.headers(segment, opened.file, at):
            if found.info.next_offset > offset:
                return found.position
        return segment.size

    def _shorten(self, segment: Segment, offset: int, position: int) -> Segment:
        opened = self._cache.open(self._files, segment)
        self._cache.forget(segment)
        segments.remove_indexes(self._files, segment.base_offset)
        self._files.sync()
        shorten = truncated_by_rewrite if must_rewrite(segment, opened, offset, position) else truncated_in_place
        return shorten(self._files, segment, opened, offset, position)

    def _remove_segment(self, segment: Segment) -> None:
        self._cache.forget(segment)
        segments.remove_indexes(self._files, segment.base_offset)
        self._files.remove(segment.name)
