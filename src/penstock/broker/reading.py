"""The messages of a partition as its groups see them: frames for a lease, keys, single messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from pyroaring import BitMap64

from penstock.batch import Batch
from penstock.broker.frame_cache import FrameCache
from penstock.broker.key_hash import Hashes, key_hashes
from penstock.broker.leasing import Cold, Gathered
from penstock.broker.offsets import Ints, array_of, bitmap_of, mask_of, run_from, stretches
from penstock.broker.recollection import SPECIAL, Recollection
from penstock.errors import InvalidFrame, LogCorrupt, MessageNotFound, OffsetOutOfRange
from penstock.frame import SPARSE, Frame, FrameRun, head_seed
from penstock.limits import MIB
from penstock.message import Message
from penstock.storage.epochs import Lineage
from penstock.storage.log import Log
from penstock.storage.segment import NotCached

_READ_BYTES_MAX = 8 * MIB


class Stored:
    """One message and when it was stored."""

    __slots__ = ("append_time", "message", "offset")

    def __init__(self, offset: int, message: Message, append_time: int) -> None:
        self.offset = offset
        self.message = message
        self.append_time = append_time


class Reading:
    """Over one log of messages. What is not visible yet is not there."""

    def __init__(self, log: Log, cache: FrameCache, recollection: Recollection) -> None:
        """The recollection is of what is there by now, and of use until something else is."""
        self.log = log
        self._cache = cache
        self._owner = cache.new_owner()
        self.is_closed = False
        self._head_seed = head_seed(log.log_id)
        self.recollection: Recollection | None = recollection
        # Offsets without messages that crashes have left, as far as they are known, or elections.
        self.holes = recollection.holes
        # Offsets whose messages compaction or retention has removed, from the start of the log on, as of the last
        # maintenance: right after a start none of them is known.
        self.removed = BitMap64()
        # Messages in other lanes or with delays that are on their way to the disk, or there but not known yet: until
        # they are, nobody may see them, nor anything behind them.
        self._coming = 0
        self._visible = 0

    # --- how far one can see -----------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def visible_offset(self) -> int:
        committed = self.log.committed_offset
        return min(self._visible, committed) if self._coming else committed

    @property
    def lineage(self) -> Lineage:
        return self.log.lineage

    @property
    def missing(self) -> BitMap64:
        """Known offsets without a message, from the start of the log on."""
        return self.holes | self.removed if self.removed else self.holes

    def count(self, first: int, last: int) -> int:
        """Messages of [first, last), by what is known of missing ones."""
        first = max(first, self.log.start_offset)
        return max(last - first, 0) - self.missing.range_cardinality(first, max(first, last))

    def forget(self) -> None:
        """What was read; some of it may not be in the log any more. On the event loop, as everything with the cache."""
        self._cache.forget(self._owner)

    def close(self) -> None:
        """Evict its frames and cache no more. A request that still holds this object reads from the log."""
        self.is_closed = True
        self.forget()

    def special_comes(self) -> None:
        if not self._coming:
            self._visible = self.log.committed_offset
        self._coming += 1

    def special_came(self, next_offset: int | None) -> None:
        """None if it was not stored after all."""
        self._coming -= 1
        if next_offset is not None:
            self._visible = max(self._visible, next_offset)

    # --- for leases --------------------------------------------------------------------------------------

    def gather(self, offsets: BitMap64, bytes_max: int, *, waits: bool = True) -> Gathered:
        """Frames are counted by the share of them that is wanted; whoever sends them on may send no more than that."""
        frames: list[Frame] = []
        some: Sequence[Frame]
        size = last = found = flags = reached = 0
        are_apart = True
        at, end = max(offsets.min(), self.log.start_offset), offsets.max() + 1
        while at < end:
            # Whether one more fits is not known before it is read; it is taken to be as large as the last.
            if frames and size + last > bytes_max:
                return Gathered(frames, _there(frames) & offsets, at, size, flags)
            known, asked = self._cache.find(self._owner, at), at
            if known is not None:
                assert known.frame.is_stamped_with(self._head_seed), "a cached frame is of another log"
                some, at = (known.frame,), known.facts.base_offset + known.facts.span
            else:
                until = run_from(offsets, at)
                try:
                    run = self._read(at, min(bytes_max - size, _READ_BYTES_MAX), until, waits)
                except NotCached:
                    raise Cold(offsets.copy(), bytes_max) from None
                some, at = tuple(run), run.next_offset if run else until
            for frame in some:
                facts = frame.facts() if known is None else known.facts
                if facts.base_offset < reached:
                    # Merged since the others were read: it holds what they held.
                    frames = [other for other in frames if other.base_offset < facts.base_offset]
                    are_apart = False
                frames.append(frame)
                reached = facts.base_offset + facts.span
                assert asked < reached, "a frame that ends before the offset asked for"
                assert facts.base_offset < end, "a frame that starts behind the offsets asked for"
                wanted = offsets.range_cardinality(facts.base_offset, reached)
                last = len(frame.data) * wanted // max(facts.messages, 1)
                size += last
                found += wanted
                flags |= facts.flags
                if known is None and facts.messages > 1 and not self.is_closed:
                    # Somebody may want the rest, or one of them again.
                    self._cache.add(self._owner, frame, facts)
            # On to the next one that is not in a frame read already.
            if at < end and at not in offsets:
                at = offsets.next_set_bit(at)
        is_all_there = are_apart and found == len(offsets) and not flags & SPARSE
        return Gathered(frames, offsets if is_all_there else _there(frames) & offsets, end, size, flags)

    def load(self, offsets: BitMap64, bytes_max: int) -> Iterator[None]:
        """Read what `gather` would, into the page cache. For `Work.scan`."""
        at, end = max(offsets.min(), self.log.start_offset), offsets.max() + 1
        while at < end and bytes_max > 0:
            until = run_from(offsets, at)
            run = self._read(at, min(bytes_max, _READ_BYTES_MAX), until)
            bytes_max -= len(run.data)
            at = run.next_offset if run else until
            if at < end and at not in offsets:
                at = offsets.next_set_bit(at)
            yield None

    def published_us(self, offset: int) -> int:
        for frame in self._read(offset, 1, offset + 1):
            return frame.append_time
        return 0

    def _read(self, offset: int, bytes_max: int, until: int, waits: bool = True) -> FrameRun:
        """Retention may delete what we are about to read."""
        while (start := self.log.start_offset) < until:
            try:
                return self.log.read(max(offset, start), bytes_max=bytes_max, until=until, waits=waits)
            except OffsetOutOfRange:
                if self.log.start_offset == start:
                    raise
        return FrameRun(memoryview(b""), [], until)

    def hashes(self, offsets: BitMap64) -> Hashes:
        """Of their keys; none for a message that is gone."""
        gathered = self.gather(offsets, 1 << 62)
        wanted = array_of(offsets)
        found = array_of(gathered.there)
        hashes = np.zeros(len(wanted), np.uint64)
        hashes[np.searchsorted(wanted, found)] = self.hashes_in(gathered.frames, found)
        return hashes

    def hashes_in(self, frames: list[Frame], offsets: Ints) -> Hashes:
        parts = []
        at = 0
        for frame in frames:
            end = int(np.searchsorted(offsets, frame.next_offset))
            if at < end:
                parts.append(self._hashes_of(frame)[self._rows(frame, offsets[at:end])])
                at = end
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint64), *parts])

    def _hashes_of(self, frame: Frame) -> Hashes:
        """Of all its keys: whoever wants some will want the others soon."""
        hashes = self._cache.hashes(self._owner, frame)
        if hashes is None:
            hashes = key_hashes(frame.batch())
            self._cache.add_hashes(self._owner, frame, hashes)
        return hashes

    def _rows(self, frame: Frame, offsets: Ints) -> Ints:
        if frame.flags & SPARSE:
            return np.searchsorted(frame.offsets(frame.batch()), offsets)
        return offsets - frame.base_offset

    def keys(self, offsets: BitMap64) -> list[tuple[int, bytes | None]]:
        return [(stored.offset, stored.message.key) for stored in self.messages(offsets)]

    # --- messages ----------------------------------------------------------------------------------------

    def messages(self, offsets: BitMap64) -> Iterator[Stored]:
        """Those of these that are there, in order."""
        for numbers, batch, times in self.timed_batches(offsets):
            rows = np.flatnonzero(mask_of(numbers, offsets))
            if len(rows):
                picked = zip(rows.tolist(), batch.rows(rows).messages(), strict=True)
                for row, message in picked:
                    yield Stored(int(numbers[row]), message, int(times[row]))

    def message(self, offset: int) -> Stored:
        if 0 <= offset < self.visible_offset:
            for stored in self.messages(BitMap64([offset])):
                return stored
        raise MessageNotFound(f"there is no message at offset {offset}: not yet, or no longer", offset=offset)

    def batches(self, offsets: BitMap64) -> Iterator[tuple[Ints, Batch]]:
        for numbers, batch, _ in self.timed_batches(offsets):
            yield numbers, batch

    def timed_batches(self, offsets: BitMap64) -> Iterator[tuple[Ints, Batch, Ints]]:
        reached = 0
        for first, until in stretches(offsets):
            at = max(first, self.log.start_offset, reached)
            while at < until:
                run = self._read(at, MIB, until)
                for frame in run:
                    batch = self.decode(frame)
                    yield frame.offsets(batch), batch, frame.append_times(batch)
                if not run:
                    break
                at = run.next_offset
            reached = max(reached, at)

    def special_batches(self, offset: int) -> Iterator[tuple[Ints, Batch]]:
        reached = max(offset, self.log.start_offset)
        for begin in self._specials(reached):
            # What was deleted may be a part of a frame.
            at = max(begin, self.log.start_offset)
            for frame in self.log.read(at, bytes_max=1, until=at + 1):
                if frame.next_offset > reached:
                    reached = frame.next_offset
                    batch = self.decode(frame)
                    yield frame.offsets(batch), batch

    def _specials(self, offset: int) -> Iterator[int]:
        """Where frames begin that have lanes or delays, from that offset on; some of those in front of it, too."""
        known = self.recollection
        if known is not None and known.first_offset <= offset:
            yield from known.specials_from(offset)
            offset = max(offset, known.next_offset)
        for head in self.log.heads(offset=offset):
            if head.flags & SPECIAL:
                yield head.base_offset

    def decode(self, frame: Frame) -> Batch:
        try:
            return frame.batch()
        except InvalidFrame as error:
            raise LogCorrupt(
                f"the frame at offset {frame.base_offset} is damaged: {error.message}", offset=frame.base_offset
            ) from error


def _there(frames: list[Frame]) -> BitMap64:
    there = BitMap64()
    for frame in frames:
        there |= _offsets_in(frame)
    return there


def _offsets_in(frame: Frame) -> BitMap64:
    if not frame.flags & SPARSE:
        return BitMap64(range(frame.base_offset, frame.next_offset))
    return bitmap_of(frame.offsets(frame.batch()))
