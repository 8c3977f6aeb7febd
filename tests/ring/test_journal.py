"""A ring with a journal: what a restart finds."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from pyroaring import BitMap64

import penstock
from penstock.batch import Batch
from penstock.errors import (
    BatchTooLarge,
    DirectoryLocked,
    InvalidInput,
    InvalidSetting,
    LogCorrupt,
    RingClosed,
    StorageError,
    UnknownFormat,
)
from penstock.frame import Frame
from penstock.ring import Ring
from penstock.ring.records import bitmap_records
from penstock.storage.log import Log
from penstock.testing import MemoryFiles
from ring_support import Time, drained, killed, quiet_ring, reopened


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def time() -> Time:
    return Time()


def test_jobs_are_there_again_after_a_close(tmp_path: Any) -> None:
    jobs = [None, True, 5, -(2**63), 2**64 - 1, 1.5, "text", b"bytes", [1, [2]], {"a": {"b": 1}}, {1: 2}]
    jobs.append(datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC))
    with Ring(journal=tmp_path) as ring:
        ring.put_many(jobs)
        ring.put("one more")
    with Ring(journal=str(tmp_path)) as ring:
        assert len(ring) == 13
        assert drained(ring) == [*jobs, "one more"]


def test_only_what_was_flushed_is_there_after_a_kill(files: MemoryFiles) -> None:
    ring = quiet_ring(files)
    ring.put_many([1, 2, 3])
    ring.flush()
    ring.put(4)
    assert drained(reopened(ring, files)) == [1, 2, 3]


def test_what_is_acknowledged_and_flushed_never_comes_back(files: MemoryFiles) -> None:
    ring = quiet_ring(files)
    ring.put_many(range(10))
    ring.flush()
    batch = ring.take(6)
    batch.ack([1, 3, 5])
    ring.flush()
    batch.ack([0])
    again = reopened(ring, files)
    # Those in hand come first: they have been tried.
    assert drained(again) == [0, 2, 4, 6, 7, 8, 9]


def test_a_job_put_and_acknowledged_between_two_flushes_is_not_written(files: MemoryFiles) -> None:
    ring = quiet_ring(files)
    ring.put_many(["x" * 1000] * 3)
    ring.take(3).ack()
    ring.flush()
    journal = ring.stats().journal
    assert journal is not None
    assert (journal.flushes, journal.unflushed_bytes) == (0, 0)
    assert len(reopened(ring, files)) == 0


def test_attempts_and_due_times_survive(files: MemoryFiles, time: Time) -> None:
    ring = quiet_ring(files, time)
    ring.put_many(["a", "b", "c"])
    ring.take(3).retry(delay=0)
    batch = ring.take(3)
    assert batch.attempts == [2, 2, 2]
    batch.retry(["b"], "1h")
    batch.retry(["a"], "10s")
    batch.ack(["c"])
    ring.flush()
    time.advance("5s")
    again = reopened(ring, files, time)
    assert not again.take(wait=0)
    time.advance("5s")
    batch = again.take(5)
    assert (batch.jobs, batch.attempts) == (["a"], [3])
    time.advance("1h")
    assert again.take(5).jobs == ["b"]


def test_jobs_in_hand_at_a_kill_have_been_tried(files: MemoryFiles) -> None:
    ring = quiet_ring(files)
    ring.put_many(["a", "b"])
    ring.take()
    ring.flush()
    batch = reopened(ring, files).take(5)
    assert (batch.jobs, batch.attempts) == (["a", "b"], [2, 1])


def test_a_job_that_kills_its_process_every_time_has_failed_in_the_end(files: MemoryFiles) -> None:
    ring = quiet_ring(files, max_attempts=3)
    ring.put_many(["deadly", "harmless"])
    for attempt in (1, 2, 3):
        batch = ring.take()
        assert (batch.jobs, batch.attempts) == (["deadly"], [attempt])
        ring.flush()
        files = MemoryFiles(files.disk.after_kill())
        killed(ring)
        ring = quiet_ring(files, max_attempts=3)
    (failed,) = ring.failed()
    assert (failed.job, failed.attempts) == ("deadly", 3)
    assert failed.reason == "the process ended while it was being worked on"
    assert drained(ring) == ["harmless"]


def test_a_job_in_hand_at_a_close_has_been_tried_too(files: MemoryFiles) -> None:
    ring = quiet_ring(files)
    ring.put("a")
    batch = ring.take()
    ring.close()
    for answer in (batch.ack, batch.retry, batch.fail):
        with pytest.raises(RingClosed, match="when it is opened again"):
            answer()
    assert quiet_ring(files).take().attempts == [2]


def test_failed_jobs_survive_in_their_order_and_so_does_that_they_are_redriven(files: MemoryFiles, time: Time) -> None:
    ring = quiet_ring(files, time, max_attempts=1)
    ring.put_many(["a", "b", "c", "d", "e"])
    for _ in range(4):
        time.advance("1s")
        ring.take().fail(reason="nо \udcff" + "!" * 5_000)
    held = ring.take()
    ring.flush()
    ring = reopened(ring, files, time, max_attempts=1)
    assert [failed.job for failed in ring.failed()] == ["a", "b", "c", "d", "e"]
    assert ring.failed()[0].reason == "nо ?" + "!" * 996
    assert ring.failed()[0].failed_at == time.now_us() - 3_000_000
    del held
    files = MemoryFiles(ring._journal._files.disk)  # type: ignore[union-attr]
    assert ring.redrive(1) == 1
    ring.flush()
    assert reopened(ring, files, time).take(5).attempts == [1]
    batch = ring.take()
    ring.flush()
    again = reopened(ring, files, time, max_attempts=3)
    assert again.take(5).attempts == [2]
    assert [failed.job for failed in again.failed()] == ["b", "c", "d", "e"]
    batch.ack()
    ring.clear_failed()
    ring.flush()
    again = reopened(ring, files, time)
    assert len(again) == 0
    assert again.failed() == []


def test_a_redriven_job_that_is_in_hand_again_has_been_tried_once(files: MemoryFiles) -> None:
    """All between two flushes: what was noted of it before must not count any more."""
    ring = quiet_ring(files)
    ring.put("a")
    ring.take().fail()
    ring.flush()
    ring.redrive()
    ring.take()
    ring.flush()
    batch = reopened(ring, files).take(wait=0)
    assert (batch.jobs, batch.attempts) == (["a"], [2])


def test_dropped_jobs_do_not_come_back(files: MemoryFiles, time: Time) -> None:
    ring = quiet_ring(files, time, capacity=3, when_full="drop_oldest", failed_max=1)
    ring.put_many(range(3))
    ring.flush()
    ring.put_many([3, 4])
    batch = ring.take(2)
    batch.retry([2], "1h")
    batch.fail([3])
    ring.put_many([5, 6, 7])
    ring.take().fail()
    ring.flush()
    again = reopened(ring, files, time)
    assert [failed.job for failed in again.failed()] == [5]
    assert drained(again) == [6, 7]
    time.advance("2h")
    assert drained(again) == []


def test_a_ring_opened_with_less_room_has_all_its_jobs(files: MemoryFiles) -> None:
    ring = quiet_ring(files)
    ring.put_many(range(10))
    ring.close()
    again = quiet_ring(files, capacity=2, when_full="reject")
    assert len(again) == 10
    assert drained(again) == list(range(10))


def test_numbers_go_on_where_they_were(files: MemoryFiles) -> None:
    """A job that was done long ago does not take a new one with it."""
    for generation in range(5):
        ring = quiet_ring(files)
        assert drained(ring) == ([f"kept {generation - 1}"] if generation else [])
        for batch in list(ring._in_flight):
            batch.ack()
        ring.put_many([f"done {generation}"] * 3)
        ring.take(3).ack()
        ring.put(f"kept {generation}")
        ring.flush()
        ring.close()


# --- types ---------------------------------------------------------------------------------------------------


@dataclass
class Mail:
    to: str
    tries: int = 0


class Order(msgspec.Struct):
    number: int
    lines: list[str] = []


def test_dataclasses_and_structs_come_back_as_such_if_the_type_says_so(files: MemoryFiles) -> None:
    jobs = [Mail("ann"), Mail("bob", 2)]
    ring = quiet_ring(files, type=Mail)
    ring.put_many(jobs)
    ring.close()
    ring = quiet_ring(files, type=Mail)
    batch = ring.take(5)
    assert batch.jobs == jobs
    batch.ack()
    ring.close()
    ring = quiet_ring(files, type=Order)
    ring.put(Order(5, ["a"]))
    ring.close()
    assert drained(quiet_ring(files, type=Order)) == [Order(5, ["a"])]


def test_jobs_of_another_type_are_refused_at_the_next_start_and_stay(files: MemoryFiles) -> None:
    ring = quiet_ring(files)
    ring.put({"to": "ann"})
    ring.put({"from": "bob"})
    ring.close()
    with pytest.raises(InvalidInput, match="not of the type that was given"):
        quiet_ring(files, type=Mail)
    assert drained(quiet_ring(files)) == [{"to": "ann"}, {"from": "bob"}]


def test_a_job_of_another_type_is_refused_when_it_is_put(files: MemoryFiles) -> None:
    """It could not be read back, nor the others with it."""
    ring = quiet_ring(files, type=Mail)
    for job in ("text", {"from": "bob"}, Order(1), None):
        with pytest.raises(InvalidInput, match="not of the type"):
            ring.put(job)
        with pytest.raises(InvalidInput):
            ring.put_many([Mail("ann"), job])
    assert len(ring) == 0
    ring.put({"to": "ann"})


@pytest.mark.parametrize("job", [object(), {1, object()}, 2**64, -(2**63) - 1, "\ud800", [lambda: 1], 1 + 2j])
def test_a_job_that_can_not_be_written_is_refused_and_none_is_put(files: MemoryFiles, job: Any) -> None:
    ring = quiet_ring(files)
    with pytest.raises(InvalidInput, match="can't be written to the journal"):
        ring.put(job)
    with pytest.raises(InvalidInput):
        ring.put_many([1, 2, job])
    assert len(ring) == 0
    assert ring.stats().put == 0
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidInput):
        ring.put(endless)


def test_a_job_too_large_for_the_journal_is_refused(files: MemoryFiles) -> None:
    ring = quiet_ring(files)
    with pytest.raises(BatchTooLarge, match="the journal takes"):
        ring.put_many(["small", b"x" * (1 << 20)])
    assert len(ring) == 0
    large = [bytes([n]) * 900_000 for n in range(20)]
    ring.put_many(large)
    ring.close()
    assert drained(quiet_ring(files)) == large


def test_many_small_and_large_jobs_at_once_are_all_there(tmp_path: Any) -> None:
    jobs = [n if n % 7 else "x" * (n % 3_000) for n in range(70_000)]
    with Ring(100_000, journal=tmp_path) as ring:
        ring.put_many(jobs)
        ring.flush()
        ring.take(10_000).ack()
    with Ring(100_000, journal=tmp_path) as ring:
        assert drained(ring) == jobs[10_000:]


@pytest.mark.parametrize("type", ["no type", 5, [int]])
def test_a_type_that_is_none_is_refused(files: MemoryFiles, type: Any) -> None:
    with pytest.raises(InvalidInput):
        quiet_ring(files, type=type)
    assert not files.disk.is_locked


# --- where it is ---------------------------------------------------------------------------------------------


def test_a_directory_is_one_ring_s_only(tmp_path: Any) -> None:
    ring = Ring(journal=tmp_path)
    with pytest.raises(DirectoryLocked):
        Ring(journal=tmp_path)
    ring.close()
    Ring(journal=tmp_path).close()


@pytest.mark.parametrize("path", [5, 1.5, b"bytes", ["a"], object(), ""])
def test_a_journal_is_in_a_directory(path: Any) -> None:
    with pytest.raises(InvalidSetting, match="journal is the path of a directory"):
        Ring(journal=path)


def test_a_path_that_can_be_no_directory_is_refused(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", "a\0b"):
        with pytest.raises(StorageError):
            Ring(journal=path)


def test_a_journal_is_not_put_among_the_data_of_a_broker(tmp_path: Any) -> None:
    with penstock.open(tmp_path):
        pass
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(InvalidSetting, match="has the data of a broker") as caught:
        Ring(journal=tmp_path)
    assert str(tmp_path) in caught.value.message
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    with penstock.open(tmp_path):
        pass


def test_what_is_wrong_with_a_journal_says_where_it_is(tmp_path: Any) -> None:
    with Ring(journal=tmp_path) as ring:
        ring.put("text")
        assert repr(ring) == f"<Ring of 65,536: 1 waiting, 0 in flight, journal {tmp_path}>"
    with pytest.raises(InvalidInput, match="its jobs are not of the type that was given") as mismatch:
        Ring(journal=tmp_path, type=int)
    (tmp_path / "manifest").unlink()
    with pytest.raises(LogCorrupt, match="the manifest is missing") as corrupt:
        Ring(journal=tmp_path)
    for caught in (mismatch, corrupt):
        assert caught.value.message.startswith(f"the journal {tmp_path}: ")
        assert caught.value.details["directory"] == str(tmp_path)


@pytest.mark.parametrize("at", [0, 3, 999, 1_000, 2_345])
def test_put_many_says_which_job_can_not_be_written(files: MemoryFiles, at: int) -> None:
    ring = quiet_ring(files, type=str)
    for job, error in ((object(), "can't be written"), (5, "not of the type"), ("x" * (1 << 20), "1,048,5")):
        jobs: list[Any] = ["fine"] * 3_000
        jobs[at] = job
        with pytest.raises(InvalidInput, match=f"the job at index {at} .*{error}") as caught:
            ring.put_many(jobs)
        assert caught.value.details["index"] == at
    assert len(ring) == 0


@pytest.mark.parametrize("interval", [5, "0s", "999us", "61s", "soon"])
def test_a_flush_interval_is_from_a_millisecond_to_a_minute(tmp_path: Any, interval: Any) -> None:
    with pytest.raises(InvalidSetting, match="flush_interval"):
        Ring(journal=tmp_path / "new", flush_interval=interval)
    assert not (tmp_path / "new").exists()


def test_another_log_is_refused_and_left_alone(files: MemoryFiles) -> None:
    log = Log.open(files)
    log.append([Frame.of(Batch.from_columns([b"a", b"b"], keys=[b"P", b"Q"], now_us=1))])
    log.close()
    before = {name: bytes(inode.current) for name, inode in files.disk.names.items()}
    with pytest.raises(UnknownFormat, match="no journal of a ring"):
        quiet_ring(files)
    assert not files.disk.is_locked
    after = {name: bytes(inode.current) for name, inode in files.disk.names.items()}
    assert {name for name in before if before[name] != after[name]} <= {"synced"}, "it was written to"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (b"P", b""),
        (b"P", b"\x01" * 8),
        (b"P", b"\x01" * 8 + b"\xdd\0\0\0\x05\x01"),
        (b"S", b"\x09\0\0\0"),
        (b"S", b"\x01\0\0\0" + b"\x01" * 8 + b"\x90"),
        (b"T", b"garbage"),
        (b"D", b""),
        (b"D", b"\xff" * 40),
        (b"R", b"\xc1"),
        (b"R", b"\x91\x91\x01"),
        (b"F", b"\x05"),
        (b"H", b"\x91\xa1x"),
    ],
)
def test_records_that_make_no_sense_are_damage_and_nothing_else(files: MemoryFiles, kind: bytes, value: bytes) -> None:
    log = Log.open(files)
    log.append([Frame.of(Batch.from_columns([value], keys=[kind], now_us=1))])
    log.close()
    with pytest.raises((LogCorrupt, UnknownFormat)):
        quiet_ring(files)
    assert not files.disk.is_locked


def test_a_flipped_bit_is_noticed(files: MemoryFiles) -> None:
    ring = quiet_ring(files)
    ring.put_many(["x" * 100] * 20)
    ring.close()
    (name,) = [name for name in files.disk.names if name.endswith(".log")]
    files.disk.names[name].current[700] ^= 1
    with pytest.raises(LogCorrupt):
        quiet_ring(files)
    assert not files.disk.is_locked


# --- flushing ------------------------------------------------------------------------------------------------


def test_flush_waits_until_all_is_on_disk(tmp_path: Any) -> None:
    ring = Ring(journal=tmp_path, flush_interval="60s")
    for job in range(5):
        ring.put(job)
        ring.flush()
        journal = ring.stats().journal
        assert journal is not None
        assert (journal.flushes, journal.unflushed_bytes, journal.unflushed_s) == (job + 1, 0, 0.0)
    ring.flush()
    ring.close()
    ring.flush()


def test_it_is_flushed_by_itself(tmp_path: Any) -> None:
    ring = Ring(journal=tmp_path, flush_interval="2ms")
    ring.put("a")
    journal = ring.stats().journal
    while journal is not None and not journal.flushes:
        journal = ring.stats().journal
    batch = ring.take()
    batch.ack()
    while journal is not None and journal.flushes < 2:
        journal = ring.stats().journal
    ring.close()


def test_a_large_set_of_numbers_is_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.ring.records.RECORD_BYTES_MAX", 1_000)
    numbers = BitMap64(range(0, 60_000, 7))
    parts = bitmap_records(b"D", BitMap64(numbers))
    assert len(parts) > 5
    found = BitMap64()
    for part in parts:
        assert part.value is not None
        assert len(part.value) <= 1_000
        found |= BitMap64.deserialize(part.value)
    assert found == numbers
    assert bitmap_records(b"D", BitMap64()) == []


def test_the_log_stays_small_while_jobs_come_and_go(files: MemoryFiles) -> None:
    ring = quiet_ring(files)
    for round_ in range(200):
        ring.put_many([[round_, n, "x" * 50] for n in range(10)])
        ring.flush()
        ring.take(10).ack()
    ring.flush()
    journal = ring.stats().journal
    assert journal is not None
    assert journal.compactions > 10
    assert journal.bytes_on_disk < 10_000


def test_a_few_old_jobs_do_not_keep_a_large_log(files: MemoryFiles, time: Time) -> None:
    ring = quiet_ring(files, time)
    ring.put_many([f"old {n}" for n in range(10)])
    old = ring.take(9)
    old.retry(["old 1"], "1h")
    old.fail(["old 2"], "no")
    for round_ in range(200):
        ring.put_many([[round_, n, "x" * 50] for n in range(10)])
        ring.flush()
        with ring.take(11) as batch:
            if "old 9" in batch.jobs:
                batch.retry(["old 9"], "2h")
    ring.flush()
    journal = ring.stats().journal
    assert journal is not None
    assert journal.bytes_on_disk < 20_000
    again = reopened(ring, files, time)
    assert [failed.job for failed in again.failed()] == ["old 2"]
    batch = again.take(50)
    assert (batch.jobs, batch.attempts) == ([f"old {n}" for n in (0, 3, 4, 5, 6, 7, 8)], [2] * 7)
    time.advance("1h")
    assert again.take(50).jobs == ["old 1"]
    time.advance("1h")
    assert again.take(50).jobs == ["old 9"]


def test_a_log_full_of_jobs_is_not_moved_after_a_restart(files: MemoryFiles) -> None:
    ring = quiet_ring(files)
    ring.put_many([["x" * 100, n] for n in range(300)])
    ring.flush()
    for _ in range(5):
        ring.put("more")
        ring.flush()
    size = ring.stats().journal.bytes_on_disk  # type: ignore[union-attr]
    assert size > 30_000
    ring.close()
    ring = quiet_ring(files)
    ring.put("more")
    ring.flush()
    assert ring.stats().journal.bytes_on_disk < size + 1_000  # type: ignore[union-attr]


def test_settings_are_checked_before_the_directory_is_touched(tmp_path: Any) -> None:
    with pytest.raises(InvalidSetting):
        Ring(0, journal=tmp_path / "new")
    assert not (tmp_path / "new").exists()
