"""Whom a node takes for lost: those that fetched from it, and whose connection has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from penstock.cluster.feeding import Feed, Feeding
from penstock.cluster.tally import Tally
from penstock.cluster.words import Replicate


class Silent:
    """A stream that nothing is sent by."""

    is_open = True

    def __init__(self) -> None:
        self.writable = asyncio.Event()

    def deliver(self, correlation: int, word: object, payload: Sequence[memoryview]) -> None:
        raise AssertionError("nothing was asked for")


class Watched:
    def __init__(self) -> None:
        self.feeding = Feeding({}, lambda: 0, lambda error: None, Tally())
        self.feeding.changed = self._changed
        self.changes: list[dict[str, str]] = []
        self._has_changed = asyncio.Event()

    def _changed(self) -> None:
        self.changes.append(dict(self.feeding.lost))
        self._has_changed.set()

    def open(self, node: str, incarnation: str) -> Feed:
        return self.feeding.open(Silent(), 1, msgspec.msgpack.encode(Replicate(node, "disk", incarnation)))

    async def next_change(self) -> None:
        self._has_changed.clear()
        await self._has_changed.wait()


def test_a_node_is_lost_when_its_connection_ends_and_back_a_while_after_it_has_another() -> None:
    async def main() -> None:
        watched = Watched()
        watched.open("b", "first").close()
        assert watched.changes == [{"b": "first"}]

        watched.open("b", "first")
        assert watched.feeding.lost == {"b": "first"}, "it may come and go"
        await watched.next_change()

        assert watched.changes == [{"b": "first"}, {}]

    asyncio.run(main())


def test_a_node_that_has_opened_another_connection_is_not_lost_with_the_old_one() -> None:
    async def main() -> None:
        watched = Watched()
        old = watched.open("b", "first")
        watched.open("b", "second")

        old.close()

        assert watched.changes == []

    asyncio.run(main())


def test_nobody_is_lost_because_the_doors_are_closed_here() -> None:
    async def main() -> None:
        watched = Watched()
        feed = watched.open("b", "first")
        watched.feeding.end()

        feed.close()

        assert watched.changes == []
        assert watched.feeding.lost == {}

    asyncio.run(main())
