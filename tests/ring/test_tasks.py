"""Tasks on a ring, with threads at the other end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from penstock.errors import InvalidInput, RingClosed, RingFull
from penstock.ring import Ring
from ring_support import PATIENCE_S, Started, until_waiting


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


async def waiting(line: Any, count: int) -> None:
    while len(line.waiters) < count:
        await asyncio.sleep(0)


def test_tasks_put_and_take_like_threads() -> None:
    async def work() -> None:
        ring = Ring(3)
        await ring.aio.put("a")
        await ring.aio.put_many(["b", "c"])
        with pytest.raises(RingFull):
            await ring.aio.put("d", wait="1ms")
        assert (await ring.aio.take(2)).jobs == ["a", "b"]
        batch = await ring.aio.take(5)
        batch.retry(delay="1ms")
        assert (await ring.aio.take()).attempts == [2]
        assert not await ring.aio.take(wait="1ms")
        assert await ring.aio.join(wait=0) is False
        await ring.aio.flush()
        with pytest.raises(InvalidInput):
            await ring.aio.take(0)
        with pytest.raises(InvalidInput):
            await ring.aio.put_many("abc")

    run(work())


def test_a_thousand_jobs_go_from_threads_to_tasks_and_back() -> None:
    there, back = Ring(5), Ring(5)
    count = 1_000

    async def forward() -> None:
        for _ in range(count // 2):
            batch = await there.aio.take()
            await back.aio.put(batch[0])
            batch.ack()

    async def work() -> None:
        await asyncio.gather(forward(), forward())

    found: list[int] = []

    def collect() -> None:
        while len(found) < count:
            with back.take(7) as batch:
                found.extend(batch)

    threads = Started(lambda: there.put_many(range(count)), collect)
    run(work())
    threads.join()
    assert sorted(found) == list(range(count))
    assert there.join(wait=0)


def test_a_cancelled_taker_leaves_the_line() -> None:
    async def work() -> None:
        ring = Ring()
        task = asyncio.create_task(ring.aio.take())
        await waiting(ring._takers, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not ring._takers.waiters

    run(work())


def test_a_call_that_comes_to_a_cancelled_taker_is_passed_on() -> None:
    async def work() -> None:
        ring = Ring()
        first, second = (asyncio.create_task(ring.aio.take()) for _ in range(2))
        await waiting(ring._takers, 2)
        # Called first and cancelled then, before it has run.
        ring.put("a")
        first.cancel()
        assert (await second).jobs == ["a"]
        with pytest.raises(asyncio.CancelledError):
            await first
        assert ring.stats().in_flight == 1

    run(work())


def test_a_call_that_comes_to_a_cancelled_putter_is_passed_on() -> None:
    async def work() -> None:
        ring = Ring(1)
        ring.put("a")
        first, second = (asyncio.create_task(ring.aio.put(job)) for job in ("b", "c"))
        await waiting(ring._putters, 2)
        ring.take().ack()
        first.cancel()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
        assert ring.take().jobs == ["c"]
        assert not ring._putters.waiters

    run(work())


def test_a_cancelled_joiner_leaves_the_line() -> None:
    async def work() -> None:
        ring = Ring()
        ring.put(1)
        first, second = (asyncio.create_task(ring.aio.join()) for _ in range(2))
        await waiting(ring._joiners, 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        ring.take().ack()
        assert await second
        assert not ring._joiners.waiters

    run(work())


def test_a_thread_is_called_in_the_place_of_a_task_whose_loop_is_closed() -> None:
    ring = Ring()
    loop = asyncio.new_event_loop()
    waits = ring.aio.take()

    async def begin() -> None:
        # Begun, and never to be gone on with.
        waits.send(None)

    loop.run_until_complete(begin())
    loop.close()
    assert len(ring._takers.waiters) == 1
    found: list[Any] = []
    taker = Started(lambda: found.append(ring.take().jobs))
    until_waiting(ring._takers, 2)
    ring.put("a")
    taker.join()
    assert found == [["a"]]
    waits.close()


def test_a_thread_is_called_too_if_the_loop_of_a_task_is_stopped() -> None:
    """Nobody knows whether it will go on. If it does, the task looks again."""
    ring = Ring()
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        task = loop.create_task(ring.aio.take())
        loop.run_until_complete(waiting(ring._takers, 1))
        found: list[Any] = []
        taker = Started(lambda: found.append(ring.take().jobs))
        until_waiting(ring._takers, 2)
        ring.put("a")
        taker.join()
        assert found == [["a"]]
        ring.put("b")
        assert loop.run_until_complete(asyncio.wait_for(task, PATIENCE_S)).jobs == ["b"]


def test_close_does_not_wait_for_tasks_whose_loop_is_stopped() -> None:
    ring = Ring()

    async def handle(batch: Any) -> None:
        raise AssertionError("there is nothing to do")

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        running = loop.create_task(ring.aio.run(handle))
        loop.run_until_complete(waiting(ring._takers, 1))
        Started(ring.close).join()
        assert not running.done()
        loop.run_until_complete(asyncio.wait_for(running, PATIENCE_S))


def test_close_wakes_tasks() -> None:
    async def work() -> None:
        ring = Ring(1)
        ring.put(1)
        tasks = [asyncio.create_task(ring.aio.put(2)), asyncio.create_task(ring.aio.join())]
        await waiting(ring._putters, 1)
        await waiting(ring._joiners, 1)
        ring.close()
        for task in tasks:
            with pytest.raises(RingClosed):
                await task

    run(work())
