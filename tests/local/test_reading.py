"""Reading through the port, below the client's reader, which asks only for what it was told is there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import Event
from typing import Any

import pytest

from penstock.client.requests import CreateTopic
from penstock.clock import SystemClock
from penstock.frame import Frame, FrameRun
from penstock.local.transport import THREADS, LocalTransport
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


def test_many_reads_of_a_slow_disk_hold_up_nothing_that_is_written() -> None:
    async def work() -> None:
        transport = await LocalTransport.open(MemoryFiles, clock=SystemClock())
        may_read = Event()
        try:
            await transport.call(CreateTopic("orders", 1, {}))
            await transport.publish("orders", Message(b"first"), None)
            log = transport.broker.topic("orders").partitions[0].messages
            read = log.read

            def patient(*arguments: Any, **options: Any) -> FrameRun:
                may_read.wait()
                return read(*arguments, **options)

            log.read = patient  # type: ignore[method-assign]
            pages = [asyncio.create_task(transport.read("orders", 0, 0, 1, 1_000)) for _ in range(2 * THREADS)]
            # Too many at once to be written by the event loop itself.
            messages = [transport.publish("orders", Message(b"%d" % number), None) for number in range(10)]
            async with asyncio.timeout(30):
                stored = await asyncio.gather(*messages)
                await transport.call(CreateTopic("others", 1, {}))
            assert [one.offset for one in stored] == list(range(1, 11))
            assert not any(page.done() for page in pages)

            may_read.set()
            assert [page.next_offset for page in await asyncio.gather(*pages)] == [1] * len(pages)
        finally:
            may_read.set()
            await transport.close()

    asyncio.run(work())
