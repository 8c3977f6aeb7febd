"""Workers that have ended: the ring does not know them any more, and they do not keep it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

import ring_handlers as handlers
from penstock.errors import DiskFull
from penstock.ring import Ring
from penstock.testing import Fault, FaultyFiles, MemoryFiles, Operation
from ring_processes import no_process_is_left
from ring_support import killed

__all__ = ["no_process_is_left"]

KINDS = [(handlers.nothing, "threads"), (handlers.tell_loop, "threads"), (handlers.nothing, "processes")]


@pytest.mark.parametrize(("handler", "kind"), KINDS)
def test_workers_that_have_ended_are_not_counted_and_do_not_keep_the_ring(handler: Any, kind: Any) -> None:
    ring = Ring()
    stopped = ring.start(handler, 2, kind=kind)
    idle = ring.start(handler, 2, kind=kind, until_idle="1ms")
    assert ring.stats().workers in (2, 4)
    ring.put("a")
    assert ring.join()
    idle.join()
    assert ring.stats().workers == 2
    assert stopped.stop()
    assert ring.stats().workers == 0
    assert stopped.have_ended
    assert idle.have_ended
    gone = weakref.ref(ring)
    del ring, stopped, idle
    gc.collect()
    assert gone() is None


def test_workers_that_end_before_they_are_known_are_forgotten() -> None:
    ring = Ring()
    for _ in range(20):
        ring.start(handlers.nothing, until_idle="1ms").join()
        assert ring.stats().workers == 0


def test_jobs_taken_while_they_are_counted_do_not_count_as_acknowledged() -> None:
    ring = Ring()

    class Held(set[Any]):
        """While somebody looks, somebody else takes."""

        def __iter__(self) -> Any:
            found = list(super().__iter__())
            ring.take()
            return iter(found)

    ring._in_flight = Held()
    ring._hold = ring._in_flight.add
    ring.put_many(["a", "b"])
    assert ring.stats().acked == 0
    assert ring.stats().acked == 0


def test_flush_says_it_again_if_the_journal_could_not_be_closed() -> None:
    failing = False

    def before(operation: Operation) -> Fault | None:
        is_full = failing and operation.kind in ("write", "write_at", "create") and operation.name != "synced"
        return Fault(DiskFull("no space left")) if is_full else None

    ring = Ring(journal=FaultyFiles(MemoryFiles(), before), flush_interval="1m")
    ring.put("a")
    failing = True
    for call in (ring.flush, ring.close, ring.flush, ring.flush):
        with pytest.raises(DiskFull):
            call()
    # It has been said.
    ring.close()
    killed(ring)
