"""One task of the archive, on an executor: a stretch of one partition, from the broker to Parquet files.

Rows go from the broker's columns to the file's, and Spark never has them: what it gets from a task is the entries of
the files. They are on disk then, and part of the archive once the driver has committed them. A task that is done again
writes other files; those of the first time are never named, and `vacuum` removes them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.archive import COLUMNS, FileEntry, PartitionWriter
from penstock.client.blocking import Client
from penstock.errors import DataLost, NotFound, OffsetOutOfRange, TopicNotFound
from penstock.spark.asked import Asked
from penstock.spark.losses import Losses
from penstock.spark.planning import Range
from penstock.spark.reading import gathered


def archive_task(asked: Asked, where: str, task: Range) -> list[FileEntry]:
    """They cover all that was planned, but for what is lost. If it fails, nothing is left."""
    client = asked.connecting.client()
    writers: list[PartitionWriter] = []
    try:
        entries = _written(asked, client, where, task, writers)
        # Again, since it may have been made anew while it was read.
        if entries and _whole_from(asked, client, task) is not None:
            return entries
    except BaseException:
        _abort(writers)
        raise
    _abort(writers)
    return []


def _written(asked: Asked, client: Client, where: str, task: Range, writers: list[PartitionWriter]) -> list[FileEntry]:
    entries: list[FileEntry] = []
    at = task.start
    while at < task.end and _whole_from(asked, client, task) is not None:
        writer = PartitionWriter(where, topic=task.topic, topic_id=task.id, partition=task.partition, first_offset=at)
        writers.append(writer)
        try:
            for batch in _without_losses(asked, client, task, at):
                writer.write(batch)
                at = batch.column("offset")[-1].as_py() + 1
        except OffsetOutOfRange as error:
            first = error.details["start"]
            asked.losses.report(
                f"offsets {at} to {min(first, task.end)} of partition {task.partition} of {task.topic} were deleted "
                "before they were archived: with archive=required the broker keeps what is not archived yet",
                topic=task.topic,
                partition=task.partition,
            )
            # What is lost stays a gap, which readers of the archive hear of.
            entries += writer.finish(at)
            at = max(at, first)
        except NotFound as error:
            if isinstance(error, DataLost) or _whole_from(asked, client, task) is not None:
                raise
        else:
            return entries + writer.finish(task.end)
    return entries


def _without_losses(asked: Asked, client: Client, task: Range, at: int) -> Iterator[pa.RecordBatch]:
    """Rows from `at` on. OffsetOutOfRange, as of a log that starts later, where retention has taken some out.

    Between messages that follow each other nothing is lost. Where there is a gap, the log is asked whether retention
    made it, or compaction: behind the read, since it may have happened meanwhile.
    """
    for batch in gathered(asked.log.batches(client, task.topic, task.partition, at, task.end, COLUMNS.names)):
        offsets = batch.column("offset").to_numpy()
        follows = offsets == np.arange(at, at + len(offsets))
        count = len(offsets) if follows.all() else int(follows.argmin())
        if count:
            yield batch.slice(0, count)
            at += count
        if count < len(offsets):
            _check_gap(asked, client, task, at)
            yield batch.slice(count)
            at = int(offsets[-1]) + 1
    if at < task.end:
        _check_gap(asked, client, task, at)


def _check_gap(asked: Asked, client: Client, task: Range, at: int) -> None:
    whole_from = _whole_from(asked, client, task)
    if whole_from is None:
        raise TopicNotFound(f"the topic {task.topic} was deleted while it was archived", topic=task.topic)
    if whole_from > at:
        raise OffsetOutOfRange(f"retention has taken out messages at and behind offset {at}", start=whole_from)


def _whole_from(asked: Asked, client: Client, task: Range) -> int | None:
    """None unless it is the topic that was planned for, and not shorter than it was."""
    try:
        now = client.topic(task.topic)
    except TopicNotFound:
        asked.losses.report(f"the topic {task.topic} was deleted while it was archived", topic=task.topic)
        return None
    if now.id != task.id:
        report_made_again(task.topic, asked.losses)
        return None
    held = now.partitions[task.partition]
    if held.end_offset < task.end:
        raise DataLost(
            f"offsets up to {task.end} of partition {task.partition} of {task.topic} were to be archived, and it ends "
            f"at {held.end_offset}: was the broker set back?",
            topic=task.topic,
            partition=task.partition,
        )
    return held.whole_from


def report_made_again(topic: str, losses: Losses) -> None:
    losses.report(
        f"the topic {topic} was deleted and made again while it was archived. Run this again, and the new one is "
        "archived from its beginning, beside what there is of the old one",
        topic=topic,
    )


def _abort(writers: list[PartitionWriter]) -> None:
    for writer in writers:
        writer.abort()
