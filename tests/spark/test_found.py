from __future__ import annotations

from pyspark.sql import SparkSession


def test_spark_finds_the_format_without_being_told_of_it(spark: SparkSession) -> None:
    reading = spark.read.format("penstock").option("url", "penstock://localhost").option("subscribe", "orders")
    assert reading.load().columns[:4] == ["id", "topic", "partition", "offset"]
