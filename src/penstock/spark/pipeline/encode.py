"""Rows to messages: columns called `_key`, `_headers` and so on are the message's, the others are its value."""

from __future__ import annotations

import json

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.avro.functions import to_avro as sparks_to_avro

from penstock.errors import InvalidInput
from penstock.spark.pipeline.avro import to_avro
from penstock.spark.pipeline.session import has_spark_avro
from penstock.spark.pipeline.spec import TopicSink

# Those of a message that was read go with it when it is written.
ROUTED = ("key", "headers", "priority", "timestamp", "delay", "deliver_at", "ttl", "expires_at")


def encoded(rows: DataFrame, sink: TopicSink) -> DataFrame:
    """InvalidInput if a column would be lost, or is not there."""
    names = {name.lower(): name for name in rows.columns}
    routed = {each: F.col(_quoted(names[f"_{each}"])) for each in ROUTED if f"_{each}" in names}
    if sink.key is not None:
        routed["key"] = _key(rows, _named(sink.key, names, "key"))
    values = [
        name for lower, name in names.items() if lower.removeprefix("_") not in ROUTED or not lower.startswith("_")
    ]
    if not values:
        raise InvalidInput("there is no column for the value: only what begins with _ is there")
    value = _value(rows, sink, names, values)
    return rows.select(value.alias("value"), *(column.alias(name) for name, column in routed.items()))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _named(name: str, names: dict[str, str], what: str) -> str:
    if name.lower() not in names:
        raise InvalidInput(f"sink.{what} is {name}, and there is no such column; there are {', '.join(names.values())}")
    return names[name.lower()]


def _key(rows: DataFrame, name: str) -> Column:
    """Text or bytes as they are; what is neither, as text."""
    column = F.col(_quoted(name))
    return column if rows.schema[name].dataType.typeName() in ("binary", "string") else column.cast("string")


def _value(rows: DataFrame, sink: TopicSink, names: dict[str, str], values: list[str]) -> Column:
    if sink.encode in ("text", "bytes"):
        name = _named(sink.value, names, "value")
        lost = [each for each in values if each not in (name, sink.key)]
        if lost:
            raise InvalidInput(
                f"encode: {sink.encode} writes the column {name} only; there is also {', '.join(lost)}: select what is "
                "to be written, or use encode: json"
            )
        kind = "string" if sink.encode == "text" else "binary"
        return F.col(_quoted(name)).cast(kind)
    columns = [F.col(_quoted(name)) for name in values]
    record = F.struct(*columns)
    if sink.encode == "avro":
        if has_spark_avro(rows.sparkSession):
            return sparks_to_avro(record, sink.schema)
        return to_avro(record, json.loads(rows.select(*columns).schema.json()), sink.schema)
    return F.to_json(record, {"ignoreNullFields": "false"})
