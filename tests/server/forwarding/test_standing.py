"""Consumers of other protocols, as members of their groups."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from etcd_support import run
from penstock.client.placement import Coordinator, KeepAlive
from penstock.errors import MemberNotFound
from penstock.server.forwarding.standing import Standing


class Node:
    """The coordinator: it answers a keep-alive once `answer` is set, and counts joins."""

    def __init__(self) -> None:
        self.asked, self.answer = asyncio.Event(), asyncio.Event()
        self.is_member = False
        self.joins = 0

    async def call(self, request: KeepAlive) -> list[bool]:
        self.asked.set()
        await self.answer.wait()
        return [self.is_member]

    async def join(
        self, group: str, consumer: str, topics: Sequence[str], settings: Mapping[str, Any], owner: str
    ) -> None:
        self.joins += 1

    # --- as `Groups` -------------------------------------------------------------------------------------

    def coordinator(self, group: str) -> Coordinator:
        return Coordinator("a", 1)

    def group_record(self, group: str) -> None:
        return None

    def way(self, node: str) -> Node:
        return self


@pytest.mark.parametrize("is_member", [True, False])
def test_a_consumer_that_leaves_while_its_coordinator_is_asked_about_it_does_not_join_again(is_member: bool) -> None:
    async def main() -> None:
        node = Node()
        standing = Standing(node, node.join)  # type: ignore[arg-type]
        await standing.join("g", "c", ["t"], {})
        # A heartbeat is due.
        standing._joined["g", "c"].heard_at -= 10
        node.is_member = is_member
        polling = asyncio.ensure_future(standing.join("g", "c", ["t"], {}))
        await node.asked.wait()
        standing.forget("g", "c")
        node.answer.set()
        with pytest.raises(MemberNotFound, match="left group g while it was joining"):
            await polling
        assert (node.joins, standing.has("g", "c")) == (1, False)

    run(main)


def test_a_consumer_that_its_coordinator_has_forgotten_joins_again() -> None:
    async def main() -> None:
        node = Node()
        node.answer.set()
        standing = Standing(node, node.join)  # type: ignore[arg-type]
        await standing.join("g", "c", ["t"], {})
        standing._joined["g", "c"].heard_at -= 10
        await standing.join("g", "c", ["t"], {})
        assert node.joins == 2

    run(main)
