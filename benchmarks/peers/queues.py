"""Queues within one process that one would use instead of a ring: the standard library's, and janus.

Each is one producer thread, and one consumer that is another thread, or a task for janus; `job` goes through `count`
times, one at a time. Seconds, from the first put to the last job answered for.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from time import perf_counter
from typing import Any


def together(produce: Callable[[], object], consume: Callable[[], object]) -> float:
    """A thread each. Threads are started before the clock is."""
    with ThreadPoolExecutor(2) as threads:
        started = [threads.submit(lambda: None) for _ in range(2)]
        for one in started:
            one.result()
        began_s = perf_counter()
        for ended in [threads.submit(consume), threads.submit(produce)]:
            ended.result()
        return perf_counter() - began_s


def standard(count: int, job: Any, capacity: int, *, is_told: bool) -> float:
    """queue.Queue; `is_told`: with `task_done`, as whoever wants to `join` needs it."""
    jobs: queue.Queue[Any] = queue.Queue(capacity)

    def produce() -> None:
        for one in repeat(job, count):
            jobs.put(one)

    def consume() -> None:
        for _ in range(count):
            jobs.get()

    def consume_and_tell() -> None:
        for _ in range(count):
            jobs.get()
            jobs.task_done()

    return together(produce, consume_and_tell if is_told else consume)


def simple(count: int, job: Any) -> float:
    """queue.SimpleQueue: in C, without a bound and without answers."""
    jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def produce() -> None:
        for one in repeat(job, count):
            jobs.put(one)

    def consume() -> None:
        for _ in range(count):
            jobs.get()

    return together(produce, consume)


def from_thread_to_task(count: int, job: Any, capacity: int) -> float:
    """janus: `put` in a thread, `await get()` in a task."""
    import janus

    async def run() -> float:
        jobs: janus.Queue[Any] = janus.Queue(capacity)

        def produce() -> None:
            for one in repeat(job, count):
                jobs.sync_q.put(one)

        began_s = perf_counter()
        producing = asyncio.create_task(asyncio.to_thread(produce))
        for _ in range(count):
            await jobs.async_q.get()
            jobs.async_q.task_done()
        await producing
        spent_s = perf_counter() - began_s
        await jobs.aclose()
        return spent_s

    return asyncio.run(run())
