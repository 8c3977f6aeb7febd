"""A ring and its journal: how one is filled from the other at the start, and what holds when nobody closes it.

Whoever lets go of a ring, or ends the process, without closing it loses nothing: what was not written yet is then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakMethod, finalize

from penstock.ring.journal import Journal
from penstock.ring.replay import Found
from penstock.ring.settings import Duration, duration_setting

if TYPE_CHECKING:
    from penstock.ring.ring import Ring

_FLUSH_INTERVAL = "100ms"


def recover(ring: Ring, path: Any, flush_interval: Duration | None, job_type: Any) -> None:
    interval_us = duration_setting("flush_interval", _FLUSH_INTERVAL if flush_interval is None else flush_interval)
    # The journal and its thread outlive the ring for as long as it takes to close it, and must not keep it.
    flushed = WeakMethod(ring._flushed)

    def told() -> None:
        if (tell := flushed()) is not None:
            tell()

    ring._journal = journal = Journal.open(
        path,
        lock=ring._lock,
        interval_s=interval_us / 1e6,
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
    if ring._is_written_behind:
        journal.start()


def _fill(ring: Ring, found: Found) -> None:
    now_s, now_us = ring._steady(), ring._clock.now_us()
    alike = sum(len(jobs) for _, jobs in found.fresh) + sum(len(held.jobs) for held in found.held)
    ring._recovered = alike + len(found.tried) + len(found.failed) + len(found.unread)
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
    for unread in found.unread:
        ring._give_up(unread.raw, unread.sequence, unread.attempts, unread.reason)
