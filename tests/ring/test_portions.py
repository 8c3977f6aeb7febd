"""One put of more than the journal may hold: it goes in as the disk has what is there, or is refused."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from penstock.errors import InvalidInput, RingFull
from penstock.ring import Ring
from penstock.ring.portions import Portions
from penstock.ring.records import JobCodec, array_of
from penstock.testing import Fault, FaultyFiles, MemoryFiles, Operation
from ring_support import Started, drained, quiet_ring, reopened

# Each is 100 bytes.
JOBS = [f"{number:098}" for number in range(50)]
BOUND = 1_000


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.ring.journal.UNFLUSHED_BYTES_MAX", BOUND)
    monkeypatch.setattr("penstock.ring.records.JOB_BYTES_MAX", 150)


def unflushed(ring: Ring) -> int:
    journal = ring.stats().journal
    assert journal is not None
    return journal.unflushed_bytes


def test_whatever_the_portions_all_jobs_are_in_them_in_their_order() -> None:
    codec, random = JobCodec(Any), Random(1)
    for _ in range(200):
        jobs = [random.randrange(1 << random.randrange(1, 60)) for _ in range(random.randint(1, 100))]
        portions = Portions(codec.pieces, jobs)
        found: list[int] = []
        while len(found) < len(jobs):
            count = random.randint(1, len(jobs) - len(found))
            assert portions.fitting(count, 1 << 30) == count
            pieces = portions.next(count)
            assert sum(length for length, _ in pieces) == count
            found += codec.jobs(array_of([data for _, data in pieces], count))[0]
        assert found == jobs
        assert portions.fitting(1, 1 << 30) == 0


def test_a_portion_ends_with_the_piece_that_is_too_much() -> None:
    portions = Portions(JobCodec(Any).pieces, JOBS)
    assert portions.size == 5_000
    assert [portions.fitting(50, most) for most in (-1, 0, 99, 100, 999, 1_000, 10_000)] == [0, 1, 1, 2, 10, 11, 50]
    assert portions.fitting(3, 1_000) == 3


def test_a_job_that_can_not_be_written_any_more_is_told_by_its_place() -> None:
    jobs: list[Any] = [[1], [2], [3], [4]]
    portions = Portions(JobCodec(Any).pieces, jobs)
    portions.next(1)
    jobs[2].append(object())
    with pytest.raises(InvalidInput, match="index 2"):
        portions.next(3)
    # Nothing is gone for it.
    assert sum(count for count, _ in portions.next(1)) == 1


def test_one_large_put_goes_in_as_the_disk_has_what_is_there() -> None:
    files = MemoryFiles()
    ring = quiet_ring(files)
    putter = Started(lambda: ring.put_many(JOBS))
    most = 0
    while len(ring) < len(JOBS):
        if ring._putters.waiters:
            most = max(most, unflushed(ring))
            ring.flush()
    putter.join()
    assert BOUND < most <= BOUND + 150
    ring.flush()
    assert drained(reopened(ring, files)) == JOBS


def test_it_waits_for_what_is_just_being_written() -> None:
    """So there is never more than the bound, and one piece, that is not on disk."""
    seen: list[int] = []
    rings: list[Ring] = []

    def look(operation: Operation) -> Fault | None:
        if rings and operation.kind == "sync":
            seen.append(unflushed(rings[0]))
        return None

    ring = Ring(journal=FaultyFiles(MemoryFiles(), look), flush_interval="60s")
    rings.append(ring)
    Started(lambda: ring.put_many(JOBS)).join()
    ring.flush()
    assert unflushed(ring) == 0
    assert max(seen) > BOUND
    assert max(seen) <= BOUND + 150
    ring.close()


def test_a_put_in_time_says_how_many_went_in() -> None:
    ring = quiet_ring(MemoryFiles())
    with pytest.raises(RingFull, match="the journal can't be written as fast") as caught:
        ring.put_many(JOBS, wait=0)
    assert caught.value.details["put"] == len(ring) == 11
    ring.put_many([])


@pytest.mark.parametrize("when_full", ["reject", "drop_oldest"])
def test_a_ring_that_does_not_wait_refuses_what_the_journal_has_no_room_for(when_full: Any) -> None:
    files = MemoryFiles()
    ring = quiet_ring(files, capacity=20, when_full=when_full)
    with pytest.raises(RingFull, match="5,000 bytes at once, and it has room for 1,000 now") as caught:
        ring.put_many(JOBS)
    assert caught.value.details["put"] == 0
    ring.put_many(JOBS[:5])
    with pytest.raises(RingFull):
        ring.put_many(JOBS[5:11])
    stats = ring.stats()
    assert (stats.waiting, stats.dropped, stats.rejected) == (5, 0, 56)
    ring.flush()
    ring.put_many(JOBS[5:11])
    ring.put_many([])
    ring.flush()
    assert drained(reopened(ring, files)) == JOBS[:11]


def test_who_is_refused_for_the_journal_has_it_written() -> None:
    ring = Ring(journal=MemoryFiles(), flush_interval="60s", when_full="reject")
    ring.put_many(JOBS[:9])

    def put() -> None:
        while True:
            try:
                ring.put_many(JOBS[9:15])
            except RingFull:
                continue
            return

    Started(put).join()
    ring.close()


@pytest.mark.parametrize("capacity", [1, 7])
def test_jobs_that_go_in_bit_by_bit_for_want_of_room_are_all_in_the_journal(capacity: int) -> None:
    files = MemoryFiles()
    ring = quiet_ring(files, capacity=capacity)
    putter = Started(lambda: ring.put_many(range(100)))
    found: list[Any] = []
    while len(found) < 100:
        found += ring.take(3).jobs
        ring.flush()
    putter.join()
    assert found == list(range(100))
    ring.flush()
    again = reopened(ring, files, capacity=1_000)
    assert sorted(drained(again)) == list(range(100))
