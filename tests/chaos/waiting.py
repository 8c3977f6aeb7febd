"""Waiting until a cluster is as it should be. There is nobody who tells: it is asked again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from chaos.load import PARTITIONS
from penstock.client.client import Client
from penstock.client.placement import FindPlacement, Placement
from penstock.errors import PenstockError

PATIENCE_S = 120.0
# The machine has other work meanwhile.
_PAUSE_S = 0.1


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():
            await asyncio.sleep(_PAUSE_S)


async def all_in_sync(client: Client, replicas: int) -> None:
    """All partitions are led, and on so many nodes."""

    async def are() -> bool:
        try:
            placement: Placement = await client._transport.call(FindPlacement(()))
        except PenstockError:
            return False
        parts = [part for topic in placement.topics for part in topic.partitions]
        return len(parts) >= PARTITIONS and all(part.leader and len(part.in_sync) == replicas for part in parts)

    try:
        await until(are)
    except TimeoutError:
        raise AssertionError(f"after {PATIENCE_S:g} s not all partitions are led, and on {replicas} nodes") from None
