"""`spark.read.format("penstock")`: the messages of topics, up to the end that they have when a task starts.

Spark 4.3 plans a Python source once per `load()` and keeps the plan for every later use: temporary views, the static
side of a stream-static join, a DataFrame that is used twice. So the plan has no end offsets, unless the options name
them. It only splits partitions between tasks, and each task resolves the bounds of its part when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.client.blocking import Client
from penstock.errors import InvalidSetting
from penstock.spark.asked import Asked
from penstock.spark.planning import Range, cut
from penstock.spark.reading import read, report_deleted
from penstock.spark.schema import Wanted
from penstock.spark.subscription import Seen
from penstock.spark.telling import telling

Partition = tuple[str, int]


class Share(InputPartition):
    """What one task reads: offsets of one partition from `first` up to, but without, `last`. None is unbounded.

    `planned` is not None in the last task, which also reads every partition that is not among them: those that were
    empty when the query was planned, and those that were created since.
    """

    def __init__(
        self,
        partition: Partition | None,
        first: int | None = None,
        last: int | None = None,
        planned: frozenset[Partition] | None = None,
    ) -> None:
        super().__init__((partition, first, last))
        self.partition = partition
        self.first = first
        self.last = last
        self.planned = planned


class PenstockReader(DataSourceReader):
    def __init__(self, asked: Asked, wanted: Wanted) -> None:
        self._asked = asked
        self._wanted = wanted

    @telling
    def partitions(self) -> list[InputPartition]:
        asked = self._asked
        client = asked.connecting.client()
        seen = asked.subscription.look_for_all(client)
        asked.start.check_names(seen)
        asked.end.check_names(seen)
        tasks = cut(self._ranges(client, seen), asked.cut)
        shares: list[InputPartition] = []
        for partition, parts in groupby(tasks, key=lambda task: (task.topic, task.partition)):
            edges = [None, *(part.start for part in list(parts)[1:]), None]
            shares += [Share(partition, *edge) for edge in pairwise(edges)]
        planned = frozenset((task.topic, task.partition) for task in tasks)
        last = shares.pop() if shares else Share(None)
        assert isinstance(last, Share)
        return [*shares, Share(last.partition, last.first, last.last, planned)]

    def _ranges(self, client: Client, seen: dict[str, Seen]) -> Iterator[Range]:
        """All partitions in `seen`, from where to where the options say."""
        asked = self._asked
        starts = asked.start.offsets(client, seen, asked.losses)
        ends = asked.end.offsets(client, seen, asked.losses)
        for topic, now in seen.items():
            for number, held in now.partitions.items():
                start, end = starts[topic][number], ends[topic][number]
                if start > end:
                    raise InvalidSetting(
                        f"partition {number} of {topic} is read from offset {start} ({asked.start.option}) to {end} "
                        f"({asked.end.option}): the start is behind the end",
                        option=asked.start.option,
                    )
                yield Range(topic, now.id, number, start, end, held.whole_from)

    @telling
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        for task in self._tasks(partition):
            yield from read(self._asked, self._wanted, task)

    def _tasks(self, share: Share) -> Iterator[Range]:
        client, subscription = self._asked.connecting.client(), self._asked.subscription
        if share.partition is not None:
            seen = subscription.look_at(client, *share.partition)
            if not seen and share.partition[0] in subscription.topics:
                report_deleted(share.partition[0], self._asked.losses)
            for whole in self._ranges(client, seen):
                first = whole.start if share.first is None else max(whole.start, share.first)
                last = whole.end if share.last is None else min(whole.end, share.last)
                if first < last:
                    yield whole.part(first, last)
        if share.planned is not None:
            for topic, now in subscription.look(client).items():
                held = {number: held for number, held in now.partitions.items() if (topic, number) not in share.planned}
                yield from filter(len, self._ranges(client, {topic: Seen(now.id, held)}))
