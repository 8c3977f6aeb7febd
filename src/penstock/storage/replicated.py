"""What a follower does with what its leader's log has: frames as they lie on that disk become frames of its own.

    leader's log ─ copies(log, offset) ─► network ─► append_replicated(log, run) ─► log.sync() ─► durable here

A copy keeps offset, append time, epoch and payload; the log's id and the synced position are the follower's. Merging
is every log's own affair, so the two need not have the same frames. Compaction and retention are the leader's, and a
follower removes later what its leader has removed: it does not know which messages must stay. So it may have more
messages, but what both have under an offset is the same:

- A frame that begins before the follower's end (the leader merged some meanwhile) is cut there. What lies below the end
  must be of the epoch that this log has there: the same offset of the same epoch is the same message.
- Where the leader has nothing (compaction, retention around delayed messages) the follower has a hole. It is of the
  epoch before it: an epoch begins with a frame that nothing removes, so what is missing belonged to the one before.
  Only where nothing is known of before it is of the epoch behind it.
- A frame without messages is copied like any other.

All of a run is checked before any of it is written, and written as one.

    leader's segment ─ held_offsets(log, segment) ─► network ─► remove_others(log, first, until, stays) ─► the same here
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from penstock.errors import FrameTooLarge, InvalidFrame, InvalidInput, LogDiverged, StorageError
from penstock.frame import OFFSET_MAX, SPAN_MAX, SPARSE, Frame, FrameInfo, FrameRun, head_seed, hole, look_whole, tail
from penstock.limits import MIB
from penstock.storage.epochs import epoch_at
from penstock.storage.files import Buffer
from penstock.storage.log import Copy, Log
from penstock.storage.merge import merged
from penstock.storage.retention import Protected, protected_frames
from penstock.storage.segment import Segment

# A run is in memory as a whole, and must fit into one segment.
RUN_BYTES_MAX = 256 * MIB


def copies(log: Log, offset: int, *, until: int | None = None, bytes_max: int = MIB) -> FrameRun:
    """Frames from `offset` on for a follower that ends there, up to `until` or the end of the log, on disk or not, seen
    by readers or not; those without messages too.

    If there are none, `next_offset` is where that is: a follower that is not there yet is told so.
    """
    return log.read(offset, bytes_max=bytes_max, until=log.end_offset if until is None else until, holes=True)


def append_replicated(
    log: Log,
    run: Buffer,
    *,
    source_id: bytes,
    next_offset: int | None = None,
    epoch_ids: Mapping[int, int] = MappingProxyType({}),
) -> int:
    """Appends what the leader's log, of the id `source_id`, has at and behind this log's end; returns the end.

    `next_offset`: the leader has nothing more below it. `epoch_ids`: by epoch, those that the leader knows. On disk
    after `log.sync()`; all or none. Raises InvalidFrame for bytes that are not a run of that log, and LogDiverged if
    they do not go on where this log ends: by their epoch, then it is to be truncated by lineage; or by their append
    time. That comes of a leader which has nothing of what lies before and does not know its time any more, with a clock
    behind. If nothing is left of that here either, this log is to be reset to its start, and forgets the time too; what
    it still has is not given up for it.
    """
    data = memoryview(run).cast("B").toreadonly()
    if len(data) > RUN_BYTES_MAX:
        raise FrameTooLarge(f"{len(data)} bytes at once; the limit is {RUN_BYTES_MAX}", limit=RUN_BYTES_MAX)
    if next_offset is not None and (not isinstance(next_offset, int) or next_offset > OFFSET_MAX):
        raise InvalidInput(f"next_offset is an offset or None, not {next_offset!r}")
    frames = list(_frames(data, head_seed(source_id)))
    with log.writing:
        taken = _Taken(log)
        for frame, info in frames:
            taken.take(frame, info)
        if next_offset is not None:
            taken.fill(next_offset, taken.epoch or 0, taken.append_time)
        if taken.copies:
            log.append_copies(taken.copies, epoch_ids)
        return log.end_offset


def _frames(data: memoryview, seed: int) -> Iterator[Copy]:
    at = previous = 0
    last: FrameInfo | None = None
    while at < len(data):
        info = look_whole(data, at, seed)
        if last is not None:
            if info.base_offset < previous:
                raise InvalidFrame(f"offset {info.base_offset} behind {previous}")
            if info.leader_epoch < last.leader_epoch or info.append_time < last.append_time:
                raise InvalidFrame(f"offset {info.base_offset}: its epoch or append time is below the frame's before")
        yield Frame(data[at : at + info.size]), info
        at += info.size
        last, previous = info, info.next_offset


class _Taken:
    """What is to be appended to a log, gathered frame by frame."""

    def __init__(self, log: Log) -> None:
        self.copies: list[Copy] = []
        self._start = log.start_offset
        self._known_until = self._end = log.end_offset
        self._lineage = log.lineage
        # None: nothing is known of what came before.
        self.epoch = self._lineage[-1].epoch if self._lineage else None
        self.append_time = log.last_append_time

    def take(self, frame: Frame, info: FrameInfo) -> None:
        if info.base_offset < self._known_until:
            self._check_same(info)
            if info.next_offset <= self._end:
                return
            frame = tail(frame, self._end)
            info = info._replace(base_offset=self._end, messages=frame.count, size=len(frame.data))
        if self.epoch is not None and info.leader_epoch < self.epoch:
            raise LogDiverged(
                f"offset {info.base_offset} comes with epoch {info.leader_epoch}, but this log has epoch {self.epoch} "
                f"before it",
                offset=info.base_offset,
                by="epoch",
            )
        if info.append_time < self.append_time:
            raise LogDiverged(
                f"offset {info.base_offset} was appended before what this log has before it",
                offset=info.base_offset,
                by="append_time",
            )
        self.fill(info.base_offset, info.leader_epoch if self.epoch is None else self.epoch, self.append_time)
        self._add(frame, info)

    def fill(self, until: int, epoch: int, append_time: int) -> None:
        while self._end < until:
            span = min(until - self._end, SPAN_MAX)
            frame = hole(span, append_time)
            size = len(frame.data)
            self._add(frame, FrameInfo(self._end, self._end + span, append_time, epoch, 0, 0, size))

    def _add(self, frame: Frame, info: FrameInfo) -> None:
        self.copies.append((frame, info))
        self._end, self.epoch, self.append_time = info.next_offset, info.leader_epoch, info.append_time

    def _check_same(self, info: FrameInfo) -> None:
        """As far as this log has it. Lineages ascend, so what holds at both ends holds between them."""
        first, last = max(info.base_offset, self._start), min(info.next_offset, self._known_until) - 1
        if first > last:
            return
        ours = {epoch_at(self._lineage, first), epoch_at(self._lineage, last)}
        if ours != {info.leader_epoch}:
            raise LogDiverged(
                f"offsets {first} to {last} come with epoch {info.leader_epoch}; this log has them of another",
                offset=first,
                by="epoch",
            )


def held_offsets(log: Log, segment: Segment) -> Iterator[npt.NDArray[np.int64]]:
    """Of all messages of a sealed segment, ascending. By the headers of its frames, if those tell."""
    heads = [head.facts() for head in log.heads_of(segment)]
    if not any(facts.flags & SPARSE for facts in heads):
        for facts in heads:
            if facts.messages:
                yield np.arange(facts.base_offset, facts.base_offset + facts.span)
        return
    for frame in log.scan(segment):
        if frame.count:
            yield frame.offsets(frame.batch(verify=False))


def remove_others(log: Log, first: int, until: int, stays: Protected, *, truncations: int) -> bool:
    """Removes the messages from `first` to `until` for which `stays` is not true, and nothing else. All of that is
    committed. `truncations` is the log's when that was found out.

    False if it could not be done: a segment is held back from readers in part, or the log was truncated meanwhile.
    """
    if log.segments[-1].base_offset < until:
        # This log's segments end elsewhere than its leader's.
        log.roll()
    found = [s for s in log.segments[:-1] if s.next_offset > first and s.base_offset < until]
    if any(segment.next_offset > log.committed_offset for segment in found):
        return False

    def stay(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return stays(offsets) | (offsets < first) | (offsets >= until)

    # What the leader has as one segment becomes one here, or many small ones would stay many.
    inside = [segment for segment in found if first <= segment.base_offset and segment.next_offset <= until]
    across = [[segment] for segment in found if segment not in inside]
    for group in [inside, *across] if inside else across:
        try:
            is_same = all(stay(offsets).all() for segment in group for offsets in held_offsets(log, segment))
            if is_same and len(group) == 1:
                continue
            frames = merged(protected_frames(log, group, stay), group[0].head_seed)
            if not log.rewrite(group, frames, truncations=truncations):
                return False
        except StorageError as error:
            if not log.lost_to_others(error, group):
                raise
            return False
    return True
