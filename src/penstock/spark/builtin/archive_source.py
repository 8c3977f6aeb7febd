"""Topics as Spark reads them for the archive: tasks write files, and a row is what the manifest says of one.

It plans, paces and keeps offsets as `format("penstock")` does. Nobody else has a use for it, so it is registered by the
pipeline, under a name of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock.archive import Archive, FileEntry
from penstock.decoding import from_json
from penstock.spark.asked import Asked, asked_by
from penstock.spark.builtin.archive_places import places
from penstock.spark.builtin.archive_task import archive_task, report_made_again
from penstock.spark.offsets import Places, Written, written
from penstock.spark.planning import Range
from penstock.spark.schema import schema_of, wanted_of
from penstock.spark.stream import PenstockStreamReader
from penstock.spark.subscription import Seen
from penstock.spark.telling import telling

FORMAT = "penstock-archive"
# Besides the options of `format("penstock")`: where the archive is.
WHERE = "archive"
_ROWS = pa.schema([("entry", pa.string()), ("messages", pa.int64())])


class ArchiveDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "entry STRING, messages BIGINT"

    @telling
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        given = dict(self.options)
        where = given.pop(WHERE)
        return ArchiveStreamReader(asked_by(given, is_stream=True), where)


class ArchiveStreamReader(PenstockStreamReader):
    def __init__(self, asked: Asked, where: str) -> None:
        super().__init__(asked, wanted_of(asked.table, schema_of(asked.table)))
        self._where = where

    @telling
    def initialOffset(self) -> Written:  # noqa: N802
        return written(places(Archive.open(self._where), self._look_at_start(), self._asked.losses), self._asked.table)

    def _ends(self, begin: Places, seen: Mapping[str, Seen]) -> Places:
        for topic, place in begin.items():
            if topic in seen and seen[topic].id != place.id:
                report_made_again(topic, self._asked.losses)
        return super()._ends(begin, seen)

    @telling
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        entries = archive_task(self._asked, self._where, partition)
        told = [msgspec.json.encode(entry).decode() for entry in entries]
        yield pa.RecordBatch.from_arrays([pa.array(told), pa.array([each.rows for each in entries])], schema=_ROWS)


def entry_of(told: str) -> FileEntry:
    return from_json(told, FileEntry)
