"""Asking again for what this node does not know of yet."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import GroupNotFound, InvalidInput, TopicNotFound
from penstock.server.forwarding.catching_up import CatchingUp


class Node:
    """Knows of a topic after so many refreshes."""

    def __init__(self, after: int) -> None:
        self._after = after
        self.refreshed = 0
        self.catching_up = CatchingUp(self.refresh)

    async def refresh(self) -> None:
        await asyncio.sleep(0)
        self.refreshed += 1

    async def ask(self) -> str:
        if self.refreshed < self._after:
            raise TopicNotFound("there is no such topic")
        return "found"


def test_it_is_asked_once_more_when_all_that_was_made_is_known() -> None:
    async def work() -> None:
        node = Node(1)
        assert await node.catching_up.found(node.ask) == "found"
        assert await node.catching_up.found(node.ask) == "found"
        assert node.refreshed == 1

    asyncio.run(work())


def test_what_is_not_there_then_is_not_there() -> None:
    async def work() -> None:
        node = Node(99)
        with pytest.raises(TopicNotFound):
            await node.catching_up.found(node.ask)
        assert node.refreshed == 1

    asyncio.run(work())


def test_one_read_serves_all_who_wait_for_it_but_none_that_began_before() -> None:
    async def work() -> None:
        node = Node(99)
        asking = [asyncio.ensure_future(node.catching_up.found(node.ask)) for _ in range(50)]
        await asyncio.sleep(0)
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {TopicNotFound}
        assert node.refreshed <= 2

    asyncio.run(work())


def test_other_errors_are_told_as_they_are() -> None:
    async def work() -> None:
        node = Node(0)

        async def odd() -> None:
            raise InvalidInput("odd")

        with pytest.raises(InvalidInput):
            await node.catching_up.found(odd)

        async def nobody() -> None:
            raise GroupNotFound("gone")

        with pytest.raises(GroupNotFound):
            await node.catching_up.found(nobody)
        assert node.refreshed == 1

    asyncio.run(work())
