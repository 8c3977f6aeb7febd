"""Frames to what users have: messages one by one, or Arrow record batches with where each message is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from penstock.batch import Batch
from penstock.columns import SCHEMA, TIME
from penstock.errors import InvalidFrame, LogCorrupt
from penstock.frame import Frame
from penstock.message import Message, shown

Ints = npt.NDArray[np.int64]

_WHERE = ("partition", "offset", "append_time")
LOG_SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("append_time", TIME), *SCHEMA])


def log_schema(columns: Iterable[str]) -> pa.Schema:
    """Of batches with these columns of a message, in this order, behind those that tell where it is."""
    names = list(dict.fromkeys([*_WHERE, *columns]))
    return pa.schema([LOG_SCHEMA.field(name) for name in names])


class StoredMessage(msgspec.Struct, eq=False, gc=False):
    """A message and where it is in the log. Times are microseconds since the epoch.

    `timestamp` is its producer's, `append_time` the broker's; `deliver_at` and `expires_at` are 0 if it has none.
    """

    topic: str
    partition: int
    offset: int
    append_time: int
    message: Message

    @property
    def id(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"

    @property
    def value(self) -> bytes | None:
        return self.message.value

    @property
    def key(self) -> bytes | None:
        return self.message.key

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        return self.message.headers

    @property
    def timestamp(self) -> int:
        return self.message.timestamp

    @property
    def priority(self) -> int:
        return self.message.priority

    @property
    def deliver_at(self) -> int:
        return self.message.deliver_at

    @property
    def expires_at(self) -> int:
        return self.message.expires_at

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} key={shown(self.key)} value={shown(self.value)}>"


class Columns:
    """Some messages of one frame."""

    __slots__ = ("append_times", "batch", "offsets")

    def __init__(self, batch: Batch, offsets: Ints, append_times: Ints) -> None:
        self.batch = batch
        self.offsets = offsets
        self.append_times = append_times

    def arrow(self, partition: int, schema: pa.Schema = LOG_SCHEMA) -> pa.RecordBatch:
        """With the columns of `schema`, which are some of those of LOG_SCHEMA and in any case the first three."""
        count = self.batch.count
        where = [
            pa.array(np.full(count, partition, np.int32)),
            pa.array(self.offsets),
            pa.array(self.append_times).cast(TIME),
        ]
        columns = [self.batch.column(name) for name in schema.names[len(where) :]]
        return pa.RecordBatch.from_arrays([*where, *columns], schema=schema)

    def rows(self) -> Iterator[tuple[int, int, Message]]:
        """Offset, append time and message."""
        return zip(self.offsets.tolist(), self.append_times.tolist(), self.batch.messages(), strict=True)

    def messages(self, topic: str, partition: int) -> Iterator[StoredMessage]:
        offsets, times = self.offsets.tolist(), self.append_times.tolist()
        return map(StoredMessage, repeat(topic), repeat(partition), offsets, times, self.batch.messages())


def between(frame: Frame, first: int, until: int) -> Columns | None:
    """The messages of a frame with offsets in [first, until); None if there are none."""
    batch = _decoded(frame)
    offsets, times = frame.offsets(batch), frame.append_times(batch)
    start, stop = np.searchsorted(offsets, (first, until)).tolist()
    if start == stop:
        return None
    if stop - start == batch.count:
        return Columns(batch, offsets, times)
    return Columns(batch.slice(start, stop), offsets[start:stop], times[start:stop])


def among(frame: Frame, wanted: BitMap64) -> Columns | None:
    """The messages of a frame with these offsets; None if there are none."""
    first, until = frame.base_offset, frame.next_offset
    count = wanted.range_cardinality(first, until)
    if not count:
        return None
    batch = _decoded(frame)
    offsets, times = frame.offsets(batch), frame.append_times(batch)
    if count == until - first:
        # All of them, as mostly: small frames come by the thousand, and numpy has its price for each call.
        return Columns(batch, offsets, times)
    some = np.frombuffer((wanted & BitMap64(range(first, until))).to_array(), np.int64)
    rows = np.flatnonzero(np.isin(offsets, some, assume_unique=True))
    if len(rows) == batch.count:
        return Columns(batch, offsets, times)
    if not len(rows):
        return None
    start, stop = int(rows[0]), int(rows[-1]) + 1
    if stop - start == len(rows):
        return Columns(batch.slice(start, stop), offsets[rows], times[rows])
    return Columns(batch.rows(rows), offsets[rows], times[rows])


def _decoded(frame: Frame) -> Batch:
    try:
        return frame.batch()
    except InvalidFrame as error:
        # It comes from a log, which had checked it before it was stored.
        raise LogCorrupt(
            f"the frame at offset {frame.base_offset} is damaged: {error.message}", offset=frame.base_offset
        ) from error
