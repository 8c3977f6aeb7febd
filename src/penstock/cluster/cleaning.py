"""Removing from a copy what its leader has removed: by compaction, or by retention around delayed messages.

A follower can't decide that itself. Which messages must stay depends on what groups do with them, and it would go by an
older state than its leader: it might delete what the leader still serves. So once a minute it asks its leader which
messages are left, segment by segment, and removes the others of what is committed. A replica that was away while the
leader removed something finds out the same way: also a tombstone that it has never seen need not be there any more.

Where the logs begin is another matter, and exact at any time: see `core/leader.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from penstock.broker.events import pack, unpack
from penstock.broker.offsets import bitmap_of, mask_of
from penstock.cluster.core.follower import Follower
from penstock.cluster.core.replica import Replica
from penstock.cluster.words import CleanedQuery, CleanedSegment, SegmentId
from penstock.errors import StorageError
from penstock.storage.log import Log
from penstock.storage.replicated import held_offsets, remove_others
from penstock.storage.segment import Segment


def next_segment(log: Log, query: CleanedQuery) -> Segment | None:
    """Return a segment of the leader that may lack messages, and whose present form the follower has not applied."""
    applied, lineage = set(query.applied), log.lineage
    until = min(query.until, log.committed_offset)
    # What it has appended itself, and not rewritten, is all there.
    own_from = lineage[-1].first_offset if lineage else 0
    for segment in log.segments[:-1]:
        is_whole = not segment.header.generation and segment.base_offset >= own_from
        if segment.next_offset <= until and not is_whole and _identity(segment) not in applied:
            return segment
    return None


def cleaned_segment(log: Log, query: CleanedQuery, segment: Segment) -> CleanedSegment:
    """What is left in it. On a thread."""
    kept = BitMap64()
    try:
        for offsets in held_offsets(log, segment):
            kept |= bitmap_of(offsets)
    except StorageError as error:
        if not log.lost_to_others(error, [segment]):
            raise
        return CleanedSegment(query.partition, query.epoch)
    committed, whole_from = log.committed_offset, log.whole_from
    return CleanedSegment(query.partition, query.epoch, _identity(segment), committed, whole_from, pack(kept))


def _identity(segment: Segment) -> SegmentId:
    return segment.base_offset, segment.next_offset, segment.header.generation


class CopyCleaner:
    """Of one copy. Invariant: of the leader's segments that are `applied`, nothing is here that the leader has not."""

    def __init__(self, partition: str, log: Log, replica: Replica) -> None:
        self._partition = partition
        self._log = log
        self._replica = replica
        self._epoch = 0
        self._applied: set[SegmentId] = set()

    def query(self) -> CleanedQuery | None:
        """Return the next query for the leader. None if this log is not certainly a copy of the leader's."""
        role = self._replica.role
        if role is None or not self._is_of(role.epoch):
            return None
        if role.epoch != self._epoch:
            self._epoch, self._applied = role.epoch, set()
        # Retention has deleted the others.
        self._applied = {one for one in self._applied if one[1] > self._log.start_offset}
        return CleanedQuery(self._partition, role.epoch, self._log.synced_offset, sorted(self._applied))

    def _is_of(self, epoch: int) -> bool:
        """The log is the beginning of that leader's: it has got the frame that begins the epoch."""
        role = self._replica.role
        return isinstance(role, Follower) and role.epoch == epoch and self._log.last_epoch == epoch

    def apply(self, answer: CleanedSegment) -> bool:
        """Remove what the leader has removed from a segment; return whether to query again. Runs on a thread."""
        truncations = self._log.truncations
        if answer.segment is None or not self._is_of(answer.epoch):
            return False
        first, until, _ = answer.segment
        kept = unpack(answer.kept)

        def stays(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
            return mask_of(offsets, kept)

        if not until <= answer.committed <= self._log.synced_offset:
            # This copy lacks messages that may replace the removed ones, so it keeps those: after an unclean election
            # they may be all that is left.
            return False
        if self._log.ceiling is not None and self._log.ceiling < answer.committed:
            # Nothing else may have come since that was committed.
            self._log.hold_back(answer.committed)
        # Before anything is missing.
        self._log.note_whole_from(answer.whole_from)
        if not remove_others(self._log, first, until, stays, truncations=truncations):
            return False
        self._applied = {one for one in self._applied if one[1] <= first or one[0] >= until} | {answer.segment}
        return True
