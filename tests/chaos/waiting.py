"""Waiting until a cluster is as it should be. No event says so: the cluster is asked repeatedly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from chaos.load import PARTITIONS
from penstock.client.client import Client
from penstock.client.placement import FindPlacement, Placed, Placement
from penstock.errors import PenstockError

PATIENCE_S = 120.0
# The machine has other work meanwhile.
_PAUSE_S = 0.1


async def until(holds: Callable[[], Awaitable[bool]], patience_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(patience_s):
        while not await holds():
            await asyncio.sleep(_PAUSE_S)


async def placed(client: Client) -> dict[str, tuple[Placed, ...]] | None:
    """The partitions of each topic; None if no node answers."""
    try:
        placement: Placement = await client._transport.call(FindPlacement(()))
    except PenstockError:
        return None
    return {topic.name: topic.partitions for topic in placement.topics}


async def all_in_sync(client: Client, nodes: Collection[str] | None = None, patience_s: float = PATIENCE_S) -> None:
    """All partitions are led, and in sync on these nodes, or, without `nodes`, on all nodes that have replicas."""

    async def are() -> bool:
        parts = [part for topic in (await placed(client) or {}).values() for part in topic]
        return len(parts) >= PARTITIONS and all(
            part.leader and set(part.in_sync) == set(part.replicas if nodes is None else nodes) for part in parts
        )

    try:
        await until(are, patience_s)
    except TimeoutError:
        where = "all their replicas" if nodes is None else " ".join(nodes)
        raise AssertionError(f"after {patience_s:g} s not all partitions are led, and in sync on {where}") from None
