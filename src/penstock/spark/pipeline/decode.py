"""Messages to rows: the columns of the schema, and those of the message that were asked for, with a `_` before them.

What can't be decoded is a bad row. A message without a value is none: it is a row with nothing in its columns.
"""

from __future__ import annotations

import json
import operator
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.avro.functions import from_avro as sparks_from_avro
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
)

from penstock.spark.pipeline.avro import from_avro
from penstock.spark.pipeline.ddl import quoted
from penstock.spark.pipeline.progress import OBSERVED
from penstock.spark.pipeline.session import has_spark_avro
from penstock.spark.pipeline.spec import FAIL, Broker, Source
from penstock.spark.schema import schema_of
from penstock.spark.tables import MESSAGES

_BAD, _DECODED, _CORRUPT, _AVRO, _PARSED = "__bad", "__decoded", "__corrupt", "__avro", "__parsed"
_VALUES, _END = "__penstock_values", "__penstock_end"
# What Spark accepts beyond JSON. Its other leniencies are off by default.
_STRICT = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
# `running.py` reports a longer outage to the user, and starts the query again.
_RETRY_FOR = "10s"
# Avro's own files begin with it; a registry's messages with 0, and the number of a schema.
_FILE = bytearray(b"Obj\x01")
_REGISTERED, _REGISTERED_BYTES = bytearray(b"\0"), 5


def messages(spark: SparkSession, broker: Broker, source: Source, columns: set[str]) -> DataFrame:
    """Only these columns are read from the broker."""
    wanted = StructType([field for field in schema_of(MESSAGES).fields if field.name in columns])
    reader = spark.readStream.format("penstock").schema(wanted)
    return reader.options(**{"retryFor": _RETRY_FOR, **broker.options(), **source.options}).load()


def rows(spark: SparkSession, broker: Broker, source: Source) -> DataFrame:
    """The decoded ones. Bad rows stop the query, or are counted and left out."""
    needed = {"value", *source.columns} | ({"id"} if source.on_bad_row == FAIL else set())
    marked = _marked(messages(spark, broker, source, needed), source)
    if source.decode != "bytes":
        # A bad row fails where rows are counted, not in a filter: Spark would merge that with filters of the SQL and
        # evaluate those first.
        bad = F.when(F.col(_BAD), _failure(source) if source.on_bad_row == FAIL else F.lit(True))
        marked = marked.observe(OBSERVED + source.name, F.count(F.lit(1)).alias("rows"), F.count(bad).alias("bad"))
        marked = marked.where(~F.col(_BAD))
    found = marked.select(*_decoded_columns(source), *(F.col(name).alias(f"_{name}") for name in source.columns))
    if source.watermark is not None:
        delay = f"{source.watermark.delay_us} microseconds"
        found = found.withWatermark(source.watermark.column, delay)
    return found


def bad_rows(spark: SparkSession, broker: Broker, source: Source, pipeline: str) -> DataFrame:
    """As messages for the topic of dead letters: as they came, with headers that tell from where."""
    marked = _marked(messages(spark, broker, source, {"id", "key", "value", "headers"}), source)
    told = {
        "penstock-pipeline": F.lit(pipeline),
        "penstock-source": F.col("id"),
        "penstock-error": _what(source),
    }
    added = F.array(
        *(F.struct(F.lit(name).alias("key"), F.encode(value, "UTF-8").alias("value")) for name, value in told.items())
    )
    kind = schema_of(MESSAGES)["headers"].dataType
    headers = F.concat(F.coalesce("headers", F.array().cast(kind)), added.cast(kind))
    return marked.where(_BAD).select("key", "value", headers.alias("headers"))


def _what(source: Source) -> Column:
    """Of JSON, with the field that does not fit. Of Avro, with what it may be instead: its first bytes show that."""
    if source.decode == "json":
        return _misfit(source)
    if source.decode == "text":
        return F.lit("not text in UTF-8")
    value = F.col("value")
    instead = (
        F.when(F.substring(value, 1, 4) == F.lit(_FILE), " (it is a file, with a schema of its own)")
        .when(
            (F.substring(value, 1, 1) == F.lit(_REGISTERED)) & (F.length(value) > _REGISTERED_BYTES),
            " (it may have the five bytes of a schema registry before it: 00 and a number)",
        )
        .otherwise("")
    )
    return F.concat(F.lit("not Avro of the schema"), instead)


def _misfit(source: Source) -> Column:
    """Decode the columns one by one to find the first that does not fit. Spark evaluates this for bad rows only."""
    value = F.col("value").cast("string")
    wrong = F.lit("")
    for field in reversed(StructType.fromDDL(source.schema).fields):
        name, kind = field.name, field.dataType.simpleString()
        alone = _from_json(StructType([field]))
        if not field.nullable:
            is_null = _first(alone)[name].isNull()
            wrong = F.when(is_null, f": {name} is missing, and is NOT NULL").otherwise(wrong)
        is_wrong = ~_is_one(alone) | _is_infinite(_first(alone)[name], field.dataType)
        wrong = F.when(is_wrong, f": {name} is not {kind.upper()}").otherwise(wrong)
    text = _from_json(StringType())
    is_object = F.coalesce(F.startswith(_first(text), F.lit("{")), F.lit(False))
    return (
        F.when(~F.is_valid_utf8(value), "not JSON: it is not text in UTF-8")
        .when(~_is_one(text) & F.try_parse_json(value).isNull(), "not JSON")
        .when(~_is_one(text), "not JSON: more follows the first value")
        .when(~is_object, "not JSON of the schema: it is not an object")
        .otherwise(F.concat(F.lit("not JSON of the schema"), wrong))
    )


def _from_json(kind: DataType) -> Column:
    """The message as the `_first` of some values. `_is_one` tells whether it is one JSON value of this type, or null.

    Spark's `from_json` ignores what follows the first value of a text. Here the message is the first of two elements of
    an array, and something comes behind that. So text behind the message's value breaks the array, makes it longer or
    shorter, or hides the end; all but text that imitates the array's second element, and opens another array.
    """
    text = F.concat(F.lit(f'{{"{_VALUES}":['), F.col("value").cast("string"), F.lit(f',{{}}],"{_END}":true}}'))
    schema = StructType().add(_VALUES, ArrayType(kind)).add(_END, BooleanType()).add(_CORRUPT, StringType())
    return F.from_json(text, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, **_STRICT})


def _first(parsed: Column) -> Column:
    return F.get(parsed[_VALUES], F.lit(0))


def _is_one(parsed: Column) -> Column:
    is_whole = parsed[_END] & (F.size(parsed[_VALUES]) == 2)
    return parsed[_CORRUPT].isNull() & F.coalesce(is_whole, F.lit(False))


def _is_infinite(value: Column, kind: DataType) -> Column:
    """Anything in it. JSON has no infinity: Spark makes one of a number that is too large."""
    match kind:
        case DoubleType() | FloatType():
            found = F.abs(value) == float("inf")
        case ArrayType():
            found = F.exists(value, lambda each: _is_infinite(each, kind.elementType))
        case MapType():
            found = F.exists(F.map_values(value), lambda each: _is_infinite(each, kind.valueType))
        case StructType():
            fields = (_is_infinite(value[field.name], field.dataType) for field in kind.fields)
            found = reduce(operator.or_, fields, F.lit(False))
        case _:
            found = F.lit(False)
    return F.coalesce(found, F.lit(False))


def _failure(source: Source) -> Column:
    advice = "; with on_bad_row: skip, or a topic for such messages, the pipeline goes on without them"
    told = F.concat(F.lit("the message "), F.col("id"), F.lit(" is "), _what(source), F.lit(advice))
    return F.raise_error(told).cast("boolean")


def _marked(read: DataFrame, source: Source) -> DataFrame:
    """With the decoded value, and whether it is bad."""
    value = F.col("value")
    match source.decode:
        case "json":
            schema = StructType.fromDDL(source.schema)
            marked = read.withColumn(_PARSED, _from_json(schema))
            marked = marked.withColumn(_DECODED, _first(F.col(_PARSED)))
            is_broken = ~_is_one(F.col(_PARSED)) | F.col(_DECODED).isNull() | _is_infinite(F.col(_DECODED), schema)
            for field in schema.fields:
                if not field.nullable:
                    is_broken = is_broken | F.col(f"{_DECODED}.{quoted(field.name)}").isNull()
            return marked.withColumn(_BAD, value.isNotNull() & (is_broken | ~F.is_valid_utf8(value.cast("string"))))
        case "avro" if not has_spark_avro(read.sparkSession):
            marked = read.withColumn(_AVRO, from_avro(value, source.schema))
            return marked.withColumn(_DECODED, F.col(f"{_AVRO}.row")).withColumn(_BAD, F.col(f"{_AVRO}.bad"))
        case "avro":
            marked = read.withColumn(_DECODED, sparks_from_avro(value, source.schema, {"mode": "PERMISSIVE"}))
            return marked.withColumn(_BAD, value.isNotNull() & _is_no_avro(source))
        case "text":
            marked = read.withColumn(_DECODED, value.cast("string"))
            return marked.withColumn(_BAD, value.isNotNull() & ~F.is_valid_utf8(F.col(_DECODED)))
        case "bytes":
            return read.withColumn(_DECODED, value).withColumn(_BAD, F.lit(False))


def _is_no_avro(source: Source) -> Column:
    """Spark makes nulls of what it can't decode: no record has them, or only one of these bytes."""
    nothing = F.lit(True)
    for name in source.decoded:
        nothing = nothing & F.col(f"{_DECODED}.{quoted(name)}").isNull()
    nulls = _encoded_nulls(json.loads(source.schema))
    return nothing if nulls is None else nothing & (F.col("value") != F.lit(bytearray(nulls)))


def _encoded_nulls(schema: dict[str, Any]) -> bytes | None:
    """A record with null in all fields, if there may be one."""
    found = bytearray()
    for field in schema["fields"]:
        kind = field["type"]
        if kind == "null":
            continue
        if not isinstance(kind, list) or "null" not in kind:
            return None
        # The number of the branch, zigzag: there are never 64 of them.
        found.append(kind.index("null") * 2)
    return bytes(found)


def _decoded_columns(source: Source) -> list[Column]:
    if source.decode in ("text", "bytes"):
        return [F.col(_DECODED).alias("value")]
    return [F.col(f"{_DECODED}.{quoted(name)}").alias(name) for name in source.decoded]
