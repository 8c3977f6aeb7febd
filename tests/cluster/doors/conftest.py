"""Three nodes with all doors, over a real etcd, of which the last leads nothing: what is asked of its doors is
forwarded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster_doors import Door
from cluster_nodes import LocalCluster
from penstock.client.cluster_requests import ClusterReport, DrainNode
from penstock.server.config import Address

ANY_PORT = Address("127.0.0.1", 0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, etcd: str) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path_factory.mktemp("nodes"), etcd)
    try:
        cluster.start("a", "b", "c", http=ANY_PORT, grpc=ANY_PORT)
        cluster.call(DrainNode("c"))
        for each in cluster.nodes.values():
            # Whoever places partitions knows of it.
            cluster.until(is_drained, "penstock://" + each.native)
        yield cluster
    finally:
        cluster.close()


def is_drained(report: ClusterReport) -> bool:
    return any(node.id == "c" and node.is_draining for node in report.nodes)


@pytest.fixture(scope="module")
def asked() -> set[str]:
    """Routes by which doors were asked."""
    return set()


@pytest.fixture
def door(cluster: LocalCluster, asked: set[str]) -> Iterator[Door]:
    """Of the node that leads nothing."""
    door = Door(cluster, "c")
    yield door
    asked |= door.asked
    assert {each.leader for each in cluster.report().partitions} <= {"a", "b"}
    door.http.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest, door: Door) -> str:
    """Of its own for each test."""
    name: str = request.node.name.removeprefix("test_")[:60]
    door.topic(name)
    return name
