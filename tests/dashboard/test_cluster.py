"""What the dashboard shows of a cluster, in a real browser: its nodes, who leads what, and which copies are away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster_doors import Door
from cluster_nodes import LocalCluster
from etcd_support import etcd_process, needs_etcd
from penstock.server.config import Address

playwright = pytest.importorskip("playwright.sync_api", reason="no browser: playwright is not installed")
expect = playwright.expect
expect.set_options(timeout=60_000)
pytestmark = needs_etcd


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with etcd_process(tmp_path / "etcd") as etcd:
        cluster = LocalCluster(tmp_path, etcd.address)
        try:
            cluster.start("ann", "ben", http=Address("127.0.0.1", 0))
            yield cluster
        finally:
            cluster.close()


def test_nodes_leaders_and_copies_that_are_away(cluster: LocalCluster, look: Any) -> None:
    cluster.create("orders", 4)
    door = Door(cluster, "ann")
    page = look(SimpleNamespace(url=f"http://{door.at}"))
    page.get_by_role("link", name=re.compile("^ann of 2 nodes")).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cluster")
    nodes = page.get_by_role("table", name="Nodes")
    expect(nodes.get_by_role("row").filter(has_text="ann")).to_contain_text("this one")
    expect(nodes.get_by_role("row").filter(has_text="ben")).to_contain_text(cluster.nodes["ben"].native)
    leaders = page.get_by_role("table", name="Leaders")
    expect(leaders.get_by_role("row")).to_have_count(5)
    expect(leaders).to_contain_text("2 of 2")
    expect(page.get_by_text("All copies are in sync.")).to_be_visible()
    cluster.stop("ben")
    expect(nodes.get_by_role("row").filter(has_text="ben")).to_contain_text("away")
    expect(page.get_by_role("table", name="Under-replicated partitions").get_by_role("row")).to_have_count(5)
    expect(page.get_by_role("banner")).to_contain_text("4 under-replicated partitions")
    expect(page.get_by_role("banner")).not_to_contain_text("published")
    told = door.ok("GET", "/v1/cluster")
    assert (told["mode"], told["node"], told["under_replicated"]) == ("cluster", "ann", 4)
    assert [(node["name"], node["is_alive"]) for node in told["nodes"]] == [("ann", True), ("ben", False)]
    (first, *_) = door.ok("GET", "/v1/cluster/partitions?topic=orders&under_replicated=true")["partitions"]
    assert (first["leader"], first["in_sync"], set(first["replicas"])) == ("ann", ["ann"], {"ann", "ben"})
    assert (told["under_min_isr"], first["min_isr"]) == (0, 1)
    assert door.ok("GET", "/v1/cluster/partitions?under_min_isr=true") == {"partitions": []}
    assert door.fails("GET", "/v1/cluster/partitions?topic=nowhere") == (404, "topic_not_found")
    door.http.close()


def test_partitions_that_take_no_messages(cluster: LocalCluster, look: Any) -> None:
    cluster.create("orders", 2, min_isr=2)
    door = Door(cluster, "ann")
    page = look(SimpleNamespace(url=f"http://{door.at}"), "/#/cluster")
    leaders = page.get_by_role("table", name="Leaders")
    expect(leaders).to_contain_text("2 of 2")
    expect(leaders).not_to_contain_text("needs")
    cluster.stop("ben")
    expect(page.get_by_role("banner")).to_contain_text("2 partitions can't be published to")
    expect(leaders.get_by_text("needs 2")).to_have_count(2)
    assert door.ok("GET", "/v1/cluster")["under_min_isr"] == 2
    partitions = door.ok("GET", "/v1/cluster/partitions?under_min_isr=true")["partitions"]
    assert [(one["partition"], one["in_sync"], one["min_isr"]) for one in partitions] == [
        (0, ["ann"], 2),
        (1, ["ann"], 2),
    ]
    door.http.close()
