"""Small frames of a sealed segment become large ones; offsets, times and contents stay as they are.

A trickle of single messages costs a header of 88 bytes each on disk, and a look at that header for every reader.
Merged, they cost what a batch costs. Frames are merged only with neighbours of the same leader epoch and codec,
and only if the producer's sequence numbers, where there are any, go on without a gap: (producer, sequence) must
still be found in the log by whoever rebuilds the state of idempotent producers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from penstock.batch import Batch
from penstock.frame import CONTROL, Frame, rewrite
from penstock.limits import KIB
from penstock.storage.log import Log
from penstock.storage.segment import Segment

# A frame of this size spends 1 % on its header; beyond it, merging gains nothing.
SMALL_BYTES = 8 * KIB
MERGED_BYTES_MAX = 128 * KIB
MERGED_MESSAGES_MAX = 10_000


def merge_small_frames(log: Log, segment: Segment) -> bool:
    """Rewrites a sealed segment as it was appended, if most of its frames are small; True if it did."""
    if segment.header.generation > 0:
        return False
    frames = small = 0
    for frame in log.scan(segment):
        frames += 1
        small += len(frame.data) < SMALL_BYTES
    if frames < 2 or small * 2 < frames:
        return False
    return log.rewrite([segment], merged(log.scan(segment)))


def merged(frames: Iterable[Frame]) -> Iterator[Frame]:
    """The same messages in fewer frames."""
    gathered: list[Frame] = []
    size = count = 0
    for frame in frames:
        fits = size + len(frame.data) <= MERGED_BYTES_MAX and count + frame.count <= MERGED_MESSAGES_MAX
        if gathered and not (fits and _may_join(gathered[0], gathered[-1], frame)):
            yield _joined(gathered)
            gathered, size, count = [], 0, 0
        gathered.append(frame)
        size += len(frame.data)
        count += frame.count
    if gathered:
        yield _joined(gathered)


def _may_join(first: Frame, last: Frame, frame: Frame) -> bool:
    if len(frame.data) >= SMALL_BYTES or len(first.data) >= SMALL_BYTES:
        return False
    if (frame.flags | first.flags) & CONTROL:
        return False
    if (frame.leader_epoch, frame.codec) != (first.leader_epoch, first.codec):
        return False
    before, producer = last.producer, frame.producer
    if (before.id, before.epoch) != (producer.id, producer.epoch):
        return False
    # A merged frame's sequence numbers are counted by offset, so neither may have a gap.
    follows = frame.base_offset == last.next_offset and producer.sequence == before.sequence + last.span
    return producer.id == 0 or follows


def _joined(frames: list[Frame]) -> Frame:
    if len(frames) == 1:
        return frames[0]
    first, last = frames[0], frames[-1]
    batches = [frame.batch() for frame in frames]
    offsets = np.concatenate([f.offsets(b) for f, b in zip(frames, batches, strict=True)])
    times = np.concatenate([f.append_times(b) for f, b in zip(frames, batches, strict=True)])
    batch = Batch.concat(batches)
    span = last.next_offset - first.base_offset
    if span != batch.count:
        batch.offset_delta = (offsets - first.base_offset).astype(np.uint32)
    if times[0] != last.append_time:
        batch.append_time = times
    return rewrite(first, batch, span, last.append_time)
