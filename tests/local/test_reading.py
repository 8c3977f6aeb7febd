"""Reading through the port, below the client's reader, which asks only for what it was told is there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock.client.requests import CreateTopic
from penstock.clock import SystemClock
from penstock.frame import Frame
from penstock.local.transport import LocalTransport
from penstock.message import Message
from penstock.testing import MemoryFiles

FOR_EVER = 1 << 60


@pytest.mark.parametrize("columns", [None, ("key",)])
def test_what_is_not_on_disk_yet_is_not_given_out(columns: Sequence[str] | None) -> None:
    async def work() -> None:
        transport = await LocalTransport.open(MemoryFiles, clock=SystemClock())
        try:
            await transport.call(CreateTopic("orders", 1, {}))
            await transport.publish("orders", Message(b"first"), None)
            log = transport.broker.topic("orders").partitions[0].messages
            log.append([Frame.of_messages([Message(b"second")], now_us=1)])
            assert log.end_offset == 2
            page = await transport.read("orders", 0, 0, FOR_EVER, 1_000, columns)
            assert [frame.base_offset for frame in page.frames] == [0]
            page = await transport.read("orders", 0, 1, FOR_EVER, 1_000, columns)
            assert (page.frames, page.next_offset) == ([], 1)
            log.sync()
            page = await transport.read("orders", 0, 1, FOR_EVER, 1_000, columns)
            assert [frame.base_offset for frame in page.frames] == [1]
        finally:
            await transport.close()

    asyncio.run(work())
