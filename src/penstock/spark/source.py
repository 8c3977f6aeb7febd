"""`format("penstock")`: what Spark asks for when it reads topics, or writes to them."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.spark.asked import asked_by, table_in
from penstock.spark.schema import schema_of, wanted_of
from penstock.spark.telling import telling


class PenstockDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    @telling
    def schema(self) -> StructType:
        return schema_of(table_in(self.options))

    @telling
    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.batch import PenstockReader

        asked = asked_by(self.options, is_stream=False)
        return PenstockReader(asked, wanted_of(asked.table, schema))

    @telling
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from penstock.spark.stream import PenstockStreamReader

        asked = asked_by(self.options, is_stream=True)
        return PenstockStreamReader(asked, wanted_of(asked.table, schema))

    @telling
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark import sink

        return sink.writer(self.options, schema, overwrite)

    @telling
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from penstock.spark import sink

        return sink.stream_writer(self.options, schema, overwrite)
