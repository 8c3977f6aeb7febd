"""Topics in a Spark notebook: as tables, with SQL, as a stream, and what became of messages as data.

The cells (`# %%`) run one by one in VS Code, PyCharm and Jupyter (with jupytext), and all at once as a script:
`python examples/spark_notebook.py`. It takes `pip install "penstock[spark]"` and Java 17, which is why `make examples`
leaves it out. It starts a broker of its own, unless `PENSTOCK_SERVER` names one, and removes what it has made.

It prints:

    +--------+------+-----+
    |customer|orders|total|
    +--------+------+-----+
    |     ada|     3| 90.0|
    |     bob|     3| 95.0|
    |    cleo|     2| 55.0|
    +--------+------+-----+

    since the break: order 7, order 8

    [15:00, 15:05): 4 orders for 100.0
    [15:05, 15:10): 2 orders for 65.0
    and with the next orders, once more:
    [15:10, 15:15): 2 orders for 75.0

    +-------+------------+-----------+------+------+
    |  group|acknowledged|redelivered|p50_ms|p99_ms|
    +-------+------------+-----------+------+------+
    |billing|           8|          0|     …|     …|
    |kitchen|           8|          1|     …|     …|
    +-------+------------+-----------+------+------+

    the order that came twice: {"id": 3, …}
"""

# %% [markdown]
# # Topics in Spark
# A broker, a client and a session. The broker ends with this process, whatever happens.

# %%
import atexit
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import penstock
from penstock.clock import rfc3339
from penstock.published import Published

cleanup = ExitStack()
directory = cleanup.enter_context(tempfile.TemporaryDirectory())
atexit.register(cleanup.close)

URL = os.environ.get("PENSTOCK_SERVER")
if not URL:
    command = [Path(sys.executable).with_name("penstock"), "serve", "--data", f"{directory}/data"]
    ports = ["--native", "127.0.0.1:0", "--http", "none", "--grpc", "none", "--log-format", "json"]
    broker = cleanup.enter_context(subprocess.Popen([*command, *ports], stderr=subprocess.PIPE, text=True))
    cleanup.callback(broker.terminate)
    URL = f"penstock://{json.loads(broker.stderr.readline())['native']}"

q = penstock.connect(URL)
ORDERS, TOTALS = (f"{name}-{token_hex(4)}" for name in ("orders", "totals"))
for topic in (ORDERS, TOTALS):
    q.create_topic(topic, partitions=2)

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
session = SparkSession.builder.master("local[2]").appName("notebook").config("spark.ui.showConsoleProgress", "false")
spark = session.config("spark.sql.shuffle.partitions", "2").config("spark.sql.session.timeZone", "UTC").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")


# %% [markdown]
# ## Orders, as a shop would publish them
# Each has the time of the order in it. Two come after a break.


# %%
def publish(number: int, customer: str, total: float, at: str) -> Published:
    order = {"id": number, "customer": customer, "total": total, "at": f"2026-01-14T{at}Z"}
    return q.publish(ORDERS, json.dumps(order), key=customer)


publish(1, "ada", 20, "15:00:30")
publish(2, "bob", 30, "15:01:00")
publish(3, "cleo", 15, "15:02:10")
publish(4, "bob", 35, "15:04:59")
publish(5, "ada", 25, "15:05:00")
publish(6, "cleo", 40, "15:09:00")
after_the_break = publish(7, "ada", 45, "15:10:00")
last = publish(8, "bob", 30, "15:14:00")

# %% [markdown]
# Two groups work on them; one gives an order back, and gets it again.

# %%
for message in q.consumer("billing", ORDERS, until_idle="200ms"):
    message.ack()
for message in q.consumer("kitchen", ORDERS, until_idle="200ms"):
    if json.loads(message.value)["id"] == 3 and message.attempt == 1:
        message.nack("0s", reason="no more flour")
    else:
        message.ack()


# %% [markdown]
# ## A topic is a table
# Values are bytes. `from_json` makes columns of them.

# %%
SCHEMA = "id BIGINT, customer STRING, total DOUBLE, at TIMESTAMP"


def decoded(messages: DataFrame) -> DataFrame:
    return messages.select(sf.from_json(sf.col("value").cast("string"), SCHEMA).alias("order")).select("order.*")


from_penstock = spark.read.format("penstock").option("url", URL).option("subscribe", ORDERS)
decoded(from_penstock.load()).createOrReplaceTempView("orders")

# %%
by_customer = spark.sql("""
    SELECT customer, count(*) AS orders, sum(total) AS total FROM orders GROUP BY customer ORDER BY customer
""")
by_customer.show()
assert [row.orders for row in by_customer.collect()] == [3, 3, 2]


# %% [markdown]
# ## Only what came in some time
# The broker finds the place; what was before is not read. `endingTimestamp` is the other bound. A partition to which
# nothing was appended since then would be an error, as it is with Kafka; with the strategy `latest` it has no rows.

# %%
since = rfc3339(after_the_break.append_time)
bounds = {"startingTimestamp": since, "startingOffsetsByTimestampStrategy": "latest"}
late = spark.read.format("penstock").option("url", URL).option("subscribe", ORDERS).options(**bounds).load()
numbers = sorted(row.id for row in decoded(late).collect())
print("since the break:", ", ".join(f"order {number}" for number in numbers), end="\n\n")
assert numbers == [7, 8]


# %% [markdown]
# ## A stream of totals, back to a topic
# Windows of five minutes by the time of the order; a window is over when an order comes that is a minute younger than
# its end. Such windows go to a topic as JSON, each once: `writeId` names the write, the query and the batch are a part
# of its identity, and the rows are in an order that another run would have, too.


# %%
def write(windows: DataFrame, batch: int) -> None:
    rows = windows.selectExpr(
        "date_format(window.start, 'HH:mm') AS key",
        "to_json(struct(date_format(window.end, 'HH:mm') AS until, orders, total)) AS value",
    )
    exact = rows.repartition(2, "key").sortWithinPartitions("key").write.format("penstock").option("url", URL)
    exact.option("topic", TOTALS).option("writeId", "totals").mode("append").save()


def run_totals() -> None:
    """What is there now, from where the last run ended: that is in the checkpoint."""
    stream = spark.readStream.format("penstock").option("url", URL).option("subscribe", ORDERS)
    orders = decoded(stream.option("startingOffsets", "earliest").load())
    windows = orders.withWatermark("at", "1 minute").groupBy(sf.window("at", "5 minutes"))
    totals = windows.agg(sf.count("*").alias("orders"), sf.sum("total").alias("total"))
    query = totals.writeStream.foreachBatch(write).outputMode("append").trigger(availableNow=True)
    query.option("checkpointLocation", f"{directory}/checkpoint").start().awaitTermination()


def written() -> dict[str, str]:
    found = {}
    for message in q.reader(TOTALS):
        total, start = json.loads(message.value), message.key.decode()
        assert start not in found, "each window is written once"
        found[start] = f"[{start}, {total['until']}): {total['orders']} orders for {total['total']}"
    return found


run_totals()
first = written()
print(*(first[start] for start in sorted(first)), sep="\n")
assert sorted(first) == ["15:00", "15:05"], "the last window is not over yet"

# %%
publish(9, "cleo", 10, "15:30:00")
run_totals()
second = written()
print(
    "and with the next orders, once more:", *(second[start] for start in sorted(set(second) - set(first))), "", sep="\n"
)
assert sorted(second) == ["15:00", "15:05", "15:10"]


# %% [markdown]
# ## What became of messages
# The log of deliveries says who got what, when, and how it ended. Joined with the messages it is the time from
# publishing to acknowledgement, for each group.

# %%
events = (
    spark.read.format("penstock").option("url", URL).option("subscribe", ORDERS).option("include", "deliveries").load()
)
places = ["topic", "partition", "offset"]
lives = events.join(from_penstock.load().select(*places, "append_time", "value"), places)
milliseconds = "(unix_micros(time) - unix_micros(append_time)) / 1000"
latencies = (
    lives.groupBy("group")
    .agg(
        sf.expr("count_if(event = 'ACKNOWLEDGED')").alias("acknowledged"),
        sf.expr("count_if(event = 'REDELIVERED')").alias("redelivered"),
        sf.expr(f"round(percentile({milliseconds}, 0.5) FILTER (WHERE event = 'ACKNOWLEDGED'))").alias("p50_ms"),
        sf.expr(f"round(percentile({milliseconds}, 0.99) FILTER (WHERE event = 'ACKNOWLEDGED'))").alias("p99_ms"),
    )
    .orderBy("group")
)
latencies.show()
found = [tuple(row)[:3] for row in latencies.collect()]
assert found == [("billing", 8, 0), ("kitchen", 8, 1)], found

# %%
twice = lives.where("event = 'REDELIVERED'").select(sf.col("value").cast("string")).collect()
print("the order that came twice:", *(row.value for row in twice))

# %% [markdown]
# ## The end
# The session, the topics, the groups and the broker go.

# %%
spark.stop()
for group in ("billing", "kitchen"):
    q.delete_group(group)
for topic in (ORDERS, TOTALS):
    q.delete_topic(topic)
q.close()
cleanup.close()
