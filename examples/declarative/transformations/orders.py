"""Orders from a topic to a table, those that are large to another topic, and totals as a table made of the first.

penstock topic create orders
penstock topic create large-orders
echo '{"customer": "ann", "total": 120.5}' | penstock publish orders
spark-pipelines run
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, struct, to_json
from pyspark.sql.functions import sum as sum_of

spark = SparkSession.active()

BROKER = {"url": os.environ.get("PENSTOCK_SERVER", "penstock://127.0.0.1:7420")}
if "PENSTOCK_KEY" in os.environ:
    BROKER["key"] = os.environ["PENSTOCK_KEY"]


@dp.table
def orders() -> DataFrame:
    """A streaming table: each run adds what has come since."""
    read = spark.readStream.format("penstock").options(**BROKER, subscribe="orders", startingOffsets="earliest").load()
    order = from_json(col("value").cast("string"), "customer STRING, total DOUBLE")
    return read.select("id", "timestamp", order.alias("order")).select("id", "timestamp", "order.*")


@dp.materialized_view
def totals() -> DataFrame:
    return spark.read.table("orders").groupBy("customer").agg(sum_of("total").alias("total"))


dp.create_sink("large_orders", "penstock", {**BROKER, "topic": "large-orders"})


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    large = spark.readStream.table("orders").where("total >= 100")
    return large.select(col("customer").alias("key"), to_json(struct("id", "total")).alias("value"))
