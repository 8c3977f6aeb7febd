"""What happened to a message, and why a group has not got it: read from the deliveries log, which is always on.

`trace` tells the whole story of one message. `state_at` makes the state of a group as it was at some time. `why` gives
one plain answer about now.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from penstock.broker import snapshot
from penstock.broker.deliveries import events_of
from penstock.broker.delivery import Delivery
from penstock.broker.events import (
    Acknowledged,
    AnyEvent,
    Assigned,
    Buried,
    Cancelled,
    Deferred,
    Dropped,
    Due,
    Exhausted,
    Expired,
    Leased,
    Moved,
    Nacked,
    Passed,
    Redriven,
    Released,
    Started,
    Truncated,
    unpack,
)
from penstock.broker.ids import MessageId
from penstock.broker.names import DEAD_LETTERS
from penstock.broker.partition import Partition
from penstock.broker.reading import Stored
from penstock.broker.topic import Topic
from penstock.clock import Instant, rfc3339
from penstock.errors import NotFound


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened. `until_us` is when something follows from it by itself."""

    time_us: int
    what: str
    group: str | None = None
    consumer: str | None = None
    attempt: int | None = None
    reason: str | None = None
    until_us: int | None = None
    place: str | None = None


class Trace(NamedTuple):
    id: MessageId
    steps: list[Step]

    def latency_us(self, group: str) -> int | None:
        """From its publishing to its acknowledgement by that group."""
        for step in self.steps:
            if step.group == group and step.what == "ACKNOWLEDGED":
                return step.time_us - self.steps[0].time_us
        return None


def trace(topic: Topic, identity: MessageId, stored: Stored, story: Sequence[Step]) -> Trace:
    partition = topic.partition(identity.partition)
    message = stored.message
    steps = [Step(stored.append_time, "PUBLISHED")]
    if message.deliver_at > stored.append_time:
        steps.append(Step(stored.append_time, "SCHEDULED", until_us=message.deliver_at))
    if partition.groups.is_replicated:
        next_us = story[0].time_us if story else None
        steps.append(_replicated(partition, stored.append_time, identity.offset, next_us))
    steps += story
    if topic.settings.retention_age_us is not None and topic.settings.cleanup == "delete":
        age_us, delays = topic.settings.retention_age_us, partition.groups.delays
        until_us = stored.append_time + age_us
        due_us = delays.moved.get(identity.offset, message.deliver_at)
        if due_us and identity.offset not in delays.cancelled:
            # See `LatelyDue`.
            until_us = max(until_us, due_us + min(due_us - stored.append_time, age_us))
        steps.append(Step(steps[-1].time_us, "RETAINED", until_us=until_us))
    return Trace(identity, steps)


def _replicated(partition: Partition, append_time: int, offset: int, next_us: int | None) -> Step:
    """On which nodes it was when others could see it first. Whoever followed then was told a moment later, and what
    happened to it next may have come before that."""
    commit = partition.commits.of(offset)
    if commit is None:
        return Step(append_time, "REPLICATED", reason="time not known")
    time_us = commit.time_us if next_us is None else min(commit.time_us, next_us)
    return Step(max(time_us, append_time), "REPLICATED", place=", ".join(commit.nodes))


def story(partition: Partition, identity: MessageId, since_us: int) -> Iterator[Step | None]:
    """For `Work.scan`: what the deliveries log says of one message, with None for each event of others."""
    log, offset = partition.deliveries, identity.offset
    # Per group: deliveries so far, who has it, and what became of the last try.
    attempts: dict[str, int] = {}
    holders: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for event, at_us in events_of(log, max(log.offset_at(since_us), log.start_offset)):
        if not _concerns(event, offset):
            yield None
            continue
        group = event.group or None
        consumer = holders.get(event.group)
        attempt = attempts.get(event.group)
        match event:
            case Leased():
                attempts[event.group] = (attempt or 0) + 1
                holders[event.group] = event.consumer
                what = "DELIVERED" if not attempt else "REDELIVERED"
                reason = reasons.pop(event.group, None)
                yield Step(at_us, what, group, event.consumer, (attempt or 0) + 1, reason, event.deadline_us)
            case Acknowledged():
                yield Step(at_us, "ACKNOWLEDGED", group, consumer, attempt)
            case Nacked():
                reasons[event.group] = event.reason
                yield Step(at_us, "NACKED", group, consumer, attempt, event.reason, event.due_us)
            case Expired():
                reasons[event.group] = "the lease ran out"
                yield Step(at_us, "LEASE_EXPIRED", group, consumer, attempt, None, event.due_us)
            case Released():
                attempts[event.group] = (attempt or 1) - 1
                yield Step(at_us, "GIVEN_BACK", group, consumer, attempt)
            case Exhausted():
                yield Step(at_us, "EXHAUSTED", group, consumer, attempt, event.reason)
            case Buried():
                place = event.places[unpack(event.offsets).rank(offset) - 1]
                grave = f"{identity.topic}{DEAD_LETTERS}:{identity.partition}:{place}"
                yield Step(at_us, "DEAD_LETTERED", group, place=grave)
            case Redriven():
                attempts.pop(event.group, None)
                yield Step(at_us, "REDRIVEN", group, until_us=event.due_us)
            case Passed():
                if offset in unpack(event.lapsed):
                    yield Step(at_us, "EXPIRED", group)
                elif offset in unpack(event.gone):
                    yield Step(at_us, "PASSED_OVER", group, reason="cancelled, or no longer in the log")
            case Due():
                yield Step(at_us, "RELEASED")
            case Cancelled():
                yield Step(at_us, "CANCELLED")
            case Moved():
                yield Step(at_us, "RESCHEDULED", until_us=event.due_us)
            case Deferred():
                yield Step(at_us, "REPLAYED", group, until_us=event.due_us)
            case Started() if event.group in attempts:
                del attempts[event.group]
                yield Step(at_us, "GROUP_MOVED", group, reason=f"the group starts at offset {event.offset}")
            case _:
                pass


def _concerns(event: AnyEvent | Truncated, offset: int) -> bool:
    match event:
        case Moved():
            return event.offset == offset
        case Passed():
            return offset in unpack(event.lapsed) or offset in unpack(event.gone)
        case Started():
            # Only what lies behind it comes again, or for the first time.
            return event.offset <= offset
        case (
            Leased()
            | Acknowledged()
            | Nacked()
            | Expired()
            | Released()
            | Exhausted()
            | Buried()
            | Redriven()
            | Due()
            | Cancelled()
            | Deferred()
        ):
            return offset in unpack(event.offsets)
        case _:
            return False


class StateAt(NamedTuple):
    """A group in one partition as it was at some time."""

    partition: int
    floor: int
    end_offset: int
    unacknowledged: BitMap64
    leased: BitMap64
    dead: BitMap64


def states_at(topic: Topic, group: str, time_us: int) -> Iterator[StateAt | None]:
    """For `Work.scan`: what the group had not acknowledged then, in each partition where it had started by then."""
    for number, partition in topic.numbered:
        state = yield from _rewind(partition, group, time_us)
        if state is None:
            continue
        log = partition.messages
        end = max(min(log.offset_at(time_us + 1), partition.reading.visible_offset), state.floor)
        if state.end is not None:
            end = min(end, max(state.end, state.floor))
        todo = BitMap64(range(state.floor, end)) - state.done - partition.reading.holes
        leased = BitMap64()
        for lease in state.leases.values():
            leased |= lease.offsets
        yield StateAt(number, state.floor, end, todo, leased, BitMap64(state.dead))


def _rewind(partition: Partition, group: str, time_us: int) -> Generator[None, None, Delivery | None]:
    log = partition.deliveries
    bound = max(log.offset_at(time_us + 1), log.start_offset)
    last = snapshot.find_last(log, before=bound)
    state: Delivery | None = None
    if last is not None:
        state = next((snapshot.restore(one, last.at_us) for one in last.snapshot.groups if one.name == group), None)
    elif log.start_offset > 0:
        raise NotFound("what happened then is not in the log any more: it is kept as long as the messages are")
    start = log.start_offset if last is None else last.next_offset
    for event, at_us in events_of(log, start, partition.messages.lineage if partition.groups.is_replicated else ()):
        if at_us > time_us:
            break
        yield None
        match event:
            case Due():
                if state is not None:
                    state.make_due(unpack(event.offsets))
            case Cancelled():
                if state is not None:
                    state.cancel(unpack(event.offsets))
            case Dropped():
                state = None if event.group == group else state
            case Truncated():
                if state is not None:
                    state.truncate(event.offset)
            case Assigned() | Moved():
                pass
            case _ if event.group == group:
                state = state or Delivery(group)
                state.apply(event, at_us)
    return state


class Why(msgspec.Struct, frozen=True):
    """`code` for machines, `answer` for people."""

    code: str
    answer: str


def why(
    topic: Topic, identity: MessageId, group: str, *, now: Instant, owner: str | None, is_started: bool
) -> Why | None:
    """Why the group has not got this message. None if it is done: the deliveries log says how, see `how_done`."""
    partition = topic.partition(identity.partition)
    offset = identity.offset
    if offset >= partition.reading.visible_offset:
        return Why("not_published", f"there is no message {identity} yet")
    if offset < partition.messages.start_offset:
        return Why("deleted", "retention has deleted the message")
    if offset in partition.reading.holes:
        return Why("not_published", f"there is no message {identity}: an election or a crash took its offset")
    if offset in partition.groups.delays.cancelled:
        return Why("cancelled", "the message was cancelled before it was due")
    if not is_started or not partition.groups.has(group):
        if offset in partition.groups.delays.pending:
            return _delayed(partition, offset)
        if not is_started:
            return Why("group_not_started", f'group "{group}" does not exist. Its first consumer creates it')
        return Why("group_not_started", f"group {group} has never asked for messages of this partition")
    state = partition.groups.state(group)
    found = _because_of_state(partition, state, identity, now)
    if found is not None or state.is_done(offset):
        return found
    if state.order.stands(state):
        if state.parked:
            return Why("parked", f"the whole partition is parked: {next(iter(state.parked.values())).reason}")
        return Why("behind_another", "an earlier message of the partition is not done, and the order is strict")
    if offset in state.order.blocked:
        return _blocked(partition, state, offset)
    if owner is None:
        return Why("no_consumer", "the message is ready, and no consumer of the group is there")
    if offset in state.ready or _is_overdue(state, offset):
        return Why("ready", f"the message is ready; {owner} has the partition and has not asked for it")
    before = state.lag(partition.messages.start_offset, offset, partition.reading.missing)
    return Why("not_reached", f"the message is ready; {before} messages are before it, {owner} has the partition")


def _because_of_state(partition: Partition, state: Delivery, identity: MessageId, now: Instant) -> Why | None:
    offset = identity.offset
    lease = state.lease_of(offset)
    if lease is not None:
        until = rfc3339(now.to_wall(lease.deadline_us))
        return Why("leased", f"{lease.consumer} has it, attempt {state.attempt(offset)}, until {until}")
    if offset in state.dying or (state.is_done(offset) and state.is_dead(offset)):
        return Why("dead_lettered", "the group gave it up: it is a dead letter")
    if state.is_done(offset):
        return None
    if offset in partition.groups.delays.pending:
        return _delayed(partition, offset)
    due = state.due_of(offset)
    if due is not None and due > now.monotonic_us:
        failures = state.failures.get(offset, ())
        reason = f" after {failures[-1].reason or 'a nack without a reason'!r}" if failures else ""
        return Why("waiting", f"it waits until {rfc3339(now.to_wall(due))} for its next try{reason}")
    if state.end is not None and offset >= state.end:
        return Why("behind_the_end", f"the group replays up to offset {state.end}")
    return None


def _is_overdue(state: Delivery, offset: int) -> bool:
    """It waited for its next try, and nobody has asked since that came."""
    return state.due_of(offset) is not None


def how_done(story: Sequence[Step], identity: MessageId, group: str, start: int) -> Why:
    """What became of a message that the group, which starts at `start`, is done with."""
    for step in reversed(story):
        if step.group != group:
            continue
        match step.what:
            case "ACKNOWLEDGED":
                return Why("acknowledged", f"{step.consumer} acknowledged it at {rfc3339(step.time_us)}")
            case "EXPIRED":
                return Why("expired", f"it had expired when its turn came, at {rfc3339(step.time_us)}")
            case "EXHAUSTED":
                return Why("given_up", f"it was given up at {rfc3339(step.time_us)}: {step.reason}")
            case "PASSED_OVER":
                return Why("passed_over", step.reason or "")
    if identity.offset < start:
        return Why("before_start", f"the group starts at offset {start}")
    return Why("done", "it is done, and the log of how goes back less far")


def _delayed(partition: Partition, offset: int) -> Why:
    due = partition.groups.delays.moved.get(offset) or partition.reading.message(offset).message.deliver_at
    return Why("delayed", f"it is delayed until {rfc3339(due)}")


def _blocked(partition: Partition, state: Delivery, offset: int) -> Why:
    key = partition.reading.message(offset).message.key
    for token, parked in state.parked.items():
        if key is not None and token[1:] == key:
            return Why("parked", f"its key is parked since offset {parked.offset} was given up: {parked.reason}")
    return Why("key_locked", "an earlier message of the same key is leased, or waits for its next try")
