"""What a ring takes beside the jobs in it: memory of a fresh process, in which the jobs are before the ring is."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from penstock import Ring

BATCH = 1_000
_PROCESSES = multiprocessing.get_context("spawn")
Hold = Callable[[Ring, list[Any]], object]


def _resident(line: str = "VmRSS") -> int:
    found = re.search(rf"{line}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def tell_memory(hold: Hold, count: int, journal: Path | None, line: str, parent: Connection) -> None:
    jobs = [b"%0100d" % number for number in range(count)]
    with Ring(count, journal=journal) as ring:
        before = _resident(line)
        held = hold(ring, jobs)
        parent.send(_resident(line) - before)
        del held


def put_at_once(ring: Ring, jobs: list[Any]) -> None:
    for at in range(0, len(jobs), BATCH):
        ring.put_many(jobs[at : at + BATCH])


def wait_there(ring: Ring, jobs: list[Any]) -> None:
    """Flushed often, so that memory which flushes took and gave back is not counted for jobs."""
    for at in range(0, len(jobs), 20 * BATCH):
        put_at_once(ring, jobs[at : at + 20 * BATCH])
        ring.flush()


def be_in_flight(ring: Ring, jobs: list[Any]) -> list[object]:
    put_at_once(ring, jobs)
    return [ring.take(BATCH) for _ in range(0, len(jobs), BATCH)]


def wait_for_another_attempt(ring: Ring, jobs: list[Any]) -> None:
    put_at_once(ring, jobs)
    for _ in range(0, len(jobs), BATCH):
        ring.take(BATCH).retry(delay="1h")


def measured(hold: Hold, count: int, journal: Path | None = None, line: str = "VmRSS") -> float:
    parent, child = _PROCESSES.Pipe()
    process = _PROCESSES.Process(target=tell_memory, args=(hold, count, journal, line, child))
    process.start()
    held: int = parent.recv()
    process.join()
    return held
