"""What does Penstock add to a micro-batch of Spark's, and does a scan disturb those who publish?

Spark with two cores (`local[2]`), behind everything else as pipelines run (`penstock.spark.in_background`), a broker
process on the same machine, everything on disk before it is told:

    micro-batch     one message is published to a topic that a streaming query copies to another one; how long Spark
                    says that batch took, beside the batches of an empty rate source that goes nowhere
    publish         500 messages a second through a producer, in a process of its own; from due to stored, without
                    anything else, and while Spark scans another topic of the broker over and over; and while Spark
                    does as much with rows out of its own memory, which is what two busy cores do without us
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from threading import Event, Thread
from uuid import uuid4

from pyspark.sql import SparkSession

import harness
import penstock
from harness import Figure, Run, at_most, info
from pacing import p99_until_stored
from penstock.client.blocking import Client
from serving import PARTITIONS, Broker, broker
from spark_scan import ROWS, fill, memory, scan, session, topic

ADDED_MS_BAR = 500
DISTURBED_BAR = 2
RATE = 500


# --- a micro-batch ------------------------------------------------------------------------------------------


def of_penstock(run: Run, spark: SparkSession, q: Client, address: str, batches: int) -> float:
    """Median milliseconds of a batch with one message, from its trigger to its commit."""
    source, target = (f"{name}-{uuid4().hex[:8]}" for name in ("few", "copied"))
    for name in (source, target):
        q.create_topic(name, partitions=PARTITIONS)
    reading = spark.readStream.format("penstock").options(url=address, subscribe=source, startingOffsets="earliest")
    with run.folder() as checkpoint:
        writing = reading.load().select("key", "value").writeStream.format("penstock")
        query = writing.options(url=address, topic=target, checkpointLocation=str(checkpoint)).start()
        try:
            for number in range(batches):
                q.publish(source, f"message {number}")
                query.processAllAvailable()
            took = [each["durationMs"] for each in query.recentProgress if each["numInputRows"]]
        finally:
            query.stop()
    stored = sum(partition.end_offset for partition in q.topic(target).partitions)
    assert stored == batches, f"{stored} of {batches} messages were copied"
    # The first ones start Python workers.
    return float(median(each["triggerExecution"] for each in took[2:]))


def of_rate(run: Run, spark: SparkSession, batches: int) -> float:
    """The same for a source that makes nothing and a sink that takes nothing."""
    reading = spark.readStream.format("rate").option("rowsPerSecond", "1").load().where("value < 0")
    with run.folder() as checkpoint:
        writing = reading.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writing.trigger(processingTime="0 seconds").start()
        try:
            while len(query.recentProgress) < batches:
                time.sleep(0.1)
            took = [each["durationMs"] for each in query.recentProgress if "addBatch" in each["durationMs"]]
        finally:
            query.stop()
    return float(median(each["triggerExecution"] for each in took[2:]))


# --- beside a scan ------------------------------------------------------------------------------------------


def p99_of_publish(q: Client, address: str, seconds: float, beside: Callable[[], object] | None) -> float:
    is_over = Event()

    def repeat() -> None:
        while beside is not None and not is_over.is_set():
            beside()

    scanning = Thread(target=repeat)
    scanning.start()
    try:
        return p99_until_stored(q, address, rate=RATE, seconds=seconds, partitions=PARTITIONS)
    finally:
        is_over.set()
        scanning.join()


def disturbed(run: Run, spark: SparkSession, q: Client, running: Broker) -> Iterator[Figure]:
    count, seconds = run.pick(3_000_000, 60_000), run.pick(15, 2)
    fill(running.address, count)

    def of_topic() -> float:
        return scan(topic(spark, running.address))

    def of_memory() -> float:
        return scan(memory(spark, count // ROWS))

    contenders: dict[str, Callable[[], float]] = {
        "alone": partial(p99_of_publish, q, running.address, seconds, None),
        "scan": partial(p99_of_publish, q, running.address, seconds, of_topic),
        "memory": partial(p99_of_publish, q, running.address, seconds, of_memory),
    }
    taken = harness.interleave(run.rounds, contenders)
    ratio = harness.ratio(taken["scan"], taken["alone"])
    yield at_most("publish beside a scan / alone, p99", ratio, "×", DISTURBED_BAR)
    yield info("publish beside rows out of memory / alone, p99", harness.ratio(taken["memory"], taken["alone"]), "×")
    for name, told in (("alone", "alone"), ("scan", "beside a scan"), ("memory", "beside rows out of memory")):
        yield info(f"publish {told}, p99", 1e3 * median(taken[name]), "ms")


def measure(run: Run) -> Iterator[Figure]:
    spark = session(behind=True)
    try:
        with broker(run) as running, penstock.connect(running.address) as q:
            batches = run.pick(20, 4)
            turns = harness.interleave(
                run.rounds,
                {
                    "penstock": partial(of_penstock, run, spark, q, running.address, batches),
                    "rate": partial(of_rate, run, spark, batches),
                },
            )
            added = median(ours - theirs for ours, theirs in zip(turns["penstock"], turns["rate"], strict=True))
            yield at_most("micro-batch, topic to topic: beyond an empty rate source", added, "ms", ADDED_MS_BAR)
            yield info("micro-batch, topic to topic", median(turns["penstock"]), "ms")
            yield info("micro-batch, empty rate source", median(turns["rate"]), "ms")
            yield from disturbed(run, spark, q, running)
    finally:
        spark.stop()


if __name__ == "__main__":
    assert __doc__ is not None
    harness.main(__doc__, measure, rounds=3)
