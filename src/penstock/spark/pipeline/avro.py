"""Avro on Spark: with fastavro in Python, or with Spark's own package if it is named, which is made for one version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import BooleanType, StructField, StructType

from penstock.spark.pipeline.avro_decoder import Decoder
from penstock.spark.pipeline.avro_encoder import Encoder
from penstock.spark.pipeline.session import check_fastavro
from penstock.spark.telling import telling


def from_avro(value: Column, schema: str) -> Column:
    """A struct of `row`, and whether it is `bad`."""
    check_fastavro()
    decoder = Decoder(json.loads(schema))
    kind = StructType([StructField("row", from_arrow_type(decoder.type)), StructField("bad", BooleanType())])

    # Of an iterator's, Spark takes batches of any length, so that none is too large.
    @telling
    def decode(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for values in batches:
            for piece in decoder.decode(values):
                yield pa.StructArray.from_arrays(piece, names=["row", "bad"])

    return arrow_udf(decode, kind)(value)


def to_avro(record: Column, kind: dict[str, Any], schema: str) -> Column:
    """`kind` is the type of `record`, as Spark writes it in JSON. InvalidInput if it does not fit the schema."""
    check_fastavro()
    encoder = Encoder(json.loads(schema), kind)

    @telling
    def encode(rows: pa.Array) -> pa.Array:
        return encoder.encode(rows)

    return arrow_udf(encode, "binary")(record)
