"""Quotas and the audit log in a cluster: storage counts where a partition is led; all nodes have one audit log."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

import penstock
from cluster_nodes import LocalCluster, local_cluster
from penstock.broker.names import AUDIT
from penstock.errors import LimitReached, QuotaExceeded, TopicNotFound
from penstock.server.access_file import add_key, set_quota
from penstock.server.config import Address
from penstock.server.keys import make


def test_storage_counts_at_the_leader_and_every_node_records_in_one_audit_log(tmp_path: Path, etcd: str) -> None:
    file = tmp_path / "access.yaml"
    key, kept = make("shop")
    add_key(file, kept)
    set_quota(file, "shop", {"storage_bytes": 20_000, "groups": 1})
    settings = {"http": Address("127.0.0.1", 0), "access": str(file), "audit_topic": True}
    with (
        local_cluster(tmp_path, etcd, "a", "b", **settings) as cluster,
        penstock.connect(cluster.address, key=key) as q,
    ):
        headers = {"authorization": f"Bearer {key}"}
        first, second = doors = [httpx.Client(base_url=url(cluster, n), headers=headers, timeout=25) for n in "ab"]
        # Created by way of one node, and led by either.
        assert first.post("/v1/topics", json={"name": "t", "partitions": 1}).is_success
        # A group is its creator's by whatever node it is joined, and all nodes know that.
        assert first.post("/v1/groups/g/poll", json={"topics": "t"}).is_success
        assert second.post("/v1/groups/g/poll", json={"topics": "t"}).is_success
        refused = second.post("/v1/groups/h/poll", json={"topics": "t"})
        assert (refused.status_code, refused.json()["details"]) == (507, {"limit": "groups", "maximum": 1})
        with pytest.raises(LimitReached), q.consumer("i", "t") as consumer:
            consumer.poll(1, wait="0s")
        body = {"value": "A" * 8_000}
        answers = [door.post("/v1/topics/t/publish", json=body) for _ in range(8) for door in doors]
        while (last := answers[-1]).is_success:
            answers.append(second.post("/v1/topics/t/publish", json=body))
        assert (last.status_code, last.json()["details"]["quota"]) == (429, "storage_bytes")
        with pytest.raises(QuotaExceeded), q.producer("t", retry_for="0s") as producer:
            producer.send(bytes(6_000))
        assert second.delete("/v1/topics/t").is_success
        told: list[dict[str, str]] = []
        while len({one["node"] for one in told if one["action"] in ("create_topic", "delete_topic")}) < 2:
            with suppress(TopicNotFound):
                told = [json.loads(message.value or b"") for message in q.reader(AUDIT)]
        for door in doors:
            door.close()
    by_action = {one["action"]: one for one in told}
    assert (by_action["create_topic"]["node"], by_action["create_topic"]["principal"]) == ("a", "shop")
    assert (by_action["delete_topic"]["node"], by_action["delete_topic"]["object"]) == ("b", "topic t")


def url(cluster: LocalCluster, node: str) -> str:
    return f"http://{cluster.nodes[node].where.http}"
