"""How fast is a queue within one process, and what does its journal cost?

Jobs of 100 B. One producer thread and one consumer thread, which takes and acknowledges; a ring of the default
capacity. Batches are of 1,000 jobs, put by one `put_many`, taken by one `take`, answered by one `ack`:

    in memory                 no journal
    with the journal          of the default interval, 100 ms. Jobs that are put and acknowledged between two flushes
                              are never written: with a consumer that keeps up, almost none is
    with the journal, all of it written
                              the consumer stays behind by so many jobs that each is on disk before it is taken

One at a time is `put` and `take` with `ack`; beside them, in the same rounds and with the same bound, are `queue.Queue`
(with `task_done`, which is what an acknowledgement is there, and without), `queue.SimpleQueue`, which has no bound and
no answers and is written in C, and janus, whose consumer is a task: against `ring.aio`. Handlers in processes are
beside a pool and `multiprocessing.Queue`: see ring_children.py.

Recovery is opening the journal of a process that was killed with a million jobs which nobody had acknowledged; they had
been synced, and are in the page cache. kill -9: see ring_killed.py. Memory is that of a fresh process, beyond the jobs
themselves, which are there before.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
from collections.abc import Iterator
from functools import cache, partial
from itertools import cycle, islice, repeat
from pathlib import Path
from statistics import median
from threading import Semaphore
from time import perf_counter

import harness
import ring_children
import ring_killed
import ring_memory
from harness import Figure, Run, at_least, at_most, info
from peers import queues
from peers.queues import together
from penstock import Ring
from penstock.limits import MIB

BATCH = 1_000
CAPACITY = 65_536
# At 5 M jobs/s five times as long as the time between two flushes.
BEHIND = 1_250
JOB = b"0123456789" * 10


# --- batches ------------------------------------------------------------------------------------------------


@cache
def some_batches() -> list[list[bytes]]:
    jobs = harness.values(BATCH * 20)
    return [jobs[at : at + BATCH] for at in range(0, len(jobs), BATCH)]


def batches(ring: Ring, count: int) -> float:
    """So many; the consumer takes what there is."""

    def produce() -> None:
        for batch in islice(cycle(some_batches()), count):
            ring.put_many(batch)

    def consume() -> None:
        done = 0
        while done < count * BATCH:
            batch = ring.take(BATCH)
            batch.ack()
            done += len(batch)

    return together(produce, consume)


def batches_behind(ring: Ring, count: int, behind: int) -> float:
    """The consumer stays `behind` by so many as long as there are more to come."""
    ready = Semaphore(0)

    def produce() -> None:
        for number, batch in enumerate(islice(cycle(some_batches()), count)):
            ring.put_many(batch)
            if number >= behind:
                ready.release()
        ring.flush()
        ready.release(behind)

    def consume() -> None:
        for _ in range(count):
            ready.acquire()
            ring.take(BATCH).ack()

    return together(produce, consume)


def in_memory(count: int) -> float:
    with Ring(CAPACITY) as ring:
        return batches(ring, count)


def journaled(run: Run, count: int, behind: int, written: list[float]) -> float:
    """Until the last flush, which is counted. To `written` goes what was written, of the jobs' bytes."""
    with run.folder() as path, Ring(max(CAPACITY, 2 * behind * BATCH), journal=path) as ring:
        before = _written()
        spent_s = batches_behind(ring, count, behind) if behind else batches(ring, count)
        spent_s += harness.seconds(ring.flush)
        written.append((_written() - before) / (count * BATCH * harness.VALUE_BYTES))
        return spent_s


def _written() -> int:
    """Bytes that this process has handed to the operating system."""
    found = re.search(r"wchar: (\d+)", Path("/proc/self/io").read_text())
    assert found is not None
    return int(found[1])


def measure_batches(run: Run) -> Iterator[Figure]:
    count = run.pick(5_000, 50)
    shares: list[float] = []
    kept: list[float] = []
    taken = harness.interleave(
        run.rounds,
        {
            "memory": partial(in_memory, count),
            "journal": partial(journaled, run, count, 0, shares),
            "written": partial(journaled, run, count, min(BEHIND, count // 2), kept),
        },
    )
    jobs = count * BATCH / 1e6
    yield at_least("batches of 1,000: in memory", jobs / median(taken["memory"]), "M jobs/s", 5)
    yield at_least("batches of 1,000: with the journal", jobs / median(taken["journal"]), "M jobs/s", 2)
    name = "batches of 1,000: with the journal, all of it written"
    yield info(name, jobs / median(taken["written"]), "M jobs/s")
    yield info("written to the journal, of the bytes of the jobs, if the consumer keeps up", 100 * median(shares), "%")
    yield info("written to the journal, of the bytes of the jobs, if it stays behind", 100 * median(kept), "%")


# --- one at a time ------------------------------------------------------------------------------------------


def singly(count: int, journal: Path | None = None) -> float:
    with Ring(CAPACITY, journal=journal) as ring:

        def produce() -> None:
            for job in repeat(JOB, count):
                ring.put(job)

        def consume() -> None:
            for _ in range(count):
                ring.take().ack()

        return together(produce, consume)


def singly_journaled(run: Run, count: int) -> float:
    with run.folder() as path:
        return singly(count, path)


def from_thread_to_task(count: int, at_once: int) -> float:
    """`put` in a thread; a task takes, one or many at a time."""

    async def consume(ring: Ring) -> None:
        done = 0
        while done < count:
            batch = await ring.aio.take(at_once)
            done += len(batch)
            batch.ack()

    def produce(ring: Ring) -> None:
        for job in repeat(JOB, count):
            ring.put(job)

    async def run(ring: Ring) -> float:
        began_s = perf_counter()
        producing = asyncio.create_task(asyncio.to_thread(produce, ring))
        await consume(ring)
        await producing
        return perf_counter() - began_s

    with Ring(CAPACITY) as ring:
        return asyncio.run(run(ring))


def measure_singly(run: Run) -> Iterator[Figure]:
    count = run.pick(300_000, 3_000)
    contenders: dict[str, harness.Contender] = {
        "Ring": partial(singly, count),
        "Ring, with the journal": partial(singly_journaled, run, count),
        "queue.Queue": partial(queues.standard, count, JOB, CAPACITY, is_told=True),
        "queue.Queue, without task_done": partial(queues.standard, count, JOB, CAPACITY, is_told=False),
        "queue.SimpleQueue, no bound and no answers": partial(queues.simple, count, JOB),
    }
    taken = harness.interleave(run.rounds, contenders)
    for name in contenders:
        yield info(f"one at a time: {name}", count / median(taken[name]) / 1e6, "M jobs/s")
    ours, _, *others = contenders
    for other in others:
        times = harness.ratio(taken[other], taken[ours])
        name = f"one at a time / {other}"
        yield at_least(name, times, "×", 3) if other == "queue.Queue" else info(name, times, "×")


def measure_tasks(run: Run) -> Iterator[Figure]:
    count = run.pick(100_000, 2_000)
    contenders: dict[str, harness.Contender] = {
        "Ring": partial(from_thread_to_task, count, 1),
        "Ring, take(1000)": partial(from_thread_to_task, count, BATCH),
    }
    if importlib.util.find_spec("janus") is None:
        harness.say("janus: skipped, it is not installed: pip install 'penstock[bench]'")
    else:
        contenders["janus"] = partial(queues.from_thread_to_task, count, JOB, CAPACITY)
    taken = harness.interleave(run.rounds, contenders)
    for name in contenders:
        yield info(f"from a thread to a task: {name}", count / median(taken[name]) / 1e6, "M jobs/s")
    if "janus" in taken:
        yield info("from a thread to a task / janus", harness.ratio(taken["janus"], taken["Ring"]), "×")


def measure_processes(run: Run) -> Iterator[Figure]:
    for told, work, count in (
        ("two processes, nothing to do", ring_children.nothing, run.pick(200_000, 2_000)),
        ("two processes that compute", ring_children.compute, run.pick(50_000, 2_000)),
    ):
        taken = ring_children.contest(run.rounds, work, count)
        for name, spent in taken.items():
            yield info(f"{told}: {name}", count / median(spent) / 1e6, "M jobs/s")
        ours, *others = taken
        for other in others:
            yield info(f"{told} / {other}", harness.ratio(taken[other], taken[ours]), "×")


# --- a restart ----------------------------------------------------------------------------------------------


def measure_recovery(run: Run) -> Iterator[Figure]:
    count = run.pick(1_000_000, 5_000)
    for name, is_taken in (("a million jobs, none taken", False), ("a million jobs, all of them in flight", True)):
        with run.folder() as path:
            ring_killed.leave_jobs(path, count, is_taken=is_taken)
            again = partial(ring_killed.recover, run, path, count)
            taken = harness.interleave(run.rounds, {"recover": again})
        yield at_most(f"recovery of {name}", median(taken["recover"]), "s", 2)


def measure_kills(run: Run) -> Iterator[Figure]:
    kills = [ring_killed.kill(run) for _ in range(run.pick(10, 1))]
    interval_ms = 1e3 * ring_killed.INTERVAL_S
    harness.say(
        f"kill -9: {median(kill.jobs_per_s for kill in kills):,.0f} jobs/s were put and acknowledged until then"
    )
    for name, ages in (
        ("oldest put that was lost", [kill.lost_s for kill in kills]),
        ("oldest ack that was undone", [kill.undone_s for kill in kills]),
    ):
        worst_ms = 1e3 * max(ages)
        yield info(f"kill -9: {name}, median of {len(kills)} kills", 1e3 * median(ages), "ms")
        yield info(f"kill -9: {name}, worst of {len(kills)} kills", worst_ms, "ms")
        yield at_most(f"kill -9: {name}, in flush intervals", worst_ms / interval_ms, "×", 1)


# --- memory -------------------------------------------------------------------------------------------------


def measure_memory(run: Run) -> Iterator[Figure]:
    count = run.pick(1_000_000, 10_000)
    yield info(
        "memory of a job that waits, beyond itself", ring_memory.measured(ring_memory.wait_there, count) / count, "B"
    )
    with run.folder() as path:
        each = ring_memory.measured(ring_memory.wait_there, count, path) / count
        yield info("memory of a job that waits, beyond itself, with the journal", each, "B")
    yield info(
        "memory of a job in flight, beyond itself, 1,000 a batch",
        ring_memory.measured(ring_memory.be_in_flight, count) / count,
        "B",
    )
    each = ring_memory.measured(ring_memory.wait_for_another_attempt, count) / count
    yield info("memory of a job that is to be tried again, beyond itself", each, "B")
    with run.folder() as path:
        most = ring_memory.measured(ring_memory.put_at_once, count, path, "VmHWM")
        yield info("memory of the journal at most, a million jobs put as fast as it goes", most / MIB, "MiB")


def measure(run: Run) -> Iterator[Figure]:
    yield from measure_batches(run)
    yield from measure_singly(run)
    yield from measure_tasks(run)
    yield from measure_processes(run)
    yield from measure_recovery(run)
    yield from measure_kills(run)
    yield from measure_memory(run)


if __name__ == "__main__":
    harness.main(__doc__, measure, rounds=5)
