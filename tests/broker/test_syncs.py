"""A journal whose event loop writes what is little, and goes on while it is synced."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.broker.disk import SMALL_BYTES, Disk
from penstock.broker.journal import Journal
from penstock.errors import DiskFull, Fatal, LogClosed, SyncFailed
from penstock.message import Message
from penstock.storage.log import Log, LogSettings
from penstock.storage.mark import read_mark
from penstock.testing import Fault, FaultyFiles, ManualClock, MemoryFiles, MemorySyncs, Operation
from support import frame_of, open_log, values_of


class Bench:
    """Syncs take `turns` of the loop; `by` are the threads that wrote, and those that synced."""

    def __init__(self, executor: ThreadPoolExecutor, turns: int = 3) -> None:
        self.fault: dict[str, Fault] = {}
        self.by: dict[str, list[threading.Thread]] = {"write": [], "sync": []}
        self.files = MemoryFiles()
        self.log = open_log(FaultyFiles(self.files, self._before), settings=LogSettings(256 * 1024))
        self.disk = Disk(executor, lone_writes=False, syncs=MemorySyncs(lambda: turns))
        self.journal = self.journal_of(self.log)
        self.by = {"write": [], "sync": []}

    def journal_of(self, log: Log) -> Journal:
        return Journal(log, clock=ManualClock(), disk=self.disk, loop=asyncio.get_running_loop())

    async def no_thread_is_at_it(self) -> None:
        """One that has written looks for more before it ends."""
        while self.journal._commits._is_running:
            await asyncio.sleep(0.001)

    def _before(self, operation: Operation) -> Fault | None:
        if not operation.name.endswith(".log"):
            return None
        kind = operation.kind.removesuffix("_at")
        self.by.setdefault(kind, []).append(threading.current_thread())
        return self.fault.get(kind)


def on_a_bench(work: Callable[[Bench], Coroutine[Any, Any, None]], turns: int = 3) -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1) as executor:
            await work(Bench(executor, turns))

    asyncio.run(main())


def test_a_commit_is_told_when_it_is_on_disk_and_no_thread_has_to_do_with_it() -> None:
    async def work(bench: Bench) -> None:
        committing = bench.journal.commit(Message(b"a"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (bench.log.end_offset, bench.log.synced_offset) == (1, 0)
        assert not committing.done()
        assert (await committing).base_offset == 0
        assert bench.log.synced_offset == 1
        assert bench.by == {"write": [threading.current_thread()], "sync": [threading.current_thread()]}
        await asyncio.sleep(0)
        mark = read_mark(bench.files, bench.log.log_id)
        assert mark is not None
        assert mark.next_offset == 1

    on_a_bench(work)


def test_what_comes_while_it_is_synced_is_written_together_afterwards() -> None:
    async def work(bench: Bench) -> None:
        first = bench.journal.commit(Message(b"0"))
        for _ in range(3):
            await asyncio.sleep(0)
        more = [bench.journal.commit(Message(b"%d" % number)) for number in range(1, 40)]
        assert not first.done()
        results = await asyncio.gather(first, *more)
        assert [result.base_offset for result in results] == list(range(40))
        assert len(bench.by["sync"]) == 2
        assert values_of(bench.log) == [b"%d" % number for number in range(40)]
        assert bench.disk.under_way == 0
        await bench.journal.settled()

    on_a_bench(work, turns=10)


def test_several_logs_are_synced_at_the_same_time() -> None:
    async def work(bench: Bench) -> None:
        logs = [open_log(MemoryFiles()) for _ in range(5)]
        journals = [bench.journal_of(log) for log in logs]
        committing = [journal.commit(Message(b"x")) for journal in journals]
        turns = 0
        while not all(one.done() for one in committing):
            await asyncio.sleep(0)
            turns += 1
        assert turns < 40
        assert [log.synced_offset for log in logs] == [1] * 5

    on_a_bench(work, turns=20)


def test_what_is_much_is_left_to_a_thread_and_the_next_little_one_is_not() -> None:
    async def work(bench: Bench) -> None:
        await bench.journal.commit(frame_of(b"x" * SMALL_BYTES))
        assert bench.by["sync"][-1] is not threading.current_thread()
        await bench.no_thread_is_at_it()
        await bench.journal.commit(frame_of(b"x"))
        assert bench.by["sync"][-1] is threading.current_thread()

    on_a_bench(work)


def test_a_log_that_somebody_else_is_writing_is_left_to_a_thread() -> None:
    async def work(bench: Bench) -> None:
        is_held, is_over = threading.Event(), threading.Event()

        def hold() -> None:
            with bench.log.writing:
                is_held.set()
                is_over.wait()

        def held() -> threading.Thread:
            holding = threading.Thread(target=hold)
            holding.start()
            is_held.wait()
            return holding

        # Before it is written, and while it is synced.
        for turns in (0, 4):
            await bench.no_thread_is_at_it()
            is_held.clear()
            is_over.clear()
            holding = held() if not turns else None
            committing = bench.journal.commit(Message(b"x"))
            for _ in range(turns):
                await asyncio.sleep(0)
            holding = holding or held()
            await asyncio.sleep(0.02)
            assert not committing.done()
            is_over.set()
            await committing
            holding.join()
        assert bench.log.synced_offset == 2

    on_a_bench(work, turns=10)


def test_a_full_disk_is_told_and_what_comes_after_it_succeeds() -> None:
    async def work(bench: Bench) -> None:
        bench.fault["write"] = Fault(DiskFull("no room"))
        outcomes = await asyncio.gather(
            *[bench.journal.commit(Message(b"x")) for _ in range(3)], return_exceptions=True
        )
        assert {type(outcome) for outcome in outcomes} == {DiskFull}
        bench.fault.clear()
        assert (await bench.journal.commit(Message(b"y"))).base_offset == 0
        assert bench.disk.under_way == 0

    on_a_bench(work)


def test_a_sync_that_fails_is_heard_by_all_who_wait_and_by_those_behind_them() -> None:
    async def work(bench: Bench) -> None:
        bench.fault["sync"] = Fault(SyncFailed("fdatasync: Input/output error"))
        first = bench.journal.commit(Message(b"x"))
        for _ in range(3):
            await asyncio.sleep(0)
        second = bench.journal.commit(Message(b"y"))
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {SyncFailed}
        bench.fault.clear()
        with pytest.raises(SyncFailed):
            await bench.journal.commit(Message(b"z"))
        assert bench.log.synced_offset == 0
        assert bench.disk.under_way == 0

    on_a_bench(work)


def test_a_log_that_is_closed_meanwhile_is_not_waited_for_in_vain() -> None:
    async def work(bench: Bench) -> None:
        committing = bench.journal.commit(Message(b"x"))
        for _ in range(3):
            await asyncio.sleep(0)
        bench.log.close()
        with pytest.raises(LogClosed):
            await committing
        await bench.journal.settled()

    on_a_bench(work, turns=10)


def test_syncs_that_are_there_no_more_are_done_by_threads() -> None:
    async def work(bench: Bench) -> None:
        committing = bench.journal.commit(Message(b"x"))
        for _ in range(3):
            await asyncio.sleep(0)
        bench.disk.close()
        await committing
        await bench.journal.commit(Message(b"y"))
        assert bench.by["sync"][0] is threading.current_thread()
        assert bench.by["sync"][1] is not threading.current_thread()

    on_a_bench(work, turns=100)


def test_a_new_segment_is_made_by_a_thread() -> None:
    async def work(bench: Bench) -> None:
        await bench.journal.commit(frame_of(b"x" * 250 * 1024))
        await bench.no_thread_is_at_it()
        before = len(bench.log.segments)
        await bench.journal.commit(frame_of(b"x" * 10 * 1024))
        assert len(bench.log.segments) == before + 1
        assert threading.current_thread() not in bench.by["sync"]

    on_a_bench(work)


@pytest.mark.parametrize("where", ["write", "sync", "begin"])
def test_a_bug_is_told_to_those_who_wait_and_the_next_are_not_stuck(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(bench: Bench) -> None:
        def fail(*arguments: Any) -> None:
            raise ValueError("a bug")

        owner, name = {"write": (Log, "append"), "sync": (Log, "sync"), "begin": (Log, "unsynced")}[where]
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            # By a thread, and by the loop.
            for size in (SMALL_BYTES, 1):
                committing = bench.journal.commit(frame_of(b"x" * size))
                if (where, size) in (("sync", 1), ("begin", SMALL_BYTES)):
                    await committing
                else:
                    with pytest.raises(Fatal, match="a bug"):
                        await committing
                await bench.no_thread_is_at_it()
        await bench.journal.commit(Message(b"y"))
        assert bench.disk.under_way == 0

    on_a_bench(work)


def test_without_a_pool_of_threads_nobody_waits_in_vain() -> None:
    async def work(bench: Bench) -> None:
        is_held, is_over = threading.Event(), threading.Event()

        def hold() -> None:
            with bench.log.writing:
                is_held.set()
                is_over.wait()

        committing = bench.journal.commit(Message(b"x"))
        for _ in range(3):
            await asyncio.sleep(0)
        bench.disk.executor.shutdown()
        holding = threading.Thread(target=hold)
        holding.start()
        is_held.wait()
        with pytest.raises(LogClosed):
            await committing
        is_over.set()
        holding.join()

    on_a_bench(work, turns=10)
