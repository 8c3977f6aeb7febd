"""One place to see how a ring is doing: what is in it, how fast it goes, and what it waits for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from penstock.durations import duration_text

if TYPE_CHECKING:
    from penstock.ring.ring import Ring

# Rates are those of about so long.
RATE_WINDOW_S = 10.0
# As much as is shown of an error in a sentence.
ERROR_LENGTH_MAX = 200


class Counts(NamedTuple):
    """Since the ring was made. Of a moment: others go on counting meanwhile."""

    put: int
    taken: int
    acked: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class JournalStats:
    """`unflushed_s`: how old the oldest job or answer is that a kill would undo; `unflushed_bytes`: of jobs, also those
    that are just being written, or could not be; `error`: why it can't be written."""

    bytes_on_disk: int
    unflushed_bytes: int
    unflushed_s: float
    flushes: int
    flush_s_last: float
    flush_s_max: float
    compactions: int
    error: str | None


@dataclass(frozen=True, slots=True)
class RingStats:
    capacity: int
    waiting: int
    in_flight: int
    delayed: int
    failed: int
    put: int
    taken: int
    acked: int
    retried: int
    rejected: int
    dropped: int
    failed_dropped: int
    put_per_s: float
    acked_per_s: float
    # Of all threads and tasks together.
    put_waited_s: float
    take_waited_s: float
    handled_s: float
    handled_batches: int
    workers: int
    # How long the handler that is at it longest has been.
    handling_s_max: float
    journal: JournalStats | None
    last_error: str | None
    why_slow: str


class Rates:
    """From what `stats` saw the times before. Under the ring's lock."""

    def __init__(self, now_s: float) -> None:
        self._seen: deque[tuple[float, Counts]] = deque([(now_s, Counts(0, 0, 0, 0))])

    def per_second(self, now_s: float, counts: Counts) -> tuple[float, float]:
        """Puts and acknowledgements."""
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - RATE_WINDOW_S:
            self._seen.popleft()
        then_s, then = self._seen[0]
        # Of the first second there is not enough to tell: what has happened in it counts as all of a second.
        passed_s = max(now_s - then_s, 1.0)
        # So that whoever looks all the time does not fill the memory.
        if now_s - self._seen[-1][0] >= RATE_WINDOW_S / 100:
            self._seen.append((now_s, counts))
        return (counts.put - then.put) / passed_s, (counts.acked - then.acked) / passed_s


def stats_of(ring: Ring) -> RingStats:
    now_s = ring._steady()
    with ring._lock:
        counts = ring._counts()
        put_per_s, acked_per_s = ring._rates.per_second(now_s, counts)
        began = [began_s for some in ring._workers for began_s in some.began_s()]
        stats = RingStats(
            capacity=ring._capacity,
            waiting=len(ring._waiting),
            in_flight=counts.in_flight,
            delayed=len(ring._heap),
            failed=len(ring._failed),
            put=counts.put,
            taken=counts.taken,
            acked=counts.acked,
            retried=ring._retried,
            rejected=ring._rejected,
            dropped=ring._dropped,
            failed_dropped=ring._failed.dropped,
            put_per_s=put_per_s,
            acked_per_s=acked_per_s,
            put_waited_s=ring._put_waited_s,
            take_waited_s=ring._take_waited_s,
            handled_s=ring._handled_s,
            handled_batches=ring._handled_batches,
            workers=sum(some.count for some in ring._workers),
            handling_s_max=max((now_s - one for one in began), default=0.0),
            journal=None if ring._journal is None else ring._journal.stats(),
            last_error=ring._last_error,
            why_slow="",
        )
    return replace(stats, why_slow=why_slow(stats, now_s - ring._made_s))


def why_slow(stats: RingStats, alive_s: float) -> str:
    """A sentence for people: the first thing to look at; and what handlers fail with, as long as that is to be seen."""
    reason = _reason(stats, alive_s)
    if stats.last_error is None or not (stats.delayed or stats.failed):
        return reason
    error = stats.last_error
    return f"{reason}; the last error: {error if len(error) <= ERROR_LENGTH_MAX else error[:ERROR_LENGTH_MAX] + '…'}"


def _reason(stats: RingStats, alive_s: float) -> str:
    journal = stats.journal
    if journal is not None and journal.error is not None:
        return f"the journal can't be written: {journal.error}"
    if stats.waiting + stats.delayed >= stats.capacity:
        return f"it is full: {_workers(stats)}"
    if journal is not None and journal.flush_s_last > 1:
        return f"the disk is slow: the last flush of the journal took {_shown(journal.flush_s_last)}"
    if stats.put_waited_s > 0.05 * alive_s:
        return f"producers have waited {_shown(stats.put_waited_s)} for room: {_workers(stats)}"
    if stats.delayed and not stats.waiting:
        return f"{jobs_wait(stats.delayed)} for the next attempt, and no others are there"
    if stats.in_flight and not stats.waiting:
        return f"{_worked_on(stats.in_flight, 'job')}, and no others are there{_longest(stats)}"
    if not stats.waiting:
        return "it is not: nothing is waiting"
    return f"{jobs_wait(stats.waiting)}: {_workers(stats)}"


def _workers(stats: RingStats) -> str:
    if stats.handled_batches:
        each = stats.handled_s / stats.handled_batches
        workers = "1 worker takes" if stats.workers == 1 else f"{stats.workers} workers take"
        return f"{workers} {_shown(each)} for a batch"
    if stats.in_flight:
        return f"{_worked_on(stats.in_flight)}{_longest(stats)}"
    return "nobody takes any"


def jobs_wait(count: int) -> str:
    return "1 job waits" if count == 1 else f"{count:,} jobs wait"


def _worked_on(count: int, noun: str = "") -> str:
    named = f"{count:,} {noun}{'s' if count > 1 else ''}" if noun else f"{count:,}"
    return f"{named} {'is' if count == 1 else 'are'} being worked on"


def _longest(stats: RingStats) -> str:
    return f", a handler for {_shown(stats.handling_s_max)}" if stats.handling_s_max else ""


def _shown(seconds: float) -> str:
    micros = int(seconds * 1e6)
    # Three digits are enough to judge by.
    scale = 10 ** max(len(str(micros)) - 3, 0)
    return duration_text(micros // scale * scale)
