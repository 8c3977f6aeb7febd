"""Rings whose process is killed: what they leave behind, and how old the oldest thing is that a kill undoes.

The child puts 100 jobs of 100 B a millisecond, and its other thread takes and acknowledges as many, 200 ms later, so
that jobs are on disk before they are taken. It notes the time after each `put_many` and each `ack` has returned, in
memory that outlives it. After the kill the journal is opened: a put is lost if the job is not there and was not
acknowledged, an ack is undone if the job is there. Their ages are at the moment of death, which is when the signal was
sent, or the last note if that is later. Every job that is there must be as it was put.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import tempfile
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import NamedTuple

import numpy as np

import harness
from harness import Run
from penstock import Ring

INTERVAL_S = 0.1
A_STEP = 100
STEP_S = 0.001
STEPS_BEHIND = 200
STEPS_MAX = 20_000
CAPACITY = 2 * A_STEP * STEPS_MAX
_PROCESSES = multiprocessing.get_context("spawn")
_RANDOM = random.Random(harness.SEED)


def job(number: int) -> bytes:
    return b"%0100d" % number


# --- a journal with jobs ------------------------------------------------------------------------------------


def _fill(path: Path, count: int, is_taken: bool, parent: Connection) -> None:
    ring = Ring(count, journal=path)
    for at in range(0, count, 1_000):
        ring.put_many([job(number) for number in range(at, min(at + 1_000, count))])
    held = [ring.take(1_000) for _ in range(0, count, 1_000)] if is_taken else []
    ring.flush()
    parent.send(len(held))
    Event().wait()


def leave_jobs(path: Path, count: int, *, is_taken: bool) -> None:
    """The journal of a process that was killed with so many jobs waiting, or in flight."""
    parent, child = _PROCESSES.Pipe()
    process = _PROCESSES.Process(target=_fill, args=(path, count, is_taken, child))
    process.start()
    parent.recv()
    process.kill()
    process.join()


def recover(run: Run, path: Path, count: int) -> float:
    """Seconds until the jobs of a copy of that journal can be taken."""
    with tempfile.TemporaryDirectory(dir=run.directory) as directory:
        copy = Path(directory) / "journal"
        shutil.copytree(path, copy)
        made: list[Ring] = []
        spent_s = harness.seconds(lambda: made.append(Ring(count, journal=copy)))
        with made[0] as ring:
            assert len(ring) == count, len(ring)
            assert sorted(ring.take(count)) == [job(number) for number in range(count)]
        return spent_s


# --- the window of loss -------------------------------------------------------------------------------------


class Kill(NamedTuple):
    """In seconds before death; 0 if there was none. `jobs_per_s` were acknowledged until then."""

    lost_s: float
    undone_s: float
    jobs_per_s: float


def _times(memory: SharedMemory) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """When each step was put, and when acknowledged; 0 if it was not."""
    return np.ndarray((2, STEPS_MAX), np.float64, memory.buf)


def _work(path: Path, name: str, parent: Connection) -> None:
    memory = SharedMemory(name)
    put_at, acked_at = _times(memory)
    ring = Ring(CAPACITY, journal=path, flush_interval=f"{int(1e3 * INTERVAL_S)}ms")
    steps = Event()

    def acknowledge() -> None:
        steps.wait()
        began_s = monotonic()
        for step in range(STEPS_MAX):
            sleep(max(began_s + step * STEP_S - monotonic(), 0))
            batch = ring.take(A_STEP)
            assert batch[0] == job(step * A_STEP)
            batch.ack()
            acked_at[step] = monotonic()
            if step == 0:
                parent.send("at work")

    Thread(target=acknowledge, daemon=True).start()
    began_s = monotonic()
    for step in range(STEPS_MAX):
        sleep(max(began_s + step * STEP_S - monotonic(), 0))
        ring.put_many([job(number) for number in range(step * A_STEP, (step + 1) * A_STEP)])
        put_at[step] = monotonic()
        if step == STEPS_BEHIND:
            steps.set()


def kill(run: Run) -> Kill:
    """One kill, at a time that is random among the flushes."""
    memory = SharedMemory(create=True, size=2 * STEPS_MAX * 8)
    try:
        with run.folder() as path:
            parent, child = _PROCESSES.Pipe()
            process = _PROCESSES.Process(target=_work, args=(path / "journal", memory.name, child))
            process.start()
            parent.recv()
            # It works for a while, and there are no two kills at the same place between two flushes.
            sleep(0.5 + _RANDOM.random() * 2 * INTERVAL_S)
            assert process.pid is not None
            killed_s = monotonic()
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            assert process.exitcode == -signal.SIGKILL, process.exitcode
            times = _times(memory).copy()
            return compared(times, max(killed_s, float(times.max())), _left_in(path / "journal"))
    finally:
        memory.close()
        memory.unlink()


def _left_in(path: Path) -> set[int]:
    """The numbers of the jobs that are there."""
    with Ring(CAPACITY, journal=path) as ring:
        jobs = list(ring.take(CAPACITY, wait=0))
    numbers = [int(one) for one in jobs]
    assert [job(number) for number in numbers] == jobs, "a job is not as it was put"
    assert len(set(numbers)) == len(numbers), "a job is there twice"
    return set(numbers)


def compared(times: np.ndarray[tuple[int, int], np.dtype[np.float64]], died_s: float, left: set[int]) -> Kill:
    """Of steps that were put and acknowledged at these times, when these jobs are left of them."""
    lost, undone = [0.0], [0.0]
    for step, (put_s, acked_s) in enumerate(times.T.tolist()):
        here = [number in left for number in range(step * A_STEP, (step + 1) * A_STEP)]
        if put_s > 0 and acked_s == 0 and not all(here):
            lost.append(died_s - put_s)
        if acked_s > 0 and any(here):
            undone.append(died_s - acked_s)
    acked_at = times[1][times[1] > 0]
    assert len(acked_at), "nothing was acknowledged"
    return Kill(max(lost), max(undone), A_STEP * len(acked_at) / (died_s - float(acked_at.min())))
