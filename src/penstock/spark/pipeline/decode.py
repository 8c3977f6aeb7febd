"""Messages to rows: the columns of the schema, and those of the message that were asked for, with a `_` before them.

What can't be decoded is a bad row. A message without a value is none: it is a row with nothing in its columns.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.avro.functions import from_avro as sparks_from_avro
from pyspark.sql.types import StructType

from penstock.spark.pipeline.avro import from_avro
from penstock.spark.pipeline.ddl import quoted
from penstock.spark.pipeline.progress import OBSERVED
from penstock.spark.pipeline.session import has_spark_avro
from penstock.spark.pipeline.spec import FAIL, Broker, Source
from penstock.spark.schema import schema_of
from penstock.spark.tables import MESSAGES

_BAD, _DECODED, _CORRUPT, _AVRO = "__bad", "__decoded", "__corrupt", "__avro"
# Avro's own files begin with it; a registry's messages with 0, and the number of a schema.
_FILE = bytearray(b"Obj\x01")
_REGISTERED, _REGISTERED_BYTES = bytearray(b"\0"), 5


def messages(spark: SparkSession, broker: Broker, source: Source, columns: set[str]) -> DataFrame:
    """Only these columns are read from the broker."""
    wanted = StructType([field for field in schema_of(MESSAGES).fields if field.name in columns])
    reader = spark.readStream.format("penstock").schema(wanted)
    return reader.options(**broker.options(), **source.options).load()


def rows(spark: SparkSession, broker: Broker, source: Source) -> DataFrame:
    """The decoded ones. Bad rows stop the query, or are counted and left out."""
    needed = {"value", *source.columns} | ({"id"} if source.on_bad_row == FAIL else set())
    marked = _marked(messages(spark, broker, source, needed), source)
    if source.decode != "bytes":
        # What fails is not counted.
        is_bad = F.count(F.when(F.col(_BAD), 1)).alias("bad")
        good = _or_fail(source) if source.on_bad_row == FAIL else ~F.col(_BAD)
        marked = marked.observe(OBSERVED + source.name, F.count(F.lit(1)).alias("rows"), is_bad).where(good)
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
    """Of Avro, with what it may be instead: that is seen from its first bytes."""
    if source.decode != "avro":
        return F.lit("not JSON of the schema" if source.decode == "json" else "not text in UTF-8")
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


def _or_fail(source: Source) -> Column:
    advice = "; with on_bad_row: skip, or a topic for such messages, the pipeline goes on without them"
    told = F.concat(F.lit("the message "), F.col("id"), F.lit(" is "), _what(source), F.lit(advice))
    return F.when(F.col(_BAD), F.raise_error(told).cast("boolean")).otherwise(F.lit(True))


def _marked(read: DataFrame, source: Source) -> DataFrame:
    """With the decoded value, and whether it is bad."""
    value = F.col("value")
    match source.decode:
        case "json":
            schema = f"{source.schema}, {quoted(_CORRUPT)} STRING"
            options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
            decoded = F.from_json(value.cast("string"), schema, options)
            marked = read.withColumn(_DECODED, decoded)
            is_broken = F.col(_DECODED).isNull() | F.col(f"{_DECODED}.{_CORRUPT}").isNotNull()
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
