"""`df.write.format("penstock")` and `df.writeStream.format("penstock")`: rows to messages, each stored once.

    driver      writer(), streamWriter()   options, columns and the topic are checked; nothing has been written yet
    executors   write()                    one task: Arrow batches → columns of messages → frames → broker
    driver      commit(), abort()          no-ops: see below

Spark creates a stream's writer twice per micro-batch: once to pickle it for the tasks, once to commit or abort. Commit
and abort need no broker, so the writer looks up its topics when Spark pickles it. A broker that is away at commit does
not fail the query, and an abort does not hide the error that caused it.

Messages are there for consumers as soon as the broker has stored them. There is no transaction around a job, so a
commit has nothing to add, and an abort can't take anything back. What makes a job exact is that its tasks may run
again: each writes under an identity made of what it is a part of (`Origin`), and the broker recognises what it has
stored under that identity before.

The driver looks up the number of partitions of each topic once for all tasks: if it grows while they run, a task that
runs again still sends every key to the same partition as before.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.codec import CODECS
from penstock.errors import InvalidInput, InvalidSetting, PenstockError, TopicNotFound
from penstock.spark.options import Options
from penstock.spark.sink_columns import columns_of
from penstock.spark.sink_task import Origin, Pinned, Target, write_task
from penstock.spark.telling import telling

_OPTIONS = ("topic", "writeId", "compression")


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
    """Writer of one micro-batch: Spark creates another for the next."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __getstate__(self) -> dict[str, Any]:
        """Look up the topics for the tasks. Spark keeps the message of no other error than PicklingError."""
        try:
            self._target = _pinned(self._target)
        except PenstockError as error:
            raise pickle.PicklingError(f"[{error.code}] {error.message}") from error
        return self.__dict__

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
    target = _pinned(_target(given, schema))
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
    return Target(connecting, topic, columns, None, given.choice("compression", tuple(CODECS), "none"))


def _pinned(target: Target) -> Target:
    """The same target with its topics as they are now, unless it has them already."""
    if target.topics is not None:
        return target
    client = target.connecting.client()
    if target.topic is None:
        found = client.topics()
    else:
        try:
            found = [client.topic(target.topic)]
        except TopicNotFound as error:
            raise TopicNotFound(
                f"there is no topic {target.topic!r}, and writing does not make one: "
                f"penstock topic create {target.topic}",
                **error.details,
            ) from error
    return target._replace(topics={info.name: Pinned.of(info) for info in found})


def _stream_of(context: TaskContext) -> tuple[str, int] | None:
    """The query and the batch that a task is a part of; also of a job that a batch has started."""
    query, batch = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
    return (query, int(batch)) if query and batch else None


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "tasks have one"
    return context
