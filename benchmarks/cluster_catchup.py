"""How fast does a node catch up that was away?

Three nodes of a cluster and etcd on this machine. One node is stopped, then 384 MB are published, in frames of a
megabyte, to a topic with three replicas; the node is started again. Counted is from when it is first heard to have got
some of it until it is in sync with all of it, in bytes of its own disk: read by the leaders, sent over TCP, checked,
written and synced by the follower. With one partition, and with six, which are led by the two others.

Beside it, each on its own: as many bytes written and synced, 8 MiB at a time, and sent over loopback TCP.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from statistics import median

import pyarrow as pa

import harness
import penstock
from cluster_serving import PATIENCE_S, Cluster, cluster, has_etcd
from harness import SYNC_BYTES, Figure, Run, info
from peers import new_name
from penstock.client.cluster_requests import SurveyCluster
from penstock.limits import MIB
from penstock.net.connecting import transport_to
from serving import PARTITIONS, values

AWAY = "c"
FRAME_ROWS = 10_000
FRAME_BYTES = FRAME_ROWS * harness.VALUE_BYTES
BAR = 100
_LOOK_S = 0.01
_SENDER = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
chunk = bytes(int(sys.argv[2]))
for _ in range(int(sys.argv[3])):
    peer.sendall(chunk)
"""


def catch_up(run: Run, running: Cluster, partitions: int) -> float:
    """Bytes a second."""
    topic, frames = new_name(), run.pick(384, 6)
    table = pa.table({"value": values(FRAME_ROWS)})
    away = running.nodes[AWAY]
    running.create(topic, partitions)
    away.stop()
    before = away.data_bytes
    with penstock.connect(running.address) as q, q.producer(topic) as producer:
        for number in range(frames):
            producer.send_batch(table, partition=number % partitions, wait=False)
        producer.flush()
    away.start()
    away.find_port()
    spent = asyncio.run(until_in_sync(running.address, topic))
    away.wait_ready()
    found = (away.data_bytes - before) / spent
    with penstock.connect(running.address) as q:
        q.delete_topic(topic)
    return found


async def until_in_sync(address: str, topic: str) -> float:
    """Seconds, since the last look at which it had nothing yet."""
    transport = await transport_to(address)
    try:
        began = time.perf_counter()
        deadline = began + PATIENCE_S
        nothing: int | None = None
        while time.perf_counter() < deadline:
            looked = time.perf_counter()
            partitions = (await transport.call(SurveyCluster((topic,)))).partitions
            if all(AWAY in each.in_sync for each in partitions):
                return time.perf_counter() - began
            behind = sum(other.messages_behind for each in partitions for other in each.followers if other.node == AWAY)
            if nothing is None or behind >= nothing:
                nothing, began = behind, looked
            await asyncio.sleep(_LOOK_S)
    finally:
        await transport.close()
    raise TimeoutError(f"{AWAY} has not caught up within {PATIENCE_S:g} s")


def over_tcp(run: Run) -> float:
    """Bytes a second."""
    count, left = run.pick(192, 3), bytearray(2 * MIB)
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", _SENDER, str(server.getsockname()[1]), str(len(left)), str(count)]
        sender = subprocess.Popen(command)
        with server.accept()[0] as peer:
            started, got = time.perf_counter(), 0
            while size := peer.recv_into(left):
                got += size
            spent = time.perf_counter() - started
        sender.wait()
    return got / spent


def to_disk(run: Run) -> float:
    """Bytes a second."""
    groups = [[bytes(SYNC_BYTES)]] * run.pick(48, 1)
    with run.folder() as path:
        return len(groups) * SYNC_BYTES / harness.write_raw(path / "probe", groups)


def measure(run: Run) -> Iterator[Figure]:
    if not has_etcd():
        return
    with cluster(run) as running:
        contenders: dict[str, harness.Contender] = {
            f"{count} partition{'s' if count > 1 else ''}": partial(catch_up, run, running, count)
            # Each stops and starts a node in each turn, so a quick run has fewer of them.
            for count in ((PARTITIONS,) if run.quick else (1, PARTITIONS))
        }
        beside = {"write + fdatasync": partial(to_disk, run), "loopback TCP": partial(over_tcp, run)}
        found = harness.interleave(run.rounds, contenders | beside)
    for name in contenders:
        yield harness.at_least(f"catching up, {name}", median(found[name]) / 1e6, "MB/s", BAR)
        ratio = harness.ratio(found[name], found["write + fdatasync"])
        yield info(f"catching up, {name} / write + fdatasync", ratio, "×")
    for name in beside:
        yield info(name, median(found[name]) / 1e6, "MB/s")
    yield info("write + fdatasync: fastest round / slowest", harness.unrest(found["write + fdatasync"]), "×")


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=3)
