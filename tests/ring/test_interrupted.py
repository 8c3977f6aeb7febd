"""Ctrl-C, or whatever another thread raises in this one, in the middle of a put or a take.

The interpreter lets it through where a function begins, behind a call of one that is not written in Python, and at the
next turn of a loop. The profiler is called at the first two. So it raises in one place after the other, until there is
none left.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any

import pytest

from penstock.ring import Ring, waiting
from penstock.ring.waiting import Line, WaitingThread
from penstock.testing import MemoryFiles
from ring_support import drained, quiet_ring, reopened

HERE = waiting.__file__.rpartition("waiting.py")[0]


class Interrupt(BaseException):
    pass


def is_interrupted(place: int, work: Callable[[], Any]) -> bool:
    """False if it has fewer places than that."""
    left = place

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(HERE):
            if left == 0:
                raise Interrupt
            left -= 1

    # Not in the middle of it, where it would close the rings of before, and be interrupted there.
    gc.disable()
    sys.setprofile(look)
    try:
        work()
    except Interrupt:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False


def ring_of(files: MemoryFiles | None, **settings: Any) -> Ring:
    return Ring(**settings) if files is None else quiet_ring(files, **settings)


@pytest.mark.parametrize("count_max", [1, 3, 9])
@pytest.mark.parametrize("is_tried", [False, True])
@pytest.mark.parametrize("is_journaled", [False, True])
def test_who_is_interrupted_has_taken_nothing(count_max: int, is_tried: bool, is_journaled: bool) -> None:
    for place in count():
        files = MemoryFiles() if is_journaled else None
        ring = ring_of(files)
        ring.put_many(["a", "b", "c"])
        ring.put("d")
        if is_tried:
            ring.take(2).retry(delay=0)
        if not is_interrupted(place, lambda ring=ring: ring.take(count_max)):  # type: ignore[misc]
            break
        assert ring._in_flight == set()
        stats = ring.stats()
        assert (stats.put, stats.in_flight, stats.acked, len(ring)) == (4, 0, 0, 4)
        if files is not None:
            ring.flush()
            again = reopened(ring, files).take(9)
            assert sorted(again.jobs) == ["a", "b", "c", "d"]
            assert sorted(again.attempts) == ([1, 1, 2, 2] if is_tried else [1, 1, 1, 1])
        batch = ring.take(9)
        assert batch.jobs == ["a", "b", "c", "d"]
        assert batch.attempts == ([2, 2, 1, 1] if is_tried else [1, 1, 1, 1])
        batch.ack(["a", "c"])
        ring.put("e")
        if files is not None:
            ring.flush()
            assert sorted(drained(reopened(ring, files))) == ["b", "d", "e"]
        batch.ack()
        ring.take().ack()
        assert ring.join(wait=0)
    assert place > 1


@pytest.mark.parametrize("is_journaled", [False, True])
def test_who_is_interrupted_while_there_is_nothing_leaves_nothing(is_journaled: bool) -> None:
    for place in count():
        ring = ring_of(MemoryFiles() if is_journaled else None)
        if not is_interrupted(place, lambda ring=ring: ring.take(wait=0)):  # type: ignore[misc]
            break
        assert ring._in_flight == set()
        assert not ring._takers.waiters
        assert ring.join(wait=0)
    assert place > 1


@pytest.mark.parametrize("jobs", [["x"], ["x", "y", "z", "é", "!"]])
@pytest.mark.parametrize("is_journaled", [False, True])
def test_who_is_interrupted_has_put_all_or_nothing(
    jobs: list[str], is_journaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.ring.records.PIECE_JOBS", 2)
    seen = set()
    for place in count():
        files = MemoryFiles() if is_journaled else None
        ring = ring_of(files)
        ring.put("first")
        put = (lambda r=ring: r.put(jobs[0])) if len(jobs) == 1 else (lambda r=ring: r.put_many(jobs))
        if not is_interrupted(place, put):
            break
        ring.put("last")
        there = list(ring._waiting)
        assert there in (["first", "last"], ["first", *jobs, "last"])
        seen.add(len(there))
        if files is not None:
            ring.flush()
            assert drained(reopened(ring, files)) == there
            ring.take().ack()
            ring.flush()
            assert drained(reopened(ring, files)) == there[1:]
        assert drained(ring) == there[1 if files is not None else 0 :]
    assert place > 0
    assert len(jobs) + 2 in seen


def test_who_is_interrupted_while_jobs_are_dropped_leaves_each_with_its_number() -> None:
    for place in count():
        files = MemoryFiles()
        ring = quiet_ring(files, capacity=4, when_full="drop_oldest")
        ring.put_many(["a", "b", "c"])
        ring.take().retry(delay=0)
        ring.flush()
        if not is_interrupted(place, lambda ring=ring: ring.put_many(["x", "y", "z"])):  # type: ignore[misc]
            break
        there = [*ring._waiting]
        assert there in (["b", "c"], ["c"], [], ["x", "y", "z"])
        ring.flush()
        assert set(there) <= set(drained(reopened(ring, files)))
        while batch := ring.take(wait=0):
            batch.ack()
            ring.flush()
            assert batch[0] not in drained(reopened(ring, files))
    assert place > 20


def test_one_who_waits_hears_the_call_of_somebody_who_is_interrupted() -> None:
    for place in count():
        line, waiter = Line(), WaitingThread()
        line.join(waiter)
        if not is_interrupted(place, line.wake_one):
            break
        assert waiter in line.waiters or waiter.sleep(0)
    assert place > 1
