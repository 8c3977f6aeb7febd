from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.broker.journal import Journal
from penstock.errors import DiskFull, InvalidMessage
from penstock.message import Message
from penstock.storage.log import Log
from penstock.testing import Fault, FaultyFiles, ManualClock, MemoryFiles, Operation
from support import frame_of, open_log, values_of


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def log() -> Log:
    return open_log(MemoryFiles())


def test_a_commit_is_awaited_until_it_is_on_disk(log: Log, executor: ThreadPoolExecutor) -> None:
    async def main() -> None:
        journal = Journal(log, clock=ManualClock(), executor=executor, loop=asyncio.get_running_loop())
        committed = await journal.commit(frame_of(b"a", b"b"))
        assert committed.base_offset == 0
        assert log.synced_offset == 2
        assert (await journal.commit(Message(b"c"))).base_offset == 2

    asyncio.run(main())
    assert values_of(log) == [b"a", b"b", b"c"]


def test_many_tasks_commit_at_once_in_far_fewer_syncs(executor: ThreadPoolExecutor) -> None:
    syncs = 0

    def before(operation: Operation) -> None:
        nonlocal syncs
        syncs += operation.kind == "sync"

    log = open_log(FaultyFiles(MemoryFiles(), before))

    async def main() -> None:
        journal = Journal(log, clock=ManualClock(), executor=executor, loop=asyncio.get_running_loop())
        results = await asyncio.gather(*[journal.commit(Message(b"%d" % i)) for i in range(500)])
        assert [result.base_offset for result in results] == list(range(500))

    asyncio.run(main())
    assert values_of(log) == [b"%d" % i for i in range(500)]
    assert syncs < 250


def test_an_error_reaches_everyone_who_waits(executor: ThreadPoolExecutor) -> None:
    state = {"full": False}

    def before(operation: Operation) -> Fault | None:
        return Fault(DiskFull("no space left")) if state["full"] and operation.kind == "write" else None

    log = open_log(FaultyFiles(MemoryFiles(), before))
    state["full"] = True

    async def main() -> None:
        journal = Journal(log, clock=ManualClock(), executor=executor, loop=asyncio.get_running_loop())
        outcomes = await asyncio.gather(*[journal.commit(Message(b"x")) for _ in range(5)], return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {DiskFull}
        with pytest.raises(InvalidMessage):
            journal.commit(Message(b"x", timestamp=-1))

    asyncio.run(main())


def test_giving_up_waiting_does_not_undo_the_commit(log: Log, executor: ThreadPoolExecutor) -> None:
    async def main() -> None:
        journal = Journal(log, clock=ManualClock(), executor=executor, loop=asyncio.get_running_loop())
        waiting = journal.commit(Message(b"a"))
        waiting.cancel()
        await journal.commit(Message(b"b"))

    asyncio.run(main())
    assert values_of(log) == [b"a", b"b"]
