"""The transform of loud.yaml."""

from pyspark.sql import DataFrame
from pyspark.sql.functions import concat, lit, upper


def louder(words: DataFrame) -> DataFrame:
    return words.withColumn("value", concat(upper("value"), lit("!")))
