"""One task of a write, on an executor: its rows to the partitions of their topics, under its identity.

Which rows go where, and in which order, depends on nothing but the rows and the number of partitions: not on how Spark
cuts them into Arrow batches, and not on what else is going on. So an attempt that is repeated sends the same again. If
it has other rows, that is noticed: see `client/identified.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.batch import Batch, bits
from penstock.client.blocking import Client, IdentifiedWriter
from penstock.client.identified import Identity
from penstock.client.requests import TopicInfo
from penstock.columns import Ints
from penstock.durations import duration_text, duration_us
from penstock.errors import AttemptDiffers, PenstockError, ProducerFenced, TopicNotFound
from penstock.limits import MIB
from penstock.partitioner import partitions_of, split
from penstock.spark.connecting import Connecting
from penstock.spark.reading import gathered
from penstock.spark.sink_rows import Rows, batch_of, refuse_epochs

# As many rows without a key go to one partition, then as many to the next: whole frames.
_RUN_ROWS = 10_000
# Rows with keys go to all partitions. Of one Arrow batch of Spark's, each would get a small frame.
_GATHERED_ROWS, _GATHERED_BYTES = 50_000, 8 * MIB
# These count from now on, and what becomes of them is another time in each attempt.
_COUNTED = {"delay": "deliver_at", "ttl": "expires_at"}


class Pinned(NamedTuple):
    """A topic as it was when the write began."""

    partitions: int
    max_delay_us: int

    @classmethod
    def of(cls, info: TopicInfo) -> Pinned:
        return cls(len(info.partitions), duration_us(info.settings["max_delay"]))


class Target(NamedTuple):
    """Where rows go, as it is sent to executors. Without `topic`, a column says it.

    `topics` is None until the driver has looked them up.
    """

    connecting: Connecting
    topic: str | None
    columns: tuple[str, ...]
    topics: Mapping[str, Pinned] | None
    compression: str


class Origin(NamedTuple):
    """What a task is a part of: `name` and `epoch` are its own, whichever attempt at it this is.

    In a stream, the batch is the epoch of an identity that stays the same: when the next batch begins, what is left of
    an attempt at the one before can't write any more. An epoch has 16 bits, so the rest of the batch's number is a part
    of the identity.
    """

    name: tuple[str | int, ...]
    epoch: int
    spark_partition: int
    turn: int

    @classmethod
    def of_job(cls, write_id: str, spark_partition: int, *, query: str = "", batch: int = 0) -> Origin:
        """`query` and `batch` are those of the stream whose `foreachBatch` this is in: one name serves all batches."""
        name = ("write", write_id, query, batch >> 16, spark_partition)
        return cls(name, batch & 0xFFFF, spark_partition, batch + spark_partition)

    @classmethod
    def of_stream(cls, query: str, batch: int, spark_partition: int) -> Origin:
        name = ("stream", query, batch >> 16, spark_partition)
        return cls(name, batch & 0xFFFF, spark_partition, batch + spark_partition)

    def identity(self, topic: str, partitions: int) -> Identity:
        """With another number of partitions rows go elsewhere, and must not be taken for those that were there."""
        said = json.dumps([*self.name, topic, partitions])
        return Identity(int.from_bytes(blake2b(said.encode(), digest_size=8).digest(), "big") >> 1 or 1, self.epoch)


def write_task(target: Target, origin: Origin, tables: Iterable[pa.RecordBatch]) -> int:
    """How many rows it had, when all of them are on disk."""
    try:
        return _written(target, origin, tables)
    except ProducerFenced as error:
        raise ProducerFenced(
            f"{error.message}. A later batch of this query has been written, so this task is what was left of an older "
            "attempt, and is not missed. If it is not left over, the checkpoint is older than what the query has "
            "written: start it with another checkpointLocation",
            **error.details,
        ) from error
    except AttemptDiffers as error:
        raise AttemptDiffers(
            f"{error.message}. The rows of Spark partition {origin.spark_partition} are not those that it had when it "
            "was run before: what they are made of was compacted or changed in between, they were shuffled and not "
            "sorted after that, minPartitions or the query was changed, or the same writeId was used for other rows. "
            "What is missing can't be written under the same name. For df.write, use another writeId; for a stream, "
            "another checkpointLocation, with startingOffsets where this batch begins. What is stored of it is there "
            "twice then",
            **error.details,
        ) from error


def _written(target: Target, origin: Origin, tables: Iterable[pa.RecordBatch]) -> int:
    routes: dict[str, _Route] = {}
    count = 0
    with ExitStack() as stack:
        for rows in _rows(target, origin, tables):
            count += len(rows.numbers)
            for topic, some in _by_topic(target.topic, rows):
                if topic not in routes:
                    # A task without rows needs no broker.
                    client = target.connecting.client()
                    pinned = _pinned(target, client, topic, some)
                    writer = client.identified(
                        topic,
                        origin.identity(topic, pinned.partitions),
                        compression=target.compression,
                        retry_for=duration_text(target.connecting.retry_us),
                    )
                    routes[topic] = _Route(stack.enter_context(writer), pinned, origin.turn)
                routes[topic].take(some)
        stored = sum(sum(route.writer.finish().values()) for route in routes.values())
    assert stored == count, (stored, count)
    return count


def _rows(target: Target, origin: Origin, tables: Iterable[pa.RecordBatch]) -> Iterator[Rows]:
    first = 0
    if "key" in target.columns:
        tables = gathered(tables, _GATHERED_ROWS, _GATHERED_BYTES)
    for table in tables:
        if table.num_rows:
            numbers = np.arange(first, first + table.num_rows)
            yield Rows(dict(zip(target.columns, table.columns, strict=True)), numbers, origin.spark_partition)
            first += table.num_rows


def _by_topic(named: str | None, rows: Rows) -> Iterator[tuple[str, Rows]]:
    """In the order in which the topics first appear. The topic of the option is that of all rows."""
    column = rows.columns.pop("topic", None)
    if named is not None:
        yield named, rows
        return
    assert column is not None, "checked on the driver"
    if column.null_count:
        empty = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        raise rows.refused(int(empty[0]), "the topic is null")
    coded = pc.dictionary_encode(column)
    codes = coded.indices.to_numpy(zero_copy_only=False)
    topics = coded.dictionary.to_pylist()
    for code, topic in enumerate(topics):
        yield topic, rows if len(topics) == 1 else rows.taken(np.flatnonzero(codes == code))


def _pinned(target: Target, client: Client, topic: str, rows: Rows) -> Pinned:
    assert target.topics is not None, "looked up on the driver"
    found = target.topics.get(topic)
    if found is not None:
        return found
    try:
        client.topic(topic)
    except TopicNotFound as error:
        told = f"there is no topic {topic!r}, and writing does not make one: penstock topic create {topic}"
        raise rows.refused(0, TopicNotFound(told, **error.details)) from error
    except PenstockError as error:
        raise rows.refused(0, error) from error
    # It may get more partitions before this task is run again, and nobody would know how many it had.
    told = f"the topic {topic!r} was made after this write began: run it again"
    raise rows.refused(0, TopicNotFound(told, topic=topic))


class _Route:
    """To one topic."""

    def __init__(self, writer: IdentifiedWriter, pinned: Pinned, turn: int) -> None:
        self.writer = writer
        self._pinned = pinned
        self._turn = turn
        self._count = 0

    def take(self, rows: Rows) -> None:
        given = rows.columns.pop("partition", None)
        refuse_epochs(rows)
        now_us = self.writer.now_us()
        batch = batch_of(rows, now_us=now_us, max_delay_us=self._pinned.max_delay_us, limits=self.writer.limits)
        relative = [_COUNTED[name] for name in _COUNTED if name in rows.columns]
        chosen = self._chosen(batch)
        if given is not None:
            chosen = self._as_given(rows, given, chosen)
        for partition, _, part in split(batch, chosen):
            self.writer.put(partition, part, now_us=now_us, relative=relative)
        self._count += batch.count

    def _chosen(self, batch: Batch) -> Ints:
        """By key; without one, by the row's place in the task."""
        partitions = self._pinned.partitions
        turns = (self._turn + (self._count + np.arange(batch.count)) // _RUN_ROWS) % partitions
        if batch.key is None:
            return turns
        chosen = partitions_of(batch, partitions, 0)
        if batch.key.validity is not None:
            has_none = ~bits(batch.key.validity, batch.start, batch.count)
            chosen[has_none] = turns[has_none]
        return chosen

    def _as_given(self, rows: Rows, given: pa.Array, chosen: Ints) -> Ints:
        partitions = self._pinned.partitions
        numbers = pc.fill_null(given.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
        is_given = given.is_valid().to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(is_given & ((numbers < 0) | (numbers >= partitions)))
        if len(wrong):
            raise rows.refused(
                int(wrong[0]),
                f"{self.writer.topic} has partitions 0 to {partitions - 1}, not {numbers[wrong[0]]}",
            )
        return np.where(is_given, numbers, chosen)
