"""When the journal is written."""

from __future__ import annotations

from threading import Event
from time import perf_counter

import pytest

from penstock.errors import DiskFull, StorageError
from penstock.ring.flusher import Flusher, wait_s
from ring_support import PATIENCE_S

HOUR_S = 3_600.0


def an_hour_ago() -> float:
    return perf_counter() - HOUR_S


@pytest.mark.parametrize(
    ("flush_s", "expected_s"),
    [(0.0, 0.05), (0.03, 0.05), (0.05, 0.025), (0.06, 0.01), (0.5, 0.01)],
)
def test_it_begins_the_earlier_the_longer_the_last_ones_took(flush_s: float, expected_s: float) -> None:
    assert wait_s(0.1, flush_s) == pytest.approx(expected_s)


def test_it_is_due_by_when_something_happened_and_not_by_when_the_thread_heard_of_it() -> None:
    """Or what happens during a long flush waits for it, then for half an interval, and then for its own."""
    was_flushed = Event()
    flusher = Flusher(HOUR_S, since=an_hour_ago, flush=was_flushed.set, is_urgent=lambda: False, finish=lambda: None)
    flusher.ask()
    assert was_flushed.wait(PATIENCE_S)
    assert flusher.end() is None


def test_a_full_disk_is_not_tried_without_a_pause() -> None:
    tries = 0
    was_tried = Event()

    def flush() -> StorageError | None:
        nonlocal tries
        tries += 1
        was_tried.set()
        return DiskFull("no space left")

    flusher = Flusher(HOUR_S, since=an_hour_ago, flush=flush, is_urgent=lambda: False, finish=lambda: None)
    flusher.ask()
    assert was_tried.wait(PATIENCE_S)
    for expected in (2, 3):
        # Who asks for a flush gets one.
        assert isinstance(flusher.flush(), DiskFull)
        assert tries == expected
    flusher.end()
