"""One round of archiving, as the job that fills an archive does it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.archive import Archive, FileEntry, write_files
from penstock.client.blocking import Client
from penstock.client.rows import StoredMessage

DAY_US = 86_400_000_000
# 2026-01-14, 12:00 UTC.
NOON_US = 1_768_392_000_000_000


def archive_topic(
    q: Client, topic: str, where: Path, batch: int = 0, *, told: bool = True, most: int = 1 << 62
) -> Archive:
    """What is not in the archive yet, up to `most` offsets of a partition; and the broker is told."""
    archive = Archive.open(where, create=True)
    info = q.topic(topic)
    covered = archive.covered(info.id)
    entries: list[FileEntry] = []
    for part in info.partitions:
        first = covered.get(part.number, part.start_offset)
        end = min(part.end_offset, first + most)
        if first < end:
            bounds = {"from_offset": {part.number: first}, "to_offset": {part.number: end}}
            entries += write_files(
                where,
                q.reader(topic, partitions=[part.number], **bounds).batches(),
                topic=topic,
                topic_id=info.id,
                partition=part.number,
                first_offset=first,
                end_offset=end,
            )
    archive.commit("archiver", batch, entries)
    if told:
        q.archived(topic, archive.covered(info.id), topic_id=info.id)
    return archive


def shown(message: StoredMessage) -> tuple[object, ...]:
    """Everything of it, to be compared."""
    return message.id, message.append_time, message.message


def rows(first: int, end: int, *, time_us: int = NOON_US, step_us: int = 1, size: int = 4) -> pa.RecordBatch:
    """Messages with these offsets, one `step_us` after the other."""
    offsets = np.arange(first, end)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(offsets),
            pa.array(time_us + (offsets - first) * step_us).cast(pa.timestamp("us", tz="UTC")),
            pa.array([b"%d" % offset + b"x" * size for offset in offsets], pa.binary()),
        ],
        names=["offset", "append_time", "value"],
    )


def written(
    where: Path,
    first: int,
    end: int,
    *,
    batches: list[pa.RecordBatch] | None = None,
    topic_id: str = "id",
    partition: int = 0,
) -> list[FileEntry]:
    """Files of the topic t, not committed."""
    return write_files(
        where,
        [rows(first, end)] if batches is None else batches,
        topic="t",
        topic_id=topic_id,
        partition=partition,
        first_offset=first,
        end_offset=end,
    )


def offsets_of(archive: Archive, first: int, until: int, *, topic_id: str = "id", partition: int = 0) -> list[int]:
    found: list[int] = []
    for batch in archive.read(topic_id, partition, first, until):
        found += batch.column("offset").to_pylist()
    return found
