"""Topics to an archive, exactly once: Parquet files by topic and day, which replay what the log has no more.

    driver      ArchiveStreamReader   what is there now, behind what the archive has; cut into tasks
    executors   archive_task          a stretch of one partition each: log → columns → files, on disk
    driver      Batches               one commit to the archive for all files of a batch; then the broker is told

The commit is the one moment in which anything counts, and the archive itself knows how far it is: a start looks there,
and not into a checkpoint of Spark's, which could be lost, or older or newer than the archive. Whoever dies before the
commit leaves files that nobody names; whoever dies behind it finds everything there; and a commit of what is there
already, by one who was thought dead, is refused. Spark's checkpoint is of one run, and is made anew with the next.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from penstock.archive import Archive, FileEntry
from penstock.client.blocking import Client
from penstock.client.requests import TopicInfo
from penstock.errors import ArchiveConflict, TopicNotFound
from penstock.limits import MIB
from penstock.spark.asked import Asked, asked_by
from penstock.spark.builtin.archive_places import places
from penstock.spark.builtin.archive_source import FORMAT, WHERE, ArchiveDataSource, entry_of
from penstock.spark.builtin.archive_tidying import Tidying
from penstock.spark.connecting import Connecting
from penstock.spark.pipeline.progress import MESSAGES
from penstock.spark.pipeline.queries import triggered
from penstock.spark.pipeline.spec import Trigger
from penstock.spark.telling import telling

# Of the log, in one batch, unless another limit is given: little is done again after a failure.
BATCH_BYTES = 1024 * MIB
# A task's, so that a long partition keeps more than one core busy. Of 100 B each they make a file of about 60 MB.
TASK_OFFSETS = 1_000_000
COMPACT_EVERY = 32


@dataclass(frozen=True)
class Archiving:
    """What to archive, and where. `name` is also the writer's in the manifest; topics are named, or have a pattern."""

    name: str
    connecting: Connecting
    where: str
    topics: str | None = None
    pattern: str | None = None
    trigger: Trigger = field(default_factory=lambda: Trigger(available_now=True))
    offsets_max: int | None = None
    fails_on_loss: bool = True
    # Small files in a partition and a day; None: they stay as they are.
    compact_every: int | None = COMPACT_EVERY
    # Whether an archive that has less than the broker was told is filled with what the broker still has.
    refills: bool = False

    def options(self) -> dict[str, str]:
        """Of the source."""
        found = {
            **self.connecting.options(),
            "subscribe": self.topics,
            "subscribePattern": self.pattern,
            "failOnDataLoss": str(self.fails_on_loss).lower(),
            "maxRecordsPerPartition": str(TASK_OFFSETS),
        }
        if self.offsets_max is None:
            found["maxBytesPerTrigger"] = str(BATCH_BYTES)
        else:
            found["maxOffsetsPerTrigger"] = str(self.offsets_max)
        return {name: value for name, value in found.items() if value is not None}

    def asked(self) -> Asked:
        return asked_by(self.options(), is_stream=True)


def prepared(archiving: Archiving, client: Client) -> Archive:
    """The archive, made if it is not there. What can be known to be wrong is, before Spark is started.

    The broker is told what is archived: whoever committed it last may have died before. If it was told more than the
    archive has, it deletes what is archived nowhere: ArchiveConflict, or it is told so.
    """
    asked = archiving.asked()
    seen = asked.subscription.look_for_all(client)
    archive = Archive.open(archiving.where, create=True)
    if not archiving.refills:
        infos = [client.topic(topic) for topic in seen]
        # Behind what the broker says: another one may commit, and tell it, meanwhile.
        archive.refresh()
        for info in infos:
            _check_told(archive, info)
    places(archive, seen, asked.losses)
    for topic in seen:
        tell(archive, client, topic, seen[topic].id, lowers=archiving.refills)
    return archive


def _check_told(archive: Archive, info: TopicInfo) -> None:
    if info.settings["archive"] != "required":
        return
    covered = archive.covered(info.id)
    for part in info.partitions:
        if part.archived > covered.get(part.number, 0):
            raise ArchiveConflict(
                f"the broker was told that partition {part.number} of {info.name} is archived up to offset "
                f"{part.archived}, and {archive.place.uri} has it up to {covered.get(part.number, 0)}: the archive was "
                "lost or set back to an older state, or this is another one. What is archived nowhere may be deleted: "
                "restore the archive, or use the right one. Or fill this one by --refill, with what the broker still "
                f"has (from offset {part.start_offset} on), which it keeps then until it is archived again",
                topic=info.name,
                partition=part.number,
                told=part.archived,
                covered=covered.get(part.number, 0),
            )


def tell(archive: Archive, client: Client, topic: str, topic_id: str, *, lowers: bool = False) -> None:
    """A broker that does not wait for it need not know, nor let us tell it."""
    try:
        info = client.topic(topic)
        if info.id == topic_id and info.settings["archive"] == "required":
            nothing = dict.fromkeys(range(len(info.partitions)), 0) if lowers else {}
            client.archived(topic, nothing | archive.covered(topic_id), topic_id=topic_id, lowers=lowers)
    except TopicNotFound:
        # The next look finds that out, and says what it means.
        return


def start(
    spark: SparkSession, archiving: Archiving, archive: Archive, client: Client, checkpoint: str
) -> list[StreamingQuery]:
    # Of what is deleted nothing can be another pipeline's, whatever directory it is that we are given.
    own = Path(checkpoint) / "archive"
    if own.exists():
        shutil.rmtree(own)
    spark.dataSource.register(ArchiveDataSource)
    options = {**archiving.options(), WHERE: archive.place.full("").rstrip("/")}
    frame = spark.readStream.format(FORMAT).options(**options).load()
    frame = frame.observe(MESSAGES, f.coalesce(f.sum("messages"), f.lit(0)).alias("messages"))
    writer = frame.writeStream.foreachBatch(Batches(archiving, archive, client).commit).queryName(archiving.name)
    # On this machine, whatever file system Spark has as its own: nobody but the driver looks at it.
    writer = writer.option("checkpointLocation", own.absolute().as_uri())
    return [triggered(writer, archiving.trigger).start()]


class Batches:
    """What is done on the driver for each."""

    def __init__(self, archiving: Archiving, archive: Archive, client: Client) -> None:
        self._archiving = archiving
        self._archive = archive
        self._client = client
        every = archiving.compact_every
        self._tidying = None if every is None else Tidying(archive, every)

    @telling
    def commit(self, frame: DataFrame, batch: int) -> None:
        entries = [entry_of(row["entry"]) for row in frame.collect()]
        if entries:
            self._commit(entries)
            for topic, topic_id in sorted({(entry.topic, entry.topic_id) for entry in entries}):
                tell(self._archive, self._client, topic, topic_id)
        if self._tidying is not None:
            self._tidying.tidy()

    def _commit(self, entries: list[FileEntry]) -> None:
        # Not Spark's number: that begins anew with every run, and the manifest has one for each writer.
        self._archive.commit(self._archiving.name, None, entries, allow_gaps=not self._archiving.fails_on_loss)
