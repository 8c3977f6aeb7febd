"""Key compaction: of all messages with the same key in the sealed segments, only the last one is kept.

Messages without a key are kept: nothing replaces them. A tombstone (null value) removes the messages before it and
is itself removed once it is older than `tombstone_age_us`, so that readers have that long to see it. The newest
message of a key keeps its offset; offsets of removed messages are never given out again.

Two passes, both over columns: the first gathers the last offset of every key in the segments that were not compacted
before; the second rewrites the segments from the oldest on, dropping what a later message replaced. A crash in
between leaves some segments compacted and some not, which is a log like any other: the next run goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import StorageError
from penstock.frame import CONTROL, Frame, rewrite
from penstock.limits import MIB
from penstock.storage.log import Log
from penstock.storage.merge import merged
from penstock.storage.segment import COMPACTED, SEGMENT_HEADER_BYTES, Segment

KEYS_BYTES_MAX = 128 * MIB
_VIEWS_MAX = 64

Protected = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]


def compact(
    log: Log,
    *,
    now_us: int,
    tombstone_age_us: int,
    keys_bytes_max: int = KEYS_BYTES_MAX,
    keep_from: int | None = None,
    protected: Protected | None = None,
) -> int:
    """Compacts what is sealed; returns the bytes gained.

    Memory: keys of about `keys_bytes_max` bytes and those of one segment; the rest waits for the next run.
    `protected` tells of offsets which must stay (delayed messages not yet delivered): true where they must. Segments
    with offsets of `keep_from` or later are left alone: they are looked at when all of them may go. So are those that
    are held back from readers: what may be truncated replaces nothing.
    """
    truncations = log.truncations
    bound = log.committed_offset if keep_from is None else min(keep_from, log.committed_offset)
    sealed = [s for s in log.segments[:-1] if s.next_offset <= bound]
    dirty = [segment for segment in sealed if not _is_compacted(segment)]
    if not dirty:
        return 0
    gained = 0
    try:
        newest, reached = _newest_by_key(log, dirty, keys_bytes_max)
        cleaned = [segment for segment in sealed if segment.base_offset < reached]
        rule = _Rule(newest, tombstones_from=now_us - tombstone_age_us, protected=protected)
        for group in _groups(cleaned, log.settings.segment_bytes_max):
            before, end = sum(segment.size for segment in group), group[-1].next_offset
            dropped = [_dropped(log, segment, rule) for segment in group]
            frames = (f for segment, gone in zip(group, dropped, strict=True) for f in _kept(log, segment, gone))
            # A segment with messages that only protection keeps must be looked at again.
            flags = 0 if rule.sheltered else COMPACTED
            # The keys were gathered before: what a truncation has taken back since replaces nothing.
            merged_frames = merged(frames, group[0].head_seed)
            if not log.rewrite(group, merged_frames, flags=flags, truncations=truncations):
                break
            gained += before - sum(s.size for s in log.segments if group[0].base_offset <= s.base_offset < end)
    except StorageError as error:
        # If retention or a truncation took a segment from under us, the next run will do.
        if not log.lost_to_others(error, sealed):
            raise
    return gained


def _is_compacted(segment: Segment) -> bool:
    # A segment that was compacted may have been appended to since, if a truncation made it the active one.
    return bool(segment.header.flags & COMPACTED) and segment.next_offset == segment.header.end_offset


class _Newest:
    """The last offset of every key seen."""

    def __init__(self, table: pa.Table) -> None:
        self.keys = table.column("key").combine_chunks()
        # One more, for the messages whose key is not among them.
        self.offsets = np.append(table.column("offset_max").to_numpy(), -1)

    def replaced(self, keys: pa.ChunkedArray, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """True where a later message has the same key."""
        found = pc.index_in(keys, value_set=self.keys, skip_nulls=True)
        rows = pc.fill_null(found, -1).to_numpy()
        replaced: npt.NDArray[np.bool_] = self.offsets[rows] > offsets
        return replaced


@dataclass(slots=True)
class _Rule:
    """Which messages go. Segments are asked for from the oldest on."""

    newest: _Newest
    tombstones_from: int
    protected: Protected | None
    # Keys of messages that stay only because they are protected: their tombstones must outlive them.
    sheltered: list[pa.Array] = field(default_factory=list)


class _Keys:
    """Keys of many batches, copied out of them: a view would keep all the bytes read with it."""

    def __init__(self) -> None:
        self._copied: list[pa.Array] = []
        self._views: list[pa.Array] = [pa.array([], pa.binary())]

    def add(self, keys: pa.Array) -> None:
        self._views.append(keys)
        if len(self._views) > _VIEWS_MAX:
            self._copy()

    def all(self) -> pa.ChunkedArray:
        self._copy()
        return pa.chunked_array(self._copied, pa.binary())

    def _copy(self) -> None:
        self._copied.append(pa.concat_arrays(self._views))
        self._views = [pa.array([], pa.binary())]


def _newest_by_key(log: Log, dirty: Sequence[Segment], keys_bytes_max: int) -> tuple[_Newest, int]:
    """Over as many of the dirty segments as fit, at least one; and the offset reached."""
    newest = pa.table({"key": pa.array([], pa.binary()), "offset_max": pa.array([], pa.int64())})
    reached = dirty[0].base_offset
    for segment in dirty:
        if segment is not dirty[0] and newest.nbytes > keys_bytes_max:
            break
        keys, offsets = _Keys(), [newest.column("offset_max").to_numpy()]
        keys.add(newest.column("key").combine_chunks())
        for frame in log.scan(segment):
            if not frame.flags & CONTROL:
                batch = frame.batch(verify=False)
                keys.add(batch.key_array())
                offsets.append(frame.offsets(batch))
        table = pa.table({"key": keys.all(), "offset": np.concatenate(offsets)})
        grouped = table.group_by("key").aggregate([("offset", "max")])
        newest = grouped.filter(pc.is_valid(grouped.column("key"))).select(["key", "offset_max"])
        reached = segment.next_offset
    return _Newest(newest), reached


def _groups(cleaned: Sequence[Segment], segment_bytes_max: int) -> Iterator[list[Segment]]:
    """Neighbours that fit into one segment together, so that many small ones do not stay many."""
    group: list[Segment] = []
    size = 0
    for segment in cleaned:
        content = segment.size - SEGMENT_HEADER_BYTES
        if group and size + content > segment_bytes_max:
            yield group
            group, size = [], 0
        group.append(segment)
        size += content
    if group:
        yield group


def _kept(log: Log, segment: Segment, dropped: npt.NDArray[np.bool_]) -> Iterator[Frame]:
    """The frames of a segment with what stays of them; those of which nothing stays are left out."""
    row = 0
    for frame in log.scan(segment):
        if frame.flags & CONTROL:
            yield frame
            continue
        gone = dropped[row : row + frame.count]
        row += frame.count
        if not gone.any():
            yield frame
        elif not gone.all():
            yield rewrite(
                frame, frame.batch(verify=False).take(~gone), frame.span, frame.append_time, segment.head_seed
            )


def _dropped(log: Log, segment: Segment, rule: _Rule) -> npt.NDArray[np.bool_]:
    """For every message of a segment whether it goes. All keys at once: the table of keys is hashed at each look-up."""
    keys = _Keys()
    offsets: list[npt.NDArray[np.int64]] = []
    expired: list[npt.NDArray[np.bool_]] = []
    for frame in log.scan(segment):
        if not frame.flags & CONTROL:
            batch = frame.batch(verify=False)
            keys.add(batch.key_array())
            offsets.append(frame.offsets(batch))
            expired.append(batch.tombstones() & (frame.append_times(batch) < rule.tombstones_from))
    if not offsets:
        return np.zeros(0, np.bool_)
    all_keys, all_offsets = keys.all(), np.concatenate(offsets)
    replaced = rule.newest.replaced(all_keys, all_offsets)
    tombstones = np.concatenate(expired) & pc.is_valid(all_keys).to_numpy()
    dropped: npt.NDArray[np.bool_] = replaced | tombstones
    if rule.protected is None:
        return dropped
    stays = rule.protected(all_offsets)
    rule.sheltered += all_keys.filter(pa.array(replaced & stays)).chunks
    sheltered = pa.chunked_array(rule.sheltered, pa.binary()).combine_chunks()
    stays |= pc.is_in(all_keys, value_set=sheltered, skip_nulls=True).to_numpy() & tombstones
    dropped &= ~stays
    return dropped
