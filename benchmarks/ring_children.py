"""Jobs for two processes: `ring.run(kind="processes")`, and what the standard library has.

    Ring                                batches of 100, acknowledged
    ProcessPoolExecutor.map             chunks of 100, results come back
    multiprocessing.Queue               one job at a time; the worker answers each by another queue
    multiprocessing.Queue, lists of 100 the same with lists, as one would write it by hand

All have the same function, and their processes are there before the clock starts. A job is a text of 100 B.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.queues import Queue
from typing import Any

import harness
from penstock import Ring
from penstock.ring import JobBatch

WORKERS = 2
TOGETHER = 100
_PROCESSES = multiprocessing.get_context("spawn")
Work = Callable[[bytes], int]


def nothing(job: bytes) -> int:
    return 0


def compute(job: bytes) -> int:
    """Some tens of microseconds of Python."""
    found = 0
    for byte in job * 4:
        found = (found * 31 + byte) & 0xFFFFFFFF
    return found


def handle(work: Work, batch: JobBatch) -> None:
    for job in batch:
        work(job)


def answer(work: Work, jobs: Queue[Any], answers: Queue[Any]) -> None:
    while (given := jobs.get()) is not None:
        for job in given:
            work(job)
        answers.put(len(given))


@contextmanager
def ring(work: Work) -> Iterator[Callable[[Sequence[bytes]], None]]:
    def work_through(jobs: Sequence[bytes]) -> None:
        made.put_many(jobs)
        made.join()

    with Ring(1 << 20) as made:
        made.start(partial(handle, work), WORKERS, TOGETHER, kind="processes")
        yield work_through


@contextmanager
def pool(work: Work) -> Iterator[Callable[[Sequence[bytes]], None]]:
    def work_through(jobs: Sequence[bytes]) -> None:
        for _ in made.map(work, jobs, chunksize=TOGETHER):
            pass

    with ProcessPoolExecutor(WORKERS, mp_context=_PROCESSES) as made:
        yield work_through


@contextmanager
def queue(work: Work, together: int) -> Iterator[Callable[[Sequence[bytes]], None]]:
    given: Queue[Any] = _PROCESSES.Queue()
    answers: Queue[Any] = _PROCESSES.Queue()
    processes = [_PROCESSES.Process(target=answer, args=(work, given, answers)) for _ in range(WORKERS)]
    for process in processes:
        process.start()

    def work_through(jobs: Sequence[bytes]) -> None:
        for at in range(0, len(jobs), together):
            given.put(jobs[at : at + together])
        done = 0
        while done < len(jobs):
            done += answers.get()

    try:
        yield work_through
    finally:
        for _ in processes:
            given.put(None)
        for process in processes:
            process.join()
        for one in (given, answers):
            one.close()
            one.join_thread()


def contest(rounds: int, work: Work, count: int) -> dict[str, list[float]]:
    """Seconds of each contender in each round."""
    jobs = harness.values(1_000) * (count // 1_000)
    with ring(work) as ours, pool(work) as theirs, queue(work, 1) as singly, queue(work, TOGETHER) as lists:
        contenders = {
            "Ring": ours,
            "ProcessPoolExecutor.map": theirs,
            "multiprocessing.Queue": singly,
            "multiprocessing.Queue, lists of 100": lists,
        }
        return harness.interleave(
            rounds, {name: partial(harness.seconds, partial(run, jobs)) for name, run in contenders.items()}
        )
