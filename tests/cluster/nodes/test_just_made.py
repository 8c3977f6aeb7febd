"""A topic that was made a moment ago, at another node than the one that is asked for it."""

from __future__ import annotations

import asyncio
from itertools import cycle

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
        place = place_of(cluster.nodes["a"].native)
        # Of each connection, few calls are carried out at once.
        nodes = [await RemoteTransport.to(place, SystemClock(), patience_s=0) for _ in range(16)]
        try:
            asked = [("same",), ("../other",), ("x" * 5_000,)] * 50 + [(f"other-{number}",) for number in range(200)]
            calls = [node.call(FindPlacement(topics)) for node, topics in zip(cycle(nodes), asked, strict=False)]
            assert not any(each.topics for each in await asyncio.gather(*calls))
        finally:
            for node in nodes:
                await node.close()

    cluster.run(work())
    assert max(at_once) == 2
    assert looks <= 64 + 50
