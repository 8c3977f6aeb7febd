"""One task of a mirror, on an executor: messages from the source, in columns, to the same partitions of the target.

A task has one partition of one topic, in its order. What it writes is known by an identity made of the mirror, the
batch and the partition, which every frame in the log carries: done again, it finds there what it has stored, and goes
on behind it, also if the source was compacted in between (`mirror_again.py`). Unlike the sink's, the identity does not
depend on how many partitions the target has: no message goes by its key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.blocking import IdentifiedWriter
from penstock.client.comparing import Given
from penstock.client.identified import Identity
from penstock.durations import duration_text
from penstock.errors import DataLost, PenstockError, ProducerFenced
from penstock.spark.builtin.mirror_again import Again
from penstock.spark.builtin.mirror_runs import Numbering, Run, joined
from penstock.spark.connecting import Connecting
from penstock.spark.sink_rows import Rows, batch_of
from penstock.spark.telling import telling

# Of the source. `expires_at` is there only for those who name it.
READ = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, priority INT, deliver_at TIMESTAMP, expires_at TIMESTAMP"
)
# What a task tells: where what it has read is now.
TOLD = "topic STRING, partition INT, source BIGINT, target BIGINT, messages BIGINT"
_TOLD = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("source", pa.int64()),
        ("target", pa.int64()),
        ("messages", pa.int64()),
    ]
)


class Route(NamedTuple):
    """Of one topic. `ends` has, for each partition, how far it is mirrored by earlier batches: (source, target).

    What an earlier attempt at this batch has written is behind that. If nobody else writes to the target, and there was
    no such attempt, there is nothing behind it to look at.
    """

    target: str
    source_id: str
    max_delay_us: int
    ends: Mapping[int, tuple[int, int]]


class Errand(NamedTuple):
    """All that tasks of a batch must know. Topics in `skipped` are read because a pattern has them, and not written."""

    connecting: Connecting
    mirror: str
    batch: int
    routes: Mapping[str, Route]
    skipped: frozenset[str]
    compression: str

    def identity(self, route: Route, partition: int) -> Identity:
        """The batch is the epoch, as in the sink: what is left of an earlier batch can't write any more."""
        said = json.dumps(["mirror", self.mirror, self.batch >> 16, route.target, route.source_id, partition])
        number = int.from_bytes(blake2b(said.encode(), digest_size=8).digest(), "big") >> 1 or 1
        return Identity(number, self.batch & 0xFFFF)


class _Lane:
    """To one partition, behind what an earlier attempt has written."""

    def __init__(self, route: Route, writer: IdentifiedWriter, partition: int) -> None:
        self.route = route
        self.writer = writer
        self.numbering = Numbering()
        since = route.ends[partition][1]
        self.next_number = writer.recover(partition, since)
        places = writer.places(partition, since) if self.next_number else []
        self.again = Again(writer, partition, places, self.next_number)


@telling
def mirror_task(errand: Errand, tables: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What it yields is told when all of it is on disk."""
    try:
        yield from _mirrored(errand, tables)
    except ProducerFenced as error:
        raise ProducerFenced(
            f"{error.message}. If this is not what was left of an older attempt, the checkpoint is older than what the "
            "mirror has written: it was put back, or is used twice",
            **error.details,
        ) from error


def _mirrored(errand: Errand, tables: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    lanes: dict[tuple[str, int], _Lane] = {}
    client = errand.connecting.client()
    with ExitStack() as stack:
        for topic, partition, table in _parts(tables):
            if topic in errand.skipped:
                continue
            lane = lanes.get((topic, partition))
            if lane is None:
                if topic not in errand.routes:
                    raise DataLost(f"the topic {topic} was deleted while it was read: run the mirror again")
                route = errand.routes[topic]
                writer = client.identified(
                    route.target,
                    errand.identity(route, partition),
                    compression=errand.compression,
                    retry_for=duration_text(errand.connecting.retry_us),
                )
                lane = lanes[topic, partition] = _Lane(route, stack.enter_context(writer), partition)
            _put(lane, partition, table)
        for (topic, partition), lane in lanes.items():
            lane.writer.finish()
            places = lane.writer.places(partition, lane.route.ends[partition][1])
            yield _told(topic, partition, list(joined(lane.numbering.stretches, places)))


def _put(lane: _Lane, partition: int, table: pa.RecordBatch) -> None:
    # Spark may not have heard that a batch was done. Nothing of it is here twice, even if it is cut differently now.
    table = table.slice(
        int(np.searchsorted(table["offset"].to_numpy(zero_copy_only=False), lane.route.ends[partition][0]))
    )
    if not table.num_rows:
        return
    columns = dict(zip(table.schema.names, table.columns, strict=True))
    offsets = columns.pop("offset").to_numpy(zero_copy_only=False)
    rows = Rows({name: columns[name] for name in columns if name not in ("topic", "partition")}, offsets, partition)
    now_us = lane.writer.now_us()
    try:
        batch = batch_of(rows, now_us=now_us, max_delay_us=lane.route.max_delay_us, limits=lane.writer.limits)
    except PenstockError as error:
        # Rows are numbered by their offsets here.
        at = error.details.get("row", offsets[0])
        where = f"{lane.route.target} can't take the message at offset {at} of partition {partition}"
        raise type(error)(f"{where}: {error.message.partition(': ')[2]}", **error.details) from error
    numbers = lane.again.numbers(Given(batch, now_us))
    new = batch.count - len(numbers)
    lane.numbering.add(offsets, np.concatenate([numbers, lane.next_number + np.arange(new)]))
    if new:
        lane.writer.put(partition, batch.slice(len(numbers), batch.count), now_us=now_us)
        lane.next_number += new


def _parts(tables: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Rows of one partition each."""
    for table in tables:
        if not table.num_rows:
            continue
        topics, partitions = pc.dictionary_encode(table["topic"]), table["partition"].to_numpy(zero_copy_only=False)
        codes = topics.indices.to_numpy(zero_copy_only=False)
        edges = np.flatnonzero((np.diff(codes) != 0) | (np.diff(partitions) != 0)) + 1
        bounds = [0, *edges.tolist(), table.num_rows]
        for first, last in pairwise(bounds):
            yield topics.dictionary[codes[first]].as_py(), int(partitions[first]), table.slice(first, last - first)


def _told(topic: str, partition: int, runs: list[Run]) -> pa.RecordBatch:
    columns = zip(*runs, strict=True) if runs else ((), (), ())
    arrays = [pa.array([topic] * len(runs), pa.string()), pa.array([partition] * len(runs), pa.int32())]
    return pa.RecordBatch.from_arrays([*arrays, *(pa.array(each, pa.int64()) for each in columns)], schema=_TOLD)
