"""A ring and its journal: how one is filled from the other at the start, and what holds when nobody closes it.

Whoever lets go of a ring, or ends the process, without closing it loses nothing: what was not written yet is then. A
forked child has a copy of the ring that is of no use: the journal is its parent's, who goes on writing it.
"""

from __future__ import annotations

import os
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod, WeakSet, finalize

from penstock.ring.journal import Journal
from penstock.ring.replay import Found
from penstock.ring.settings import Duration, seconds

if TYPE_CHECKING:
    from penstock.ring.ring import Ring

_journaled: WeakSet[Ring] = WeakSet()


def recover(ring: Ring, path: Any, flush_interval: Duration, job_type: Any) -> None:
    # The journal and its thread outlive the ring for as long as it takes to close it, and must not keep it.
    flushed = WeakMethod(ring._flushed)

    def told() -> None:
        if (tell := flushed()) is not None:
            tell()

    ring._journal = journal = Journal.open(
        path,
        lock=ring._lock,
        interval_s=seconds(flush_interval),
        job_type=job_type,
        clock=ring._clock,
        flushed=told,
        **ring._journal_options,
    )
    try:
        _fill(ring, journal.recovered())
    except BaseException:
        journal.close()
        raise
    ring._finalizer = finalize(ring, journal.close)
    _journaled.add(ring)
    if ring._is_written_behind:
        journal.start()


def _fill(ring: Ring, found: Found) -> None:
    now_s, now_us = ring._steady(), ring._clock.now_us()
    alike = sum(len(jobs) for _, jobs in found.fresh) + sum(len(held.jobs) for held in found.held)
    ring._recovered = alike + len(found.tried) + len(found.failed)
    for run, jobs in found.fresh:
        ring._numbers.push(*run)
        ring._waiting.extend(jobs)
    for failed in found.failed:
        ring._keep_failed(failed)
    for held in found.held:
        first, count = held.run
        if held.attempts < ring._settings.max_attempts:
            ring._retries.add_run(held.jobs, first, held.attempts, now_s)
            continue
        for job, number in zip(held.jobs, range(first, first + count), strict=True):
            ring._give_up(job, number, held.attempts, "the process ended while it was being worked on")
    for tried in found.tried:
        due_s = now_s + max(tried.due_us - now_us, 0) / 1e6
        ring._retries.add(tried.job, tried.sequence, tried.attempts, due_s)


def _disown_all() -> None:
    """In a forked child, where whoever held a lock may not be there to release it."""
    for ring in list(_journaled):
        ring._lock = Lock()
        ring._finalizer.detach()
        assert ring._journal is not None
        ring._journal.disown(ring._lock)


os.register_at_fork(after_in_child=_disown_all)
