"""A queue for each test: the real broker on a disk in memory, with a clock that moves when told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from penstock.client.client import Client
from penstock.client.transport import Transport
from penstock.local.transport import LocalTransport
from penstock.storage.files import Files
from penstock.testing import ManualClock, ManualTimers, MemoryFiles, VirtualClock, VirtualQueue

RunClient = Callable[..., None]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def queue(clock: VirtualClock) -> Iterator[VirtualQueue]:
    with VirtualQueue(clock) as opened:
        opened.create_topic("orders", partitions=1)
        yield opened


@pytest.fixture
def run_client() -> RunClient:
    """Runs `work(client)` on an event loop of its own; `through` may put something between client and broker."""

    def run(
        work: Callable[[Client], Awaitable[None]],
        *,
        files: Files | None = None,
        clock: ManualClock | None = None,
        through: Callable[[LocalTransport], Transport] = lambda transport: transport,
        **options: Any,
    ) -> None:
        async def main() -> None:
            transport = await LocalTransport.open(
                partial(lambda given: given or MemoryFiles(), files),
                clock=clock or ManualClock(),
                timers=ManualTimers(),
                is_kept=False,
                **options,
            )
            async with Client(through(transport)) as client:
                await work(client)

        asyncio.run(main())

    return run
