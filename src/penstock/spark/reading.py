"""One task: a stretch of one partition, from the broker to Spark, in columns all the way.

Frames of the log can be of one message each, and Spark pays for every record batch: small ones are put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.blocking import Client
from penstock.errors import NotFound, OffsetOutOfRange, TopicNotFound
from penstock.spark.asked import Asked
from penstock.spark.losses import Losses
from penstock.spark.planning import Range, report_other
from penstock.spark.schema import Wanted
from penstock.spark.tables import Held

# Spark's own batches have as many (spark.sql.execution.arrow.maxRecordsPerBatch).
_ROWS = 10_000
_BYTES = 4 * 1024 * 1024


def read(asked: Asked, wanted: Wanted, task: Range) -> Iterator[pa.RecordBatch]:
    client = asked.connecting.client()
    if _held(asked, client, task) is None:
        return
    rows = _Rows(wanted, task)
    missing = Missing(task)
    at = task.start
    while at < task.end:
        batches = asked.log.batches(client, task.topic, task.partition, at, task.end, wanted.names)
        try:
            for batch in gathered(batches):
                yield rows.of(batch)
                offsets = batch.column(asked.log.position)
                missing.came(offsets)
                at = offsets[-1].as_py() + 1
            break
        except (NotFound, OffsetOutOfRange) as error:
            if _held(asked, client, task) is None:
                return
            if not isinstance(error, OffsetOutOfRange):
                raise
            first, last = error.details["start"], error.details["end"]
            asked.losses.report(
                f"offsets {at} to {task.end} of partition {task.partition} of {task.topic} were to be read, and there "
                f"are {first} to {last}: retention may be too short for this query",
                topic=task.topic,
                partition=task.partition,
            )
            if at > last:
                return
            at = max(at, first)
            missing.begin(max(at, missing.first))
    # Again, since it may have been made anew while it was read, or have lost what had not been read yet.
    held = _held(asked, client, task)
    if held is not None and (until := missing.until(held)) is not None:
        asked.losses.report(
            f"offsets {missing.first} to {until} of partition {task.partition} of {task.topic} were to be read, and "
            "retention has left single messages of them, which are for later: it may be too short for this query",
            topic=task.topic,
            partition=task.partition,
        )


class Missing:
    """Of a task: whether messages were gone when their turn came. The log says so behind the read, not before it.

    Offsets may be without a message for another reason, which is no loss: compaction.
    """

    def __init__(self, task: Range) -> None:
        self._end = task.end
        self.begin(max(task.start, task.hole))

    def begin(self, first: int) -> None:
        """From here on they count: what is missing before it has been told, or was not asked for."""
        self.first = first
        self._left = self._end - first

    def came(self, offsets: pa.Array) -> None:
        self._left -= int((offsets.to_numpy() >= self.first).sum())

    def until(self, held: Held) -> int | None:
        """None if nothing is missing that retention took."""
        if self._left <= 0 or held.whole_from <= self.first:
            return None
        return min(held.whole_from, self._end)


def _held(asked: Asked, client: Client, task: Range) -> Held | None:
    """None unless it is the topic that was planned for, with everything that is to be read, or what is left of it."""
    try:
        now = client.topic(task.topic)
        if now.id != task.id:
            report_other(task.topic, asked.losses)
            return None
        held = asked.log.held(client, now)[task.partition]
    except TopicNotFound:
        report_deleted(task.topic, asked.losses)
        return None
    if held.end < task.end:
        asked.losses.report(
            f"offsets up to {task.end} of partition {task.partition} of {task.topic} were to be read, and it ends at "
            f"{held.end}: was the broker set back?",
            topic=task.topic,
            partition=task.partition,
        )
    return held


def report_deleted(topic: str, losses: Losses) -> None:
    losses.report(f"the topic {topic} was deleted while it was to be read", topic=topic)


def gathered(
    batches: Iterable[pa.RecordBatch], rows_max: int = _ROWS, bytes_max: int = _BYTES
) -> Iterator[pa.RecordBatch]:
    """The same rows, in batches that are worth their while."""
    few: list[pa.RecordBatch] = []
    rows = size = 0
    try:
        for batch in batches:
            if few and (rows + batch.num_rows > rows_max or size + batch.nbytes > bytes_max):
                yield _joined(few)
                few, rows, size = [], 0, 0
            few.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
    except (NotFound, OffsetOutOfRange):
        # What had come by then is good.
        if few:
            yield _joined(few)
        raise
    if few:
        yield _joined(few)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class _Rows:
    """Those of one partition, in the columns that are wanted."""

    def __init__(self, wanted: Wanted, task: Range) -> None:
        self._wanted = wanted
        self._task = task
        self._topics: pa.Array | None = None

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for name, field in zip(self._wanted.names, self._wanted.arrow, strict=True):
            array = self._column(name, batch)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._wanted.arrow)

    def _column(self, name: str, batch: pa.RecordBatch) -> pa.Array:
        if name == "topic":
            return self._topic(batch.num_rows)
        if name == "id":
            prefix = f"{self._task.topic}:{self._task.partition}:"
            return pc.binary_join_element_wise(prefix, batch.column("offset").cast(pa.string()), "")
        return batch.column(name)

    def _topic(self, count: int) -> pa.Array:
        """Made once, for the longest."""
        if self._topics is None or len(self._topics) < count:
            self._topics = pa.repeat(self._task.topic, max(count, _ROWS))
        return self._topics.slice(0, count)
