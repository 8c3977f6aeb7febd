"""The same work with a broker in the same process, and with one behind a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from penstock.client.client import Client
from penstock.clock import SystemClock
from penstock.local.transport import LocalTransport
from penstock.storage.files import DiskFiles
from served import served

Work = Callable[[Client, LocalTransport], Awaitable[None]]
Run = Callable[[Path, Work], None]


def embedded(path: Path, work: Work) -> None:
    async def run() -> None:
        site = await LocalTransport.open(partial(DiskFiles, path), clock=SystemClock())
        async with asyncio.timeout(30), Client(site) as client:
            await work(client, site)

    asyncio.run(run())


def connected(path: Path, work: Work) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), served(path) as here, here.client() as client:
            await work(client, here.site)

    asyncio.run(run())


both_ways = pytest.mark.parametrize("run", [embedded, connected], ids=lambda way: way.__name__)
