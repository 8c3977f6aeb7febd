"""Groups of a topic of which a partition has no leader: they have the others, and that one when it has one again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import penstock
from cluster_nodes import WITHIN_S, LocalCluster, found
from penstock.cluster.coordination import Coordination


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_new_group_has_the_partitions_that_are_led_and_the_others_as_soon_as_they_are(
    cluster: LocalCluster, start: str
) -> None:
    cluster.create("t", 3, replicas=1)
    lost = cluster.partition("t", 1).leader
    with penstock.connect(cluster.address) as q:
        for number in range(3):
            q.publish("t", f"before {number}", partition=number)
        assert {cluster.partition("t", number).leader for number in range(3)} == set("abc")
        cluster.stop(lost)
        cluster.until(lambda report: not found(report, "t", 1).leader)
    wanted = {f"before {number}" for number in range(3)} if start == "earliest" else set()
    got: set[str] = set()
    with penstock.connect(cluster.address) as q, q.consumer("g", "t", start=start) as consumer:
        consumer.join()
        for number in (0, 2):
            q.publish("t", f"meanwhile {number}", partition=number)
        wanted |= {"meanwhile 0", "meanwhile 2"}
        while not got >= wanted - {"before 1"}:
            got |= taken(consumer.poll(10, wait=f"{WITHIN_S}s"))
        cluster.start(lost)
        q.publish("t", "after 1", partition=1)
        wanted |= {"after 1"}
        while not got >= wanted:
            got |= taken(consumer.poll(10, wait=f"{WITHIN_S}s"))
        # Where it begins late, a little of before is among it: clocks differ.
        assert {value for value in got ^ wanted if not value.startswith("before")} == set()


def test_a_new_group_has_the_others_though_a_node_has_come_back_without_its_disk(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """It is named as the leader of what it had, and alive."""
    cluster.create("t", 3, replicas=1)
    lost = cluster.partition("t", 1).leader
    with penstock.connect(cluster.address) as q:
        for number in range(3):
            q.publish("t", f"before {number}", partition=number)
    cluster.stop(lost)
    cluster.start(lost, data=str(tmp_path / "empty"))
    cluster.until(lambda report: any(node.id == lost and node.is_alive for node in report.nodes))
    with penstock.connect(cluster.address) as q, q.consumer("g", "t") as consumer:
        got: set[str] = set()
        while len(got) < 2:
            got |= taken(consumer.poll(10, wait=f"{WITHIN_S}s"))
    assert got == {"before 0", "before 2"}


def coordinator(group: str, nodes: str) -> str:
    return max(nodes, key=lambda node: (blake2b(f"{group}\0{node}".encode(), digest_size=8).digest(), node))


@pytest.mark.parametrize("number", [0, 1])
def test_a_group_that_is_to_begin_in_a_partition_misses_nothing_there_when_another_node_looks_after_it(
    cluster: LocalCluster, number: int
) -> None:
    """The one that comes back with the partition: whoever looked after the group until then forgets it."""
    cluster.create("t", 3, replicas=1)
    lost = cluster.partition("t", number).leader
    group = next(name for name in map("g{}".format, count()) if coordinator(name, "abc") == lost)
    cluster.stop(lost)
    cluster.until(lambda report: not found(report, "t", number).leader)
    with penstock.connect(cluster.address) as q, q.consumer(group, "t", start="latest") as consumer:
        consumer.join()
        cluster.start(lost)
        q.publish("t", "after", partition=number)
        got: set[str] = set()
        while not got:
            got |= taken(consumer.poll(10, wait=f"{WITHIN_S}s"))
        assert got == {"after"}


def test_a_leader_that_is_late_to_begin_a_group_leaves_nothing_out(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it any more when it does, and what was published since then is not of the past."""
    cluster.create("t", 3, replicas=1)
    slow = cluster.partition("t", 1).leader
    group = next(name for name in map("g{}".format, count()) if coordinator(name, "abc") != slow)
    known, is_published = Coordination._known, threading.Event()

    async def wait(self: Coordination, name: str, created_us: int = 0) -> None:
        while self._node.name == slow and created_us and not is_published.is_set():
            await asyncio.sleep(0.01)
        await known(self, name, created_us)

    monkeypatch.setattr(Coordination, "_known", wait)
    with penstock.connect(cluster.address) as q, q.consumer(group, "t", start="latest") as consumer:
        consumer.join()
        for number in range(3):
            q.publish("t", str(number), partition=number)
        is_published.set()
        got: set[str] = set()
        while len(got) < 3:
            got |= taken(consumer.poll(10, wait=f"{WITHIN_S}s"))


def test_a_partition_that_can_not_be_written_to_keeps_no_group_from_the_others(cluster: LocalCluster) -> None:
    cluster.create("t", 3, replicas=2, min_isr=2)
    whole = next(number for number in range(3) if "c" not in cluster.partition("t", number).replicas)
    cluster.stop("c")
    for _ in range(2):
        # The second time there is something of the first that is not committed.
        with penstock.connect(cluster.address) as q, q.consumer("g", "t") as consumer:
            consumer.join()
            q.publish("t", "here", partition=whole)
            assert taken(consumer.poll(1, wait=f"{WITHIN_S}s")) == {"here"}
    cluster.start("c")
    with penstock.connect(cluster.address) as q, q.consumer("g", "t") as consumer:
        for number in range(12):
            q.publish("t", str(number), partition=number % 3)
        got: set[str] = set()
        while len(got) < 12:
            got |= taken(consumer.poll(12, wait=f"{WITHIN_S}s"))


def test_a_group_that_was_there_goes_on_though_a_partition_has_no_leader(cluster: LocalCluster) -> None:
    cluster.create("t", 3, replicas=1)
    with penstock.connect(cluster.address) as q, q.consumer("g", "t") as consumer:
        consumer.join()
    lost = cluster.partition("t", 0).leader
    cluster.stop(lost)
    cluster.until(lambda report: not found(report, "t", 0).leader)
    with penstock.connect(cluster.address) as q, q.consumer("g", "t") as consumer:
        for number in (1, 2):
            q.publish("t", str(number), partition=number)
        got: set[str] = set()
        while not got >= {"1", "2"}:
            got |= taken(consumer.poll(10, wait=f"{WITHIN_S}s"))
    cluster.start(lost)


def taken(messages: Sequence[Any]) -> set[str]:
    for message in messages:
        message.ack()
    return {bytes(message.value).decode() for message in messages}
