"""Listings of dead letters: they end while messages keep dying, and leave the threads of publishes alone."""

from __future__ import annotations

import asyncio
import tracemalloc
from concurrent.futures import Executor
from typing import Any

import pytest

from penstock.batch import Batch
from penstock.broker.dead_letters import DeadLetters
from penstock.broker.settings import GroupSettings
from penstock.client.requests import ListDeadLetters, Listed, ListScheduled, Where
from penstock.errors import InvalidInput, LimitReached
from penstock.limits import MIB
from penstock.local.paging import BYTES_MAX, UNPAGED_MAX
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


SIZE, DELAYED = MIB // 4, 100


def test_a_listing_of_scheduled_messages_holds_no_more_of_them_than_a_page() -> None:
    async def main() -> None:
        clock = ManualClock()
        transport = await LocalTransport.open(MemoryFiles, clock=clock, is_kept=False)
        topic = await transport.broker.create_topic("t", 2)
        due_us = clock.now_us() + 3_600_000_000
        for n in range(DELAYED):
            message = Message(b"%d" % n + bytes(SIZE), deliver_at=due_us - n)
            await topic.publish_batch(Batch.from_messages([message], clock.now_us()), n % 2)
        found: list[bytes] = []
        after = ""
        tracemalloc.start()
        while True:
            page = await transport.call(ListScheduled("t", DELAYED, after=after))
            assert isinstance(page, Listed)
            assert sum(one.message.size for one in page.items) <= BYTES_MAX
            found += [(one.message.value or b"").rstrip(b"\0") for one in page.items]
            after = page.next
            del page
            if not after:
                break
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert found == [b"%d" % n for n in reversed(range(DELAYED))]
        # A page, and what is read of the log at once.
        assert peak <= BYTES_MAX + 6 * MIB < DELAYED * SIZE
        await transport.close()

    asyncio.run(main())


def test_limits_of_listings_without_pages_are_checked() -> None:
    async def main() -> None:
        transport = await opened()
        for limit in (-1, -(10**9)):
            with pytest.raises(InvalidInput):
                await transport.call(ListScheduled("t", limit))
            with pytest.raises(InvalidInput):
                await transport.call(ListDeadLetters("t", Where(), False, limit))
        due_us = transport.now_us() + 3_600_000_000
        batch = Batch.from_messages([Message(b"x", deliver_at=due_us)] * (UNPAGED_MAX + 1), 1)
        await transport.broker.topic("t").publish_batch(batch)
        assert len(await transport.call(ListScheduled("t", UNPAGED_MAX))) == UNPAGED_MAX
        with pytest.raises(LimitReached):
            await transport.call(ListScheduled("t", 10**9))
        await transport.close()

    asyncio.run(main())
