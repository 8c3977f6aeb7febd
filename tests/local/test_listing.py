"""Listings of dead letters: they end while messages keep dying, and leave the threads of publishes alone."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Any

import pytest

from penstock.broker.dead_letters import DeadLetters
from penstock.broker.settings import GroupSettings
from penstock.client.requests import ListDeadLetters, ListScheduled, Where
from penstock.local.transport import LocalTransport
from penstock.message import Message
from penstock.testing import ManualClock, MemoryFiles

LETTERS, LATER = 3, 50


async def reject_one(transport: LocalTransport) -> None:
    await transport.broker.topic("t").publish(Message(b"bad"))
    ((receipt, _),) = await transport.broker.group("g", "t").lease("c", 1)
    await transport.broker.group("g", "t").reject(receipt, "bad")


async def opened() -> LocalTransport:
    transport = await LocalTransport.open(MemoryFiles, clock=ManualClock(), is_kept=False)
    await transport.broker.create_topic("t", 1)
    await transport.broker.create_group("g", GroupSettings())
    for _ in range(LETTERS):
        await reject_one(transport)
    return transport


def test_a_listing_ends_while_messages_keep_dying(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        later = 0
        write_down = DeadLetters._write_down

        async def one_more(*args: Any) -> None:
            nonlocal later
            await write_down(*args)
            if later < LATER:
                later += 1
                await reject_one(transport)

        monkeypatch.setattr(DeadLetters, "_write_down", one_more)
        transport = await opened()
        letters = await transport.call(ListDeadLetters("t", Where(), False, 100))
        assert len(letters) >= LETTERS
        assert later < LATER, "listed what was rejected since, too"
        await transport.close()

    asyncio.run(main())


def test_listings_use_no_thread_that_publishes_use(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        transport = await opened()
        await transport.broker.settle()
        loop, used = asyncio.get_running_loop(), set[Executor | None]()
        run_in_executor = loop.run_in_executor

        def noted(executor: Executor | None, *args: Any) -> Any:
            used.add(executor)
            return run_in_executor(executor, *args)

        monkeypatch.setattr(loop, "run_in_executor", noted, raising=False)
        assert len(await transport.call(ListDeadLetters("t", Where(), False, 100))) == LETTERS
        assert await transport.call(ListScheduled("t", 10)) == []
        assert used == {transport._readers}
        monkeypatch.undo()
        await transport.close()

    asyncio.run(main())
