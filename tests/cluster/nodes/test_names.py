"""A second process under a node's name, or a second stream: the node itself goes on to copy what others lead."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import penstock
from cluster_nodes import LocalCluster
from penstock.clock import SystemClock
from penstock.cluster.node import Node
from penstock.cluster.words import Replicate
from penstock.errors import AlreadyExists
from penstock.net.address import place_of
from penstock.net.connection import Connection
from penstock.wire.packets import Kind

WITHIN_S = 20


def copied_by_all(cluster: LocalCluster) -> None:
    """A topic of which every node leads a partition, and copies the others."""

    async def all_know_all() -> None:
        while any(len(of(cluster, name).members.live) < 3 for name in cluster.nodes):
            await asyncio.sleep(0)

    cluster.run(all_know_all())
    cluster.create("t", 3, replicas=3, min_isr=2)
    cluster.until(lambda report: all(len(each.in_sync) == 3 for each in report.partitions))
    assert {each.leader for each in cluster.report().partitions} == {"a", "b", "c"}


def all_still_copy(cluster: LocalCluster) -> None:
    with penstock.connect(cluster.address) as q, q.producer("t", retry_for=f"{WITHIN_S}s") as producer:
        for receipt in [producer.send(b"after", key=str(number)) for number in range(30)]:
            receipt.result(WITHIN_S)
    cluster.until(lambda report: all(sorted(each.in_sync) == ["a", "b", "c"] for each in report.partitions))


def test_a_second_node_of_a_name_gets_no_copies_and_the_first_goes_on_under_publishes(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    copied_by_all(cluster)
    is_over, has_begun, stored = threading.Event(), threading.Event(), list[int]()

    def publish() -> None:
        with penstock.connect(cluster.address) as q, q.producer("t", retry_for=f"{WITHIN_S}s") as producer:
            while not is_over.is_set():
                producer.send(b"meanwhile", key=str(len(stored))).result(WITHIN_S)
                stored.append(1)
                has_begun.set()

    publishing = threading.Thread(target=publish)
    publishing.start()
    assert has_begun.wait(WITHIN_S)
    try:
        with pytest.raises(AlreadyExists, match=r"there is a node a already, at 127\.0\.0\.1:"):
            cluster.start("a", data=str(tmp_path / "elsewhere"))
    finally:
        is_over.set()
        publishing.join()

    assert not list((tmp_path / "elsewhere").glob("partitions/*"))
    assert not (tmp_path / "elsewhere" / "disk").exists(), "it may be the directory of another node"
    for name in ("b", "c"):
        # Not even for a moment.
        assert of(cluster, name).feeding.lost == {}
    all_still_copy(cluster)
    with penstock.connect(cluster.address) as q:
        values = [message.value for message in q.reader("t")]
    assert (values.count(b"meanwhile"), values.count(b"after")) == (len(stored), 30)


def test_a_node_whose_stream_is_replaced_fetches_by_another(cluster: LocalCluster) -> None:
    copied_by_all(cluster)
    a, b = of(cluster, "a"), cluster.nodes["b"]

    async def replace() -> None:
        """As the very process of a: only it may. Ours ends when a has come again."""
        connection = await Connection.to(place_of(b.native, key=a.secret), SystemClock())
        connection.open_stream(Kind.REPLICATE, Replicate("a", a._disk, a.incarnation), lambda packet: None)
        await connection.ended.wait()

    cluster.run(replace())
    all_still_copy(cluster)


def test_a_stranger_in_the_name_of_a_node_is_not_answered_and_does_not_disturb_it(cluster: LocalCluster) -> None:
    copied_by_all(cluster)
    a, b = of(cluster, "a"), cluster.nodes["b"]
    fed = of(cluster, "b").feeding

    async def pretend() -> None:
        connection = await Connection.to(place_of(b.native, key=a.secret), SystemClock())
        before = fed._feeds["a"]
        connection.open_stream(Kind.REPLICATE, Replicate("a", "another", "another"), lambda packet: None)
        while not fed._strangers:
            await asyncio.sleep(0)
        await connection.close()
        while fed._strangers:
            await asyncio.sleep(0)
        assert fed._feeds["a"] is before
        assert fed.lost == {}

    cluster.run(pretend())
    all_still_copy(cluster)


def of(cluster: LocalCluster, name: str) -> Node:
    feeding = cluster.nodes[name].server._doors[0].feeding  # type: ignore[attr-defined]
    node: Node = feeding.changed.__self__
    return node
