"""All groups of one partition, its delays and lanes, and the log of what happened to its messages.

Decide, apply, write: an event changes the state in memory at once, so that the next decision sees it, and goes to the
deliveries log in the same order. Whoever asked hears of it when it is on disk; a lease need not wait for that, since a
lease that a crash forgets only means that its messages are delivered again.

If the disk is full, what was decided waits for room, and nothing else is decided meanwhile (DiskFull). If an event
can't be written for another reason, memory is ahead of the disk and nobody may build on it: the groups of this
partition stop, and the next start reads the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from pyroaring import BitMap64

from penstock.batch import Batch
from penstock.broker import snapshot
from penstock.broker.delays import Delays
from penstock.broker.delivery import Delivery
from penstock.broker.disk import Disk
from penstock.broker.events import (
    AnyEvent,
    Assigned,
    Buried,
    Cancelled,
    Dropped,
    Due,
    Exhausted,
    Leased,
    Moved,
    Origin,
    Passed,
    Started,
    Truncated,
    Unparked,
    from_value,
    pack,
    unpack,
)
from penstock.broker.lanes import Lanes
from penstock.broker.leasing import Picked
from penstock.broker.ledger import ASSIGNED_HELD_BACK_S, HELD_BACK_S, Ledger
from penstock.broker.offsets import Ints, below, bitmap_of, from_on, mask_of
from penstock.broker.retries import RetryPolicy
from penstock.broker.settings import GroupSettings
from penstock.broker.working import Messages, Working
from penstock.clock import Clock, Instant
from penstock.errors import (
    DiskFull,
    GroupNotFound,
    InvalidFrame,
    InvalidInput,
    LeaseError,
    LogCorrupt,
    NotScheduled,
    Overloaded,
    PenstockError,
)
from penstock.frame import CONTROL
from penstock.limits import MIB, Limits
from penstock.storage.commit import Committed
from penstock.storage.epochs import EPOCH_MAX, Lineage, epoch_at
from penstock.storage.log import Log

# A start reads at most about so much of the deliveries log, unless the state itself is larger.
SNAPSHOT_EVERY_BYTES = 4 << 20
# A set of offsets may be scattered over millions of messages.
_EVENT_LIMITS = Limits(message_bytes_max=7 * MIB)
# Of messages that are passed over, because they have expired or their key is busy, in one call.
_LOOKED_AT_MAX = 100_000
_LOOK_AT_ONCE_MAX = 10_000
# Of messages that are kept from deletion because their keys are busy: five times what a group has in flight by default.
_HOLDING_UP_MAX = 100_000
# Groups of a snapshot that is taken in one step: 5 ms.
_ENCODED_AT_ONCE_MAX = 1_000
# So much the clocks may drift apart before dates in encoded groups are wrong.
_CLOCK_STEP_US = 500


# Of some leases, by their ids: offsets.
Leases = Sequence[tuple[int, BitMap64]]


class Taken(NamedTuple):
    """A lease, lane by lane in the order of delivery."""

    lease: int
    picked: list[Picked]


class Deliveries:
    """Belongs to one event loop; made on a thread, since it reads the log."""

    def __init__(
        self,
        log: Log,
        messages: Messages,
        *,
        clock: Clock,
        disk: Disk,
        loop: asyncio.AbstractEventLoop,
        new_id: Callable[[], bytes],
        wrote: Callable[[], None] | None = None,
    ) -> None:
        """`wrote`: see `Journal`."""
        self.log = log
        self._messages = messages
        self._clock = clock
        self._ledger = Ledger(log, clock=clock, disk=disk, loop=loop, limits=_EVENT_LIMITS, wrote=wrote)
        self.is_replicated = wrote is not None
        self._states: dict[str, Delivery] = {}
        # All groups with messages that are `dying`, and maybe others: there may be thousands of groups.
        self._dying_groups: set[str] = set()
        self._working: dict[str, Working] = {}
        self._owners: dict[str, Assigned] = {}
        self._snapshot_size = 0
        self._is_snapshot_due = False
        # Of the next snapshot: groups that have not changed since they were encoded, and the moment by which the dates
        # in them are.
        self._encoded: dict[str, bytes] = {}
        self._encoded_at = Instant.of(clock)
        # Rows under way after which there will be something to bury.
        self.giving_up = 0
        self.lanes = Lanes()
        self.delays = Delays(clock.now_us())
        # Where the dead letters of this partition would begin, if they go anywhere; set by whoever knows that.
        self.graveyard: Callable[[], int | None] = lambda: None
        # Returns the origin of the group that has a name now. Set by the broker.
        self.origin: Callable[[str], Origin] = lambda group: Origin()
        # Told whenever something may have become ready for a group, or for all (""); and when something was given up.
        self.wake: Callable[[str], None] = lambda group: None
        # Told when a group has begun here, or was deleted: who may lease is another question then.
        self.regrouped: Callable[[str], None] = lambda group: None
        self.mourn: Callable[[str], None] = lambda group: None
        self._new_id = new_id
        # Messages below this offset need not be looked at for lanes and delays when the log is opened again.
        self.covered = 0
        # Groups that had come further than the messages go, by name: how far, and where they are now.
        self.set_back: dict[str, tuple[int, int]] = {}
        self._recover()

    def _recover(self) -> None:
        # All that is in the log happened before this moment, on whatever node and by whatever clock.
        now = Instant.of(self._clock)
        last = snapshot.find_last(self.log)
        offset = self.log.start_offset
        if last is not None:
            offset = last.next_offset
            self.covered = last.snapshot.covered
            self._restore(last, now)
        # Delayed messages that the log of messages still calls delayed, but which are not any more.
        over = BitMap64()
        for event, at_us in events_of(self.log, offset, self._messages.lineage if self.is_replicated else ()):
            if isinstance(event, Due | Cancelled):
                over |= unpack(event.offsets)
            elif isinstance(event, Truncated):
                over = below(over, event.offset)
                self._truncate(event.offset)
                continue
            try:
                self._apply(event, at_us, now)
            except KeyError as error:
                raise LogCorrupt(f"the deliveries log speaks of a lease it never gave: {event}") from error
        known, self.delays.pending = self.delays.pending, BitMap64()
        for offsets, batch in self._messages.batches(known):
            self._recall_delays(offsets, batch, known)
        for offsets, batch in self._messages.special_batches(self.covered):
            self.lanes.add(offsets, batch)
            # A frame that was merged may begin before what the snapshot covers; that part it knows better.
            self._recall_delays(offsets, batch, from_on(bitmap_of(offsets), self.covered) - over)
        for state in self._states.values():
            # Delayed messages that were lost with the power have no time any more at which they would be due.
            state.cancel(state.hidden - self.delays.pending)

    def _truncate(self, offset: int) -> None:
        """This copy was elected without some messages, and with what groups did with them."""
        self.covered = min(self.covered, offset)
        self.lanes.truncate(offset)
        self.delays.truncate(offset)
        for state in self._states.values():
            reached = state.truncate(offset)
            if reached is not None:
                self.set_back[state.group] = reached, offset

    def _recall_delays(self, offsets: Ints, batch: Batch, pending: BitMap64) -> None:
        if batch.deliver_at is not None:
            is_pending = (batch.deliver_at > 0) & mask_of(offsets, pending)
            self.delays.recall(offsets[is_pending], batch.deliver_at[is_pending])

    def add_special(self, offsets: Ints, batch: Batch) -> None:
        """Just published, and in another lane or with a delay."""
        self.lanes.add(offsets, batch)
        if batch.deliver_at is not None:
            now = self._clock.now_us()
            self.delays.add(offsets, batch.deliver_at, now)
            self._due_already(bitmap_of(offsets[(batch.deliver_at > 0) & (batch.deliver_at <= now)]), now)

    def add_special_one(self, offset: int, priority: int, deliver_at: int) -> None:
        self.lanes.add_one(offset, priority)
        if deliver_at:
            now = self._clock.now_us()
            self.delays.add_one(offset, deliver_at, now)
            if deliver_at <= now:
                self._due_already(BitMap64([offset]), now)

    def _due_already(self, offsets: BitMap64, now_us: int) -> None:
        """Told to the log all the same: a start would take them for delayed ones, whatever the clock says then."""
        if not offsets:
            return
        try:
            self._note([Due("", pack(offsets))])
        except PenstockError:
            # Too much waits for the disk. The publish is acknowledged, so these messages must not be lost: they stay
            # delayed until a tick can write that they are due.
            self.delays.pending |= offsets
            self.delays.put_back(offsets, now_us)

    def _restore(self, found: snapshot.Found, now: Instant) -> None:
        last = found.snapshot
        self.lanes = Lanes(unpack(last.high), unpack(last.low))
        self.delays.pending = unpack(last.pending)
        self.delays.cancelled = unpack(last.cancelled)
        self.delays.moved = last.moved
        self._owners = {event.group: event for event in last.owners}
        for state in last.groups:
            self._states[state.name] = snapshot.restore(state, found.at_us, now)
            self._dying_groups.add(state.name)

    # --- groups ------------------------------------------------------------------------------------------

    @property
    def groups(self) -> list[str]:
        return sorted(self._states)

    def state(self, group: str) -> Delivery:
        try:
            return self._states[group]
        except KeyError:
            raise GroupNotFound(f"group {group} has not started here", group=group) from None

    def _group(self, name: str) -> Working:
        try:
            return self._working[name]
        except KeyError:
            raise GroupNotFound(f"group {name} has not started here", group=name) from None

    def has(self, group: str) -> bool:
        return group in self._states

    def common(self, groups: frozenset[str]) -> frozenset[str]:
        """Those of these groups that have started here."""
        return groups & self._states.keys()

    def has_started(self, group: str) -> bool:
        """Whether the group that has the name now has started here, and not an earlier one whose state is still to be
        dropped."""
        return group in self._states and not self._states[group].origin.is_before(self.origin(group))

    def owner(self, group: str) -> Assigned | None:
        """Whom the partition was assigned to last."""
        return self._owners.get(group)

    def is_configured(self, group: str) -> bool:
        return group in self._working

    def configure(self, group: str, settings: GroupSettings, policy: RetryPolicy) -> None:
        """How the group works here from now on. It has started."""
        self._working[group] = Working(
            self.state(group), settings, policy, messages=self._messages, lanes=self.lanes, delays=self.delays
        )

    async def start(self, group: str, offset: int, *, end: int | None = None) -> None:
        """The group begins at `offset`, or is moved there; what it had leased is no longer its own.

        Delayed messages before it that are not due yet come when they are: they are not of the past.
        """
        hidden = pack(below(self.delays.pending, offset))
        started = Started(group, offset, hidden, end, *self.origin(group))
        # What an earlier group of that name has done is not this one's.
        is_replaced = self.has(group) and not self.has_started(group)
        await self._decided([Dropped(group), started] if is_replaced else [started])

    def drop(self, group: str) -> asyncio.Future[Committed] | None:
        """Applied at once; done when it is on disk. None if there is nothing."""
        return self._write([Dropped(group)]) if group in self._states else None

    def assign(self, group: str, member: str | None, generation: int, reason: str, *, is_lasting: bool) -> None:
        """Told to the log, for the history and so that the same member gets it after a restart; nobody waits for it."""
        self._note([Assigned(group, member, generation, reason, is_lasting)], ASSIGNED_HELD_BACK_S)

    # --- time --------------------------------------------------------------------------------------------

    def ticks(self) -> Iterator[None]:
        """What time alone does: delays that are due, leases that have run out. One step for each group, and for some
        thousand delays."""
        self._ledger.check()
        now_us = self._clock.now_us()
        self._release_due(now_us, self._write)
        while self.delays.is_more_due(now_us):
            yield
            self._release_due(now_us, self._write)
        yield
        for name, group in list(self._working.items()):
            if self._working.get(name) is group:
                self._run_out(group, Instant.of(self._clock))
            yield
        if self._is_snapshot_due:
            self._is_snapshot_due = False
            yield from self.encode_states()
            self._snapshot_soon_if_possible()

    def dying(self) -> list[str]:
        """Groups that have given up messages of which there are no letters yet."""
        self._dying_groups = {name for name in self._dying_groups if name in self._states and self._states[name].dying}
        return sorted(self._dying_groups)

    def _release_due(self, now_us: int, write: Callable[[Sequence[AnyEvent]], object]) -> None:
        due = self.delays.due(now_us)
        if not due:
            return
        try:
            write([Due("", pack(due))])
        except PenstockError:
            # Refused, because too much is waiting for the disk. They are due the next time as well.
            self.delays.put_back(due, now_us)
            raise
        self.wake("")

    def _run_out(self, group: Working, now: Instant) -> None:
        events = group.delivery.due(now, group.policy)
        if events:
            self._write(group.fates(events, self.graveyard), now)

    def holding_up(self) -> BitMap64:
        """Messages that keep their keys busy. Once one is gone, a start could not tell its key, and would hand out the
        next one of it. The oldest ones, if there are very many: those are the first to be deleted."""
        offsets, now = BitMap64(), self._clock.monotonic_us()
        for group in self._working.values():
            offsets |= group.holding_up(now)
        return offsets[:_HOLDING_UP_MAX]

    def next_due_of(self, group: str) -> int | None:
        """When there may be something for this group by time alone, on the monotonic clock. Delays apart, which are due
        by the wall clock."""
        return self._states[group].next_due() if group in self._states else None

    # --- what groups do ----------------------------------------------------------------------------------

    def has_nothing(self, name: str, monotonic_us: int) -> bool:
        """A lease would surely find nothing. Cheap: whoever has many topics asks this of all of them, again and again.

        False if it takes a closer look, or if there is something to be told.
        """
        group = self._working.get(name)
        return group is not None and not self._ledger.is_stopped and group.has_nothing(monotonic_us)

    def lease(
        self, name: str, *, consumer: str, count: int, bytes_max: int, visibility_us: int, waits: bool = True
    ) -> Taken | None:
        """Up to `count` messages; None if there are none, or too many are out already. `waits`: see `Reader.gather`."""
        self._ledger.check()
        now = Instant.of(self._clock)
        group = self._group(name)
        self._release_due(now.wall_us, self._note)
        self._run_out(group, now)
        # Also if there is no room: nobody shall wait for a time that has come.
        group.delivery.make_ready(now.monotonic_us)
        room = min(count, group.room)
        look_at, looked_at = room, 0
        while room > 0 and looked_at < _LOOKED_AT_MAX:
            identity = self._new_lease_id()
            decision = group.next_lease(
                count=room,
                look_at=look_at,
                bytes_max=bytes_max,
                now_us=now.wall_us,
                consumer=consumer,
                identity=identity,
                deadline_us=now.wall_us + visibility_us,
                waits=waits,
            )
            if decision is None:
                return None
            self._note(decision.events, now=now)
            group.leased(identity, decision, now.wall_us)
            if decision.picked:
                return Taken(identity, decision.picked)
            # All were passed over: expired, or of busy keys. Further ahead each time.
            looked_at += look_at
            look_at = min(4 * look_at, _LOOK_AT_ONCE_MAX)
        # More was passed over than anybody should wait for; there may be something behind it.
        if room > 0:
            self.wake(name)
        return None

    def _new_lease_id(self) -> int:
        """A random number of 62 bits. No consumer can guess another consumer's lease, so that a receipt needs no
        signature; and a lease that a crash made the broker forget is never mistaken for a later one."""
        return int.from_bytes(self._new_id()[:8], "big") >> 2

    async def ack(self, group: str, lease: int, offsets: BitMap64, *, again: bool = False) -> None:
        """On disk when this returns: these messages are never delivered to this group again."""
        (failure,) = await self.ack_all(group, [(lease, offsets)], again=again)
        if failure is not None:
            raise failure

    async def ack_all(self, group: str, leases: Leases, *, again: bool = False) -> list[LeaseError | None]:
        """The same of several leases, in one row; of each why it could not be."""
        self._ledger.check()
        state = self.state(group)
        if len(leases) > 1 and len({lease for lease, _ in leases}) < len(leases):
            raise InvalidInput("a lease is named twice")
        events: list[AnyEvent] = []
        failures: list[LeaseError | None] = []
        were_done = False
        for lease, offsets in leases:
            left = offsets - state.done_of(offsets) if again else offsets
            were_done = were_done or left != offsets
            try:
                if left or not offsets:
                    events.append(state.ack(lease, left))
                failures.append(None)
            except LeaseError as error:
                failures.append(error)
        if events:
            await self._write(events)
        if were_done:
            # These were carried out the first time. That may still be on its way to the disk.
            await self.flushed()
        return failures

    async def nack(
        self, name: str, lease: int, offsets: BitMap64, *, reason: str = "", delay_us: int | None = None
    ) -> None:
        self._ledger.check()
        group, now = self._group(name), Instant.of(self._clock)
        events = group.delivery.nack(
            lease,
            offsets,
            now_us=now.wall_us,
            policy=group.policy,
            reason=reason,
            delay_us=delay_us,
        )
        await self._decided(group.fates(events, self.graveyard), now)

    async def reject(self, name: str, lease: int, offsets: BitMap64, reason: str) -> None:
        self._ledger.check()
        group = self._group(name)
        parks = group.settings.on_poison != "skip"
        events = group.delivery.reject(lease, offsets, reason, parks=parks)
        await self._decided(group.fates(events, self.graveyard))

    async def release(self, group: str, lease: int, offsets: BitMap64) -> None:
        self._ledger.check()
        await self._decided(self.state(group).release(lease, offsets))

    def give_back(self, group: str, lease: int, offsets: BitMap64) -> None:
        """The same, and nobody waits for it."""
        self._note(self.state(group).release(lease, offsets))
        self.wake(group)

    async def extend(self, group: str, lease: int, offsets: BitMap64, visibility_us: int) -> None:
        self._ledger.check()
        now = Instant.of(self._clock)
        await self._decided([self.state(group).extend(lease, offsets, now.wall_us + visibility_us)], now)

    async def unpark(self, group: str, tokens: Sequence[bytes]) -> None:
        await self._decided([Unparked(group, tuple(tokens))])

    def record(self, events: Sequence[AnyEvent]) -> asyncio.Future[Committed]:
        """Apply events that were decided elsewhere. The future completes once they are on disk."""
        assert not any(isinstance(event, Exhausted) for event in events)
        return self._write(events)

    # --- delayed messages --------------------------------------------------------------------------------

    def check_scheduled(self, offset: int) -> None:
        if not 0 <= offset < 1 << 63 or offset not in self.delays.pending:
            raise NotScheduled(f"message {offset} is not waiting for its time", offset=offset)

    async def cancel(self, offset: int) -> None:
        self._ledger.check()
        self.check_scheduled(offset)
        await self._decided([Cancelled("", pack(BitMap64([offset])))])

    async def reschedule(self, offset: int, due_us: int) -> None:
        """A time that has come means at once."""
        self._ledger.check()
        self.check_scheduled(offset)
        now_us = self._clock.now_us()
        if due_us <= now_us:
            await self._decided([Moved("", offset, now_us), Due("", pack(BitMap64([offset])))])
        else:
            await self._decided([Moved("", offset, due_us)])

    # --- the log -----------------------------------------------------------------------------------------

    async def _decided(self, events: Sequence[AnyEvent], now: Instant | None = None) -> None:
        """Applied at once; returns when they are on disk."""
        if not events:
            return
        written = self._write(events, now)
        if any(isinstance(event, Exhausted) for event in events):
            # There are dead letters to be made of it then, whoever still waits.
            await asyncio.shield(written)
        else:
            await written

    def _write(self, events: Sequence[AnyEvent], now: Instant | None = None) -> asyncio.Future[Committed]:
        """What was decided together is one row. `now` is the moment by which it was decided, if that matters: the dates
        in the events are written beside that one.

        Into the queue first: what it refuses, because too much is waiting, must not be applied either.
        """
        now = now or Instant.of(self._clock)
        written = self._ledger.write(events, now.wall_us)
        for event in events:
            self._apply(event, now.wall_us, now)
            if isinstance(event, Exhausted) and event.since is not None:
                # No dead letter before it is written that there will be one.
                self.giving_up += 1
                written.add_done_callback(partial(self._gave_up, event.group))
            elif isinstance(event, Started | Dropped):
                self.regrouped(event.group)
        for group in {event.group for event in events} if len(events) > 1 else (events[0].group,):
            self.wake(group)
        self._snapshot_now_and_then()
        return written

    def _note(self, events: Sequence[AnyEvent], within_s: float = HELD_BACK_S, *, now: Instant | None = None) -> None:
        """Applied at once, and written when something else is: a crash that forgets them does no harm."""
        if events:
            now = now or Instant.of(self._clock)
            self._ledger.note(events, now.wall_us, within_s)
            for event in events:
                self._apply(event, now.wall_us, now)

    def _gave_up(self, group: str, commit: asyncio.Future[Committed]) -> None:
        self.giving_up -= 1
        if not commit.cancelled() and commit.exception() is None:
            self.mourn(group)

    def _snapshot_now_and_then(self) -> None:
        if self._ledger.since_snapshot > max(SNAPSHOT_EVERY_BYTES, 4 * self._snapshot_size):
            if len(self._states) > _ENCODED_AT_ONCE_MAX:
                # At the next tick, in steps.
                self._is_snapshot_due = True
            else:
                self._snapshot_soon_if_possible()

    def _snapshot_soon_if_possible(self) -> None:
        # A full queue, or disk, is no failure of what was just written: the next row tries again.
        with suppress(Overloaded, DiskFull):
            self.snapshot_soon()

    def encode_states(self) -> Iterator[None]:
        """Ahead of a snapshot, so that it has to encode only those that change meanwhile. For `Work.walk`."""
        if not self._needs_snapshot:
            return
        self._date_encoded()
        for name in list(self._states):
            if name not in self._encoded and name in self._states:
                self._encoded[name] = snapshot.encoded(self._states[name], self._encoded_at)
                yield

    def _date_encoded(self) -> Instant:
        """Forget what was encoded before the wall clock was set: there are dates in it."""
        now = Instant.of(self._clock)
        by_us = now.wall_us - now.monotonic_us - (self._encoded_at.wall_us - self._encoded_at.monotonic_us)
        if abs(by_us) > _CLOCK_STEP_US:
            self._encoded.clear()
        if not self._encoded:
            self._encoded_at = now
        return now

    def snapshot_soon(self) -> None:
        """Begin a snapshot without waiting for it: the next row reports a failure."""
        self.snapshot().add_done_callback(_look_at)

    def snapshot(self) -> asyncio.Future[list[Committed]]:
        """The state as it is now, behind the events that led to it."""
        now = self._date_encoded()
        for name, state in self._states.items():
            if name not in self._encoded:
                self._encoded[name] = snapshot.encoded(state, self._encoded_at)
        frames = snapshot.take(
            self._messages.visible_offset,
            [self._encoded[name] for name in self._states],
            self.lanes,
            self.delays,
            list(self._owners.values()),
            now,
        )
        self._encoded.clear()
        written = self._ledger.snapshot(frames)
        self.covered = self._messages.visible_offset
        self._snapshot_size = sum(len(frame.data) for frame in frames)
        return written

    async def snapshot_if_needed(self) -> None:
        """If anything has happened, or was published, since the last one."""
        if self._needs_snapshot:
            await self.snapshot()

    @property
    def _needs_snapshot(self) -> bool:
        return bool(self._ledger.since_snapshot) or self._messages.visible_offset > self.covered

    def flush(self) -> None:
        """What happened so far is on its way to the log."""
        self._ledger.flush()

    async def flushed(self) -> None:
        """What happened so far can be read from the log."""
        await self._ledger.flushed()

    @property
    def lacks_room(self) -> bool:
        """What was decided waits for room on the disk, and nothing else can be decided."""
        return self._ledger.lacks_room

    def end_wait(self) -> None:
        """Before `close`: do not wait for room on the disk any more."""
        self._ledger.end_wait()

    async def settled(self) -> None:
        """Return once every row that was handed in so far is on disk, has failed, or waits for room on the disk."""
        await self._ledger.journal.settled()

    def committed(self, offset: int) -> None:
        self._ledger.journal.committed(offset)

    def resign(self) -> None:
        """Whoever leads now goes on from what is in the log."""
        self._ledger.resign()

    async def close(self) -> None:
        """A start after a clean end has nothing to replay."""
        self._ledger.flush()
        news = self._messages.visible_offset - self.covered
        if self._ledger.since_snapshot or news > _LOOKED_AT_MAX:
            await self.snapshot()
        self._ledger.close()

    def _apply(self, event: AnyEvent, at_us: int, now: Instant) -> None:
        match event:
            case Due():
                offsets = unpack(event.offsets)
                self.delays.release(offsets)
                self._encoded.clear()
                for state in self._states.values():
                    state.make_due(offsets)
            case Cancelled():
                offsets = unpack(event.offsets)
                self.delays.cancel(offsets)
                self._encoded.clear()
                for state in self._states.values():
                    state.cancel(offsets)
            case Moved():
                self.delays.move(event.offset, event.due_us)
            case Assigned():
                self._owners[event.group] = event
            case Dropped():
                self._states.pop(event.group, None)
                self._encoded.pop(event.group, None)
                self._working.pop(event.group, None)
                self._owners.pop(event.group, None)
            case Buried() if event.group not in self._states:
                # The group was deleted while its dead letters were written.
                pass
            case _:
                self._encoded.pop(event.group, None)
                if event.group not in self._states:
                    self._states[event.group] = Delivery(event.group)
                self._states[event.group].apply(event, at_us, now)
                if isinstance(event, Exhausted):
                    self._dying_groups.add(event.group)


def _look_at(written: asyncio.Future[list[Committed]]) -> None:
    if not written.cancelled():
        written.exception()


def events_of(
    log: Log, offset: int, messages: Lineage = (), until: int | None = None
) -> Iterator[tuple[AnyEvent | Truncated, int]]:
    """Events and when they happened, without the snapshots among them.

    Invariant: a row of one epoch speaks of messages of that epoch and of earlier ones. A copy may have more rows than
    messages when it is elected uncleanly; then the leader gives the offsets of the missing messages to others. With the
    lineage of the `messages`, `Truncated` says where those begin, ahead of the first row of the next epoch.
    """
    epoch = epoch_at(log.lineage, offset - 1) if messages else 0
    for frame in log.frames(offset, until):
        if frame.leader_epoch > epoch:
            yield from truncated(messages, epoch, frame.leader_epoch, frame.append_time)
            epoch = frame.leader_epoch
        if frame.flags & CONTROL:
            continue
        try:
            batch = frame.batch(verify=False)
            rows = zip(batch.values(), batch.timestamps.tolist(), frame.offsets(batch).tolist(), strict=True)
        except InvalidFrame as error:
            raise LogCorrupt(f"a frame of the deliveries log can't be decoded: {error.message}") from error
        for value, at_us, number in rows:
            if number >= offset:
                yield from from_value(value, at_us)
    yield from truncated(messages, epoch, EPOCH_MAX, log.last_append_time)


def truncated(messages: Lineage, epoch: int, until: int, at_us: int) -> Iterator[tuple[Truncated, int]]:
    """Where the messages begin that are of a later epoch than `epoch`, up to `until`. Of epochs in between there may be
    none: an election after them has lost their messages."""
    first = next((entry.first_offset for entry in messages if epoch < entry.epoch <= until), None)
    if first is not None:
        yield Truncated("", first), at_us


def groups_beyond(log: Log, messages: Log) -> dict[str, int]:
    """Of a copy that is not led: the groups that have come further than its messages go, and how far."""
    last = snapshot.find_last(log)
    states = [] if last is None else last.snapshot.groups
    reached = {state.name: max(state.floor, *state.cursors) for state in states}
    offset = log.start_offset if last is None else last.next_offset
    for event, _ in events_of(log, offset, messages.lineage, log.end_offset):
        match event:
            case Started():
                reached[event.group] = event.offset
            case Leased() | Passed():
                reached[event.group] = max(event.cursors)
            case Dropped():
                reached.pop(event.group, None)
            case Truncated():
                reached = {group: min(at, event.offset) for group, at in reached.items()}
    return {group: at for group, at in reached.items() if at > messages.end_offset}
