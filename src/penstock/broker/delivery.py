"""What one group has got of one partition, and what it may get next.

Decide, then apply: `lease`, `ack` … look at the state and return events; only `apply` changes it. Recovery applies the
events of the deliveries log in the order in which they were decided, and arrives at the same state.

Every offset from the group's start on is in exactly one of these sets:

    done      acknowledged or exhausted: everything below `floor`, and `done` above it
    leased    in one live lease
    ready     may be leased now: `ready` below the cursor, and everything from the cursor to the log's end
    waiting   nacked or expired, not yet due

`check` says so in code. Nothing here loops over messages, except over those that were delivered more than once.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from pyroaring import BitMap64

from penstock.broker.events import (
    Acknowledged,
    AnyEvent,
    Exhausted,
    Expired,
    Extended,
    Leased,
    Nacked,
    Released,
    Started,
    pack,
    unpack,
)
from penstock.broker.retries import RetryPolicy
from penstock.errors import LeaseNotFound, NotLeased


@dataclass(slots=True)
class Lease:
    """What one consumer got at once, less what it has answered for."""

    id: int
    consumer: str
    deadline_us: int
    offsets: BitMap64


class Delivery:
    """The state of one group in one partition."""

    def __init__(self, group: str, start: int = 0) -> None:
        self.group = group
        self._start(start)

    def _start(self, start: int) -> None:
        self.floor = start
        self.cursor = start
        self.done = BitMap64()
        self.ready = BitMap64()
        self.leases: dict[int, Lease] = {}
        # Deliveries so far, where that is not simply one; `_retried` is the keys.
        self.attempts: dict[int, int] = {}
        self._retried = BitMap64()
        self._waiting: list[tuple[int, int, BitMap64]] = []
        self._waits = 0
        self._deadlines: list[tuple[int, int]] = []

    # --- what there is -----------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        return sum(len(lease.offsets) for lease in self.leases.values())

    @property
    def waiting(self) -> BitMap64:
        offsets = BitMap64()
        for _, _, waiting in self._waiting:
            offsets |= waiting
        return offsets

    def lag(self, end_offset: int) -> int:
        """Messages that are not done."""
        return end_offset - self.floor - len(self.done)

    def attempt(self, offset: int) -> int:
        """How often a leased message has been delivered, this time included."""
        return self.attempts.get(offset, 1)

    def next_due(self) -> int | None:
        """When `due` will have something to do; None if nothing is pending."""
        self._forget_old_deadlines()
        dues = [heap[0][0] for heap in (self._waiting, self._deadlines) if heap]
        return min(dues, default=None)

    # --- decisions ---------------------------------------------------------------------------------------

    def due(self, now_us: int, policy: RetryPolicy) -> list[AnyEvent]:
        """Leases that have run out. To be asked, and applied, ahead of `lease`."""
        self._forget_old_deadlines()
        if not self._deadlines or self._deadlines[0][0] > now_us:
            return []
        events: list[AnyEvent] = []
        for lease in sorted(self.leases.values(), key=lambda lease: lease.deadline_us):
            if lease.deadline_us <= now_us:
                events += self._failed(lease, lease.offsets, now_us, policy, reason=None, delay_us=None)
        return events

    def lease(
        self, *, now_us: int, count: int, end_offset: int, consumer: str, identity: int, deadline_us: int
    ) -> Leased | None:
        """Up to `count` messages: those that came back first, then fresh ones up to `end_offset`."""
        self._make_ready(now_us)
        offsets = self.ready[:count] if self.ready else BitMap64()
        cursor = self.cursor
        fresh = min(count - len(offsets), end_offset - cursor)
        if fresh > 0:
            offsets.add_range(cursor, cursor + fresh)
            cursor += fresh
        if not offsets:
            return None
        return Leased(self.group, consumer, identity, pack(offsets), cursor, deadline_us)

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
    ) -> Sequence[AnyEvent]:
        """Given back. With `delay_us`, ready after that; otherwise by the policy, each by how often it was tried."""
        lease = self._held(identity, offsets)
        return self._failed(lease, offsets, now_us, policy, reason=reason, delay_us=delay_us)

    def reject(self, identity: int, offsets: BitMap64, reason: str) -> Exhausted:
        self._held(identity, offsets)
        return Exhausted(self.group, identity, pack(offsets), reason)

    def release(self, identity: int, offsets: BitMap64) -> Released:
        self._held(identity, offsets)
        return Released(self.group, identity, pack(offsets))

    def extend(self, identity: int, deadline_us: int) -> Extended:
        self._lease(identity)
        return Extended(self.group, identity, deadline_us)

    def seek(self, offset: int) -> Started:
        return Started(self.group, offset)

    def _failed(
        self,
        lease: Lease,
        offsets: BitMap64,
        now_us: int,
        policy: RetryPolicy,
        reason: str | None,
        delay_us: int | None,
    ) -> list[AnyEvent]:
        """One more failed attempt: some wait, some have had enough. `reason` None: the lease ran out."""
        events: list[AnyEvent] = []
        for attempt, tried in self._by_attempt(offsets):
            if attempt > policy.max_retries:
                why = reason if reason is not None else "the lease ran out"
                events.append(Exhausted(self.group, lease.id, pack(tried), why))
                continue
            due_us = now_us + (policy.delay_us(attempt) if delay_us is None else delay_us)
            if reason is None:
                events.append(Expired(self.group, lease.id, pack(tried), due_us))
            else:
                events.append(Nacked(self.group, lease.id, pack(tried), due_us, reason))
        return events

    def _by_attempt(self, offsets: BitMap64) -> list[tuple[int, BitMap64]]:
        first = offsets.copy()
        by_attempt: dict[int, BitMap64] = {}
        for offset in offsets & self._retried:
            by_attempt.setdefault(self.attempts[offset], BitMap64()).add(offset)
        first -= self._retried
        if first:
            by_attempt.setdefault(1, BitMap64()).update(first)
        return sorted(by_attempt.items(), key=lambda item: item[0])

    def _lease(self, identity: int) -> Lease:
        lease = self.leases.get(identity)
        if lease is None:
            raise LeaseNotFound("the lease has run out, or never was", lease=identity)
        return lease

    def _held(self, identity: int, offsets: BitMap64) -> Lease:
        lease = self._lease(identity)
        if not offsets or not offsets.issubset(lease.offsets):
            missing = offsets - lease.offsets
            raise NotLeased(f"{len(missing)} of {len(offsets)} messages are not in the lease", lease=identity)
        return lease

    # --- changes -----------------------------------------------------------------------------------------

    def apply(self, event: AnyEvent) -> None:
        match event:
            case Leased():
                self._apply_leased(event)
            case Acknowledged() | Exhausted():
                self._finish(self._take(event.lease, unpack(event.offsets)))
            case Nacked() | Expired():
                self._again(self._take(event.lease, unpack(event.offsets)), event.due_us)
            case Released():
                self._undelivered(self._take(event.lease, unpack(event.offsets)))
            case Extended():
                self.leases[event.lease].deadline_us = event.deadline_us
                heapq.heappush(self._deadlines, (event.deadline_us, event.lease))
            case Started():
                self._start(event.offset)

    def _apply_leased(self, event: Leased) -> None:
        offsets = unpack(event.offsets)
        # Whatever is below the old cursor was delivered before, unless it was released unseen.
        again = _below(offsets, self.cursor)
        for offset in again:
            self.attempts[offset] = self.attempts.get(offset, 1) + 1
        self._retried |= again
        self._make_ready_all(offsets)
        self.ready -= offsets
        self.cursor = event.cursor
        self.leases[event.lease] = Lease(event.lease, event.consumer, event.deadline_us, offsets)
        heapq.heappush(self._deadlines, (event.deadline_us, event.lease))

    def _take(self, identity: int, offsets: BitMap64) -> BitMap64:
        lease = self.leases[identity]
        lease.offsets -= offsets
        if not lease.offsets:
            del self.leases[identity]
        return offsets

    def _finish(self, offsets: BitMap64) -> None:
        self.done |= offsets
        for offset in self._retried & offsets:
            del self.attempts[offset]
        self._retried -= offsets
        self._raise_floor()

    def _again(self, offsets: BitMap64, due_us: int) -> None:
        self._waits += 1
        heapq.heappush(self._waiting, (due_us, self._waits, offsets))

    def _undelivered(self, offsets: BitMap64) -> None:
        """Its next delivery counts as what this one would have counted."""
        for offset in offsets:
            self.attempts[offset] = self.attempts.get(offset, 1) - 1
        self._retried |= offsets
        self.ready |= offsets

    def _make_ready(self, now_us: int) -> None:
        while self._waiting and self._waiting[0][0] <= now_us:
            self.ready |= heapq.heappop(self._waiting)[2]

    def _make_ready_all(self, offsets: BitMap64) -> None:
        """In recovery nobody asked what was due: what was leased had been."""
        if offsets.intersect(self.waiting):
            kept = [(due, number, waiting - offsets) for due, number, waiting in self._waiting]
            self._waiting = [entry for entry in kept if entry[2]]
            heapq.heapify(self._waiting)

    def _forget_old_deadlines(self) -> None:
        """Of leases that are over, or were extended since."""
        while self._deadlines:
            deadline, identity = self._deadlines[0]
            lease = self.leases.get(identity)
            if lease is not None and lease.deadline_us == deadline:
                return
            heapq.heappop(self._deadlines)

    def _raise_floor(self) -> None:
        if self.floor not in self.done:
            return
        low, high = self.floor, self.done.max() + 1
        # The longest run of done offsets from the floor on, by halving.
        while low < high:
            middle = (low + high + 1) // 2
            if self.done.contains_range(self.floor, middle):
                low = middle
            else:
                high = middle - 1
        self.done.remove_range(self.floor, low)
        self.floor = low

    def check(self) -> None:
        """The invariant at the top."""
        sets = [self.done, self.ready, self.waiting, *(lease.offsets for lease in self.leases.values())]
        union = BitMap64()
        for offsets in sets:
            assert not union.intersect(offsets), "an offset in two sets"
            union |= offsets
        assert union == BitMap64(range(self.floor, self.cursor)), "an offset in no set"
        assert self.floor not in self.done
        assert self._retried == BitMap64(self.attempts)
        assert sum(len(entry[2]) for entry in self._waiting) == len(self.waiting)


def _below(offsets: BitMap64, cursor: int) -> BitMap64:
    if not offsets or offsets.min() >= cursor:
        return BitMap64()
    below = offsets.copy()
    if offsets.max() >= cursor:
        below.remove_range(cursor, offsets.max() + 1)
    return below
