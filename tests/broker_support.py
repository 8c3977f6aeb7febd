"""A broker for the time of one test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from pyroaring import BitMap64

from penstock.broker.broker import Broker
from penstock.broker.group import Group, Handed, Receipt
from penstock.broker.settings import GroupSettings
from penstock.storage.files import Files
from penstock.testing import ManualClock, MemoryFiles


@asynccontextmanager
async def broker_on(
    files: Files, *, threads: int = 2, executor: Executor | None = None, **options: Any
) -> AsyncIterator[Broker]:
    with executor or ThreadPoolExecutor(threads) as executor:
        broker = await Broker.open(files, clock=ManualClock(), executor=executor, **options)
        try:
            yield broker
        finally:
            await broker.close()


def clock_of(broker: Broker) -> ManualClock:
    clock = broker._clock
    assert isinstance(clock, ManualClock)
    return clock


def rows(handed: list[Handed]) -> list[tuple[Receipt, BitMap64, bytes | None]]:
    """Every message that was handed out: its receipt, its offset alone, its value."""
    found = []
    for receipt, frames in handed:
        for frame in frames:
            batch = frame.batch()
            for offset, value in zip(frame.offsets(batch).tolist(), batch.values(), strict=True):
                if offset in receipt.offsets:
                    found.append((receipt, BitMap64([offset]), value))
    return found


def values(handed: list[Handed]) -> list[bytes | None]:
    return [value for _, _, value in rows(handed)]


async def ack_all(group: Group, handed: list[Handed]) -> None:
    for receipt, _ in handed:
        await group.ack(receipt)


async def group_on(broker: Broker, name: str, topic: str, settings: GroupSettings | None = None) -> Group:
    await broker.create_group(name, settings)
    return broker.group(name, topic)


def run(work: Callable[[Broker], Awaitable[None]], files: Files | None = None, **options: Any) -> None:
    async def main() -> None:
        async with broker_on(files or MemoryFiles(), **options) as broker:
            await work(broker)

    asyncio.run(main())
