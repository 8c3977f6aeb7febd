"""What an operator sees while etcd is away, and nodes go on without it."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from cli.support import Run
from cluster_nodes import LocalCluster
from etcd_support import etcd_process
from penstock.cluster.etcd.process import EtcdProcess
from penstock.server.config import Address


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed (Debian: etcd-server)")
    with etcd_process(tmp_path / "etcd") as process:
        yield process


@pytest.fixture
def cluster(tmp_path: Path, etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    made = LocalCluster(tmp_path / "nodes", etcd.address)
    made.start("a", "b", "c", http=Address("127.0.0.1", 0), session_ttl=6)
    monkeypatch.setenv("PENSTOCK_SERVER", made.address)
    try:
        yield made
    finally:
        made.close()


def got(cluster: LocalCluster, node: str, path: str, *, posts: object = None) -> tuple[int, Any]:
    door = cluster.nodes[node].where.http
    assert door is not None
    connection = http.client.HTTPConnection(door.host, door.port, timeout=30)
    try:
        if posts is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(posts), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def until_etcd_is(cluster: LocalCluster, state: str) -> None:
    """For each of the nodes."""
    for node in cluster.nodes:
        while got(cluster, node, "/v1/cluster")[1]["etcd"] != state:
            pass


def test_without_etcd_nodes_serve_and_everybody_is_told_that_nothing_can_be_changed(
    run: Run, cluster: LocalCluster, etcd: EtcdProcess
) -> None:
    cluster.create("orders", 3)
    assert got(cluster, "a", "/ready") == (200, {"status": "ready"})
    assert got(cluster, "a", "/v1/cluster")[1]["etcd"] == "reachable"
    etcd.kill()
    until_etcd_is(cluster, "unreachable")

    told = run("cluster", "status")
    assert told.code == 1
    assert "etcd can't be reached (says " in told.out
    assert "nothing can be changed, and a node that fails is not replaced" in " ".join(told.out.split())
    assert run("cluster", "status", "-o", "json").json["is_cut_off_from_etcd"] is True
    for node in "abc":
        assert got(cluster, node, "/ready") == (200, {"status": "ready", "etcd": "unreachable"})
        assert got(cluster, node, "/v1/cluster")[1]["etcd"] == "unreachable"
    with penstock.connect(cluster.address) as q:
        assert q.publish("orders", "x").partition in range(3)
    for command in (("topic", "create", "more"), ("cluster", "elect"), ("cluster", "drain", "a")):
        told = run(*command)
        assert told.code == 2
        assert "[etcd_unavailable]" in told.err
        assert "has not reached etcd for some seconds" in told.err
    status, answer = got(cluster, "b", "/v1/topics", posts={"name": "more", "partitions": 1})
    assert (status, answer["code"]) == (503, "etcd_unavailable")

    etcd.start()
    until_etcd_is(cluster, "reachable")
    run.ok("topic", "create", "more")
    assert got(cluster, "a", "/ready") == (200, {"status": "ready"})
