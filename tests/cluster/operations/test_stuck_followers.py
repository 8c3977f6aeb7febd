"""A follower that is alive and gets nowhere: what keeps publishes from being taken is told as it is."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

import penstock
from cluster_nodes import LocalCluster, found, local_cluster
from penstock.broker.disk import Synced
from penstock.cli import main
from penstock.cluster.node import Node
from penstock.errors import NotEnoughReplicas
from penstock.server.config import Address
from penstock.storage.log import Log

T = TypeVar("T")


def test_one_that_keeps_publishes_from_being_taken_is_not_in_sync_for_anybody_who_looks(
    tmp_path: Path, etcd: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck: set[str] = set()
    freed, store = asyncio.Event(), Node.store

    async def held(self: Node, log: Log, append: Callable[[], T], size: int, *, begins_epoch: bool) -> T:
        if self.name in stuck:
            await freed.wait()
        return await store(self, log, append, size, begins_epoch=begins_epoch)

    def not_now(self: Node, log: Log, append: Callable[[], T], size: int, done: Synced) -> T | None:
        return None

    monkeypatch.setattr(Node, "store", held)
    monkeypatch.setattr(Node, "store_soon", not_now)
    settings: dict[str, Any] = {"session_ttl": 2, "http": Address("127.0.0.1", 0)}
    with (
        local_cluster(tmp_path, etcd, "a", "b", **settings) as cluster,
        penstock.connect(cluster.address) as q,
        ExitStack() as end,
    ):
        cluster.create("orders", 1, replicas=2, min_isr=2)
        leader, follower = cluster.partition("orders", 0).replicas
        # A node that has just started may not have heard of all others yet.
        deadline = time.monotonic() + 30
        while (told := status(cluster.address, capsys)) != (0, [], []):
            assert time.monotonic() < deadline, told
        stuck.add(follower)
        end.callback(cluster.run, free(freed))
        q.publish("orders", b"only here", acks="leader")

        report = cluster.until(lambda report: found(report, "orders", 0).is_under_min_isr)
        assert found(report, "orders", 0).in_sync == (leader,)
        assert [node.is_alive for node in report.nodes] == [True, True]
        # The leader counts once a second.
        until_s = time.monotonic() + 20
        while "penstock_cluster_under_min_isr 1\n" not in metrics(cluster, leader):
            assert time.monotonic() < until_s
        assert "penstock_cluster_under_replicated 1\n" in metrics(cluster, leader)
        with q.producer("orders", retry_for="0s") as producer, pytest.raises(NotEnoughReplicas):
            producer.send(b"refused").result(20)
        assert status(cluster.address, capsys) == (1, ["orders:0"], ["orders:0"])


def metrics(cluster: LocalCluster, node: str) -> str:
    return httpx.get(f"http://{cluster.nodes[node].where.http}/metrics").text


async def free(freed: asyncio.Event) -> None:
    freed.set()


def status(address: str, capsys: pytest.CaptureFixture[str]) -> tuple[object, list[str], list[str]]:
    """The exit code, and what `penstock cluster status` says of partitions."""
    with pytest.raises(SystemExit) as ended:
        main(["cluster", "status", "--server", address, "-o", "json"])
    told = json.loads(capsys.readouterr().out)
    return ended.value.code, told["under_replicated"], told["under_min_isr"]
