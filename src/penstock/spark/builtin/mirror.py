"""Topics of one cluster mirrored to another: same partitions, same order, everything a message has.

    driver      Batches       which topics there are now, targets made, courses written to the table
    executors   mirror_task   one partition of one topic each: source → columns → target
    driver      Batches       where they went is written to the table; then Spark takes the batch for done

Each step can be done again. A driver that dies leaves a batch that is repeated with the same ranges of offsets (they
are in the checkpoint before it begins) under the same identities, so nothing is stored twice.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock.client.requests import TopicInfo
from penstock.durations import duration_us
from penstock.errors import MirrorConflict
from penstock.spark.builtin.mirror_runs import Run
from penstock.spark.builtin.mirror_table import TABLE, VERSION, Course, MirrorRecord, Table, Way
from penstock.spark.builtin.mirror_task import READ, TOLD, Errand, Route, mirror_task
from penstock.spark.builtin.mirror_topics import Pair, Pairs, Selection, check_partitions, made, make_table, paired
from penstock.spark.connecting import Connecting
from penstock.spark.pipeline.queries import triggered
from penstock.spark.pipeline.spec import Trigger
from penstock.spark.telling import telling

# So that progress is seen, and little is sent again after a failure, when there is much to catch up with.
ROWS_PER_BATCH = 1_000_000


class Mirror(NamedTuple):
    source: Connecting
    target: Connecting
    selection: Selection
    trigger: Trigger
    creates: bool = True
    starting: str = "earliest"
    rows_per_batch: int = ROWS_PER_BATCH
    compression: str = "none"
    # Whether messages that the source has deleted before they were mirrored end it.
    fails_on_loss: bool = True


def check(mirror: Mirror) -> None:
    """What can be known to be wrong before Spark is started. Nothing is made or written."""
    mirror.selection.check()
    with mirror.source.open() as source, mirror.target.open() as target:
        tables = Table(source), Table(target)
        for table in tables:
            table.look()
        for pair in paired(mirror.selection, source, target, tables, None).pairs:
            # Whose the target is, is not known before the query has an id.
            is_known = next(tables[1].ways(target=pair.name, source_id=pair.source.id), None) is not None
            check_partitions(pair._replace(is_known=is_known), mirror.creates)


def start(spark: SparkSession, mirror: Mirror, checkpoint: str, name: str) -> list[StreamingQuery]:
    reader = spark.readStream.format("penstock").schema(READ).options(**mirror.source.options())
    frame = reader.options(
        **mirror.selection.options(),
        startingOffsets=mirror.starting,
        maxOffsetsPerTrigger=str(mirror.rows_per_batch),
        failOnDataLoss=str(mirror.fails_on_loss).lower(),
    ).load()
    writer = frame.writeStream.foreachBatch(Batches(mirror)).queryName(name)
    return [triggered(writer, mirror.trigger).option("checkpointLocation", f"{checkpoint}/query").start()]


class Ready(NamedTuple):
    """What a batch goes by: what is mirrored, to which topics (by the names of the sources), and the tasks' errand."""

    pairs: Pairs
    targets: dict[str, TopicInfo]
    errand: Errand


class Batches:
    """What the driver does with each."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._source = mirror.source.client()
        self._target = mirror.target.client()
        self._tables = Table(self._source), Table(self._target)
        make_table(self._target, mirror.creates)

    @telling
    def __call__(self, frame: DataFrame, batch: int) -> None:
        id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert id is not None, "every streaming query has one"
        ready = self.ready(id, batch)
        self.told(ready, frame.mapInArrow(partial(mirror_task, ready.errand), TOLD).toArrow())

    def ready(self, id: str, batch: int) -> Ready:
        """Before anything of the batch is written: targets are made, and the table has their courses."""
        self._look(id, batch)
        pairs, targets = self._made(id)
        if new := self._new_courses(pairs, targets, id):
            self._tables[1].put_courses(new)
            # A mirror that goes the other way has done the same: now one of the two sees the other at least.
            self._tables[0].look()
            pairs, targets = self._made(id)
        return Ready(pairs, targets, self._errand(pairs, targets, id, batch))

    def told(self, ready: Ready, rows: pa.Table) -> None:
        """When all of the batch is written."""
        by_name = {pair.source.name: pair for pair in ready.pairs.pairs}
        runs: dict[Way, list[Run]] = {}
        starts: dict[Way, int] = {}
        for topic, partition, *run in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            way = _way(by_name[topic], ready.targets[topic], partition)
            runs.setdefault(way, []).append(Run(*run))
            starts[way] = ready.targets[topic].partitions[partition].start_offset
        self._tables[1].grow(runs, starts)

    def _made(self, id: str) -> tuple[Pairs, dict[str, TopicInfo]]:
        pairs = paired(self._mirror.selection, self._source, self._target, self._tables, id)
        creates = self._mirror.creates
        return pairs, {pair.source.name: made(pair, self._target, creates) for pair in pairs.pairs}

    def _look(self, id: str, batch: int) -> None:
        """At both tables. MirrorConflict if this query is not of this mirror."""
        mirror, table = self._mirror, self._tables[1]
        for each in self._tables:
            each.look()
        record = table.mirrors.get(id)
        prefix = mirror.selection.prefix
        if record is None:
            if batch > 0:
                raise MirrorConflict(
                    f"the checkpoint is of a mirror that {mirror.target.url} knows nothing of: it went elsewhere, or "
                    f"the topic {TABLE} was deleted there. Use another --checkpoint"
                )
            table.put_mirror(id, MirrorRecord(VERSION, mirror.source.url, prefix))
        elif record.prefix != prefix:
            raise MirrorConflict(
                f"the checkpoint is of a mirror with the prefix {record.prefix!r}, not {prefix!r}: use another "
                "--checkpoint"
            )

    def _new_courses(self, pairs: Pairs, targets: dict[str, TopicInfo], id: str) -> dict[Way, Course]:
        found = {}
        for pair in pairs.pairs:
            target = targets[pair.source.name]
            for partition in pair.source.partitions:
                way = _way(pair, target, partition.number)
                if way not in self._tables[1].courses:
                    found[way] = Course(pair.source.name, id, target.partitions[partition.number].end_offset)
        return found

    def _errand(self, pairs: Pairs, targets: dict[str, TopicInfo], id: str, batch: int) -> Errand:
        routes = {}
        for pair in pairs.pairs:
            target = targets[pair.source.name]
            courses = {each.number: self._course(pair, target, each.number) for each in pair.source.partitions}
            ends = {number: (course.source_end, course.target_end) for number, course in courses.items()}
            max_delay_us = duration_us(target.settings["max_delay"])
            routes[pair.source.name] = Route(pair.name, pair.source.id, max_delay_us, ends)
        mirror = self._mirror
        return Errand(mirror.target, id, batch, routes, pairs.copies, mirror.compression)

    def _course(self, pair: Pair, target: TopicInfo, number: int) -> Course:
        return self._tables[1].courses[_way(pair, target, number)]


def _way(pair: Pair, target: TopicInfo, partition: int) -> Way:
    return Way(pair.name, target.id, pair.source.id, partition)
