"""The tables that Spark reads: the messages of topics, and what became of them.

Spark 4.3 does not tell a Python source which columns a query uses. Those who want few name them as the schema, in any
order: `spark.read.format("penstock").schema("offset BIGINT, timestamp TIMESTAMP")`. The others are not sent.
"""

from __future__ import annotations

from difflib import get_close_matches

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InvalidSetting
from penstock.spark.tables import DELIVERIES, MESSAGES

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_MESSAGES: dict[str, DataType] = {
    "id": StringType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "append_time": TimestampType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "headers": _HEADERS,
    "priority": IntegerType(),
    "deliver_at": TimestampType(),
}
_DELIVERIES: dict[str, DataType] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "event_offset": LongType(),
    "time": TimestampType(),
    "event": StringType(),
    "group": StringType(),
    "offset": LongType(),
    "consumer": StringType(),
    "lease": StringType(),
    "attempt": IntegerType(),
    "reason": StringType(),
    "until": TimestampType(),
}
TABLES = {MESSAGES: _MESSAGES, DELIVERIES: _DELIVERIES}
# Only if they are named: most messages never expire.
ON_REQUEST: dict[str, dict[str, DataType]] = {MESSAGES: {"expires_at": TimestampType()}, DELIVERIES: {}}


def schema_of(table: str) -> StructType:
    """What there is if nobody says what is wanted."""
    return StructType([StructField(name, kind) for name, kind in TABLES[table].items()])


def wanted_of(table: str, schema: StructType) -> Wanted:
    return Wanted(schema, {**TABLES[table], **ON_REQUEST[table]})


class Wanted:
    """The columns of one query: `names` are ours, in the order of `arrow`, which has the names the user chose."""

    def __init__(self, schema: StructType, columns: dict[str, DataType]) -> None:
        if not schema.fields:
            raise InvalidSetting(f"a schema has at least one column of {', '.join(columns)}")
        self.names = tuple(_known(field, columns) for field in schema.fields)
        for name in self.names:
            if self.names.count(name) > 1:
                raise InvalidSetting(f"the schema has the column {name} twice")
        self.arrow: pa.Schema = to_arrow_schema(schema, timezone="UTC")


def _known(field: StructField, columns: dict[str, DataType]) -> str:
    name = str(field.name).lower()
    if name not in columns:
        near = get_close_matches(name, columns, n=1)
        told = f"did you mean {near[0]}?" if near else f"there are {', '.join(columns)}"
        raise InvalidSetting(f"there is no column {field.name!r}; {told}", column=field.name)
    if field.dataType.simpleString() != columns[name].simpleString():
        raise InvalidSetting(
            f"the column {name} is {columns[name].simpleString()}, not {field.dataType.simpleString()}",
            column=field.name,
        )
    return name
