"""The deliveries log as a table: what happened to which messages, some of it at a time.

One row for the messages to which the same thing happened at once: they stay a set, for the reader to take apart. The
words are those of `trace`. What happened to no message in particular has no offsets: a group that was moved, a
partition that was assigned. Bookkeeping is left out: messages that a group passed over to come back to them, copies of
dead letters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from pyroaring import BitMap64

from penstock.broker import snapshot
from penstock.broker.deliveries import truncated
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
    Extended,
    Leased,
    Moved,
    Nacked,
    Passed,
    Redriven,
    Released,
    Started,
    Unparked,
    from_value,
    pack,
    unpack,
)
from penstock.broker.partition import Partition
from penstock.broker.tries import Tries
from penstock.broker.work import Work
from penstock.errors import InvalidFrame, LogCorrupt
from penstock.frame import CONTROL, Frame
from penstock.storage.epochs import epoch_at
from penstock.storage.log import Log

# Readers that are in the middle of something; one that is forgotten begins with the last snapshot again.
_FOLLOWED_MAX = 16


class Happened(NamedTuple):
    """To `offsets`, a set as in the log; None: to no message in particular. `event_offset` is where the log says so."""

    event_offset: int
    time_us: int
    what: str
    group: str | None
    offsets: bytes | None
    consumer: str | None = None
    lease: int | None = None
    attempt: int | None = None
    reason: str | None = None
    until_us: int | None = None


# One for each field of `Happened`.
Columns = list[list[Any]]


class Chronicle:
    """Of all partitions. Remembers how far each reader has come, so that one that reads on does not start over."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._followed: OrderedDict[tuple[bytes, int], Follower] = OrderedDict()

    async def ends(self, partition: Partition) -> tuple[int, int]:
        """Where the log starts and ends; what has happened before this was asked is before its end."""
        await partition.groups.flushed()
        return partition.deliveries.start_offset, partition.deliveries.safe_offset

    async def read(self, partition: Partition, offset: int, until: int, bytes_max: int) -> tuple[Columns, int]:
        """From `offset` on, and where to read on. OffsetOutOfRange if the log does not go back as far."""
        log = partition.deliveries
        known = self._followed.pop((log.log_id, offset), None)
        read = partial(_read, log, partition.messages, known, offset, until, bytes_max)
        follower, columns = await self._work.on_a_reading_thread(read)
        if not partition.reading.is_closed:
            self._followed[log.log_id, follower.offset] = follower
        while len(self._followed) > _FOLLOWED_MAX:
            self._followed.popitem(last=False)
        return columns, follower.offset

    def forget(self, partition: Partition) -> None:
        """Drop the readers of a partition that is not served here any more: its log may change under them."""
        log_id = partition.deliveries.log_id
        for key in [key for key in self._followed if key[0] == log_id]:
            del self._followed[key]


def _read(
    log: Log, messages: Log, known: Follower | None, offset: int, until: int, bytes_max: int
) -> tuple[Follower, Columns]:
    run = log.read(offset, bytes_max=bytes_max, until=min(until, log.safe_offset))
    follower = Follower.to(log, messages, offset) if known is None else known
    happened: list[Happened] = []
    for frame in run:
        happened += follower.follow(log, frame, until)
    follower.offset = max(follower.offset, min(run.next_offset, until))
    return follower, columns_of(happened)


def columns_of(happened: Sequence[Happened]) -> Columns:
    # Thousands of rows at a time: several times as fast as zip(*happened).
    return [[row[number] for row in happened] for number in range(len(Happened._fields))]


class Follower:
    """Knows who holds what at `offset` of the deliveries log, as well as the log tells."""

    def __init__(self, log: Log, messages: Log, offset: int, *, is_complete: bool) -> None:
        self.offset = offset
        self._messages = messages
        self._epoch = epoch_at(log.lineage, offset - 1)
        self._is_complete = is_complete
        self._groups: dict[str, Tries] = {}

    @classmethod
    def to(cls, log: Log, messages: Log, offset: int) -> Follower:
        """The same for an offset, wherever the reading began."""
        last = snapshot.find_last(log, before=offset)
        if last is None:
            follower = cls(log, messages, log.start_offset, is_complete=log.start_offset == 0)
        else:
            follower = cls(log, messages, last.next_offset, is_complete=True)
            follower._restore(last.snapshot)
        for frame in log.frames(follower.offset, until=offset):
            for _ in follower.follow(log, frame, offset):
                pass
        follower.offset = offset
        return follower

    def _restore(self, state: snapshot.Snapshot) -> None:
        self._is_complete = True
        self._groups = {group.name: Tries.restored(group) for group in state.groups}

    def follow(self, log: Log, frame: Frame, until: int) -> Iterator[Happened]:
        """What happened in a frame, before `until` and not followed yet."""
        if frame.leader_epoch > self._epoch:
            for lost, _ in truncated(self._messages.lineage, self._epoch, frame.leader_epoch, frame.append_time):
                for tries in self._groups.values():
                    tries.truncate(lost.offset)
            self._epoch = frame.leader_epoch
        if frame.flags & CONTROL:
            found = None if self._is_complete else snapshot.read(log, frame.base_offset)
            if found is not None:
                self._restore(found.snapshot)
            return
        try:
            batch = frame.batch()
            rows = zip(batch.values(), batch.timestamps.tolist(), frame.offsets(batch).tolist(), strict=True)
        except InvalidFrame as error:
            raise LogCorrupt(f"a frame of the deliveries log can't be decoded: {error.message}") from error
        for value, written_us, number in rows:
            if self.offset <= number < until:
                self.offset = number + 1
                for event, at_us in from_value(value, written_us):
                    yield from self._told(event, number, at_us)

    def _tries(self, group: str) -> Tries:
        if group not in self._groups:
            self._groups[group] = Tries(is_complete=self._is_complete)
        return self._groups[group]

    def _told(self, event: AnyEvent, number: int, at_us: int) -> Iterator[Happened]:
        """What a row says; then it is so."""
        say = partial(Happened, number, at_us)
        group, tries = event.group or None, self._tries(event.group)
        match event:
            case Leased():
                offsets = unpack(event.offsets)
                tries.leased(event.lease, event.consumer, offsets)
                for attempt, tried in tries.by_attempt(offsets):
                    what = "REDELIVERED" if attempt is not None and attempt > 1 else "DELIVERED"
                    yield say(what, group, pack(tried), event.consumer, event.lease, attempt, None, event.deadline_us)
            case Acknowledged() | Nacked() | Expired() | Released() | Exhausted():
                yield from self._answered(event, say)
            case Buried():
                yield say("DEAD_LETTERED", group, event.offsets)
            case Redriven():
                tries.over(unpack(event.offsets))
                yield say("REDRIVEN", group, event.offsets, until_us=event.due_us)
            case Passed():
                tries.over(unpack(event.lapsed) | unpack(event.gone))
                if event.lapsed:
                    yield say("EXPIRED", group, event.lapsed)
                if event.gone:
                    yield say("PASSED_OVER", group, event.gone, reason="cancelled, or no longer in the log")
            case Due():
                yield say("RELEASED", None, event.offsets)
            case Cancelled():
                yield say("CANCELLED", None, event.offsets)
            case Moved():
                yield say("RESCHEDULED", None, pack(BitMap64([event.offset])), until_us=event.due_us)
            case Deferred():
                yield say("REPLAYED", group, event.offsets, until_us=event.due_us)
            case Extended():
                consumer = tries.consumer(event.lease)
                yield say("LEASE_EXTENDED", group, None, consumer, event.lease, until_us=event.deadline_us)
            case Started():
                # All it held is let go, and what comes again comes as if for the first time.
                self._groups[event.group] = Tries(is_complete=True)
                yield say("GROUP_MOVED", group, None, reason=f"the group starts at offset {event.offset}")
            case Dropped():
                del self._groups[event.group]
                yield say("GROUP_DELETED", group, None)
            case Assigned():
                yield say("ASSIGNED", group, None, event.member, reason=event.reason)
            case Unparked():
                yield say("KEYS_RELEASED", group, None)
            case _:
                pass

    def _answered(
        self, event: Acknowledged | Nacked | Expired | Released | Exhausted, say: partial[Happened]
    ) -> Iterator[Happened]:
        """What became of messages of a lease."""
        tries, offsets = self._tries(event.group), unpack(event.offsets)
        what, reason, until_us = _ANSWERS[type(event)], None, None
        if isinstance(event, Nacked | Exhausted):
            reason = event.reason
        if isinstance(event, Nacked | Expired):
            until_us = event.due_us
        consumer = tries.consumer(event.lease)
        for attempt, tried in tries.by_attempt(offsets):
            yield say(what, event.group, pack(tried), consumer, event.lease, attempt, reason, until_us)
        tries.answered(event.lease, offsets)
        if isinstance(event, Released):
            tries.given_back(offsets)
        elif isinstance(event, Acknowledged | Exhausted):
            tries.over(offsets)


_ANSWERS = {
    Acknowledged: "ACKNOWLEDGED",
    Nacked: "NACKED",
    Expired: "LEASE_EXPIRED",
    Released: "GIVEN_BACK",
    Exhausted: "EXHAUSTED",
}
