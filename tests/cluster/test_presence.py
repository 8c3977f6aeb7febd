"""Whose a node's name is: decided before anything is opened in it."""

from __future__ import annotations

import asyncio

import pytest

from etcd_support import run
from lone_node import LoneNode
from penstock.cluster.etcd.store import Put
from penstock.cluster.node import Node
from penstock.errors import AlreadyExists


class Answering:
    """Whether the node that has the name answers, and that it was asked."""

    def __init__(self, patch: pytest.MonkeyPatch, *, is_alive: bool) -> None:
        self.asked = asyncio.Event()

        async def answers(node: Node) -> bool:
            self.asked.set()
            return is_alive

        patch.setattr(Node, "_namesake_answers", answers)


def beside(first: LoneNode) -> LoneNode:
    """Of the same name and cluster, with another disk."""
    second = LoneNode()
    second.etcd = first.etcd
    return second


def test_a_name_whose_node_answers_is_refused_at_once_and_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        first = LoneNode()
        await first.open()
        await first.join()
        keys = first.node.keys
        before = [first.etcd.read(key).items for key in (keys.claims, keys.brokers)]
        Answering(monkeypatch, is_alive=True)
        second = beside(first)
        with pytest.raises(AlreadyExists, match=r"there is a node a already, at 127\.0\.0\.1:1, with another data dir"):
            # Its session would last for an hour.
            await second.open(ttl_s=3_600)
        assert not second.has_queue
        assert [first.etcd.read(key).items for key in (keys.claims, keys.brokers)] == before
        await first.close()

    run(main)


def test_a_name_is_taken_before_its_node_has_joined_and_free_when_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        first = LoneNode()
        await first.open()
        answering = Answering(monkeypatch, is_alive=False)
        second = beside(first)
        opening = asyncio.create_task(second.open())
        await answering.asked.wait()
        assert not second.has_queue
        await first.close()
        await opening
        assert second.has_queue
        await second.join()
        await second.close()

    run(main)


def test_who_does_not_answer_and_keeps_the_name_for_longer_than_a_dead_one_could_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        first = LoneNode()
        await first.open()
        monkeypatch.setattr("penstock.cluster.presence._GRACE_S", -1.0)
        with pytest.raises(AlreadyExists, match="there is a node a already, with another data directory"):
            await beside(first).open(ttl_s=1)
        await first.close()

    run(main)


def test_a_session_that_was_lost_before_the_node_joined_is_made_anew() -> None:
    async def main() -> None:
        lone = LoneNode()
        await lone.open()
        claimed = lone.node.presence._claimed
        assert claimed is not None
        await claimed.close()
        await lone.join()
        assert list(lone.etcd.read(lone.node.keys.brokers).items) == [lone.node.keys.broker("a")]
        assert list(lone.etcd.read(lone.node.keys.claims).items) == [lone.node.keys.claim("a")]
        await lone.close()
        assert not lone.etcd.read(lone.node.keys.claims).items

    run(main)


def test_a_node_that_is_back_is_not_taken_for_the_one_that_was_leaving() -> None:
    """Killed while it handed over, maybe: what it has said is bound to a session that has not ended yet."""

    async def main() -> None:
        first = LoneNode()
        await first.open()
        leaving = first.node.keys.leaving + "a"
        await first.etcd.store().commit({}, [Put(leaving, b"{}")])
        await first.join()
        assert not first.etcd.read(leaving).items
        assert not first.node.members.leaving
        await first.close()

    run(main)


def test_a_session_lets_nobody_serve_before_all_is_read_that_was_there_when_it_was_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the node had no session, another one may have been elected for what it led."""

    async def main() -> None:
        lone = LoneNode()
        await lone.open()
        node = lone.node
        refresh, valid = node.view.refresh, []

        async def refreshed() -> None:
            if lone.etcd.read(node.keys.brokers).items:
                valid.append(node.presence.valid_until_us)
            await refresh()

        monkeypatch.setattr(node.view, "refresh", refreshed)
        await lone.join()
        assert valid == [0]
        assert node.presence.valid_until_us > node.now_us()
        await lone.close()

    run(main)
