"""Spans of messages, made from the deliveries log: one for the life of a message, one for each delivery of it.

    message orders     ├──────────────────────────────┤   published … no group has it under way any more
      process orders        ├──────┤                      billing, attempt 1: nacked
      process orders                     ├────────┤       billing, attempt 2: acknowledged

The log is read behind those who write it. Of a message nothing is kept but what is under way, and ids are made from
what the message is, not drawn: whatever is told of it later, also after a restart, belongs to the same trace.

Not told: what happened before this process read along, of which the log of `trace` knows; and messages that nobody was
given yet. After a restart, a group that comes late to a message may have its life told a second time, with the same
ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from time import sleep
from typing import Any, NamedTuple

from pyroaring import BitMap64

from penstock.broker.delivery import RAN_OUT, Delivery
from penstock.broker.events import (
    Acknowledged,
    AnyEvent,
    Cancelled,
    Dropped,
    Exhausted,
    Expired,
    Leased,
    Nacked,
    Passed,
    Redriven,
    Released,
    Started,
    from_value,
    unpack,
)
from penstock.broker.offsets import below, from_on
from penstock.broker.partition import Partition
from penstock.broker.reading import Stored
from penstock.broker.topic import Topic
from penstock.codec import NONE
from penstock.frame import CONTROL, Frame

# Of one partition, at a time: rows of the log, messages under way, and spans.
ROWS_MAX = 20_000
UNDER_WAY_MAX = 20_000
SPANS_MAX = 5_000
_FACTS_MAX = 10_000
_TOLD_MAX = 1_000_000
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_LOW_64 = (1 << 64) - 1


class Span(NamedTuple):
    """`parent` is the id of another span of the same trace; a remote one if it is somebody else's."""

    name: str
    is_delivery: bool
    trace: int
    id: int
    parent: int | None
    is_parent_remote: bool
    start_us: int
    end_us: int
    attributes: Mapping[str, str | int]
    error: str | None = None


class Parent(NamedTuple):
    trace: int
    span: int
    is_sampled: bool


def parent_of(stored: Stored) -> Parent | None:
    """As W3C's `traceparent` says it; one that makes no sense is none."""
    for name, value in stored.message.headers:
        if name.lower() == "traceparent":
            found = _TRACEPARENT.fullmatch(value)
            # What comes behind the flags is for later versions only.
            if found is None or found[1] == b"ff" or (found[1] == b"00" and found[5] is not None):
                return None
            trace, span = int(found[2], 16), int(found[3], 16)
            return Parent(trace, span, bool(int(found[4], 16) & 1)) if trace and span else None
    return None


class Sample:
    """One message of every `every`, each time another one of them: which one is decided by the offset alone."""

    def __init__(self, every: int, partition: str) -> None:
        self.every = every
        self._seed = int.from_bytes(blake2b(partition.encode(), digest_size=8).digest(), "big")

    def of(self, offsets: BitMap64) -> list[int]:
        if not offsets:
            return []
        if self.every == 1:
            return list(offsets.to_array())
        first, last = offsets.min() // self.every, offsets.max() // self.every
        if last - first < len(offsets):
            chosen = (self._chosen(block) for block in range(first, last + 1))
            return [offset for offset in chosen if offset in offsets]
        return [offset for offset in offsets.to_array() if self._chosen(offset // self.every) == offset]

    def _chosen(self, block: int) -> int:
        """splitmix64, so that what comes in a rhythm is not always hit, or never."""
        mixed = (block * 0x9E3779B97F4A7C15 + self._seed) & _LOW_64
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _LOW_64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _LOW_64
        return block * self.every + (mixed ^ (mixed >> 31)) % self.every


@dataclass(slots=True)
class _Lease:
    """What of a lease is in the sample, each with its attempt."""

    consumer: str
    leased_us: int
    attempts: dict[int, int] = field(default_factory=dict)


class _Attempt(NamedTuple):
    offset: int
    group: str
    lease: int
    consumer: str
    attempt: int
    leased_us: int
    ended_us: int
    outcome: str
    reason: str | None


class _End(NamedTuple):
    time_us: int
    outcome: str
    reason: str | None = None


class _Facts(NamedTuple):
    published_us: int
    deliver_at_us: int
    trace: int
    span: int
    parent: Parent | None


class Settled(NamedTuple):
    """Messages that no group has under way any more, and those of them that are dead letters. `replays` are groups that
    get what is over already."""

    offsets: BitMap64
    dead: BitMap64
    replays: frozenset[str]


class Tail:
    """Reads along with one partition. `settled` is asked on the event loop, then `read` on a thread; never both."""

    def __init__(self, topic: Topic, number: int, every: int) -> None:
        self._topic = topic.name
        self._number = number
        self._identity = topic.record.partitions[number]
        self.partition: Partition = topic.partition(number)
        self._sample = Sample(every, self._identity)
        self.position = self.partition.deliveries.start_offset
        self._leases: dict[tuple[str, int], _Lease] = {}
        self._under_way = 0
        # Deliveries that have failed, of messages that will come again.
        self._failed: dict[tuple[str, int], int] = {}
        # Ends that the last reading met. Whether they were the end of the message is known afterwards.
        self._ends: dict[int, _End] = {}
        self._ended = BitMap64()
        # Messages whose life has been told.
        self._told = BitMap64()
        self._facts: dict[int, _Facts] = {}
        self.dropped = 0

    def start_here(self) -> None:
        """From now on. What is under way the groups know; all of it must be in the log."""
        self.position = self.partition.deliveries.safe_offset
        for name, state in self._states():
            for lease in state.leases.values():
                chosen = {offset: state.attempt(offset) for offset in self._sample.of(lease.offsets)}
                self._open(name, lease.id, _Lease(lease.consumer, lease.leased_us, chosen))
            for offset in self._sample.of(state.waiting | state.ready):
                if offset in state.attempts:
                    self._failed[name, offset] = state.attempts[offset]

    @property
    def is_idle(self) -> bool:
        return not self._ends and self.partition.deliveries.safe_offset <= self.position

    @property
    def has_ends(self) -> bool:
        return bool(self._ends)

    def _states(self) -> Iterator[tuple[str, Delivery]]:
        for name in self.partition.groups.groups:
            if not name.startswith("__"):
                yield name, self.partition.groups.state(name)

    # --- on the event loop -------------------------------------------------------------------------------

    def settled(self) -> Settled:
        """Of the ends that the last reading met. What the groups have done by now is in the log by the next reading,
        which therefore knows the last of the ends of each. By sets: nothing here asks for one message after the other,
        but for dead letters, if there are many of them as well."""
        states = [state for _, state in self._states()]
        replays = frozenset(state.group for state in states if state.end is not None)
        live = [state for state in states if state.end is None]
        offsets, dead = self._ended.copy(), BitMap64()
        for state in live:
            offsets -= _under_way(state, self._ended)
        for state in live:
            dead |= _among(state.dying, offsets) | _among(state.dead, offsets)
        return Settled(offsets, dead, replays)

    # --- on a thread -------------------------------------------------------------------------------------

    def read(self, settled: Settled) -> list[Span]:
        attempts, ends = list[_Attempt](), dict[int, _End]()
        for event, at_us in self._events():
            self._meet(event, at_us, settled.replays, attempts, ends)
        # One that came since is the later one.
        over = {offset: ends.pop(offset, self._ends[offset]) for offset in settled.offsets.to_array()}
        self._note_told(over)
        self._ends = {offset: end for offset, end in ends.items() if offset not in self._told}
        self._ended = BitMap64(self._ends)
        if len(attempts) + len(over) > SPANS_MAX:
            self.dropped += len(attempts) + len(over) - SPANS_MAX
            attempts = attempts[: SPANS_MAX - min(len(over), SPANS_MAX)]
            over = dict(list(over.items())[:SPANS_MAX])
        facts = self._find({one.offset for one in attempts} | over.keys())
        spans = [self._delivered(one, facts[one.offset]) for one in attempts if one.offset in facts]
        for offset, end in over.items():
            if offset in facts:
                spans.append(self._lived(offset, end, facts[offset], offset in settled.dead))
            self._facts.pop(offset, None)
        return spans

    def _events(self) -> Iterator[tuple[AnyEvent, int]]:
        log = self.partition.deliveries
        if self.position < log.start_offset:
            # So far behind that the end of what is under way is gone.
            self.dropped += self._under_way
            self._leases, self._under_way, self._failed = {}, 0, {}
            self.position = log.start_offset
        for frame in log.frames(self.position, min(log.safe_offset, self.position + ROWS_MAX)):
            if not frame.flags & CONTROL:
                for value, at_us, number in _rows(frame):
                    if number >= self.position:
                        yield from from_value(value, at_us)
            self.position = frame.next_offset
            # The event loop goes first: it would be kept waiting for a time slice otherwise.
            sleep(0)

    def _meet(
        self, event: AnyEvent, at_us: int, replays: frozenset[str], attempts: list[_Attempt], ends: dict[int, _End]
    ) -> None:
        match event:
            case Leased():
                chosen = self._sample.of(unpack(event.offsets))
                counted = {offset: self._failed.get((event.group, offset), 0) + 1 for offset in chosen}
                self._open(event.group, event.lease, _Lease(event.consumer, at_us, counted))
            case Acknowledged() | Nacked() | Expired() | Released() | Exhausted():
                # Of most leases there is nothing in the sample.
                if (event.group, event.lease) in self._leases:
                    closed = self._close(event.group, event.lease, unpack(event.offsets), _end_of(event, at_us))
                    attempts += closed
                    self._note_ends(event, at_us, closed, {} if event.group in replays else ends)
            case Passed() if event.lapsed and event.group not in replays:
                ends.update((offset, _End(at_us, "expired")) for offset in self._sample.of(unpack(event.lapsed)))
            case Cancelled():
                ends.update((offset, _End(at_us, "cancelled")) for offset in self._sample.of(unpack(event.offsets)))
            case Redriven():
                for offset in self._sample.of(unpack(event.offsets)):
                    self._failed.pop((event.group, offset), None)
            case Started() | Dropped():
                # All it held is let go.
                for group, lease in [key for key in self._leases if key[0] == event.group]:
                    attempts += self._close(group, lease, self._leases[group, lease].attempts, _End(at_us, "let_go"))
                self._failed = {key: count for key, count in self._failed.items() if key[0] != event.group}
            case _:
                pass

    def _note_ends(self, event: AnyEvent, at_us: int, closed: Iterable[_Attempt], ends: dict[int, _End]) -> None:
        for one in closed:
            match event:
                case Nacked() | Expired():
                    self._failed[one.group, one.offset] = one.attempt
                case Acknowledged() | Exhausted():
                    self._failed.pop((one.group, one.offset), None)
                    ends[one.offset] = _End(at_us, one.outcome, one.reason)
                case _:
                    pass

    def _open(self, group: str, identity: int, lease: _Lease) -> None:
        if not lease.attempts:
            return
        if self._under_way + len(self._failed) + len(lease.attempts) > UNDER_WAY_MAX:
            self.dropped += len(lease.attempts)
            return
        known = self._leases.get((group, identity))
        self._under_way += len(lease.attempts) - (0 if known is None else len(known.attempts))
        self._leases[group, identity] = lease

    def _close(self, group: str, identity: int, offsets: BitMap64 | dict[int, int], end: _End) -> list[_Attempt]:
        lease = self._leases[group, identity]
        closed = [
            _Attempt(offset, group, identity, lease.consumer, attempt, lease.leased_us, *end)
            for offset, attempt in lease.attempts.items()
            if offset in offsets
        ]
        for one in closed:
            del lease.attempts[one.offset]
        self._under_way -= len(closed)
        if not lease.attempts:
            del self._leases[group, identity]
        return closed

    def _note_told(self, offsets: Iterable[int]) -> None:
        self._told.update(offsets)
        if self._told:
            self._told.remove_range(0, max(self.partition.messages.start_offset, 0))
        if len(self._told) > _TOLD_MAX:
            self._told = self._told[-_TOLD_MAX // 2 :]

    # --- the messages ------------------------------------------------------------------------------------

    def _find(self, offsets: set[int]) -> dict[int, _Facts]:
        """Of those that are to be told: retention may have been faster, or whoever published it wants no trace."""
        missing = BitMap64(offsets - self._facts.keys())
        for stored in self.partition.reading.messages(missing) if missing else ():
            self._facts[stored.offset] = self._facts_of(stored)
        found = {offset: self._facts[offset] for offset in offsets if offset in self._facts}
        for offset in list(self._facts)[: max(len(self._facts) - _FACTS_MAX, 0)]:
            del self._facts[offset]
        return {offset: facts for offset, facts in found.items() if facts.parent is None or facts.parent.is_sampled}

    def _facts_of(self, stored: Stored) -> _Facts:
        parent = parent_of(stored)
        digest = blake2b(f"{self._identity}:{stored.offset}".encode(), digest_size=24).digest()
        trace = int.from_bytes(digest[:16], "big") if parent is None else parent.trace
        span = int.from_bytes(digest[16:], "big")
        return _Facts(stored.append_time, stored.message.deliver_at, trace, span, parent)

    def _lived(self, offset: int, end: _End, facts: _Facts, is_dead: bool) -> Span:
        outcome = "dead_lettered" if is_dead else end.outcome
        attributes = self._attributes(offset) | {"penstock.outcome": outcome}
        if facts.deliver_at_us:
            attributes["penstock.deliver_at_us"] = facts.deliver_at_us
        failed = outcome in ("dead_lettered", "given_up")
        return Span(
            f"message {self._topic}",
            False,
            facts.trace,
            facts.span,
            None if facts.parent is None else facts.parent.span,
            facts.parent is not None,
            facts.published_us,
            max(end.time_us, facts.published_us),
            attributes,
            (end.reason or outcome) if failed else None,
        )

    def _delivered(self, one: _Attempt, facts: _Facts) -> Span:
        attributes = self._attributes(one.offset) | {
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": one.group,
            "messaging.client.id": one.consumer,
            "penstock.attempt": one.attempt,
            "penstock.outcome": one.outcome,
        }
        if one.reason:
            attributes["penstock.reason"] = one.reason
        identity = blake2b(f"{self._identity}:{one.offset}:{one.lease}:{one.group}".encode(), digest_size=8).digest()
        is_failed = one.outcome in ("nacked", "lease_expired", "dead_lettered", "given_up")
        return Span(
            f"process {self._topic}",
            True,
            facts.trace,
            int.from_bytes(identity, "big"),
            facts.span,
            False,
            one.leased_us,
            max(one.ended_us, one.leased_us),
            attributes,
            (one.reason or one.outcome) if is_failed else None,
        )

    def _attributes(self, offset: int) -> dict[str, str | int]:
        return {
            "messaging.system": "penstock",
            "messaging.destination.name": self._topic,
            "messaging.destination.partition.id": str(self._number),
            "messaging.message.id": f"{self._topic}:{self._number}:{offset}",
        }


def _rows(frame: Frame) -> Iterable[tuple[bytes | None, int, int]]:
    """Value, time and offset. Most frames have one row, which need not be taken apart by columns."""
    plain = frame.message() if frame.count == 1 and frame.codec == NONE else None
    if plain is not None:
        return [(plain[1], frame.timestamps[0], frame.base_offset)]
    batch = frame.batch(verify=False)
    return zip(batch.values(), batch.timestamps.tolist(), frame.offsets(batch).tolist(), strict=True)


def _under_way(state: Delivery, offsets: BitMap64) -> BitMap64:
    """Those that somebody was given and that are not done. A group that has not come that far does not count."""
    return from_on(below(offsets, max(state.cursors)), state.floor) - state.done - state.unseen


def _among(some: dict[int, Any], offsets: BitMap64) -> BitMap64:
    if len(some) < len(offsets):
        return offsets & BitMap64(some)
    return BitMap64(filter(some.__contains__, offsets.to_array()))


def _end_of(event: Acknowledged | Nacked | Expired | Released | Exhausted, at_us: int) -> _End:
    match event:
        case Acknowledged():
            return _End(at_us, "acknowledged")
        case Nacked():
            return _End(at_us, "nacked", event.reason)
        case Expired():
            return _End(at_us, "lease_expired", RAN_OUT)
        case Released():
            return _End(at_us, "given_back")
        case Exhausted():
            return _End(at_us, "given_up" if event.since is None else "dead_lettered", event.reason)
