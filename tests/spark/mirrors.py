"""Two real brokers and a mirror between them, for test_mirror*.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from broker_process import BrokerProcess
from penstock.broker.settings import TopicSettings
from penstock.client.blocking import Client
from penstock.client.client import Client as AsyncClient
from penstock.local.transport import LocalTransport
from penstock.spark.builtin.mirror import Batches, Mirror, start
from penstock.spark.builtin.mirror_task import mirror_task
from penstock.spark.builtin.mirror_topics import Selection
from penstock.spark.connecting import Connecting
from penstock.spark.pipeline.progress import Meter, Progress
from penstock.spark.pipeline.running import _report
from penstock.spark.pipeline.spec import Trigger
from spark.pipeline_runs import until_in_time

Fields = tuple[Any, ...]


async def thinned(q: AsyncClient, site: LocalTransport) -> None:
    """A topic in which compaction has left gaps: of most keys, only the last of several messages is there."""
    await q.create_topic("thinned", 1, cleanup="compact")
    for number in range(40):
        await q.publish("thinned", f"{number}", key=f"{number % 20 if number % 3 else number}")
    partition = site.broker.topic("thinned").partitions[0]
    partition.messages.roll()
    partition.maintain(TopicSettings(cleanup="compact"), np.empty(0, np.int64), partition.messages.end_offset)


def mirror_of(source: BrokerProcess, target: BrokerProcess, *topics: str, **more: Any) -> Mirror:
    selection = Selection(topics, more.pop("pattern", None), more.pop("prefix", ""))
    ends = Connecting(source.address), Connecting(target.address)
    return Mirror(*ends, selection, Trigger(available_now=True), **more)


def run(spark: SparkSession, mirror: Mirror, checkpoint: Path) -> Progress:
    """Until everything that is there is mirrored."""

    def once() -> StreamingQuery:
        (query,) = start(spark, mirror, str(checkpoint), "mirror")
        query.awaitTermination()
        return query

    query = until_in_time(once)
    meter = Meter()
    for progress in query.recentProgress:
        meter.take(_report(progress))
    return meter.progress


def run_here(source: Client, mirror: Mirror, id: str, batch: int = 0) -> None:
    """One batch of all there is, as the driver and its tasks do it, without Spark."""
    batches = Batches(mirror)
    ready = batches.ready(id, batch)
    rows = [
        table.append_column("topic", pa.array([pair.source.name] * table.num_rows))
        for pair in ready.pairs.pairs
        for table in source.reader(pair.source.name).batches()
    ]
    batches.told(
        ready, pa.Table.from_batches(mirror_task(ready.errand, [row.drop_columns("append_time") for row in rows]))
    )


def messages(q: Client, topic: str) -> dict[int, list[Fields]]:
    """By partition, in their order: all that a mirror keeps."""
    found: dict[int, list[Fields]] = {number: [] for number in range(len(q.topic(topic).partitions))}
    for each in q.reader(topic):
        fields = (each.key, each.value, each.headers, each.timestamp, each.priority, each.deliver_at, each.expires_at)
        found[each.partition].append(fields)
    return found


def offsets(q: Client, topic: str, partition: int = 0) -> dict[bytes | None, int]:
    """Of each value."""
    return {each.value: each.offset for each in q.reader(topic, partitions=[partition])}
