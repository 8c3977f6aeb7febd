"""What do a thousand partitions cost that nobody uses?

Three nodes of a cluster and etcd on this machine; one topic of 1,000 partitions with three replicas each, so that every
node leads a third of them and follows the rest. Nothing is published and nobody is connected:

    processor       of each node, from its CPU clock over half a minute, as a share of one core
    etcd            its revision counts every change of what it stores: it does not move, though sessions are kept alive
    memory          of each node, beside what it had before the topic was made
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import harness
from cluster_serving import Cluster, Node, cluster, has_etcd
from harness import Figure, Run, info
from penstock.cluster.etcd.client import EtcdStore
from penstock.cluster.etcd.settings import EtcdSettings, endpoints_of
from penstock.limits import MIB

TOPIC = "idle"
CPU_BAR = 10.0


def revision(running: Cluster) -> int:
    async def asked() -> int:
        store = EtcdStore(EtcdSettings(endpoints_of([running.etcd.address])))
        try:
            return (await store.get("/")).revision
        finally:
            await store.close()

    return asyncio.run(asked())


def settled(run: Run, nodes: list[Node]) -> None:
    """What is done once, when partitions are new, is done when a second costs no more than the one before."""
    spent, before = [float("inf")], sum(node.cpu_s for node in nodes)
    while len(spent) < run.pick(60, 2):
        time.sleep(1)
        now = sum(node.cpu_s for node in nodes)
        spent.append(now - before)
        before = now
        if len(spent) > 3 and spent[-1] >= 0.9 * max(spent[-3:]):
            return


def measure(run: Run) -> Iterator[Figure]:
    if not has_etcd():
        return
    partitions, seconds = run.pick(1_000, 12), run.pick(30, 1)
    with cluster(run) as running:
        nodes = list(running.nodes.values())
        empty = [node.resident_bytes for node in nodes]
        started = time.perf_counter()
        running.create(TOPIC, partitions)
        made_s = time.perf_counter() - started
        settled(run, nodes)
        before, spent = revision(running), [node.cpu_s for node in nodes]
        etcd_before = running.etcd_cpu_s
        started = time.perf_counter()
        time.sleep(seconds)
        over_s = time.perf_counter() - started
        shares = [100 * (node.cpu_s - was) / over_s for node, was in zip(nodes, spent, strict=True)]
        etcd_share = 100 * (running.etcd_cpu_s - etcd_before) / over_s
        changes = revision(running) - before
        resident = [node.resident_bytes for node in nodes]
    yield harness.at_most(f"{partitions:,} partitions idle: the busiest node", max(shares), "% of a core", CPU_BAR)
    yield info(f"{partitions:,} partitions idle: the least busy node", min(shares), "% of a core")
    yield info(f"{partitions:,} partitions idle: etcd", etcd_share, "% of a core")
    yield harness.at_most(f"changes in etcd in {seconds} s", changes, "revisions", 0)
    yield info("memory: the largest node", max(resident) / MIB, "MiB")
    yield info("memory: a node without partitions", max(empty) / MIB, "MiB")
    more = max((now - was) / partitions for now, was in zip(resident, empty, strict=True))
    yield info("memory: for each replica", more / 1024, "KiB")
    yield info(f"making {partitions:,} partitions, until all replicas are in sync", made_s, "s")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=1)
