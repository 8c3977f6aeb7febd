"""A member leaves where it is counted in, also if the connection to whoever that was is lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from net.routing.fakes import QUICK
from penstock.client.placement import Coordinator
from penstock.errors import ConnectionLost
from penstock.net.routing.place import Place


class Node:
    """As much of a transport as leaving takes. One that is not connected says nothing by itself, to nobody."""

    session = None

    def __init__(self, *, is_gone: bool) -> None:
        self._is_gone = is_gone
        self.left: list[tuple[str, str]] = []

    async def leave(self, group: str, consumer: str) -> None: ...

    async def leave_a_session(self, group: str, consumer: str) -> None:
        if self._is_gone:
            raise ConnectionLost("nobody is there")
        self.left.append((group, consumer))


class Coordinators:
    """The first is gone, and taken for the coordinator for a while."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = list(nodes)

    async def find(self, group: str) -> Coordinator:
        if len(self.nodes) > 1:
            self.nodes.pop(0)
        return Coordinator("a", 1)

    def transport(self, coordinator: Coordinator) -> Any:
        return self.nodes[0]


def test_who_was_cut_off_from_its_coordinator_leaves_at_the_next_one() -> None:
    gone, heir = Node(is_gone=True), Node(is_gone=False)
    coordinators: Any = Coordinators(gone, gone, heir)
    atlas: Any = None

    async def work() -> None:
        place = Place("g", "me", atlas=atlas, coordinators=coordinators, pace=replace(QUICK, leave_s=20.0))
        place._transport = gone  # type: ignore[assignment]
        await place.leave()

    asyncio.run(work())
    assert heir.left == [("g", "me")]
