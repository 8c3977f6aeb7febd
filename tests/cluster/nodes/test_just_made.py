"""A topic that was made a moment ago, at another node than the one that is asked for it."""

from __future__ import annotations

import asyncio

import pytest

from cluster_nodes import LocalCluster
from penstock.client.placement import FindPlacement, Placement
from penstock.client.requests import CreateTopic
from penstock.clock import SystemClock
from penstock.cluster.etcd.view import View
from penstock.net.address import place_of
from penstock.net.remote import RemoteTransport


def test_a_node_that_has_not_heard_of_a_topic_looks_for_it_before_it_says_that_there_is_none(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cluster.etcd.view._WATCH_S", 0)
    deaf = cluster.nodes["b"].server._doors[0].feeding.changed.__self__  # type: ignore[attr-defined]

    async def work() -> Placement:
        # What its watch tells is not taken in.
        for task in deaf.view._tasks:
            task.cancel()
        await asyncio.wait(deaf.view._tasks)
        a, b = [
            await RemoteTransport.to(place_of(cluster.nodes[name].native), SystemClock(), patience_s=0) for name in "ab"
        ]
        try:
            await a.call(CreateTopic("t", 1, {}))
            return await b.call(FindPlacement(("t", "other")))
        finally:
            await a.close()
            await b.close()

    assert [topic.name for topic in cluster.run(work()).topics] == ["t"]


def test_whoever_asks_for_topics_that_are_not_there_keeps_etcd_from_nothing_else(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's session waits for the same way to etcd."""
    at_once: list[int] = []
    under_way = looks = 0

    async def knows(view: View, prefix: str) -> None:
        nonlocal under_way, looks
        under_way, looks = under_way + 1, looks + 1
        at_once.append(under_way)
        await asyncio.sleep(0.01)
        under_way -= 1

    monkeypatch.setattr(View, "knows", knows)

    async def work() -> None:
        node = await RemoteTransport.to(place_of(cluster.nodes["a"].native), SystemClock(), patience_s=0)
        try:
            asked = [("same",), ("../other",), ("x" * 5_000,)] * 50 + [(f"other-{number}",) for number in range(200)]
            found = await asyncio.gather(*[node.call(FindPlacement(topics)) for topics in asked])
            assert not any(each.topics for each in found)
        finally:
            await node.close()

    cluster.run(work())
    assert max(at_once) == 2
    assert looks <= 64 + 50
