"""Small frames of a sealed segment become large ones; offsets, times and contents stay as they are.

A trickle of single messages costs a header of 88 bytes each on disk, and a look at that header for every reader.
Merged, they cost what a batch costs. Frames are merged only with neighbours of the same leader epoch and codec,
and only if the producer's sequence numbers, where there are any, go on without a gap: (producer, sequence) must
still be found in the log by whoever rebuilds the state of idempotent producers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from penstock.batch import Batch
from penstock.codec import NONE
from penstock.errors import StorageError
from penstock.frame import CONTROL, Frame, FrameFacts, rewrite
from penstock.limits import KIB
from penstock.storage.log import Log
from penstock.storage.segment import Segment

# A frame of this size spends 1 % on its header; beyond it, merging gains nothing.
SMALL_BYTES = 8 * KIB
MERGED_BYTES_MAX = 128 * KIB
MERGED_MESSAGES_MAX = 10_000


def merge_small_frames(log: Log, segment: Segment) -> bool:
    """Rewrites a sealed segment as it was appended, if most of its frames are small; True if it did.

    What is held back from readers is left as it is: they get whole frames, and must not get it with one.
    """
    if segment.header.generation > 0 or segment.next_offset > log.committed_offset:
        return False
    try:
        sizes = list(log.frame_sizes(segment))
    except StorageError as error:
        if log.lost_to_others(error, [segment]):
            return False
        raise
    small = sum(size < SMALL_BYTES for size in sizes)
    if len(sizes) < 2 or small * 2 < len(sizes):
        return False
    return log.rewrite([segment], merged(log.scan(segment), segment.head_seed))


def merged(frames: Iterable[Frame], head_seed: int) -> Iterator[Frame]:
    """The same messages in fewer frames."""
    gathered: list[tuple[Frame, FrameFacts]] = []
    size = count = 0
    for frame in frames:
        facts = frame.facts()
        fits = size + len(frame.data) <= MERGED_BYTES_MAX and count + facts.messages <= MERGED_MESSAGES_MAX
        if gathered and not (fits and len(frame.data) < SMALL_BYTES and _may_join(gathered, facts)):
            yield _joined(gathered, head_seed)
            gathered, size, count = [], 0, 0
        gathered.append((frame, facts))
        size += len(frame.data)
        count += facts.messages
    if gathered:
        yield _joined(gathered, head_seed)


def _may_join(gathered: list[tuple[Frame, FrameFacts]], facts: FrameFacts) -> bool:
    first, last = gathered[0][1], gathered[-1][1]
    if len(gathered[0][0].data) >= SMALL_BYTES or (facts.flags | first.flags) & CONTROL:
        return False
    if (facts.leader_epoch, facts.codec) != (first.leader_epoch, first.codec):
        return False
    before, producer = last.producer, facts.producer
    if (before.id, before.epoch) != (producer.id, producer.epoch):
        return False
    # A merged frame's sequence numbers are counted by offset, so neither may have a gap.
    follows = facts.base_offset == last.base_offset + last.span and producer.sequence == before.sequence + last.span
    return producer.id == 0 or follows


def _joined(gathered: list[tuple[Frame, FrameFacts]], head_seed: int) -> Frame:
    first, last = gathered[0], gathered[-1]
    if len(gathered) == 1:
        return first[0]
    batch, offsets, times = _joined_plain(gathered) or _joined_any([frame for frame, _ in gathered])
    base = first[1].base_offset
    span = last[1].base_offset + last[1].span - base
    if span != batch.count:
        batch.offset_delta = (offsets - base).astype(np.uint32)
    if times[0] != last[1].append_time:
        batch.append_time = times
    return rewrite(first[0], batch, span, last[1].append_time, head_seed)


Joined = tuple[Batch, npt.NDArray[np.int64], npt.NDArray[np.int64]]


def _joined_plain(gathered: list[tuple[Frame, FrameFacts]]) -> Joined | None:
    """Frames of one plain message each, the trickle this is for: ten times as fast as by way of columns."""
    if any(facts.messages != 1 or facts.flags or facts.codec != NONE for _, facts in gathered):
        return None
    messages = [frame.message() for frame, _ in gathered]
    plain = [message for message in messages if message is not None]
    if len(plain) < len(messages):
        return None
    batch = Batch.from_columns(
        [value for _, value in plain],
        keys=[key for key, _ in plain],
        timestamps=np.array([facts.timestamps[0] for _, facts in gathered], np.int64),
        now_us=0,
    )
    offsets = np.array([facts.base_offset for _, facts in gathered], np.int64)
    return batch, offsets, np.array([facts.append_time for _, facts in gathered], np.int64)


def _joined_any(frames: list[Frame]) -> Joined:
    batches = [frame.batch(verify=False) for frame in frames]
    offsets = [frame.offsets(batch) for frame, batch in zip(frames, batches, strict=True)]
    times = [frame.append_times(batch) for frame, batch in zip(frames, batches, strict=True)]
    return Batch.concat(batches), np.concatenate(offsets), np.concatenate(times)
