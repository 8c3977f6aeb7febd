"""`df.write.format("penstock")` and `df.writeStream.format("penstock")`: rows to messages, each stored once.

    driver      writer(), streamWriter()   options, columns and the topic are checked; nothing has been written yet
    executors   write()                    one task: Arrow batches → columns of messages → frames → broker
    driver      commit(), abort()          nothing is left to do: see below

Messages are there for consumers as soon as the broker has stored them. There is no transaction around a job, so a
commit has nothing to add, and an abort can't take anything back. What makes a job exact is that its tasks may run
again: each writes under an identity made of what it is a part of (`Origin`), and the broker recognises what it has
stored under that identity before.

The number of partitions of each topic is asked for here, once for all tasks: if it grows while they run, a task that
runs again still sends every key to the partition it sent it to before.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.codec import CODECS
from penstock.errors import InvalidInput, InvalidSetting, TopicNotFound
from penstock.spark.options import Options
from penstock.spark.sink_columns import columns_of
from penstock.spark.sink_task import Origin, Pinned, Target, write_task
from penstock.spark.telling import telling

_OPTIONS = ("topic", "writeId", "retryFor", "compression")
# Long enough for a broker to be restarted on a large disk. Kafka's producers give up after 120 s, too.
_RETRY_US = 120_000_000


class Written(WriterCommitMessage):
    """What a task tells the driver."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class PenstockWriter(DataSourceArrowWriter):
    """Of one job. `write_id` is that of all its tasks, and of the same job run again if the user has named it."""

    def __init__(self, target: Target, write_id: str) -> None:
        self._target = target
        self._write_id = write_id

    @telling
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        query, batch = _stream_of(context) or ("", 0)
        origin = Origin.of_job(self._write_id, context.partitionId(), query=query, batch=batch)
        return Written(write_task(self._target, origin, iterator))


class PenstockStreamWriter(DataSourceStreamArrowWriter):
    """Of one micro-batch: Spark makes another for the next."""

    def __init__(self, target: Target) -> None:
        self._target = target

    @telling
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        stream = _stream_of(context)
        if stream is None:
            raise InvalidInput("Spark does not tell which query and batch this task belongs to: nothing was written")
        return Written(write_task(self._target, Origin.of_stream(*stream, context.partitionId()), iterator))


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> PenstockWriter:
    if overwrite:
        raise InvalidSetting('topics can only be appended to: use mode("append"), not mode("overwrite")')
    given = Options(options, _OPTIONS, use="writing")
    target = _target(given, schema)
    return PenstockWriter(target, given.text("writeId") or secrets.token_hex(16))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> PenstockStreamWriter:
    if overwrite:
        raise InvalidSetting(
            'topics can only be appended to: use outputMode("append"), not "complete"; '
            "what changes can be written with foreachBatch"
        )
    given = Options(options, _OPTIONS, use="writing")
    if "writeId" in given:
        raise InvalidSetting("the option writeId is for df.write: a stream is known by the id of its query")
    return PenstockStreamWriter(_target(given, schema))


def _target(given: Options, schema: StructType) -> Target:
    connecting, topic = given.connecting(), given.text("topic")
    columns = columns_of(schema, has_topic=topic is not None)
    compression = given.choice("compression", tuple(CODECS), "none")
    retry_us = given.duration_us("retryFor")
    client = connecting.client()
    if topic is not None:
        try:
            found = [client.topic(topic)]
        except TopicNotFound as error:
            raise TopicNotFound(
                f"there is no topic {topic!r}, and writing does not make one: penstock topic create {topic}",
                **error.details,
            ) from error
    else:
        found = client.topics()
    return Target(
        connecting,
        topic,
        columns,
        {info.name: Pinned.of(info) for info in found},
        compression,
        _RETRY_US if retry_us is None else retry_us,
    )


def _stream_of(context: TaskContext) -> tuple[str, int] | None:
    """The query and the batch that a task is a part of; also of a job that a batch has started."""
    query, batch = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
    return (query, int(batch)) if query and batch else None


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "tasks have one"
    return context
