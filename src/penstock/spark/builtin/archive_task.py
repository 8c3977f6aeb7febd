"""One task of the archive, on an executor: a stretch of one partition, from the broker to Parquet files.

Rows go from the broker's columns to the file's, and Spark never has them: what it gets from a task is the entries of
the files. They are on disk then, and part of the archive once the driver has committed them. A task that is done again
writes other files; those of the first time are never named, and `vacuum` removes them.
"""

from __future__ import annotations

from penstock.archive import COLUMNS, FileEntry, PartitionWriter
from penstock.client.blocking import Client
from penstock.errors import DataLost, NotFound, OffsetOutOfRange, TopicNotFound
from penstock.spark.asked import Asked
from penstock.spark.losses import Losses
from penstock.spark.planning import Range
from penstock.spark.reading import PATIENCE_S, gathered


def archive_task(asked: Asked, where: str, task: Range) -> list[FileEntry]:
    """They cover all that was planned, but for what is lost. If it fails, nothing is left."""
    client = asked.connecting.client(PATIENCE_S)
    writers: list[PartitionWriter] = []
    try:
        entries = _written(asked, client, where, task, writers)
        # Again, since it may have been made anew while it was read.
        if entries and _is_there(asked, client, task):
            return entries
    except BaseException:
        _abort(writers)
        raise
    _abort(writers)
    return []


def _written(asked: Asked, client: Client, where: str, task: Range, writers: list[PartitionWriter]) -> list[FileEntry]:
    entries: list[FileEntry] = []
    at = task.start
    while at < task.end and _is_there(asked, client, task):
        writer = PartitionWriter(where, topic=task.topic, topic_id=task.id, partition=task.partition, first_offset=at)
        writers.append(writer)
        try:
            read = asked.log.batches(client, task.topic, task.partition, at, task.end, COLUMNS.names)
            for batch in gathered(read):
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
        except NotFound:
            if _is_there(asked, client, task):
                raise
        else:
            return entries + writer.finish(task.end)
    return entries


def _is_there(asked: Asked, client: Client, task: Range) -> bool:
    """Whether it is the topic that was planned for, and not shorter than it was."""
    try:
        now = client.topic(task.topic)
    except TopicNotFound:
        asked.losses.report(f"the topic {task.topic} was deleted while it was archived", topic=task.topic)
        return False
    if now.id != task.id:
        report_made_again(task.topic, asked.losses)
        return False
    end = now.partitions[task.partition].end_offset
    if end < task.end:
        raise DataLost(
            f"offsets up to {task.end} of partition {task.partition} of {task.topic} were to be archived, and it ends "
            f"at {end}: was the broker set back?",
            topic=task.topic,
            partition=task.partition,
        )
    return True


def report_made_again(topic: str, losses: Losses) -> None:
    losses.report(
        f"the topic {topic} was deleted and made again while it was archived. Run this again, and the new one is "
        "archived from its beginning, beside what there is of the old one",
        topic=topic,
    )


def _abort(writers: list[PartitionWriter]) -> None:
    for writer in writers:
        writer.abort()
