"""What does it cost to have every message on three disks before it is acknowledged?

Three nodes of a cluster and etcd on this machine, beside a single broker; one client process, over TCP; messages of
100 B, six partitions with three replicas each. They share two things that three machines would have three of:
processors, and the disk, to which everything is written three times.

    send_batch      ready Arrow tables of 10,000, none waited for before the next is sent, all of them at the end
    publish one     wait for its answer, again, with the blocking client

`acks=all` is told when all replicas that are in sync have it on disk, `acks=leader` when the leader has. What the disk
alone makes of it is measured beside it: as many bytes with write and fdatasync, into one file, and into three at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import NamedTuple

import pyarrow as pa

import harness
import penstock
from cluster_serving import Cluster, cluster, has_etcd
from harness import SYNC_BYTES, Figure, Run, info
from peers import new_name
from penstock.client.blocking import Client
from penstock.limits import MIB
from serving import PARTITIONS, broker, values
from throughput import TABLE_ROWS

REPLICAS = 3
BAR = 0.3
ONE = "one"


class Turn(NamedTuple):
    """Messages a second, of tables; and the seconds of each single publish, in order of size."""

    rate: float
    one_s: list[float]


def turn(run: Run, q: Client, acks: str, running: Cluster | None) -> Turn:
    table = pa.table({"value": values(TABLE_ROWS)})
    topic, tables = new_name(), run.pick(100, 4)
    create(q, running, topic, PARTITIONS)
    try:
        with q.producer(topic, batch_messages=TABLE_ROWS, batch_bytes=4 * MIB, acks=acks) as producer:
            for partition in range(PARTITIONS):
                producer.send_batch(table.slice(0, 1), partition=partition)
            started = time.perf_counter()
            for _ in range(tables):
                producer.send_batch(table, wait=False)
            producer.flush()
            rate = tables * TABLE_ROWS / (time.perf_counter() - started)
    finally:
        q.delete_topic(topic)
    publish = partial(q.publish, ONE, b"x" * harness.VALUE_BYTES)
    return Turn(rate, sorted(harness.seconds(publish) for _ in range(run.pick(500, 20))) if acks == "all" else [])


def create(q: Client, running: Cluster | None, topic: str, partitions: int) -> None:
    if running is None:
        q.create_topic(topic, partitions=partitions)
    else:
        running.create(topic, partitions)


def disk(run: Run, files: int) -> float:
    """Bytes a second into each of that many files at once."""
    groups = [[bytes(SYNC_BYTES)]] * run.pick(24, 1)
    with run.folder() as path, ThreadPoolExecutor(files) as pool:
        started = time.perf_counter()
        for each in [pool.submit(harness.write_raw, path / str(number), groups) for number in range(files)]:
            each.result()
        return len(groups) * SYNC_BYTES / (time.perf_counter() - started)


def measure(run: Run) -> Iterator[Figure]:
    if not has_etcd():
        return
    with (
        broker(run) as alone,
        cluster(run) as running,
        penstock.connect(alone.address) as single,
        penstock.connect(running.address) as routed,
    ):
        create(single, None, ONE, 1)
        create(routed, running, ONE, 1)
        found = harness.interleave(
            run.rounds,
            {
                "single": partial(turn, run, single, "all", None),
                "acks=all": partial(turn, run, routed, "all", running),
                "acks=leader": partial(turn, run, routed, "leader", running),
            },
        )
        disks = harness.interleave(run.rounds, {"one": partial(disk, run, 1), "three": partial(disk, run, REPLICAS)})
    rates = {name: [each.rate for each in turns] for name, turns in found.items()}
    yield harness.at_least(
        "send_batch: acks=all on three nodes / a single broker",
        harness.ratio(rates["acks=all"], rates["single"]),
        "×",
        BAR,
    )
    yield info(
        "send_batch: acks=leader on three nodes / a single broker",
        harness.ratio(rates["acks=leader"], rates["single"]),
        "×",
    )
    yield info(
        "write + fdatasync: into each of three files at once / into one",
        harness.ratio(disks["three"], disks["one"]),
        "×",
    )
    for name, who in (("single", "a single broker"), ("acks=all", "acks=all"), ("acks=leader", "acks=leader")):
        yield info(f"send_batch: {who}", median(rates[name]) / 1e3, "k messages/s")
    yield info("write + fdatasync: into one file", median(disks["one"]) / 1e6, "MB/s")
    for percentile, share in (("p50", 0.5), ("p99", 0.99)):
        one = {name: [harness.percentile(each.one_s, share) for each in found[name]] for name in ("single", "acks=all")}
        yield info(
            f"publish one: acks=all on three nodes / a single broker, {percentile}",
            harness.ratio(one["acks=all"], one["single"]),
            "×",
        )
        for name, who in (("single", "a single broker"), ("acks=all", "acks=all")):
            yield info(f"publish one: {who}, {percentile}", 1e6 * median(one[name]), "µs")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
