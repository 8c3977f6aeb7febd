"""The deliveries log of a topic as a table: what happened to messages, one row for each event and message.

No group is involved in reading it. What the log has is what the table has: it is kept as long as the messages are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from penstock.client import forks
from penstock.client.bounds import Bound, Offsets, chosen, numbers_of, stretches_of
from penstock.client.requests import FindDeliveries, Happenings, ReadDeliveries
from penstock.client.rows import Ints
from penstock.client.transport import Transport
from penstock.columns import TIME
from penstock.limits import KIB

DELIVERIES_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("event_offset", pa.int64()),
        ("time", TIME),
        ("event", pa.string()),
        ("group", pa.string()),
        ("offset", pa.int64()),
        ("consumer", pa.string()),
        ("lease", pa.string()),
        ("attempt", pa.int32()),
        ("reason", pa.string()),
        ("until", TIME),
    ]
)
# One event may be of a million messages.
ROWS_MAX = 65_536


class Events(NamedTuple):
    """What happened in a stretch of a partition's log; taken apart when it is asked for."""

    topic: str
    partition: int
    happenings: Happenings

    def batches(self, rows_max: int = ROWS_MAX) -> Iterator[pa.RecordBatch]:
        columns = self._columns()
        for events, offsets in _pieces(self.happenings.offsets, rows_max):
            rows = [column.take(events) for column in columns.values()]
            whole = dict(zip(columns, rows, strict=True))
            whole["topic"] = pa.repeat(pa.scalar(self.topic), len(events))
            whole["partition"] = pa.repeat(pa.scalar(self.partition, pa.int32()), len(events))
            whole["offset"] = offsets
            yield pa.RecordBatch.from_arrays(
                [whole[name] for name in DELIVERIES_SCHEMA.names], schema=DELIVERIES_SCHEMA
            )

    def _columns(self) -> dict[str, pa.Array]:
        """Of the events, before they are taken apart."""
        told = self.happenings
        leases = [None if lease is None else f"{lease:x}" for lease in told.lease]
        columns: dict[str, list[Any]] = {
            "event_offset": told.event_offset,
            "time": told.time_us,
            "event": told.event,
            "group": told.group,
            "consumer": told.consumer,
            "lease": leases,
            "attempt": told.attempt,
            "reason": told.reason,
            "until": told.until_us,
        }
        return {name: pa.array(values, DELIVERIES_SCHEMA.field(name).type) for name, values in columns.items()}


def _pieces(sets: list[bytes | None], rows_max: int) -> Iterator[tuple[Ints, pa.Array]]:
    """Pairs of the number of an event and an offset, up to so many at a time; no offset where there is no set."""
    numbers: list[Ints] = []
    offsets: list[pa.Array] = []
    rows = 0
    for number, packed in enumerate(sets):
        members = pa.nulls(1, pa.int64()) if packed is None else pa.array(_members(packed))
        at = 0
        while at < len(members):
            some = members.slice(at, rows_max - rows)
            at += len(some)
            rows += len(some)
            numbers.append(np.full(len(some), number, np.int64))
            offsets.append(some)
            if rows == rows_max:
                yield np.concatenate(numbers), pa.concat_arrays(offsets)
                numbers, offsets, rows = [], [], 0
    if rows:
        yield np.concatenate(numbers), pa.concat_arrays(offsets)


def _members(packed: bytes) -> Ints:
    return np.frombuffer(BitMap64.deserialize(packed).to_array(), np.int64)


class Deliveries:
    """Made by `Client.deliveries`. From `from_offset` on, up to but without `to_offset`, partition by partition.

    Offsets here are positions in the deliveries log, not those of messages.
    """

    def __init__(
        self,
        transport: Transport,
        topic: str,
        *,
        from_offset: Offsets | None = None,
        to_offset: Offsets | None = None,
        partitions: Iterable[int] | None = None,
        bytes_max: int = 256 * KIB,
    ) -> None:
        self.topic = topic
        self._transport = transport
        self._start = Bound("from", None, from_offset, "earliest")
        self._end = Bound("to", None, to_offset, "latest")
        self._partitions = None if partitions is None else numbers_of(partitions)
        self._bytes_max = bytes_max

    def __repr__(self) -> str:
        some = "" if self._partitions is None else f" partitions {self._partitions}"
        return f"<{type(self).__name__} of {self.topic}{some} from {self._start} to {self._end}>"

    async def ends(self) -> dict[int, tuple[int, int]]:
        """For each partition where its log begins, and where what happens next will be."""
        ends = await self._transport.call(FindDeliveries(self.topic))
        return {number: ends[number] for number in chosen(self.topic, self._partitions, len(ends))}

    async def offsets(self) -> dict[int, tuple[int, int]]:
        """What would be read now: for each partition the first offset, and the one after the last."""
        ends = await self._transport.call(FindDeliveries(self.topic))
        numbers = chosen(self.topic, self._partitions, len(ends))
        return stretches_of(numbers, ends, self._start.offsets(ends), self._end.offsets(ends))

    async def batches(self) -> AsyncIterator[pa.RecordBatch]:
        """One row for each event and message: see docs/guides/client.md for the columns."""
        async for events in self.events():
            for batch in forks.checked(events.batches(), self._transport):
                yield batch

    async def events(self) -> AsyncIterator[Events]:
        """As they come from the broker. Where it ends is found out when the reading starts."""
        for partition, (offset, until) in (await self.offsets()).items():
            while offset < until:
                request = ReadDeliveries(self.topic, partition, offset, until, self._bytes_max)
                happenings = await self._transport.call(request)
                yield Events(self.topic, partition, happenings)
                assert happenings.next_offset > offset, "a read must get on"
                offset = happenings.next_offset
