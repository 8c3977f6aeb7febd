"""Which node looks after the members of which group, as far as is known here. A larger term is a later coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.client.placement import Coordinator, FindCoordinator
from penstock.client.transport import Transport
from penstock.errors import NotCoordinator, PenstockError
from penstock.net.routing.failures import is_misplaced, is_unknown
from penstock.net.routing.nodes import Nodes
from penstock.net.routing.pace import Attempts, Pace

R = TypeVar("R")


class Coordinators:
    """Belongs to one event loop."""

    def __init__(self, nodes: Nodes, pace: Pace, refresh: Callable[[], Awaitable[None]]) -> None:
        """`refresh` asks which nodes there are."""
        self._nodes = nodes
        self._pace = pace
        self._refresh = refresh
        self._known: dict[str, Coordinator] = {}
        self._flights: dict[str, asyncio.Task[Coordinator]] = {}

    async def find(self, group: str) -> Coordinator:
        """Asks. One question at a time serves all who ask the same."""
        flight = self._flights.get(group)
        if flight is None:
            flight = self._flights[group] = asyncio.get_running_loop().create_task(self._ask(group))
            flight.add_done_callback(lambda flight: self._landed(group, flight))
        return await asyncio.shield(flight)

    def _landed(self, group: str, flight: asyncio.Task[Coordinator]) -> None:
        self._flights.pop(group, None)
        if not flight.cancelled():
            # Its callers may all have given up waiting.
            flight.exception()

    async def _ask(self, group: str) -> Coordinator:
        term = self._known[group].term if group in self._known else 0
        # A node that does not reach etcd counts only if no other node answers: the coordinator that it names may tell
        # its decisions to leaders that were.
        found = await self._nodes.look(FindCoordinator(group), lambda one: one.term >= term and not one.is_cut_off)
        if found.term >= term:
            self._known[group] = Coordinator(found.node, found.term)
        known = self._known[group]
        if known.node and known.node not in self._nodes.ids:
            await self._refresh()
        return known

    async def ask(self, group: str, ask: Callable[[Transport], Awaitable[R]]) -> tuple[Coordinator, R]:
        """Until it is answered: for what may be asked twice. Who answered, and what."""
        attempts = Attempts(self._pace)
        doubted: Coordinator | None = None
        last: PenstockError | None = None
        while True:
            known = self._known.get(group)
            if known is None or known == doubted:
                try:
                    known = await self.find(group)
                except PenstockError as error:
                    if not (is_misplaced(error) or is_unknown(error)):
                        raise
                    await attempts.pause(error)
                    continue
            if known == doubted and last is not None:
                await attempts.pause(last)
                self._nodes.wander()
            doubted = known
            try:
                if not known.node:
                    raise NotCoordinator(f"nobody looks after the members of group {group} yet", group=group)
                return known, await ask(self._nodes.of(known.node))
            except PenstockError as error:
                if not (is_misplaced(error) or is_unknown(error)):
                    raise
                last = error

    def transport(self, coordinator: Coordinator) -> Transport | None:
        """None if there is none."""
        return self._nodes.of(coordinator.node) if coordinator.node in self._nodes.ids else None

    async def close(self) -> None:
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
