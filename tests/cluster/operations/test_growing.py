"""A topic gets more partitions while it is used: no group misses anything of what comes to them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import penstock
from cluster_nodes import LocalCluster
from penstock.client.requests import ChangeTopic, TopicInfo
from penstock.cluster.catalog import ClusterCatalog
from penstock.net.connecting import transport_to


@pytest.mark.parametrize("assignment", ["sticky", "shared"])
def test_a_group_at_work_gets_all_that_comes_to_new_partitions(cluster: LocalCluster, assignment: str) -> None:
    cluster.create("orders", 2)
    with (
        penstock.connect(cluster.address) as q,
        q.consumer("g", "orders", start="latest", assignment=assignment) as consumer,
    ):
        assert consumer.poll(1, wait="0s") == []
        q.change_topic("orders", partitions=6)
        sent = {q.publish("orders", "new", partition=number).id for number in range(6)}
        got: set[str] = set()
        while got != sent:
            for message in consumer.poll(100, wait="100ms"):
                got.add(message.id)
                message.ack()


def test_a_group_that_was_away_gets_what_came_to_new_partitions_meanwhile(cluster: LocalCluster) -> None:
    cluster.create("orders", 1)
    with penstock.connect(cluster.address) as q:
        with q.consumer("g", "orders", start="latest") as consumer:
            consumer.poll(1, wait="0s")
        old = q.publish("orders", "old", partition=0).id
        q.change_topic("orders", partitions=3)
        sent = {old} | {q.publish("orders", "new", partition=number).id for number in (1, 2)}
        with q.consumer("g", "orders") as consumer:
            got: set[str] = set()
            while got != sent:
                got |= {message.id for message in consumer.poll(100, wait="100ms")}


def test_a_new_group_begins_in_all_partitions_where_its_settings_say(cluster: LocalCluster) -> None:
    cluster.create("orders", 1)
    with penstock.connect(cluster.address) as q:
        q.change_topic("orders", partitions=3)
        for number in range(3):
            q.publish("orders", "before", partition=number)
        with q.consumer("g", "orders", start="latest") as consumer:
            consumer.poll(1, wait="0s")
            sent = {q.publish("orders", "after", partition=number).id for number in range(3)}
            got: set[str] = set()
            while got != sent:
                got |= {message.id for message in consumer.poll(100, wait="100ms")}


def test_two_nodes_that_grow_a_topic_at_the_same_time_do_it_once(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create("orders", 2)
    carry_out, grown = ClusterCatalog.carry_out, ChangeTopic("orders", 4, {})
    seen: list[int] = []

    async def ask(node: str) -> TopicInfo:
        transport = await transport_to(f"penstock://{cluster.nodes[node].native}")
        try:
            return await transport.call(grown)
        finally:
            await transport.close()

    async def heard(catalog: ClusterCatalog) -> None:
        await catalog._view.refresh()
        await asyncio.sleep(0)

    async def late(catalog: ClusterCatalog, *given: Any, **named: Any) -> Any:
        """This one has counted the partitions, and another node grows the topic before it goes on."""
        if not seen:
            seen.append(len(catalog.topic("orders").partitions))
            await ask("b")
            await heard(catalog)
            assert len(catalog.topic("orders").partitions) == 4
        return await carry_out(catalog, *given, **named)

    monkeypatch.setattr(ClusterCatalog, "carry_out", late)
    assert len(cluster.run(ask("a")).partitions) == 4
    assert seen == [2]
    assert sum(each.topic == "orders" for each in cluster.report().partitions) == 4
