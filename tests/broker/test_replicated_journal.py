"""A journal whose log others copy: who is told when, and what is told when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from penstock.broker.disk import Disk
from penstock.broker.journal import Journal
from penstock.errors import DiskFull, LeadershipLost, PenstockError
from penstock.message import Message
from penstock.storage.log import Log
from penstock.testing import Fault, FaultyFiles, ManualClock, MemoryFiles, MemorySyncs, Operation
from support import open_log


class Copied:
    """A journal, and word of what it has on disk here."""

    def __init__(self, log: Log, executor: ThreadPoolExecutor, syncs: MemorySyncs | None = None) -> None:
        self.log = log
        self.failed: list[PenstockError] = []
        self._wrote = asyncio.Event()
        self.journal = Journal(
            log,
            clock=ManualClock(),
            disk=Disk(executor, syncs=syncs),
            loop=asyncio.get_running_loop(),
            failed=self.failed.append,
            wrote=self._wrote.set,
        )

    async def written(self) -> None:
        """Once more since this was last asked."""
        await self._wrote.wait()
        self._wrote.clear()


def run(work: Callable[[Copied], Awaitable[None]], log: Callable[[], Log] = lambda: open_log(MemoryFiles())) -> None:
    """Once with syncs on a thread, and once while the loop goes on."""

    async def main(has_syncs: bool) -> None:
        with ThreadPoolExecutor(1) as executor:
            async with asyncio.timeout(30):
                await work(Copied(log(), executor, MemorySyncs(lambda: 3) if has_syncs else None))

    for has_syncs in (False, True):
        asyncio.run(main(has_syncs))


def test_who_wants_it_on_disk_here_is_told_before_it_is_committed_and_the_others_then() -> None:
    async def work(on: Copied) -> None:
        everywhere = on.journal.commit(Message(b"a"))
        also_here = on.journal.commit(Message(b"b"))
        here = on.journal.on_disk(also_here)
        assert on.journal.on_disk(also_here) is here
        assert (await here).base_offset == 1
        assert on.log.synced_offset == 2
        assert not everywhere.done()
        assert not also_here.done()
        on.journal.committed(1)
        assert not everywhere.done(), "those that were written together are told together"
        on.journal.committed(2)
        assert (everywhere.result().base_offset, also_here.result().base_offset) == (0, 1)
        assert on.journal.on_disk(everywhere) is everywhere

    run(work)


def test_who_asks_when_it_is_on_disk_already_is_told_at_once() -> None:
    async def work(on: Copied) -> None:
        committing = on.journal.commit(Message(b"a"))
        await on.written()
        here = on.journal.on_disk(committing)
        assert here.done()
        assert here.result().base_offset == 0
        assert not committing.done()

    run(work)


def test_a_log_that_nobody_copies_has_one_time_to_tell() -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1) as executor:
            loop, log = asyncio.get_running_loop(), open_log(MemoryFiles())
            journal = Journal(log, clock=ManualClock(), disk=Disk(executor), loop=loop)
            committing = journal.commit(Message(b"a"))
            assert journal.on_disk(committing) is committing
            assert (await committing).base_offset == 0

    asyncio.run(main())


def test_a_journal_that_resigns_fails_those_who_still_wait_and_not_those_who_were_told() -> None:
    async def work(on: Copied) -> None:
        everywhere, other = on.journal.commit(Message(b"a")), on.journal.commit(Message(b"b"))
        here = on.journal.on_disk(other)
        assert (await here).base_offset == 1
        on.journal.resign()
        for waiter in (everywhere, other):
            with pytest.raises(LeadershipLost):
                await waiter
        assert here.result().base_offset == 1
        assert {type(error) for error in on.failed} == {LeadershipLost}
        assert len(on.failed) == 2

    run(work)


def test_what_is_being_written_while_it_resigns_is_not_told_to_be_on_disk() -> None:
    """It is, but of a leader that was one."""
    under_way, may_go_on = Event(), Event()
    is_slow = False

    def before(operation: Operation) -> None:
        if is_slow and operation.kind in ("write", "write_at"):
            under_way.set()
            may_go_on.wait()

    def log() -> Log:
        nonlocal is_slow
        is_slow = False
        under_way.clear()
        may_go_on.clear()
        return open_log(FaultyFiles(MemoryFiles(), before))

    async def work(on: Copied) -> None:
        nonlocal is_slow
        loop = asyncio.get_running_loop()
        is_slow = True
        # More than one turn of the loop is worth: it goes to a thread.
        waiters = [on.journal.commit(Message(bytes(10_000))) for _ in range(50)]
        here = [on.journal.on_disk(waiter) for waiter in waiters]
        await loop.run_in_executor(None, under_way.wait)
        on.journal.resign()
        may_go_on.set()
        for waiter in (*here, *waiters):
            with pytest.raises(LeadershipLost):
                await waiter

    run(work, log)


def test_what_is_being_synced_while_it_resigns_is_not_told_to_be_on_disk_either() -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1) as executor:
            on = Copied(open_log(MemoryFiles()), executor, MemorySyncs(lambda: 10))
            # More than come alone.
            waiters = [on.journal.commit(Message(bytes(10_000))) for _ in range(5)]
            here = [on.journal.on_disk(waiter) for waiter in waiters]
            while on.log.end_offset == 0:
                await asyncio.sleep(0)
            assert on.log.synced_offset == 0
            on.journal.resign()
            for waiter in (*here, *waiters):
                with pytest.raises(LeadershipLost):
                    await waiter
            assert on.log.synced_offset == 5

    asyncio.run(main())


def test_what_could_not_be_written_is_told_although_nothing_is_committed_after_it() -> None:
    is_full = False

    def before(operation: Operation) -> Fault | None:
        return Fault(DiskFull("no space left")) if is_full and operation.kind in ("write", "write_at") else None

    def log() -> Log:
        nonlocal is_full
        is_full = False
        return open_log(FaultyFiles(MemoryFiles(), before))

    async def work(on: Copied) -> None:
        nonlocal is_full
        first = on.journal.commit(Message(b"a"))
        await on.written()
        is_full = True
        second = on.journal.commit(Message(b"b"))
        here = on.journal.on_disk(second)
        with pytest.raises(DiskFull):
            await here
        assert not second.done(), "not ahead of what came before it"
        on.journal.committed(1)
        assert first.result().base_offset == 0
        with pytest.raises(DiskFull):
            await second
        with pytest.raises(DiskFull):
            await on.journal.commit(Message(b"c"))

    run(work, log)


def test_what_is_committed_before_its_own_writing_is_told_is_told_then() -> None:
    """Others that were written before it have already told how far the disk is."""

    async def work(on: Copied) -> None:
        on.journal.committed(1)
        committing = on.journal.commit(Message(b"a"))
        assert (await committing).base_offset == 0

    run(work)
