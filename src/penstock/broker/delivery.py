"""What one group has got of one partition, and what has become of it.

Decide, then apply: `ack`, `nack` … look at the state and return events; only `apply` changes it. Recovery applies the
events of the deliveries log in the order in which they were decided, and arrives at the same state. What to lease next
is decided in `leasing.py`.

Every offset that a cursor has passed is in exactly one of these sets:

    done      acknowledged, exhausted, expired, cancelled: everything below `floor`, and `done` above it
    leased    in one live lease
    ready     may be leased, as far as its key allows
    waiting   nacked or expired, until it is due and somebody asks
    hidden    published with a delay, not due yet

Times in events are dates, each beside the date at which it was decided (`at_us`). Only their difference counts: in here
deadlines and waits are on the monotonic clock, from the moment (`Instant`) at which the event is applied. A lease that
is recalled from the log begins anew with all the time it had, so it may become longer, and never shorter. A wait ends
by its date if that is earlier: nothing is promised but that it is not forgotten.

`check` says so in code. `unseen` marks those of the last three that were never delivered. Nothing here loops over
messages, except over those that were delivered more than once.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from pyroaring import BitMap64

from penstock.broker.events import (
    Acknowledged,
    Buried,
    Copying,
    Cursors,
    Deferred,
    Exhausted,
    Expired,
    Extended,
    GroupEvent,
    Leased,
    Nacked,
    Origin,
    Passed,
    Redriven,
    Released,
    Started,
    Unparked,
    pack,
    unpack,
)
from penstock.broker.offsets import add_all, below, from_on, remove_all, run_from
from penstock.broker.ordering import NO_ORDER, Order
from penstock.broker.retries import RetryPolicy
from penstock.broker.tally import Tally
from penstock.clock import Instant
from penstock.errors import LeaseNotFound, NotLeased
from penstock.frame import Frame

RAN_OUT = "the lease ran out"
# Of those before the last one: somebody may allow a thousand retries.
_FAILURES_MAX = 20
_NOTHING_MISSING = BitMap64()

T = TypeVar("T")


@dataclass(slots=True)
class Lease:
    """What one consumer got at once, less what it has answered for.

    `deadline_us` is on the monotonic clock of the broker that holds this state; `leased_us` is a date.
    """

    id: int
    consumer: str
    deadline_us: int
    offsets: BitMap64
    leased_us: int = 0


class Failure(NamedTuple):
    """One attempt that did not end well; shared by all messages that failed together."""

    attempt: int
    leased_us: int
    failed_us: int
    consumer: str
    reason: str


class Death(NamedTuple):
    """A message that was given up and is not in the dead-letter topic yet."""

    since: int
    reason: str
    attempts: int
    failures: tuple[Failure, ...]


class Parked(NamedTuple):
    """Why a key waits: its message that was given up."""

    offset: int
    since_us: int
    reason: str


class Delivery:
    """The state of one group in one partition."""

    def __init__(self, group: str, start: int = 0) -> None:
        self.group = group
        # How messages wait for one another; the group's settings say. Derived: never part of an event.
        self.order: Order = NO_ORDER
        # Its events come from the log, and nobody asks what is due in between.
        self.is_recalled = True
        # What it has done since the broker was started: what was recalled until then is forgotten.
        self.tally = Tally()
        self.dying: dict[int, Death] = {}
        # How often a message has become a dead letter. What is moved back in time may die again.
        self.dead: dict[int, int] = {}
        # Up to which of its deaths it was brought back.
        self.redriven: dict[int, int] = {}
        # Dead letters of which a copy may have been published, and which are not settled yet.
        self.copying: dict[int, Copying] = {}
        self._start(Started(group, start))

    def _start(self, event: Started) -> None:
        hidden = unpack(event.hidden)
        self.start = event.offset
        self.end = event.end
        self.origin = Origin(event.made_us, event.generation)
        self.floor = min(event.offset, hidden.min()) if hidden else event.offset
        self.cursors = Cursors.at(event.offset)
        self.done = BitMap64(range(self.floor, event.offset)) - hidden
        self.ready = BitMap64()
        self.hidden = hidden
        self.unseen = hidden.copy()
        self.tally.returned.clear()
        self.leases: dict[int, Lease] = {}
        self.in_flight = 0
        self.parked: dict[bytes, Parked] = {}
        # Deliveries so far, where that is not simply one; `_retried` is the keys.
        self.attempts: dict[int, int] = {}
        self.failures: dict[int, tuple[Failure, ...]] = {}
        self._retried = BitMap64()
        self._waiting: list[tuple[int, int, BitMap64]] = []
        self._waits = 0
        self._deadlines: list[tuple[int, int]] = []
        self.order.restart()

    # --- what there is -----------------------------------------------------------------------------------

    @property
    def waiting(self) -> BitMap64:
        offsets = BitMap64()
        for _, _, waiting in self._waiting:
            offsets |= waiting
        return offsets

    def waits(self) -> list[tuple[int, BitMap64]]:
        """Until when, on the monotonic clock, and which."""
        return [(due, offsets) for due, _, offsets in sorted(self._waiting, key=lambda entry: entry[:2])]

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def due_of(self, offset: int) -> int | None:
        """When a waiting message is ready again, on the monotonic clock."""
        return next((due for due, _, offsets in self._waiting if offset in offsets), None)

    def lease_of(self, offset: int) -> Lease | None:
        return next((lease for lease in self.leases.values() if offset in lease.offsets), None)

    def forget_dead(self, start_offset: int, removed: BitMap64) -> None:
        """Messages that are no longer in the log, and not in delivery either, can't die again."""
        gone = [offset for offset in self.dead if offset < start_offset or offset in removed]
        for offset in gone:
            if self.is_done(offset) and offset not in self.dying:
                del self.dead[offset]
                self.redriven.pop(offset, None)

    def is_dead(self, offset: int) -> bool:
        """A dead letter, and not brought back since."""
        return self.dead.get(offset, 0) > self.redriven.get(offset, 0)

    def brought_back(self) -> BitMap64:
        """Messages that were redriven in place and are not done: their dead letters are settled."""
        offsets = BitMap64(self.redriven)
        return offsets - self.done_of(offsets)

    def dead_count(self) -> int:
        return sum(map(self.is_dead, self.dead))

    def is_done(self, offset: int) -> bool:
        return offset < self.floor or offset in self.done

    def done_of(self, offsets: BitMap64) -> BitMap64:
        return below(offsets, self.floor) | (offsets & self.done)

    def lag(self, start_offset: int, end_offset: int, missing: BitMap64 = _NOTHING_MISSING) -> int:
        """Messages of the log from `start_offset` to `end_offset` that are not done. `missing`: offsets without one."""
        end = end_offset if self.end is None else min(self.end, end_offset)
        first = max(self.floor, start_offset)
        if first >= end:
            return 0
        lag = end - first - self.done.range_cardinality(first, end)
        if missing:
            lag -= (missing - self.done).range_cardinality(first, end)
        return lag

    def count_handed(self, offsets: BitMap64, frames: Sequence[Frame], flags: int, now_us: int) -> None:
        """Of a lease that was applied: those that were never delivered before, by their age."""
        self.tally.hand(offsets - self._retried if self._retried else offsets, frames, flags, now_us)

    def attempt(self, offset: int) -> int:
        """How often a leased message has been delivered, this time included."""
        return self.attempts.get(offset, 1)

    def next_due(self) -> int | None:
        """When something becomes ready, or a lease runs out, on the monotonic clock; None if nothing will by itself."""
        self._forget_old_deadlines()
        dues = [heap[0][0] for heap in (self._waiting, self._deadlines) if heap]
        return min(dues, default=None)

    def is_through(self, end_offset: int) -> bool:
        """It has looked at all normal messages, of which the last is ahead of this offset."""
        end = end_offset if self.end is None else min(self.end, end_offset)
        return self.cursors.normal >= end

    def has_returned(self, monotonic_us: int) -> bool:
        """Something that was looked at before may be leased again by now, or a lease has run out."""
        if self.ready:
            return True
        return any(heap and heap[0][0] <= monotonic_us for heap in (self._waiting, self._deadlines))

    # --- decisions ---------------------------------------------------------------------------------------

    def due(self, now: Instant, policy: RetryPolicy) -> list[GroupEvent]:
        """Leases that have run out. To be asked, and applied, ahead of a lease.

        What was in them is due at once, as in SQS: the time of the lease was wait enough.
        """
        self._forget_old_deadlines()
        if not self._deadlines or self._deadlines[0][0] > now.monotonic_us:
            return []
        events: list[GroupEvent] = []
        for lease in sorted(self.leases.values(), key=lambda lease: lease.deadline_us):
            if lease.deadline_us <= now.monotonic_us:
                events += self._failed(lease, lease.offsets, now.wall_us, policy, reason=None, delay_us=0)
        return events

    def ack(self, identity: int, offsets: BitMap64) -> Acknowledged:
        self._held(identity, offsets)
        return Acknowledged(self.group, identity, pack(offsets))

    def nack(
        self,
        identity: int,
        offsets: BitMap64,
        *,
        now_us: int,
        policy: RetryPolicy,
        reason: str = "",
        delay_us: int | None = None,
    ) -> Sequence[GroupEvent]:
        """Given back. With `delay_us`, ready after that; otherwise by the policy, each by how often it was tried.

        What comes behind it is taken back, also if it has had enough and holds up nobody: whoever nacks does not know
        which of the two it was.
        """
        lease = self._held(identity, offsets)
        events = self._failed(lease, offsets, now_us, policy, reason=reason, delay_us=delay_us)
        if self.order is NO_ORDER:
            return events
        return events + self._pulled_back(lease, offsets, offsets)

    def reject(self, identity: int, offsets: BitMap64, reason: str, *, parks: bool = False) -> Sequence[GroupEvent]:
        lease = self._held(identity, offsets)
        events: list[GroupEvent] = [Exhausted(self.group, identity, pack(offsets), reason)]
        return events + self._pulled_back(lease, offsets, offsets) if parks else events

    def release(self, identity: int, offsets: BitMap64) -> Sequence[GroupEvent]:
        lease = self._held(identity, offsets)
        events: list[GroupEvent] = [Released(self.group, identity, pack(offsets))]
        return events + self._pulled_back(lease, offsets, offsets)

    def extend(self, identity: int, offsets: BitMap64, deadline_us: int) -> Extended:
        """The whole lease, by whoever still holds these of it; none at all stand for all that is left."""
        if offsets:
            self._held(identity, offsets)
        else:
            self._lease(identity)
        return Extended(self.group, identity, deadline_us)

    def _pulled_back(self, lease: Lease, offsets: BitMap64, answered: BitMap64) -> list[GroupEvent]:
        """Messages of the same lease that must not be done before these: nobody may answer for them any more."""
        later = self.order.later(lease.id, offsets, lease.offsets) - answered
        return [Released(self.group, lease.id, pack(later))] if later else []

    def _failed(
        self,
        lease: Lease,
        offsets: BitMap64,
        now_us: int,
        policy: RetryPolicy,
        reason: str | None,
        delay_us: int | None,
    ) -> list[GroupEvent]:
        """One more failed attempt: some wait, some have had enough. `reason` None: the lease ran out."""
        events: list[GroupEvent] = []
        for attempt, tried in self._by_attempt(offsets):
            if attempt > policy.max_retries:
                events.append(Exhausted(self.group, lease.id, pack(tried), reason if reason is not None else RAN_OUT))
                continue
            due_us = now_us + (policy.delay_us(attempt) if delay_us is None else delay_us)
            if reason is None:
                events.append(Expired(self.group, lease.id, pack(tried), due_us))
            else:
                events.append(Nacked(self.group, lease.id, pack(tried), due_us, reason))
        return events

    def _by_attempt(self, offsets: BitMap64) -> list[tuple[int, BitMap64]]:
        if not self._retried.intersect(offsets):
            return [(1, offsets)]
        first = offsets - self._retried
        by_attempt: dict[int, BitMap64] = {}
        for offset in (offsets & self._retried).to_array():
            by_attempt.setdefault(self.attempts[offset], BitMap64()).add(offset)
        if first:
            by_attempt.setdefault(1, BitMap64()).update(first)
        return sorted(by_attempt.items(), key=lambda item: item[0])

    def _lease(self, identity: int) -> Lease:
        lease = self.leases.get(identity)
        if lease is None:
            raise LeaseNotFound(
                f"there is no lease {identity}: it expired, its messages were acknowledged, rejected or given back, "
                "the group was moved, or it was never given out. A message that is not done is redelivered",
                lease=identity,
            )
        return lease

    def _held(self, identity: int, offsets: BitMap64) -> Lease:
        lease = self._lease(identity)
        # What is left of a set after some were taken out is a list of numbers. As runs all that follows is cheaper.
        offsets.run_optimize()
        if not offsets or not offsets.issubset(lease.offsets):
            missing = offsets - lease.offsets
            raise NotLeased(f"{len(missing)} of {len(offsets)} messages are not in the lease", lease=identity)
        return lease

    # --- changes -----------------------------------------------------------------------------------------

    def apply(self, event: GroupEvent, at_us: int, now: Instant | None = None) -> None:
        """What happened at that date. Time runs from `now`; without it, this is state as of the log, and stands."""
        now = now or Instant.in_log(at_us)
        match event:
            case Leased():
                self._apply_leased(event, at_us, now)
            case Acknowledged():
                offsets = unpack(event.offsets)
                self.tally.acknowledge(len(offsets), self.leases[event.lease].leased_us, at_us)
                self._finish(self._answered(event.lease, offsets))
            case Passed():
                self._apply_passed(event)
            case Nacked():
                offsets = unpack(event.offsets)
                self.tally.nacked += len(offsets)
                self._again(event.lease, offsets, at_us, wait_until(event.due_us, at_us, now), event.reason)
            case Expired():
                offsets = unpack(event.offsets)
                self.tally.ran_out += len(offsets)
                self._again(event.lease, offsets, at_us, wait_until(event.due_us, at_us, now), RAN_OUT)
            case Released():
                offsets = unpack(event.offsets)
                self.tally.given_back += len(offsets)
                self._undelivered(self._answered(event.lease, offsets))
            case Extended():
                self.leases[event.lease].deadline_us = now.monotonic_us + event.deadline_us - at_us
                self._add_deadline(self.leases[event.lease])
            case Exhausted():
                self._apply_exhausted(event, at_us)
            case Buried():
                self.tally.dead_lettered += len(event.places)
                for offset in unpack(event.offsets).to_array():
                    self.dying.pop(offset, None)
                    self.dead[offset] = self.dead.get(offset, 0) + 1
            case Redriven():
                offsets = unpack(event.offsets)
                self.redriven.update((offset, self.dead.get(offset, 0)) for offset in offsets.to_array())
                self._revive(offsets, wait_until(event.due_us, at_us, now))
            case Copying():
                self.copying[event.offset] = event
            case Unparked():
                for key in event.keys:
                    del self.parked[key]
                self.order.unpark(event.keys)
            case Deferred():
                offsets = unpack(event.offsets)
                self.hidden -= offsets
                self._wait_anew(offsets, wait_until(event.due_us, at_us, now))
            case Started():
                self._start(event)

    def _apply_leased(self, event: Leased, at_us: int, now: Instant) -> None:
        offsets = unpack(event.offsets)
        self._make_ready_these(offsets)
        if self.ready:
            behind = self.ready & offsets
            self.ready -= behind
            again = behind
            if self.unseen:
                again = behind - self.unseen
                self.unseen -= behind
            for offset in again.to_array():
                self.attempts[offset] = self.attempts.get(offset, 1) + 1
            self._retried |= again
            self.tally.redelivered += len(again)
        self.tally.delivered += len(offsets)
        self.cursors = event.cursors
        deadline_us = now.monotonic_us + event.deadline_us - at_us
        self.hold(Lease(event.lease, event.consumer, deadline_us, offsets, at_us))

    def hold(self, lease: Lease) -> None:
        self.leases[lease.id] = lease
        self.in_flight += len(lease.offsets)
        self._add_deadline(lease)

    def _add_deadline(self, lease: Lease) -> None:
        heapq.heappush(self._deadlines, (lease.deadline_us, lease.id))
        if len(self._deadlines) > 2 * len(self.leases) + 64:
            # Most are of leases that are over.
            self._deadlines = [(one.deadline_us, one.id) for one in self.leases.values()]
            heapq.heapify(self._deadlines)

    def _apply_passed(self, event: Passed) -> None:
        skipped, hidden = unpack(event.skipped), unpack(event.hidden)
        finished = unpack(event.lapsed) | unpack(event.gone)
        if event.lapsed:
            self.tally.expired += len(unpack(event.lapsed))
        self.ready |= skipped
        self.hidden |= hidden
        self.unseen |= skipped | hidden
        if finished:
            self._make_ready_these(finished)
            self.order.over(finished)
            self.ready -= finished
            self.unseen -= finished
            self.tally.returned -= finished
            for offset in finished.to_array() if self.copying else ():
                self.copying.pop(offset, None)
            self._finish(finished)
        self.cursors = event.cursors

    def _apply_exhausted(self, event: Exhausted, at_us: int) -> None:
        offsets = unpack(event.offsets)
        lease = self.leases[event.lease]
        self.tally.given_up += len(offsets)
        if event.since is not None:
            for offset in offsets.to_array():
                attempt = self.attempt(offset)
                last = Failure(attempt, lease.leased_us, at_us, lease.consumer, event.reason)
                failures = (*self.failures.get(offset, ()), last)
                self.dying[offset] = Death(event.since, event.reason, attempt, failures)
        for key, first in event.parked:
            self.parked[key] = Parked(first, at_us, event.reason)
        self.order.park(key for key, _ in event.parked)
        self._finish(self._answered(event.lease, offsets))

    def make_due(self, offsets: BitMap64) -> BitMap64:
        """Delayed messages whose time has come: those that a cursor has passed are ready now."""
        mine = self.hidden & offsets
        self.hidden -= mine
        self.ready |= mine
        return mine

    def cancel(self, offsets: BitMap64) -> None:
        """Delayed messages that shall never appear; those ahead of the cursors are passed over when it gets there."""
        mine = self.hidden & offsets
        self.hidden -= mine
        self.unseen -= mine
        self._finish(mine)

    def make_ready(self, monotonic_us: int) -> None:
        due = BitMap64()
        while self._waiting and self._waiting[0][0] <= monotonic_us:
            due |= heapq.heappop(self._waiting)[2]
        if due:
            self.ready |= due
            self.order.due(due)

    def truncate(self, offset: int) -> int | None:
        """Forget all state at `offset` and above: other messages get these offsets. Returns how far the group had come,
        if that was further.

        Only while the state is recovered: nothing is derived from it yet.
        """
        assert self.order is NO_ORDER, "a group that is in use can't be truncated"
        reached = max(self.floor, *self.cursors)
        self.end = None if self.end is None else min(self.end, offset)
        if reached <= offset:
            return None
        self.start, self.floor = min(self.start, offset), min(self.floor, offset)
        self.cursors = Cursors(*(min(cursor, offset) for cursor in self.cursors))
        self.done, self.ready = below(self.done, offset), below(self.ready, offset)
        self.hidden, self.unseen = below(self.hidden, offset), below(self.unseen, offset)
        self.tally.returned = below(self.tally.returned, offset)
        for lease in list(self.leases.values()):
            self._take(lease.id, from_on(lease.offsets, offset))
        waiting = [(due, number, below(offsets, offset)) for due, number, offsets in self._waiting]
        self._waiting = [entry for entry in waiting if entry[2]]
        heapq.heapify(self._waiting)
        self._retried = below(self._retried, offset)
        self.attempts = _below(self.attempts, offset)
        self.failures = _below(self.failures, offset)
        self.dying = _below(self.dying, offset)
        self.dead = _below(self.dead, offset)
        self.redriven = _below(self.redriven, offset)
        self.copying = _below(self.copying, offset)
        self.parked = {key: parked for key, parked in self.parked.items() if parked.offset < offset}
        return reached

    def _answered(self, identity: int, offsets: BitMap64) -> BitMap64:
        self.order.left(identity, offsets)
        self._take(identity, offsets)
        return offsets

    def _take(self, identity: int, offsets: BitMap64) -> Lease:
        lease = self.leases[identity]
        remove_all(lease.offsets, offsets)
        self.in_flight -= len(offsets)
        if not lease.offsets:
            del self.leases[identity]
        return lease

    def _finish(self, offsets: BitMap64) -> None:
        add_all(self.done, offsets)
        if self._retried:
            again = self._retried & offsets
            for offset in again.to_array():
                del self.attempts[offset]
                self.failures.pop(offset, None)
            self._retried -= again
        floor = run_from(self.done, self.floor)
        if floor > self.floor:
            self.done.remove_range(self.floor, floor)
            self.floor = floor

    def _again(self, identity: int, offsets: BitMap64, at_us: int, due_us: int, reason: str) -> None:
        self.order.waits(identity, offsets)
        lease = self._take(identity, offsets)
        failure = Failure(self.attempt(offsets.min()), lease.leased_us, at_us, lease.consumer, reason)
        for offset in offsets.to_array():
            self.attempts.setdefault(offset, 1)
            self.failures[offset] = (*self.failures.get(offset, ())[-_FAILURES_MAX:], failure)
        self._retried |= offsets
        self.wait(offsets, due_us)

    def wait(self, offsets: BitMap64, due_us: int) -> None:
        self._waits += 1
        heapq.heappush(self._waiting, (due_us, self._waits, offsets))

    def _wait_anew(self, offsets: BitMap64, due_us: int) -> None:
        """Those that nobody had leased."""
        self.wait(offsets, due_us)
        self.order.wait_anew(offsets)

    def set_attempts(self, offsets: BitMap64, attempts: int) -> None:
        self.attempts.update(dict.fromkeys(offsets.to_array(), attempts))
        self._retried |= offsets

    def _undelivered(self, offsets: BitMap64) -> None:
        """Its next delivery counts as what this one would have counted."""
        again = offsets & self._retried
        for offset in again.to_array():
            self.attempts[offset] -= 1
        first = offsets - again
        self.unseen |= first
        self.tally.returned |= first
        self.ready |= offsets

    def _revive(self, offsets: BitMap64, due_us: int) -> None:
        """From the dead. The floor goes down to them, and everything between it and the old one is done."""
        lowest = offsets.min()
        if lowest < self.floor:
            self.done.add_range(lowest, self.floor)
            self.floor = lowest
        self.done -= offsets
        self.unseen |= offsets
        self.tally.returned |= offsets
        self._wait_anew(offsets, due_us)

    def _make_ready_these(self, offsets: BitMap64) -> None:
        """In recovery nobody asked what was due: what was leased had been."""
        if not self.is_recalled or (not self._waiting and not self.hidden):
            return
        if self.hidden.intersect(offsets):
            self.make_due(offsets)
        if offsets.intersect(self.waiting):
            kept = []
            for due, number, waiting in self._waiting:
                ready = waiting & offsets
                self.ready |= ready
                self.order.due(ready)
                if waiting := waiting - ready:
                    kept.append((due, number, waiting))
            self._waiting = kept
            heapq.heapify(self._waiting)

    def _forget_old_deadlines(self) -> None:
        """Of leases that are over, or were extended since."""
        while self._deadlines:
            deadline, identity = self._deadlines[0]
            lease = self.leases.get(identity)
            if lease is not None and lease.deadline_us == deadline:
                return
            heapq.heappop(self._deadlines)

    def check(self, lanes: Sequence[BitMap64] | None = None) -> None:
        """The invariant at the top. `lanes` are the offsets of the high and the low lane, if there are any."""
        sets = [self.done, self.ready, self.hidden, self.waiting, *(lease.offsets for lease in self.leases.values())]
        union = BitMap64()
        for offsets in sets:
            assert not union.intersect(offsets), "an offset in two sets"
            union |= offsets
        assert union == self._passed(lanes or (BitMap64(), BitMap64())), "an offset in no set"
        assert self.floor not in self.done
        assert self._retried == BitMap64(self.attempts)
        assert self.unseen.issubset(self.ready | self.hidden | self.waiting)
        assert self.in_flight == sum(len(lease.offsets) for lease in self.leases.values())
        assert sum(len(entry[2]) for entry in self._waiting) == len(self.waiting)
        self.order.check(self)

    def _passed(self, lanes: Sequence[BitMap64]) -> BitMap64:
        high, low = lanes
        passed = BitMap64(range(self.floor, max(self.cursors.normal, self.floor))) - high - low
        for lane, cursor in ((high, self.cursors.high), (low, self.cursors.low)):
            passed |= lane & BitMap64(range(self.floor, max(cursor, self.floor)))
        return passed


def _below(by_offset: dict[int, T], bound: int) -> dict[int, T]:
    return {offset: known for offset, known in by_offset.items() if offset < bound}


def wait_until(due_us: int, at_us: int, now: Instant) -> int:
    """A wait that was decided at `at_us` to end at `due_us`, by dates: on the monotonic clock. By the date that it is
    now, if the wait was recalled from the log, but for no longer than it was to take."""
    return now.monotonic_us + min(max(due_us - now.wall_us, 0), due_us - at_us)
