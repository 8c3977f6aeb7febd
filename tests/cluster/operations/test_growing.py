"""A topic gets more partitions while it is used: no group misses anything of what comes to them."""

from __future__ import annotations

import pytest

import penstock
from cluster_nodes import LocalCluster


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
