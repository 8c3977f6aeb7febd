"""A node that dies while its session in etcd lasts: whoever does not need it does not wait for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import penstock
from cluster_processes import cluster
from etcd_support import needs_etcd
from penstock.client.placement import FindPlacement, Placed
from penstock.net.connecting import transport_to

pytestmark = needs_etcd
# Much less than the session lasts, and much more than a slow machine takes.
WITHIN_S = 60


async def placed(address: str, *, in_sync: set[str]) -> Placed:
    """The only partition, as soon as these are."""
    transport = await transport_to(address)
    try:
        while True:
            (topic,) = (await transport.call(FindPlacement(("t",)))).topics
            (partition,) = topic.partitions
            if set(partition.in_sync) == in_sync:
                return partition
            await asyncio.sleep(0)
    finally:
        await transport.close()


def test_a_partition_does_not_wait_for_a_killed_follower_until_its_session_ends(tmp_path: Path) -> None:
    with cluster(tmp_path, session_ttl="300s") as running, penstock.connect(running.address) as q:
        q.create_topic("t", partitions=1)
        found = asyncio.run(placed(running.address, in_sync={"a", "b", "c"}))
        follower = next(name for name in found.replicas if name != found.leader)
        with q.producer("t", retry_for=f"{WITHIN_S}s") as producer:
            producer.send(b"with all").result(WITHIN_S)

            running.nodes[follower].kill()

            producer.send(b"with two").result(WITHIN_S)
        asyncio.run(placed(running.address, in_sync={"a", "b", "c"} - {follower}))
        running.nodes[follower].start()
        asyncio.run(placed(running.address, in_sync={"a", "b", "c"}))
