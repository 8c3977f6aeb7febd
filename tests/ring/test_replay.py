"""What a restart makes of a journal that is not as it should be, or not as it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from pyroaring import BitMap64

from penstock.errors import InvalidInput, UnknownFormat
from penstock.frame import Frame
from penstock.message import Message
from penstock.ring import records
from penstock.storage.log import Log
from penstock.testing import MemoryFiles
from ring_support import drained, quiet_ring, reopened


@dataclass(frozen=True)
class Key:
    number: int


# As they are written a key is a map, which is no key here; and a time has 4, 8 or 12 bytes.
UNREADABLE = [{Key(1): 2}, msgspec.msgpack.Ext(-1, b"x"), {"deep": [{Key(1): 2}]}]
# What comes behind them can't be found either.
SHAPELESS = [msgspec.Raw(b"\xc1"), msgspec.Raw(b""), msgspec.Raw(b"\x92\x01"), [msgspec.Raw(b"\x01\x02")]]


@pytest.mark.parametrize("job", UNREADABLE + SHAPELESS)
def test_a_job_that_could_not_be_read_back_is_refused(job: Any) -> None:
    files = MemoryFiles()
    ring = quiet_ring(files)
    with pytest.raises(InvalidInput, match="index 0 could not be read back"):
        ring.put(job)
    with pytest.raises(InvalidInput, match="index 2 could not be read back"):
        ring.put_many([1, {"a": [1]}, job, 2])
    ring.put_many([{"a": msgspec.Raw(b"\x01")}, {(1, 2): 3}])
    ring.flush()
    assert drained(reopened(ring, files)) == [{"a": 1}, {(1, 2): 3}]


class All(frozenset[Any]):
    def issuperset(self, other: Any) -> bool:
        return True


def written_unchecked(jobs: list[Any], monkeypatch: pytest.MonkeyPatch) -> MemoryFiles:
    """As if it had not been looked at."""
    files = MemoryFiles()
    with monkeypatch.context() as patched:
        patched.setattr(records, "_PLAIN", All())
        ring = quiet_ring(files)
        ring.put_many(jobs)
        ring.close()
    return files


def test_a_job_that_can_not_be_read_has_failed_and_keeps_no_other_from_being_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = written_unchecked(["a", *UNREADABLE, "b"], monkeypatch)
    ring = quiet_ring(files)
    assert (ring.stats().put, ring.stats().acked) == (0, 0)
    failed = ring.failed()
    assert [one.job for one in failed] == [msgspec.msgpack.encode(job) for job in UNREADABLE]
    assert {one.attempts for one in failed} == {0}
    for one in failed:
        assert one.reason.startswith("it can't be read back, so here are its bytes: ")
    assert ring.take().jobs == ["a"]
    ring.flush()
    again = reopened(ring, files)
    assert again.failed() == failed
    assert drained(again) == ["a", "b"]
    assert again.redrive(1) == 1
    assert again.take().jobs == [failed[0].job]
    again.clear_failed()
    again.flush()
    files = MemoryFiles(again._journal._files.disk)  # type: ignore[union-attr]
    assert [one.job for one in reopened(again, files).failed()] == [failed[0].job]


@pytest.mark.parametrize("job", SHAPELESS)
def test_jobs_that_can_not_be_told_apart_are_refused_and_stay(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files = written_unchecked(["a", job, "b"], monkeypatch)
    with pytest.raises(UnknownFormat, match="can't be told apart"):
        quiet_ring(files)
    assert not files.disk.is_locked


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (records.HELD, BitMap64([3, 7]).serialize()),
        (records.HELD_AGAIN, msgspec.msgpack.encode([[7, 2], [3, 2]])),
        (records.RETRY, msgspec.msgpack.encode([[7, 1, 5]])),
        (records.FAILED, msgspec.msgpack.encode([[7, 1, 5, "no"]])),
        (records.DONE, BitMap64([3, 7]).serialize()),
    ],
)
def test_a_number_that_anything_is_said_of_is_not_given_again(kind: bytes, value: bytes) -> None:
    """The job itself is gone, and what became of it was not written."""
    files = MemoryFiles()
    log = Log.open(files)
    log.append([Frame.of_messages([Message(value, key=kind)], now_us=1)])
    log.close()
    ring = quiet_ring(files)
    assert (len(ring), ring.failed()) == (0, [])
    jobs = [f"new {number}" for number in range(10)]
    ring.put_many(jobs)
    ring.flush()
    batch = reopened(ring, files).take(99)
    assert (batch.jobs, batch.attempts) == (jobs, [1] * 10)


def test_a_redriven_job_that_was_in_hand_at_a_kill_has_not_failed_again_when_it_was_moved() -> None:
    files = MemoryFiles()
    ring = quiet_ring(files)
    ring.put("victim")
    ring.take().fail(reason="once")
    ring.flush()
    ring.redrive()
    ring.take()
    ring.flush()
    files = MemoryFiles(files.disk.after_kill())
    ring._finalizer.detach()
    ring = quiet_ring(files, capacity=10, when_full="drop_oldest")
    for _ in range(100):
        ring.put_many(["filler" * 40] * 5)
        ring.flush()
    assert ring.stats().journal.compactions > 1  # type: ignore[union-attr]
    again = reopened(ring, files)
    assert again.failed() == []
    batch = again.take()
    assert (batch.jobs, batch.attempts) == (["victim"], [2])
