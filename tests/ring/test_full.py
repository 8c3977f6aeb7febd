"""A ring that is full: who waits, who is refused, and which job goes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidInput, RingFull
from penstock.ring import Ring
from penstock.ring.waiting import WaitingThread
from ring_support import Started, Time, drained, hurried_switches, ring_at, until_waiting


def test_a_put_that_is_not_to_wait_is_refused_and_counted() -> None:
    ring = Ring(2)
    ring.put_many([1, 2])
    with pytest.raises(RingFull) as caught:
        ring.put(3, wait=0)
    assert caught.value.retriable
    assert caught.value.details == {"put": 0, "capacity": 2}
    with pytest.raises(RingFull):
        ring.put(3, wait="1ms")
    assert ring.stats().rejected == 2
    assert not ring._putters.waiters
    assert drained(ring) == [1, 2]


def test_put_many_says_how_many_went_in_before_its_time_was_over() -> None:
    ring = Ring(3)
    with pytest.raises(RingFull) as caught:
        ring.put_many(range(5), wait=0)
    assert caught.value.details == {"put": 3, "capacity": 3}
    assert ring.stats().rejected == 2
    assert drained(ring) == [0, 1, 2]


def test_a_put_waits_for_room() -> None:
    ring = Ring(1)
    ring.put(1)
    putter = Started(lambda: ring.put(2), lambda: ring.put(2, wait="1h"))
    until_waiting(ring._putters, 2)
    ring.take().ack()
    ring.take().ack()
    putter.join()
    assert ring.take().jobs == [2]


def test_a_taker_who_makes_much_room_lets_everybody_in() -> None:
    ring = Ring(10)
    ring.put_many(range(10))
    putters = Started(*[lambda: ring.put("more")] * 8)
    until_waiting(ring._putters, 8)
    ring.take(10).ack()
    putters.join()
    assert drained(ring) == ["more"] * 8


def test_put_many_of_more_than_there_is_room_for_goes_in_bit_by_bit_in_order() -> None:
    ring = Ring(7)
    putter = Started(lambda: ring.put_many(range(1000)))
    found: list[Any] = []
    while len(found) < 1000:
        batch = ring.take(3)
        found += batch.jobs
        batch.ack()
    putter.join()
    assert found == list(range(1000))


def test_a_ring_that_rejects_takes_all_or_none() -> None:
    ring = Ring(3, when_full="reject")
    ring.put(1)
    with pytest.raises(RingFull) as caught:
        ring.put_many([2, 3, 4])
    assert caught.value.details["put"] == 0
    ring.put_many([2, 3])
    with pytest.raises(RingFull):
        ring.put(4)
    with pytest.raises(RingFull):
        ring.put(4, wait=0)
    assert ring.stats().rejected == 5
    assert drained(ring) == [1, 2, 3]


@pytest.mark.parametrize("when_full", ["reject", "drop_oldest"])
def test_a_ring_that_never_waits_takes_no_wait(when_full: Any) -> None:
    ring = Ring(3, when_full=when_full)
    for call in (lambda: ring.put(1, "1h"), lambda: ring.put_many([1, 2], wait="1ms")):
        with pytest.raises(InvalidInput, match='only with when_full="block"'):
            call()
    assert len(ring) == 0
    ring.put(1, wait=0)


def test_it_says_how_many_wait() -> None:
    ring = Ring(1)
    ring.put(1)
    with pytest.raises(RingFull, match=r"^1 job waits, and 0 for another attempt; there is room for 1$"):
        ring.put(2, wait=0)


def test_the_oldest_jobs_go_for_newer_ones() -> None:
    ring = Ring(3, when_full="drop_oldest")
    for job in range(5):
        ring.put(job)
    ring.put_many([5, 6])
    stats = ring.stats()
    assert (stats.put, stats.dropped) == (7, 4)
    assert drained(ring) == [4, 5, 6]


def test_of_more_than_a_ring_holds_the_last_stay() -> None:
    ring = Ring(3, when_full="drop_oldest")
    ring.put("old")
    ring.put_many(range(10))
    stats = ring.stats()
    assert (stats.put, stats.dropped, stats.waiting) == (11, 8, 3)
    assert drained(ring) == [7, 8, 9]


def test_jobs_that_wait_go_before_retries_and_retries_in_the_order_they_came() -> None:
    time = Time()
    ring = ring_at(time, 3, when_full="drop_oldest")
    ring.put_many(["a", "b"])
    batch = ring.take(2)
    batch.retry(["b"], "1s")
    batch.retry(["a"], "9s")
    ring.put("c")
    ring.put("d")
    assert (ring.stats().waiting, ring.stats().delayed) == (1, 2)
    ring.put_many(["e", "f"])
    assert (ring.stats().waiting, ring.stats().delayed) == (2, 1)
    time.advance("1m")
    assert drained(ring) == ["a", "e", "f"]
    assert ring.stats().dropped == 3


def test_jobs_in_hand_are_never_dropped_and_come_back_over_the_bound() -> None:
    time = Time()
    ring = ring_at(time, 2)
    ring.put_many(["a", "b"])
    batch = ring.take(2)
    ring.put_many(["c", "d"])
    batch.retry(delay=0)
    assert len(ring) == 4
    with pytest.raises(RingFull):
        ring.put("e", wait=0)
    assert ring.take(2).jobs == ["a", "b"]
    with pytest.raises(RingFull):
        ring.put("e", wait=0)
    assert ring.take(1).jobs == ["c"]
    ring.put("e")


def test_dropping_goes_well_beside_takers_who_are_quicker() -> None:
    ring = Ring(1, when_full="drop_oldest")
    count = 20_000

    def put() -> None:
        for job in range(count):
            ring.put_many([job])
        ring.put(None)

    def take() -> None:
        last = -1
        while True:
            batch = ring.take()
            (job,) = batch.jobs
            batch.ack()
            if job is None:
                return
            assert job > last
            last = job

    with hurried_switches():
        Started(put, take).join()
    stats = ring.stats()
    assert stats.put == stats.acked + stats.dropped == count + 1


def test_who_is_refused_while_in_line_leaves_no_trace() -> None:
    """A call is not lost with one who stands in line no more."""
    ring = Ring(1)
    ring.put(1)
    gone = ring._putting([2], None, WaitingThread)
    next(gone)
    other = Started(lambda: ring.put(3))
    until_waiting(ring._putters, 2)
    ring._putters.wake_one()
    # Woken, and interrupted before it has looked.
    gone.close()
    ring.take().ack()
    other.join()
    assert ring.take().jobs == [3]
