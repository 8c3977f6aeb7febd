"""Many threads on one ring: every job is handed out once per attempt, and nobody waits for nothing."""

from __future__ import annotations

import signal
from collections import Counter
from random import Random
from threading import Lock, Thread, get_ident, main_thread
from typing import Any

import pytest

from penstock.errors import NotLeased, RingClosed
from penstock.ring import Ring
from penstock.testing import MemoryFiles
from ring_support import PATIENCE_S, Started, Time, hurried_switches, quiet_ring, ring_at, until_waiting

PRODUCERS, CONSUMERS, JOBS_EACH = 3, 3, 1_500


def stress(ring: Ring, seed: int, *, are_batches: bool) -> None:
    """Some jobs are put back a few times; at the end each was done once, after as many attempts as it says."""
    attempts: Counter[Any] = Counter()
    done: Counter[Any] = Counter()
    lock = Lock()

    def produce(producer: int) -> None:
        random = Random(f"{seed} {producer}")
        jobs = [(producer, number) for number in range(JOBS_EACH)]
        while jobs:
            count = random.choice((1, 1, 5, 40)) if are_batches else 1
            some, jobs = jobs[:count], jobs[count:]
            if len(some) == 1:
                ring.put(some[0])
            else:
                ring.put_many(some)

    def consume(consumer: int) -> None:
        random = Random(f"{seed} {consumer} takes")
        while True:
            try:
                batch = ring.take(random.choice((1, 1, 3, 50)) if are_batches else 1)
            except RingClosed:
                return
            with lock:
                attempts.update(batch.jobs)
                assert [attempts[job] for job in batch.jobs] == batch.attempts
            fate = random.random()
            if fate < 0.6:
                acked = batch.jobs
                batch.ack()
            elif fate < 0.7:
                acked = []
                batch.retry(delay=0)
            elif fate < 0.8:
                acked = []
                batch.retry(delay="1ms")
            else:
                acked = [job for job in batch if random.random() < 0.5]
                batch.ack(acked)
                if len(acked) < len(batch):
                    batch.retry(delay=0)
            with pytest.raises(NotLeased):
                batch.ack()
            with lock:
                done.update(acked)

    def oversee() -> None:
        producers.join()
        assert ring.join(wait="1m")
        ring.close()

    with hurried_switches():
        producers = Started(*[lambda n=n: produce(n) for n in range(PRODUCERS)])  # type: ignore[misc]
        consumers = Started(*[lambda n=n: consume(n) for n in range(CONSUMERS)])  # type: ignore[misc]
        Started(oversee).join()
        consumers.join()
    assert done == Counter({(p, n): 1 for p in range(PRODUCERS) for n in range(JOBS_EACH)})
    stats = ring.stats()
    assert stats.put == stats.acked == PRODUCERS * JOBS_EACH
    assert stats.taken == sum(attempts.values()) == stats.acked + stats.retried
    assert (stats.waiting, stats.delayed, stats.in_flight, stats.failed) == (0, 0, 0, 0)


@pytest.mark.parametrize("capacity", [1, 8, 65_536])
@pytest.mark.parametrize("are_batches", [False, True])
def test_no_job_is_lost_or_doubled_among_threads(capacity: int, are_batches: bool) -> None:
    stress(Ring(capacity, max_attempts=1_000), capacity, are_batches=are_batches)


@pytest.mark.parametrize("are_batches", [False, True])
def test_no_job_is_lost_or_doubled_among_threads_with_a_journal(tmp_path: Any, are_batches: bool) -> None:
    stress(
        Ring(64, max_attempts=1_000, journal=tmp_path, flush_interval="2ms"),
        5,
        are_batches=are_batches,
    )
    again = Ring(journal=tmp_path)
    assert len(again) == 0
    again.close()


def test_one_put_wakes_one_taker_and_many_wake_all() -> None:
    ring = Ring()
    found: list[Any] = []
    takers = Started(*[lambda: found.append(ring.take().jobs)] * 5)
    until_waiting(ring._takers, 5)
    ring.put(0)
    ring.put_many([1, 2, 3, 4])
    takers.join()
    assert sorted(found) == [[0], [1], [2], [3], [4]]


def test_takers_and_putters_who_come_and_go_never_lose_a_call() -> None:
    """Each hands over one job at a time through a ring of one place, with waits that often run out."""
    ring = Ring(1)
    count = 3_000

    def put(first: int) -> None:
        for job in range(first, first + count):
            ring.put(job)

    def take() -> None:
        taken = 0
        while taken < count:
            if batch := ring.take(wait="50us"):
                batch.ack()
                taken += 1

    with hurried_switches():
        Started(lambda: put(0), lambda: put(count), take, take).join()
    assert ring.join(wait=0)
    assert not ring._takers.waiters
    assert not ring._putters.waiters


def test_a_job_put_back_wakes_a_taker_who_sleeps() -> None:
    ring = Ring()
    ring.put("a")
    batch = ring.take()
    found: list[Any] = []
    taker = Started(lambda: found.append(ring.take().attempts))
    until_waiting(ring._takers)
    batch.retry(delay="1ms")
    taker.join()
    assert found == [[2]]


def test_a_retry_is_not_forgotten_when_the_one_who_minded_it_gets_another_job() -> None:
    """Of two who sleep one was woken for the delay. It gets a fresh job; the other must mind the delay from then on."""
    ring = Ring()
    ring.put("late")
    late = ring.take()
    found: list[Any] = []
    takers = Started(*[lambda: found.append(ring.take().jobs)] * 2)
    until_waiting(ring._takers, 2)
    late.retry(delay="1s")
    while len(ring._takers.waiters) < 2 and not found:
        # Its time may have come before both sleep again: then there is nothing to forget.
        pass
    ring.put("fresh")
    takers.join()
    assert sorted(found) == [["fresh"], ["late"]]


def test_a_retry_is_not_forgotten_when_the_one_who_minded_it_gives_up() -> None:
    time = Time()
    ring = ring_at(time)
    ring.put("late")
    ring.take().retry(delay="1h")
    from penstock.ring.waiting import WaitingThread

    minds, other = (ring._taking(1, None, WaitingThread) for _ in range(2))
    _, minds_s = next(minds)
    ring._takers.waiters.clear()
    waiter, _ = next(other)
    assert minds_s == 3600
    minds.close()
    assert waiter.sleep(0), "it was not woken to look at the time"


def test_redriven_jobs_wake_all_who_can_have_one() -> None:
    ring = Ring()
    ring.put_many(range(3))
    ring.take(3).fail()
    found: list[Any] = []
    takers = Started(*[lambda: found.extend(ring.take().jobs)] * 3)
    until_waiting(ring._takers, 3)
    assert ring.redrive() == 3
    takers.join()
    assert sorted(found) == [0, 1, 2]


def test_join_is_not_over_before_the_last_job_is_done() -> None:
    """Jobs go back and forth all the time: they are always somewhere."""
    ring = Ring(max_attempts=1_000)
    ring.put_many(range(20))
    left = [20]

    def work(seed: int) -> None:
        random = Random(seed)
        while True:
            try:
                batch = ring.take(random.choice((1, 2)))
            except RingClosed:
                return
            for job in batch.jobs:
                if random.random() < 0.02:
                    left[0] -= 1
                    batch.ack([job])
                else:
                    batch.retry([job], delay=0)

    def look() -> None:
        assert ring.join()
        assert left[0] == 0
        ring.close()

    with hurried_switches():
        workers = Started(lambda: work(1), lambda: work(2))
        Started(look).join()
        workers.join()


def test_many_join_at_once() -> None:
    ring = Ring()
    ring.put(1)
    joiners = Started(*[ring.join] * 4)
    until_waiting(ring._joiners, 4)
    ring.take().ack()
    joiners.join()
    assert not ring._joiners.waiters


@pytest.mark.parametrize("wakes", [True, False], ids=["that sleeps", "that was about to sleep"])
def test_ctrl_c_ends_a_take_and_leaves_the_ring_whole(wakes: bool) -> None:
    ring = Ring()

    def interrupt() -> None:
        until_waiting(ring._takers)
        # One that another thread gets is noted, and wakes nobody: as one that comes in the moment before the sleep.
        signal.pthread_kill((main_thread().ident or 0) if wakes else get_ident(), signal.SIGINT)

    thread = Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        ring.take()
    thread.join(PATIENCE_S)
    assert not ring._takers.waiters
    ring.put(1)
    ring.take().ack()


def test_a_wait_of_thousands_of_years_is_just_long() -> None:
    ring = Ring()
    ring.put("a")
    ring.take().retry(delay="200000w")
    found: list[Any] = []
    taker = Started(lambda: found.append(ring.take(wait="400000w").jobs))
    until_waiting(ring._takers)
    ring.put("b")
    taker.join()
    assert found == [["b"]]


def test_counters_are_exact_among_threads() -> None:
    ring = Ring()

    def work() -> None:
        for _ in range(3_000):
            ring.put(1)
            ring.take().ack()

    with hurried_switches():
        Started(work, work, work).join()
    stats = ring.stats()
    assert (stats.put, stats.taken, stats.acked) == (9_000, 9_000, 9_000)


def test_puts_wait_while_the_journal_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.ring.journal.UNFLUSHED_BYTES_MAX", 1_000)
    ring = quiet_ring(MemoryFiles())
    ring.put("x" * 2_000)
    assert ring.take().jobs == ["x" * 2_000]
    putter = Started(lambda: ring.put("next"))
    until_waiting(ring._putters)
    ring.flush()
    putter.join()
    assert ring.take().jobs == ["next"]
    ring.close()


def test_a_journal_that_is_behind_is_written_at_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.ring.journal.UNFLUSHED_BYTES_MAX", 1_000)
    ring = Ring(journal=tmp_path, flush_interval="60s")

    def put() -> None:
        for _ in range(20):
            ring.put("x" * 600)

    Started(put).join()
    assert ring.stats().put == 20
    ring.close()
