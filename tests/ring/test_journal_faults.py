"""The disk fails under a journal: nothing is lost without a word, and nobody waits for ever."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from penstock.errors import DeviceFailed, DiskFull, Fatal, LogCorrupt, PenstockError, StorageError, SyncFailed
from penstock.ring import Ring
from penstock.ring.records import JobCodec
from penstock.ring.store import Store
from penstock.testing import Fault, FaultyFiles, MemoryFiles, Operation
from ring_support import QuietRing, Started, Time, drained, quiet_ring, reopened, until_waiting


class Disk:
    """In memory, and failing at the kinds of operation that a test says."""

    def __init__(self) -> None:
        self.memory = MemoryFiles()
        self.failing: dict[str, PenstockError] = {}
        self.files = FaultyFiles(self.memory, self._before)

    def _before(self, operation: Operation) -> Fault | None:
        error = self.failing.get(operation.kind)
        is_mark = operation.name == "synced"
        if error is None or is_mark:
            return None
        return Fault(error, written=7 if operation.kind == "write" else 0)

    def fill_up(self) -> None:
        self.failing = {kind: DiskFull("no space left") for kind in ("write", "write_at", "create")}


@pytest.fixture
def disk() -> Disk:
    return Disk()


def test_nothing_is_put_while_the_disk_is_full_and_all_else_goes_on(disk: Disk) -> None:
    ring = quiet_ring(disk.files)
    ring.put_many(["a", "b", "c"])
    ring.flush()
    ring.put("d")
    disk.fill_up()
    with pytest.raises(DiskFull):
        ring.flush()
    for put in (lambda: ring.put("e"), lambda: ring.put_many(["e"]), lambda: ring.put_many([])):
        with pytest.raises(DiskFull):
            put()
    stats = ring.stats()
    assert stats.journal is not None
    assert stats.journal.error == "no space left"
    assert stats.why_slow == "the journal can't be written: no space left"
    assert stats.journal.unflushed_s > 0
    batch = ring.take(2)
    batch.ack(["a"])
    batch.retry(["b"], delay=0)
    with pytest.raises(DiskFull):
        ring.flush()
    # Of all this nothing is on disk, and nothing is lost.
    assert drained(reopened(quiet_ring(MemoryFiles()), disk.memory)) == ["a", "b", "c"]
    disk.failing = {}
    ring.flush()
    ring.put("e")
    assert ring.stats().journal.error is None  # type: ignore[union-attr]
    ring.flush()
    batch = reopened(ring, disk.memory).take(10)
    assert (batch.jobs, batch.attempts) == (["b", "c", "d", "e"], [2, 1, 1, 1])


def test_a_full_disk_drops_no_job_for_one_that_can_not_be_put(disk: Disk) -> None:
    ring = quiet_ring(disk.files, capacity=2, when_full="drop_oldest")
    ring.put_many(["a", "b"])
    disk.fill_up()
    with pytest.raises(DiskFull):
        ring.flush()
    with pytest.raises(DiskFull):
        ring.put("c")
    assert ring.stats().dropped == 0
    assert drained(ring) == ["a", "b"]
    disk.failing = {}


def test_who_waits_for_room_hears_that_the_disk_is_full(disk: Disk) -> None:
    ring = quiet_ring(disk.files, capacity=2)

    def work() -> None:
        with pytest.raises(DiskFull) as caught:
            ring.put_many(["a", "b", "c"])
        assert caught.value.details["put"] == 2

    putter = Started(work)
    until_waiting(ring._putters)
    disk.fill_up()
    with pytest.raises(DiskFull):
        ring.flush()
    putter.join()
    assert not ring._putters.waiters
    disk.failing = {}
    ring.flush()


def test_one_large_put_hears_that_the_disk_is_full_and_what_is_in_is_kept(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.ring.journal.UNFLUSHED_BYTES_MAX", 1_000)
    monkeypatch.setattr("penstock.ring.records.JOB_BYTES_MAX", 150)
    jobs = [f"{number:098}" for number in range(50)]
    ring = Ring(journal=disk.files, flush_interval="60s")
    disk.fill_up()

    def put() -> None:
        with pytest.raises(DiskFull) as caught:
            ring.put_many(jobs)
        assert caught.value.details["put"] == 11

    Started(put).join()
    journal = ring.stats().journal
    assert journal is not None
    assert journal.unflushed_bytes == 1_100
    disk.failing = {}
    ring.flush()
    assert ring.stats().journal.unflushed_bytes == 0  # type: ignore[union-attr]
    ring.close()
    assert drained(quiet_ring(disk.memory)) == jobs[:11]


def test_a_full_disk_is_written_to_again_by_itself(disk: Disk) -> None:
    ring = Ring(journal=disk.files, flush_interval="1ms")
    disk.fill_up()
    ring.put("a")
    with pytest.raises(DiskFull):
        ring.flush()
    disk.failing = {}

    def put() -> None:
        while True:
            try:
                ring.put("b")
            except DiskFull:
                continue
            return

    Started(put).join()
    ring.close()
    assert drained(quiet_ring(disk.memory)) == ["a", "b"]


def test_a_disk_that_was_full_only_for_clearing_up_takes_jobs_again(disk: Disk) -> None:
    """Nothing is left to be written then, and still the error must pass."""
    ring = quiet_ring(disk.files)
    for _ in range(10):
        ring.put_many(["x" * 100] * 10)
        ring.flush()
    ring.take(100).ack()
    disk.failing = {"rename": DiskFull("no space left")}
    with pytest.raises(DiskFull):
        ring.flush()
    with pytest.raises(DiskFull):
        ring.put("a")
    disk.failing = {}
    ring.flush()
    ring.put("a")
    ring.flush()
    assert drained(reopened(ring, disk.memory)) == ["a"]


def test_jobs_stay_where_they_are_if_they_can_not_be_moved(disk: Disk) -> None:
    ring = quiet_ring(disk.files)
    ring.put_many([f"old {n}" for n in range(3)])
    old = ring.take(3)
    moves: list[int] = []
    original = Store._move_oldest

    def move(store: Store, *given: Any) -> None:
        disk.fill_up()
        moves.append(1)
        try:
            original(store, *given)
        finally:
            disk.failing = {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "_move_oldest", move)
        failures = 0
        for _ in range(60):
            try:
                ring.flush()
                ring.put_many(["x" * 100] * 10)
                ring.take(10).ack(["x" * 100] * 9)
            except DiskFull:
                failures += 1
    assert moves
    assert failures
    ring.flush()
    journal = ring.stats().journal
    assert journal is not None
    again = reopened(ring, disk.memory)
    found = drained(again)
    assert [job for job in found if job.startswith("old")] == ["old 0", "old 1", "old 2"]
    old.ack()


def test_damage_met_while_jobs_are_moved_stops_the_ring_and_removes_nothing(disk: Disk) -> None:
    ring = quiet_ring(disk.files)
    ring.put_many([f"old {n}" for n in range(3)])
    ring.take(3)
    with pytest.MonkeyPatch.context() as patch:

        def damaged(*_: Any) -> Any:
            raise LogCorrupt("damaged")

        patch.setattr(Store, "_left_of", damaged)
        with pytest.raises(LogCorrupt):
            for _ in range(60):
                ring.put_many(["x" * 100] * 10)
                ring.flush()
                ring.take(10).ack()
        for call in (ring.flush, ring.take, lambda: ring.put(1), ring.join):
            with pytest.raises(LogCorrupt):
                call()
    assert "old 0" in drained(reopened(ring, disk.memory))


@pytest.mark.parametrize("kind", ["sync", "write"])
def test_after_a_fatal_error_every_call_says_so(disk: Disk, kind: str) -> None:
    ring = quiet_ring(disk.files)
    ring.put_many(["flushed", "held", "held too"])
    ring.flush()
    ring.take().ack()
    one, two = ring.take(), ring.take()
    disk.failing = {"sync": SyncFailed("fsync failed")}
    if kind == "write":
        disk.failing = dict.fromkeys(("write", "write_at"), DeviceFailed("EIO"))
    with pytest.raises(Fatal):
        ring.flush()
    disk.failing = {}
    for call in (
        ring.flush,
        lambda: ring.put(1),
        lambda: ring.put_many([1]),
        ring.take,
        lambda: ring.take(5, wait=0),
        one.ack,
        two.retry,
        two.fail,
        ring.redrive,
        ring.clear_failed,
        ring.join,
        ring.close,
    ):
        with pytest.raises(Fatal):
            call()
    ring.close()
    # What was not synced may be there or not.
    found = drained(quiet_ring(disk.memory))
    assert set(found) - {"flushed"} == {"held", "held too"}


def test_a_fatal_error_wakes_all_who_wait(disk: Disk) -> None:
    ring = Ring(1, journal=disk.files, flush_interval="60s")
    ring.put("a")
    held = ring.take()
    ring.put("b")

    def waits(call: Any) -> Any:
        def work() -> None:
            with pytest.raises(SyncFailed):
                call()

        return work

    waiting = Started(waits(lambda: ring.put("c")), waits(ring.join))
    until_waiting(ring._putters)
    until_waiting(ring._joiners)
    disk.failing = {"sync": SyncFailed("fsync failed")}
    with pytest.raises(SyncFailed):
        ring.flush()
    waiting.join()
    with pytest.raises(SyncFailed):
        held.ack()
    with pytest.raises(SyncFailed):
        ring.close()
    assert not disk.memory.disk.is_locked


def test_a_fatal_error_wakes_a_taker(disk: Disk) -> None:
    ring = Ring(journal=disk.files, flush_interval="1ms")

    def take() -> None:
        with pytest.raises(SyncFailed):
            ring.take(5)

    taker = Started(take)
    until_waiting(ring._takers)
    disk.failing = {"sync": SyncFailed("fsync failed")}
    ring.clear_failed()
    with ring._lock:
        ring._journal.put(JobCodec(Any).pieces(["behind its back"]))  # type: ignore[union-attr]
    taker.join()
    with pytest.raises(SyncFailed):
        ring.close()


@pytest.mark.parametrize("kind", [QuietRing, Ring])
def test_close_says_that_the_last_jobs_could_not_be_written_and_frees_the_directory(
    disk: Disk, kind: type[Ring]
) -> None:
    ring = kind(journal=disk.files, flush_interval="60s")
    ring.put("a")
    disk.fill_up()
    with pytest.raises(DiskFull):
        ring.close()
    ring.close()
    assert not disk.memory.disk.is_locked
    assert len(quiet_ring(disk.memory)) == 0


def test_a_bug_of_ours_in_a_flush_is_not_passed_over(disk: Disk) -> None:
    ring = Ring(journal=disk.files, flush_interval="1ms")
    # Rings that tests before have left are closed when they are collected, and that is not to be while this one fails.
    gc.collect()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "append", lambda *_: 1 / 0)
        ring.put("a")
        with pytest.raises(Fatal, match="ZeroDivisionError"):
            ring.flush()
    with pytest.raises(Fatal, match="ZeroDivisionError"):
        ring.put("b")
    with pytest.raises(Fatal):
        ring.close()
    assert not disk.memory.disk.is_locked


@pytest.mark.parametrize("kind", ["create", "write", "sync", "sync directory", "rename"])
def test_a_disk_that_fails_while_a_journal_is_made_is_told_and_left_free(disk: Disk, kind: str) -> None:
    disk.failing = {kind: StorageError("failed")}
    with pytest.raises(StorageError):
        quiet_ring(disk.files)
    assert not disk.memory.disk.is_locked
    disk.failing = {}
    ring = quiet_ring(disk.files, Time())
    ring.put(1)
    ring.close()
    assert drained(quiet_ring(disk.memory)) == [1]
