"""`spark.read.format("penstock")`: what is there when the query is planned, or a part of it.

Spark plans a DataFrame once. Whoever runs it again reads the same messages again, and `load()` is what sees new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from penstock.spark.asked import Asked
from penstock.spark.filters import Where
from penstock.spark.planning import Range, cut
from penstock.spark.reading import read
from penstock.spark.schema import Wanted
from penstock.spark.telling import telling


class PenstockReader(DataSourceReader):
    def __init__(self, asked: Asked, wanted: Wanted) -> None:
        self._asked = asked
        self._wanted = wanted
        self._where = Where(asked.log)

    @telling
    def partitions(self) -> list[InputPartition]:
        asked = self._asked
        client = asked.connecting.client()
        seen = asked.subscription.look_for_all(client)
        starts = asked.start.offsets(client, seen, asked.losses)
        ends = asked.end.offsets(client, seen, asked.losses)
        ranges = [
            Range(topic, now.id, number, starts[topic][number], ends[topic][number], held.whole_from)
            for topic, now in seen.items()
            for number, held in now.partitions.items()
        ]
        # Spark takes an empty list for one task of its own making.
        return list(cut(self._where.narrowed(client, ranges), asked.cut)) or [InputPartition(None)]

    @telling
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Range):
            yield from read(self._asked, self._wanted, partition)


class PushingReader(PenstockReader):
    """For those who asked for it (`pushDownFilters`): see `filters.py` for why not everybody gets it."""

    @telling
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        return self._where.push(filters)
