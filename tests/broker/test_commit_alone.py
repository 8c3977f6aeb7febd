"""What comes alone is on disk when the call returns; what does not is left to the way of all others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from penstock.broker.disk import Disk
from penstock.broker.journal import Journal
from penstock.errors import DeviceFailed, DiskFull, PenstockError
from penstock.message import Message
from penstock.storage.commit import Committed, GroupCommit, Outcome
from penstock.storage.log import Log
from penstock.storage.mark import read_mark
from penstock.testing import Fault, FaultyFiles, ManualClock, MemoryFiles, Operation
from support import frame_of, open_log, values_of

SECOND_US = 1_000_000


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def journal_of(log: Log, disk: Disk, **told: Callable[..., None]) -> Journal:
    return Journal(log, clock=ManualClock(), disk=disk, loop=asyncio.get_running_loop(), **told)  # type: ignore[arg-type]


def test_it_is_on_disk_when_the_call_returns_and_others_hear_of_it_afterwards(executor: ThreadPoolExecutor) -> None:
    files = MemoryFiles()
    log = open_log(files)
    rung: list[int] = []

    async def main() -> None:
        journal = journal_of(log, Disk(executor), told=lambda: rung.append(log.synced_offset))
        assert journal.commit_alone(frame_of(b"a")) == Committed(0, log.last_append_time)
        assert log.synced_offset == 1
        assert rung == []
        await asyncio.sleep(0)
        assert rung == [1]
        mark = read_mark(files, log.log_id)
        assert mark is not None
        assert mark.next_offset == 1
        assert (await journal.commit(Message(b"b"))).base_offset == 1
        await journal.settled()

    asyncio.run(main())
    assert values_of(log) == [b"a", b"b"]


def test_what_waits_for_the_same_log_or_another_one_goes_first(executor: ThreadPoolExecutor) -> None:
    log, other = open_log(MemoryFiles()), open_log(MemoryFiles())

    async def main() -> None:
        disk = Disk(executor)
        journal, another = journal_of(log, disk), journal_of(other, disk)
        first = journal.commit(Message(b"a"))
        assert journal.commit_alone(frame_of(b"b")) is None
        assert another.commit_alone(frame_of(b"b")) is None
        assert (await first).base_offset == 0
        assert journal.commit_alone(frame_of(b"b")) is not None
        assert another.commit_alone(frame_of(b"b")) is not None

    asyncio.run(main())
    assert values_of(log) == [b"a", b"b"]
    assert values_of(other) == [b"b"]


def test_the_loop_is_not_kept_waiting_for_a_large_frame_a_slow_disk_or_when_told_not_to(
    executor: ThreadPoolExecutor,
) -> None:
    log = open_log(MemoryFiles())

    async def main() -> None:
        disk = Disk(executor)
        journal = journal_of(log, disk)
        assert journal.commit_alone(frame_of(b"x" * 100_000)) is None
        assert journal_of(log, Disk(executor, lone_writes=False)).commit_alone(frame_of(b"x")) is None
        disk.took(20_000, True)
        assert journal.commit_alone(frame_of(b"x")) is None

    asyncio.run(main())
    assert log.end_offset == 0


def test_a_log_that_others_have_copies_of_is_not_answered_for_alone(executor: ThreadPoolExecutor) -> None:
    log = open_log(MemoryFiles())

    async def main() -> None:
        journal = journal_of(log, Disk(executor), wrote=lambda: None)
        assert journal.commit_alone(frame_of(b"x")) is None

    asyncio.run(main())
    assert log.end_offset == 0


def test_a_log_that_somebody_else_is_writing_is_not_waited_for(executor: ThreadPoolExecutor) -> None:
    log = open_log(MemoryFiles())
    held, go_on = Event(), Event()

    def maintain() -> None:
        with log.writing:
            held.set()
            go_on.wait()

    async def main() -> None:
        journal = journal_of(log, Disk(executor))
        with ThreadPoolExecutor(1) as maintenance:
            working = maintenance.submit(maintain)
            held.wait()
            assert journal.commit_alone(frame_of(b"a")) is None
            go_on.set()
            working.result()
        assert journal.commit_alone(frame_of(b"a")) is not None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "error", "is_over"), [("write", DiskFull("full"), False), ("sync", DeviceFailed("broken"), True)]
)
def test_what_fails_is_raised_and_told_as_if_it_had_been_waited_for(
    executor: ThreadPoolExecutor, kind: str, error: PenstockError, is_over: bool
) -> None:
    fails = False

    def before(operation: Operation) -> Fault | None:
        return Fault(error) if fails and operation.kind == kind else None

    log = open_log(FaultyFiles(MemoryFiles(), before))
    told: list[str] = []

    async def main() -> None:
        nonlocal fails
        journal = journal_of(log, Disk(executor), failed=lambda error: told.append(error.code))
        fails = True
        with pytest.raises(type(error)):
            journal.commit_alone(frame_of(b"a"))
        assert told == [error.code]
        fails = False
        if is_over:
            # Nobody knows what is on disk: nothing is written any more.
            with pytest.raises(type(error)):
                journal.commit_alone(frame_of(b"b"))
            with pytest.raises(type(error)):
                await journal.commit(frame_of(b"b"))
        else:
            assert journal.commit_alone(frame_of(b"b")) == Committed(0, log.last_append_time)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert log.synced_offset == (0 if is_over else 1)


def test_where_writing_is_enough_it_is_written_and_synced_in_time_however_slow_syncs_are(
    executor: ThreadPoolExecutor,
) -> None:
    log = open_log(MemoryFiles())
    log.sync_within(1_000)

    async def main() -> None:
        disk = Disk(executor)
        disk.took(SECOND_US, True)
        journal = journal_of(log, disk)
        assert journal.commit_alone(frame_of(b"a")) is not None
        assert (log.synced_offset, log.committed_offset) == (0, 1)
        while log.synced_offset < 1:
            await asyncio.sleep(0)
        disk.took(SECOND_US, False)
        assert journal.commit_alone(frame_of(b"b")) is None
        await journal.stop()

    asyncio.run(main())


def test_what_other_threads_hand_in_meanwhile_is_written_behind_it() -> None:
    told: list[tuple[str, Outcome]] = []
    handed_in = False

    def before(operation: Operation) -> None:
        nonlocal handed_in
        if operation.kind == "sync" and not handed_in:
            handed_in = True
            with ThreadPoolExecutor(1) as thread:
                thread.submit(commits.commit, "other", Message(b"b")).result()
                assert thread.submit(commits.commit_alone, "third", frame_of(b"c")).result() is None

    handed_in = True
    log = open_log(FaultyFiles(MemoryFiles(), before))
    commits: GroupCommit[str] = GroupCommit(log, clock=ManualClock(), run=lambda work: work(), tell=told.extend)
    handed_in = False
    assert commits.commit_alone("mine", frame_of(b"a")) == Committed(0, log.last_append_time)
    assert told == [("other", Committed(1, log.last_append_time))]
    assert values_of(log) == [b"a", b"b"]


def test_once_a_chain_is_broken_nothing_is_written_alone_either() -> None:
    is_full = False

    def before(operation: Operation) -> Fault | None:
        return Fault(DiskFull("full")) if is_full and operation.kind == "write" else None

    log = open_log(FaultyFiles(MemoryFiles(), before))
    commits: GroupCommit[str] = GroupCommit(
        log, clock=ManualClock(), run=lambda work: work(), tell=lambda outcomes: None, is_chained=True
    )
    is_full = True
    assert isinstance(commits.commit_alone("a", frame_of(b"a")), DiskFull)
    is_full = False
    assert isinstance(commits.commit_alone("b", frame_of(b"b")), DiskFull)
    assert log.end_offset == 0
