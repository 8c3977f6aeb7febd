"""What a node tells of its part in a cluster, and that the guide has all of it."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

import penstock
from cluster_nodes import LocalCluster
from penstock.server.config import Address

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "cluster.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(penstock_cluster_\w+)` \| (\w+) \| (.*?) \|$", GUIDE, re.MULTILINE)


def told(cluster: LocalCluster, node: str) -> tuple[dict[str, float], list[tuple[str, str, str]]]:
    """The values, and what they are."""
    text = httpx.get(f"http://{cluster.nodes[node].where.http}/metrics").text
    values = {
        name + labels: float(value)
        for name, labels, value in re.findall(r"^(penstock_cluster_\w+)(\S*) (\S+)$", text, re.MULTILINE)
    }
    helps = dict(re.findall(r"^# HELP (penstock_cluster_\w+) (.*)$", text, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (penstock_cluster_\w+) (.*)$", text, re.MULTILINE))
    return values, [(name, kinds[name], helps[name]) for name in helps]


def test_a_node_tells_of_its_part_in_the_cluster(cluster: LocalCluster) -> None:
    cluster.start("d", http=Address("127.0.0.1", 0))
    cluster.create("orders", 8, replicas=2, min_isr=1)
    with penstock.connect(cluster.address) as q:
        for number in range(8):
            q.publish("orders", "x", partition=number)
    values, families = told(cluster, "d")
    assert values["penstock_cluster_nodes"] == 4
    assert values["penstock_cluster_leaders"] == 2
    assert values["penstock_cluster_replicas"] == 4
    assert values["penstock_cluster_leaderships_total"] >= 2
    assert values["penstock_cluster_sent_bytes_total"] > 0
    assert values["penstock_cluster_fetched_bytes_total"] > 0
    assert 0 < values["penstock_cluster_session_seconds"] <= 6
    assert values["penstock_cluster_under_replicated"] == values["penstock_cluster_leaderless"] == 0
    assert any(name.startswith("penstock_cluster_follower_lag{node=") for name in values)
    assert sorted((name, kind, help) for name, kind, help in families) == sorted(
        (name, kind, help.replace(" (`node`)", "")) for name, kind, help in ROWS
    )


def test_a_follower_that_goes_is_counted(cluster: LocalCluster) -> None:
    cluster.start("d", http=Address("127.0.0.1", 0))
    cluster.create("orders", 8, replicas=2, min_isr=1)
    (led, *_) = [each for each in cluster.report().partitions if each.leader == "d"]
    (follower,) = set(led.replicas) - {"d"}
    cluster.stop(follower)
    with penstock.connect(cluster.address) as q:
        # Answered when the follower is out of sync.
        q.publish("orders", "x", partition=led.number)
    values, _ = told(cluster, "d")
    assert values["penstock_cluster_isr_shrinks_total"] >= 1
    assert values["penstock_cluster_under_replicated"] >= 1
