"""Threads and tasks that hand batches to a handler."""

from __future__ import annotations

import asyncio
from threading import Barrier, Event, get_ident
from typing import Any

import pytest

from penstock.errors import DiskFull, InvalidInput, RingClosed, SyncFailed
from penstock.ring import JobBatch, Ring
from penstock.testing import Fault, FaultyFiles, MemoryFiles, Operation
from ring_support import PATIENCE_S, Started, drained, quiet_ring

NOW = {"initial": "0s"}
WRITES = ("write", "write_at")


def test_run_hands_over_every_job_and_returns_when_there_is_nothing_left() -> None:
    ring = Ring()
    ring.put_many(range(1_000))
    done: list[int] = []
    sizes: set[int] = set()

    def handle(batch: JobBatch) -> None:
        sizes.add(len(batch))
        done.extend(batch)

    ring.run(handle, workers=3, batch=50, until_idle="1ms")
    assert sorted(done) == list(range(1_000))
    assert max(sizes) <= 50
    stats = ring.stats()
    assert stats.acked == 1_000
    assert stats.handled_batches >= 20
    assert stats.workers == 0


@pytest.mark.parametrize("until_idle", ["0s", "1ms"])
def test_run_waits_for_retries_before_it_is_idle(until_idle: str) -> None:
    ring = Ring(backoff={"initial": "5ms"}, max_attempts=3)
    ring.put_many(range(4))
    tries: list[int] = []

    def handle(batch: JobBatch) -> None:
        tries.extend(batch.attempts)
        raise ValueError("no")

    ring.run(handle, workers=2, batch=1, until_idle=until_idle)
    assert sorted(tries) == [1] * 4 + [2] * 4 + [3] * 4
    assert [failed.reason for failed in ring.failed()] == ["ValueError: no"] * 4


def test_what_a_handler_answered_for_stays_answered() -> None:
    ring = Ring(backoff=NOW)
    ring.put_many(range(6))
    seen: list[Any] = []

    def handle(batch: JobBatch) -> None:
        seen.append((batch.jobs, batch.attempts))
        if len(seen) == 1:
            batch.ack([0, 1])
            batch.fail([2], "bad")
            batch.retry([3], "1ms")
            raise ValueError("half-way")

    ring.run(handle, batch=10, until_idle="20ms")
    again = sorted((job, attempt) for jobs, attempts in seen[1:] for job, attempt in zip(jobs, attempts, strict=True))
    assert again == [(3, 2), (4, 2), (5, 2)]
    assert [failed.job for failed in ring.failed()] == [2]
    assert ring.stats().last_error == "ValueError: half-way"


def test_a_handler_that_answers_for_all_has_no_more_done_for_it() -> None:
    ring = Ring(max_attempts=2, backoff=NOW)
    ring.put_many([1, 2])
    ring.run(lambda batch: batch.retry(delay=0), until_idle="1ms")
    assert [failed.attempts for failed in ring.failed()] == [2, 2]
    assert ring.stats().acked == 0


def test_workers_stop_when_told_also_if_there_is_much_to_do() -> None:
    ring = Ring()
    ring.put_many(range(1_000))
    began, go_on = Event(), Event()

    def handle(batch: JobBatch) -> None:
        began.set()
        assert go_on.wait(PATIENCE_S)

    running = ring.start(handle, workers=2, batch=1)
    assert ring.stats().workers == 2
    assert began.wait(PATIENCE_S)
    assert running.stop(wait=0) is False
    assert ring.stats().handling_s_max > 0
    go_on.set()
    assert running.stop()
    running.join()
    assert 1 <= ring.stats().acked <= 4
    assert len(ring) == 1_000 - ring.stats().taken


def test_close_ends_workers_who_wait_and_those_who_work() -> None:
    ring = Ring()
    began, go_on = Event(), Event()

    def handle(batch: JobBatch) -> None:
        began.set()
        assert go_on.wait(PATIENCE_S)

    runner = Started(lambda: ring.run(handle, workers=3))
    ring.put("a")
    assert began.wait(PATIENCE_S)
    closer = Started(ring.close)
    go_on.set()
    closer.join()
    runner.join()
    assert ring.stats().acked == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_may_stop_or_close_everything(is_async: bool) -> None:
    ring = Ring()
    ring.put_many(range(100))

    def handle(batch: JobBatch) -> None:
        ring.close()

    async def handle_async(batch: JobBatch) -> None:
        ring.close()

    Started(lambda: ring.run(handle_async if is_async else handle, workers=2, batch=5)).join()
    assert ring.stats().acked in (5, 10)
    assert len(ring) == 100 - ring.stats().acked


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_handler_holds_that_closes_a_ring_with_a_journal_is_done(is_async: bool) -> None:
    files = MemoryFiles()
    ring = quiet_ring(files)
    ring.put_many(["a", "b", "c"])
    both = Barrier(2)

    def handle(batch: JobBatch) -> None:
        both.wait(PATIENCE_S)
        ring.close()

    async def handle_async(batch: JobBatch) -> None:
        ring.close()

    if is_async:
        Started(lambda: ring.run(handle_async, batch=1)).join()
    else:
        # They close it at the same time, and neither waits for the other.
        Started(lambda: ring.run(handle, workers=2, batch=1)).join()
    assert not files.disk.is_locked
    assert drained(quiet_ring(files)) == (["b", "c"] if is_async else ["c"])


def test_run_says_that_the_ring_a_handler_closed_could_not_be_written() -> None:
    failing: list[Fault] = []
    files = MemoryFiles()
    faulty = FaultyFiles(files, lambda operation: failing[0] if failing and operation.kind in WRITES else None)
    ring = Ring(journal=faulty, flush_interval="60s")
    ring.put("a")

    def handle(batch: JobBatch) -> None:
        failing.append(Fault(DiskFull("no space left")))
        ring.put("b")
        ring.close()

    def work() -> None:
        with pytest.raises(DiskFull):
            ring.run(handle)

    Started(work).join()
    ring.close()
    assert not files.disk.is_locked


def test_handlers_stop_all_workers_without_waiting_for_each_other() -> None:
    ring = Ring()
    ring.put_many(range(10))
    both = Barrier(2)
    started = Event()

    def handle(batch: JobBatch) -> None:
        both.wait(PATIENCE_S)
        assert started.wait(PATIENCE_S)
        assert not running[0].stop()

    running = [ring.start(handle, workers=2, batch=1)]
    started.set()
    Started(running[0].join).join()
    assert ring.stats().acked == 2


class Broken(BaseException):
    pass


@pytest.mark.parametrize("error", [Broken, SystemExit, KeyboardInterrupt])
def test_what_no_handler_should_raise_ends_all_and_comes_out_of_run(error: type[BaseException]) -> None:
    ring = Ring()
    ring.put_many(range(10))

    def handle(batch: JobBatch) -> None:
        raise error("stop")

    with pytest.raises(error):
        ring.run(handle, workers=3, batch=1)
    stats = ring.stats()
    assert stats.in_flight == 0
    assert len(ring) == 10
    assert stats.workers == 0


@pytest.mark.parametrize("error", [Broken, SystemExit])
def test_what_no_async_handler_should_raise_comes_out_of_run(error: type[BaseException]) -> None:
    ring = Ring()
    ring.put_many(range(10))

    async def handle(batch: JobBatch) -> None:
        raise error("stop")

    with pytest.raises(error):
        ring.run(handle, workers=3, batch=1)
    assert ring.stats().in_flight == 0
    assert len(ring) == 10


def test_a_coroutine_function_runs_in_one_loop_many_at_a_time() -> None:
    ring = Ring()
    ring.put_many(range(20))
    threads: set[int] = set()
    at_work = most = 0

    async def handle(batch: JobBatch) -> None:
        nonlocal at_work, most
        threads.add(get_ident())
        at_work += 1
        most = max(most, at_work)
        for _ in range(10):
            await asyncio.sleep(0)
        at_work -= 1

    ring.run(handle, workers=4, batch=1, until_idle="1ms")
    assert len(threads) == 1
    assert get_ident() not in threads
    assert most == 4
    assert ring.stats().acked == 20


def test_an_object_with_an_async_call_is_a_handler_too() -> None:
    class Handler:
        seen = 0

        async def __call__(self, batch: JobBatch) -> None:
            self.seen += len(batch)

    ring = Ring()
    ring.put_many(range(5))
    handler = Handler()
    ring.run(handler, until_idle="1ms")
    assert handler.seen == 5


def test_async_handlers_that_raise_are_tried_again() -> None:
    ring = Ring(backoff=NOW, max_attempts=2)
    ring.put(1)

    async def handle(batch: JobBatch) -> None:
        raise ValueError("no")

    ring.run(handle, until_idle="1ms")
    assert ring.failed()[0].attempts == 2


def test_async_workers_stop_when_told() -> None:
    ring = Ring()
    running = ring.start(_nothing, workers=2)
    ring.put(1)
    assert ring.join(wait="1m")
    assert running.stop()
    running.join()


async def _nothing(batch: JobBatch) -> None: ...


def test_tasks_of_one_s_own_loop_do_the_work_and_end_with_the_ring() -> None:
    async def work() -> None:
        ring = Ring()
        done: list[int] = []

        async def handle(batch: JobBatch) -> None:
            await asyncio.sleep(0)
            done.extend(batch)

        running = asyncio.create_task(ring.aio.run(handle, workers=2, batch=3))
        await ring.aio.put_many(range(20))
        assert await ring.aio.join(wait="1m")
        assert ring.stats().workers == 2
        await ring.aio.close()
        await running
        assert sorted(done) == list(range(20))
        assert ring.stats().workers == 0
        with pytest.raises(RingClosed):
            await ring.aio.run(handle)

    asyncio.run(work())


def test_a_task_finishes_what_it_holds_before_the_journal_is_closed() -> None:
    files = MemoryFiles()

    async def work() -> None:
        ring = quiet_ring(files)
        ring.put("a")
        began, go_on = asyncio.Event(), asyncio.Event()

        async def handle(batch: JobBatch) -> None:
            began.set()
            await go_on.wait()

        running = asyncio.create_task(ring.aio.run(handle))
        await began.wait()
        closing = asyncio.create_task(ring.aio.close())
        while not ring._is_closed:
            await asyncio.sleep(0)
        go_on.set()
        await closing
        await running

    asyncio.run(work())
    assert len(quiet_ring(files)) == 0


def test_close_in_the_loop_of_the_tasks_does_not_wait_for_them() -> None:
    async def work() -> None:
        ring = Ring()
        running = asyncio.create_task(ring.aio.run(_nothing))
        while not ring._takers.waiters:
            await asyncio.sleep(0)
        ring.close()
        await running

    asyncio.run(work())


def test_cancelled_tasks_give_back_what_they_held() -> None:
    async def work() -> None:
        ring = Ring(backoff=NOW)
        ring.put("a")
        began = asyncio.Event()

        async def handle(batch: JobBatch) -> None:
            began.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(ring.aio.run(handle, workers=2))
        await began.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        batch = await ring.aio.take()
        assert (batch.jobs, batch.attempts) == (["a"], [2])

    asyncio.run(work())


def test_an_error_of_a_task_comes_out_as_it_is() -> None:
    async def work() -> None:
        ring = Ring()
        ring.put("a")

        async def handle(batch: JobBatch) -> None:
            raise Broken("stop")

        with pytest.raises(Broken):
            await ring.aio.run(handle, workers=3)

    asyncio.run(work())


@pytest.mark.parametrize("is_async", [False, True])
def test_a_journal_that_fails_under_workers_comes_out_of_run(is_async: bool) -> None:
    failing: list[Fault] = []
    files = FaultyFiles(MemoryFiles(), lambda operation: _failed(operation, failing))
    ring = Ring(journal=files, flush_interval="1ms")

    def handle(batch: JobBatch) -> None:
        failing.append(Fault(SyncFailed("fsync failed")))

    async def handle_async(batch: JobBatch) -> None:
        handle(batch)

    def work() -> None:
        with pytest.raises(SyncFailed):
            ring.run(handle_async if is_async else handle, workers=2)

    def put() -> None:
        # One that is done before it was to be written does not get to the disk.
        while True:
            ring.put("a")

    runner = Started(work)
    with pytest.raises(SyncFailed):
        Started(put).join()
    runner.join()
    with pytest.raises(SyncFailed):
        ring.close()


def _failed(operation: Operation, failing: list[Fault]) -> Fault | None:
    return failing[0] if failing and operation.kind == "sync" else None


def test_workers_go_on_while_the_disk_is_full() -> None:
    failing: list[Fault] = []
    files = MemoryFiles()
    ring = Ring(
        journal=FaultyFiles(files, lambda operation: failing[0] if failing and operation.kind in WRITES else None),
        flush_interval="60s",
    )
    ring.put_many(range(10))
    ring.flush()
    failing.append(Fault(DiskFull("no space left")))
    ring.run(lambda batch: None, batch=3, until_idle="1ms")
    with pytest.raises(DiskFull):
        ring.flush()
    failing.clear()
    ring.close()
    assert len(quiet_ring(files)) == 0


@pytest.mark.parametrize(
    "given",
    [
        {"handler": 5},
        {"handler": None},
        {"workers": 0},
        {"workers": True},
        {"workers": 1.0},
        {"workers": 10_000},
        {"batch": 0},
        {"batch": "10"},
        {"until_idle": 5},
        {"until_idle": "soon"},
        {"kind": "fibres"},
        {"kind": None},
    ],
)
def test_workers_are_not_started_by_bad_input(given: Any) -> None:
    ring = Ring()
    ring.put(1)
    settings = {"handler": print, **given}
    with pytest.raises(InvalidInput):
        ring.run(**settings)
    with pytest.raises(InvalidInput):
        ring.start(**settings)
    assert ring.stats().workers == 0
    assert len(ring) == 1
