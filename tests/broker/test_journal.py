from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, current_thread, main_thread

import pytest

from penstock.broker.disk import Disk
from penstock.broker.journal import Journal
from penstock.errors import DeviceFailed, DiskFull, InvalidMessage
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
        journal = Journal(log, clock=ManualClock(), disk=Disk(executor), loop=asyncio.get_running_loop())
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
        journal = Journal(log, clock=ManualClock(), disk=Disk(executor), loop=asyncio.get_running_loop())
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
        journal = Journal(log, clock=ManualClock(), disk=Disk(executor), loop=asyncio.get_running_loop())
        outcomes = await asyncio.gather(*[journal.commit(Message(b"x")) for _ in range(5)], return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {DiskFull}
        with pytest.raises(InvalidMessage):
            journal.commit(Message(b"x", timestamp=-1))

    asyncio.run(main())


def test_giving_up_waiting_does_not_undo_the_commit(log: Log, executor: ThreadPoolExecutor) -> None:
    async def main() -> None:
        journal = Journal(log, clock=ManualClock(), disk=Disk(executor), loop=asyncio.get_running_loop())
        waiting = journal.commit(Message(b"a"))
        waiting.cancel()
        await journal.commit(Message(b"b"))

    asyncio.run(main())
    assert values_of(log) == [b"a", b"b"]


# --- who writes ---------------------------------------------------------------------------------------------


class Watched:
    """A log whose syncs say on which thread they were, and may take their time."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.slow_us = 0
        self.threads: list[str] = []
        self.log = open_log(FaultyFiles(MemoryFiles(), self._before))
        self.threads.clear()

    def _before(self, operation: Operation) -> None:
        if operation.kind == "sync":
            self.threads.append("loop" if current_thread() is main_thread() else "pool")
            self.clock.advance_us(self.slow_us)

    def journal(self, executor: ThreadPoolExecutor, disk: Disk | None = None) -> Journal:
        loop = asyncio.get_running_loop()
        return Journal(self.log, clock=self.clock, disk=disk or Disk(executor), loop=loop)


async def at_rest(executor: ThreadPoolExecutor) -> None:
    """The one thread has nothing to do: what comes now does not find it still looking for more."""
    await asyncio.get_running_loop().run_in_executor(executor, int)


def test_what_comes_alone_is_written_on_the_loop_and_what_comes_with_many_others_on_a_thread(
    executor: ThreadPoolExecutor,
) -> None:
    watched = Watched()

    async def main() -> None:
        journal = watched.journal(executor)
        await journal.commit(Message(b"alone"))
        assert watched.threads == ["loop"]
        await asyncio.gather(*[journal.commit(Message(b"%d" % i)) for i in range(5)])
        assert set(watched.threads[1:]) == {"pool"}
        await journal.commit(frame_of(b"x" * 100_000))
        assert watched.threads[-1] == "pool", "a large one keeps the loop too long"

    asyncio.run(main())
    assert len(values_of(watched.log)) == 7


def test_a_slow_disk_is_left_to_threads_until_it_is_fast_again(executor: ThreadPoolExecutor) -> None:
    watched = Watched()

    async def main() -> None:
        journal = watched.journal(executor)
        watched.slow_us = 5_000
        for _ in range(3):
            await journal.commit(Message(b"x"))
        assert watched.threads == ["loop", "pool", "pool"]
        watched.slow_us = 10
        while watched.threads[-1] == "pool":
            assert len(watched.threads) < 50
            await at_rest(executor)
            await journal.commit(Message(b"x"))
        assert len(watched.threads) > 10, "one fast one does not make a fast disk"

    asyncio.run(main())


def test_nobody_waits_on_the_loop_while_another_log_is_being_written(executor: ThreadPoolExecutor) -> None:
    watched, other = Watched(), Watched()

    async def main() -> None:
        disk = Disk(executor)
        one, two = watched.journal(executor, disk), other.journal(executor, disk)
        await asyncio.gather(one.commit(Message(b"a")), two.commit(Message(b"b")))
        # The first sees the second under way; the second is left alone, or not, by the first.
        assert watched.threads == ["pool"]
        await at_rest(executor)
        await two.commit(Message(b"c"))
        assert other.threads[-1] == "loop"

    asyncio.run(main())


def test_a_log_that_somebody_else_is_writing_is_left_to_a_thread(executor: ThreadPoolExecutor) -> None:
    watched = Watched()
    held, go_on = Event(), Event()

    def maintain() -> None:
        with watched.log.writing:
            held.set()
            go_on.wait()

    async def main() -> None:
        with ThreadPoolExecutor(1) as maintenance:
            working = maintenance.submit(maintain)
            held.wait()
            commit = watched.journal(executor).commit(Message(b"a"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not commit.done()
            go_on.set()
            await commit
            working.result()
        assert watched.threads == ["pool"]

    asyncio.run(main())


def test_a_failure_on_the_loop_is_told_as_one_on_a_thread(executor: ThreadPoolExecutor) -> None:
    def before(operation: Operation) -> Fault | None:
        return Fault(DeviceFailed("input/output error")) if state["broken"] and operation.kind == "sync" else None

    state = {"broken": False}
    log = open_log(FaultyFiles(MemoryFiles(), before))
    state["broken"] = True

    async def main() -> None:
        told: list[str] = []
        loop = asyncio.get_running_loop()
        journal = Journal(
            log, clock=ManualClock(), disk=Disk(executor), loop=loop, failed=lambda error: told.append(error.code)
        )
        with pytest.raises(DeviceFailed):
            await journal.commit(Message(b"a"))
        assert told == [DeviceFailed.code]
        await journal.settled()

    asyncio.run(main())


def test_a_clock_that_was_set_back_does_not_make_a_slow_disk_a_fast_one(executor: ThreadPoolExecutor) -> None:
    async def main() -> None:
        disk = Disk(executor)
        disk.took(-3_600_000_000, True)
        assert disk.may_be_kept_waiting(1, 100, True)
        disk.took(20_000, True)
        assert not disk.may_be_kept_waiting(1, 100, True)

    asyncio.run(main())
