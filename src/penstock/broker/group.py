"""A group of consumers on one topic: what it leases from the partitions, and answers for.

Who may lease from which partition is decided in `membership.py`; here any consumer may, from those it is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal, NamedTuple

from pyroaring import BitMap64

from penstock.broker.catalog import ReplayRecord
from penstock.broker.checks import check_time, is_int
from penstock.broker.deliveries import Deliveries, Leases, Taken
from penstock.broker.delivery import Parked
from penstock.broker.events import Deferred, GroupEvent, Started, pack
from penstock.broker.leasing import Cold
from penstock.broker.names import check_name
from penstock.broker.offsets import bitmap_of
from penstock.broker.ordering import KEY, WHOLE_PARTITION
from penstock.broker.partition import Partition
from penstock.broker.retries import RetryPolicy
from penstock.broker.settings import VISIBILITY_US_MAX, GroupSettings
from penstock.broker.thinning import LARGE_BYTES_MIN, is_long_work, thin
from penstock.broker.topic import Topic
from penstock.broker.work import Work
from penstock.clock import TIME_MAX_US, Clock
from penstock.durations import duration_text
from penstock.errors import (
    ClusterError,
    InvalidInput,
    LeaseError,
    NotFound,
    OffsetOutOfRange,
    Overloaded,
    PenstockError,
    StorageError,
)
from penstock.frame import Frame, takes_long
from penstock.limits import MIB
from penstock.message import Priority

COUNT_MAX = 10_000
REASON_LENGTH_MAX = 1_000
_DELAY_STEP_US = 100_000
# Of a cold log, for one lease.
_LOADS_MAX = 3
_TURNS_MAX = 10_000


class Receipt(NamedTuple):
    """What a consumer answers with: some messages of one lease."""

    partition: int
    lease: int
    offsets: BitMap64


class Handed(NamedTuple):
    """Messages leased from one partition and lane: those of `frames` whose offsets are in the receipt."""

    receipt: Receipt
    frames: list[Frame]


class Leased(NamedTuple):
    """With where it was leased: the partition may be led elsewhere a moment later."""

    groups: Deliveries
    handed: Handed


class ParkedKey(NamedTuple):
    """A key that waits for somebody to release it; None is all of the partition."""

    partition: int
    key: bytes | None
    parked: Parked


# Messages by how long they were held back, in microseconds.
Delays = dict[int, BitMap64]


class Group:
    """One group on one topic."""

    def __init__(
        self,
        name: str,
        topic: Topic,
        settings: GroupSettings,
        policy: RetryPolicy,
        clock: Clock,
        work: Work,
        replay: ReplayRecord | None = None,
    ) -> None:
        """`replay`: what it is to get of this topic, if that is all."""
        self.name = name
        self.topic = topic
        self._clock = clock
        self._work = work
        self._replay = replay
        # Of each consumer how often it has asked; forgotten when there are too many.
        self._turns: Counter[str] = Counter()
        self.configure(settings, policy)

    def configure(self, settings: GroupSettings, policy: RetryPolicy) -> None:
        self.settings = settings
        self.policy = policy
        for partition in self.topic.partitions:
            if partition.groups.has(self.name):
                partition.groups.configure(self.name, settings, policy)

    def configure_here(self, number: int) -> None:
        """In a partition that is led here from now on."""
        groups = self.topic.partition(number).groups
        if groups.has(self.name) and not groups.is_configured(self.name):
            groups.configure(self.name, self.settings, self.policy)

    # --- leases ------------------------------------------------------------------------------------------

    async def lease(
        self,
        consumer: str,
        count: int,
        bytes_max: int = MIB,
        *,
        visibility_us: int | None = None,
        partitions: Iterable[int] | None = None,
    ) -> list[Handed]:
        """Up to `count` messages of about `bytes_max` bytes, from as many partitions as it takes."""
        leased = await self.leased(consumer, count, bytes_max, visibility_us=visibility_us, partitions=partitions)
        return [one.handed for one in leased]

    async def leased(
        self,
        consumer: str,
        count: int,
        bytes_max: int = MIB,
        *,
        visibility_us: int | None = None,
        partitions: Iterable[int] | None = None,
    ) -> list[Leased]:
        """The same, with where it was leased."""
        if not is_int(count) or not 1 <= count <= COUNT_MAX:
            raise InvalidInput(f"count must be 1 to {COUNT_MAX}, not {count!r}")
        if not is_int(bytes_max) or bytes_max < 1:
            raise InvalidInput(f"bytes_max is a positive number, not {bytes_max!r}")
        check_name("consumer", consumer)
        visibility = self._visibility(visibility_us)
        leased: list[Leased] = []
        try:
            turns = self._in_turn(consumer, partitions)
            if await self._lease(leased, consumer, count, bytes_max, visibility, turns):
                await self._thin(leased)
            if self.topic.is_replicated:
                leased = await self._known_elsewhere(leased)
        except BaseException:
            # Also whoever gave up waiting gets nothing.
            self.give_back(leased)
            raise
        return self._by_lane(leased) if len(leased) > 1 else leased

    async def _lease(
        self,
        leased: list[Leased],
        consumer: str,
        count: int,
        bytes_max: int,
        visibility_us: int,
        numbers: Iterable[int],
    ) -> bool:
        """Added to `leased`, one partition after the other. Return whether frames among them take long to
        decompress."""
        failure: PenstockError | None = None
        is_large = False
        for number in numbers:
            try:
                partition = await self._started(number)
                try:
                    taken = partition.groups.lease(
                        self.name,
                        consumer=consumer,
                        count=count,
                        bytes_max=bytes_max,
                        visibility_us=visibility_us,
                        waits=False,
                    )
                except Cold as cold:
                    taken = await self._lease_cold(partition, cold, consumer, count, bytes_max, visibility_us)
            except (StorageError, Overloaded, ClusterError) as error:
                # The others can still give something; and what is leased already must reach somebody.
                failure = error
                continue
            if taken is None:
                continue
            for picked in taken.picked:
                handed = Handed(Receipt(number, taken.lease, picked.offsets), picked.frames)
                leased.append(Leased(partition.groups, handed))
                count -= len(picked.offsets)
                sizes = [len(frame.data) for frame in picked.frames]
                bytes_max -= sum(sizes)
                if not is_large and sizes and max(sizes) >= LARGE_BYTES_MIN:
                    is_large = any(takes_long(frame.data) for frame in picked.frames)
            if count <= 0 or bytes_max <= 0:
                break
        if failure is not None and not leased:
            raise failure
        return is_large

    async def _lease_cold(
        self, partition: Partition, cold: Cold, consumer: str, count: int, bytes_max: int, visibility_us: int
    ) -> Taken | None:
        """After a thread has read what the page cache lacks: the event loop waits for no disk."""
        for attempt in range(_LOADS_MAX):
            await self._work.scan(partition.reading.load(cold.offsets, cold.bytes_max))
            try:
                return partition.groups.lease(
                    self.name,
                    consumer=consumer,
                    count=count,
                    bytes_max=bytes_max,
                    visibility_us=visibility_us,
                    # Unless the kernel drops what was read at once.
                    waits=attempt == _LOADS_MAX - 1,
                )
            except Cold as still:
                cold = still
        raise AssertionError("a lease that waits for the disk needs no other attempt")

    async def _thin(self, leased: list[Leased]) -> None:
        """On a thread, what would take the event loop too long when it is sent."""
        for at, (groups, (receipt, frames)) in enumerate(leased):
            if is_long_work(frames, receipt.offsets):
                # A copy: the receipt's belongs to the lease.
                thinned = await self._work.on_a_reading_thread(partial(thin, frames, receipt.offsets.copy()))
                leased[at] = Leased(groups, Handed(receipt, thinned))

    async def _known_elsewhere(self, leased: list[Leased]) -> list[Leased]:
        """Of a replicated partition nothing is handed out before those who may lead it next know of the lease."""
        unknown: list[Deliveries] = []
        failure: PenstockError | None = None
        partitions = dict.fromkeys(groups for groups, _ in leased)
        for groups in partitions:
            # All of them at once. What is wrong with one is heard by whoever waits for it.
            with suppress(PenstockError):
                groups.flush()
        for groups in partitions:
            try:
                await groups.flushed()
            except PenstockError as error:
                # Not the leader any more, mostly. What others know of is handed out.
                unknown.append(groups)
                failure = error
        self.give_back([one for one in leased if one.groups in unknown])
        # That may have taken longer than a lease lasts: what it held may be somebody else's by now.
        known = [one for one in leased if one.groups not in unknown and self._is_leased(one)]
        if failure is not None and not known:
            raise failure
        return known

    def _is_leased(self, one: Leased) -> bool:
        return one.groups.has(self.name) and one.handed.receipt.lease in one.groups.state(self.name).leases

    def give_back(self, leased: list[Leased]) -> None:
        for groups, (receipt, _) in leased:
            with suppress(PenstockError):
                groups.give_back(self.name, receipt.lease, receipt.offsets)

    def _in_turn(self, consumer: str, partitions: Iterable[int] | None) -> Sequence[int]:
        """Another one first each time this consumer asks; those with high messages before the others."""
        if partitions is not None and not isinstance(partitions, Iterable):
            raise InvalidInput(f"partitions are numbers, not {partitions!r}")
        numbers = list(range(self.topic.count) if partitions is None else partitions)
        if len(numbers) < 2:
            return numbers
        if len(self._turns) > _TURNS_MAX:
            self._turns.clear()
        # Of its own: two that ask by turns would each begin with the same one for ever, and never get to the others.
        self._turns[consumer] += 1
        turn = self._turns[consumer] % len(numbers)
        numbers = numbers[turn:] + numbers[:turn]
        if self.settings.lanes == "strict":
            numbers.sort(key=self._has_no_high)
        return numbers

    def _has_no_high(self, number: int) -> bool:
        groups = self.topic.partition(number).groups
        high = groups.lanes.high
        if not high or not groups.has(self.name):
            return not high
        state = groups.state(self.name)
        return high.max() < state.cursors.high and not state.ready.intersect(high)

    def _by_lane(self, leased: list[Leased]) -> list[Leased]:
        if self.settings.lanes == "none":
            return leased
        return sorted(leased, key=lambda one: -one.groups.lanes.of(one.handed.receipt.offsets.min()))

    async def ack(self, receipt: Receipt, *, again: bool = False) -> None:
        """On disk when this returns: these messages never come to this group again.

        With `again`, that may be the case already: somebody who has not heard the answer says it a second time.
        """
        await self._partition(receipt).groups.ack(self.name, receipt.lease, receipt.offsets, again=again)

    async def ack_all(self, partition: int, leases: Leases, *, again: bool = False) -> list[LeaseError | None]:
        """The same for several leases of one partition; of each why it could not be."""
        for lease, offsets in leases:
            self._partition(Receipt(partition, lease, offsets))
        return await self.topic.partition(partition).groups.ack_all(self.name, leases, again=again)

    async def nack(self, receipt: Receipt, *, reason: str = "", delay_us: int | None = None) -> None:
        """To be tried again: after `delay_us`, or by the group's back-off."""
        if delay_us is not None and not (is_int(delay_us) and 0 <= delay_us <= self.topic.settings.max_delay_us):
            longest = duration_text(self.topic.settings.max_delay_us)
            raise InvalidInput(f"a delay is 0s to {longest} for {self.topic.name}, not {_shown(delay_us)}")
        await self._working_partition(receipt).groups.nack(
            self.name, receipt.lease, receipt.offsets, reason=_checked_reason(reason), delay_us=delay_us
        )

    async def reject(self, receipt: Receipt, reason: str) -> None:
        """Never to be tried again: a dead letter at once."""
        groups = self._working_partition(receipt).groups
        await groups.reject(self.name, receipt.lease, receipt.offsets, _checked_reason(reason))

    async def release(self, receipt: Receipt) -> None:
        """Given back unseen: ready at once, and this delivery does not count."""
        await self._partition(receipt).groups.release(self.name, receipt.lease, receipt.offsets)

    async def extend(self, receipt: Receipt, visibility_us: int | None = None) -> None:
        """More time for the whole lease, from now on. A receipt without offsets stands for all that is left of it."""
        visibility = self._visibility(visibility_us)
        await self._partition(receipt).groups.extend(self.name, receipt.lease, receipt.offsets, visibility)

    def attempt(self, receipt: Receipt, offset: int) -> int:
        """How often that message has been delivered, this time included."""
        return self._partition(receipt).groups.state(self.name).attempt(offset)

    # --- where it is -------------------------------------------------------------------------------------

    async def seek(
        self,
        to: Literal["earliest", "latest"] | None = None,
        *,
        time_us: int | None = None,
        offset: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Moves the group: to the start, the end, a time, or an offset of one partition. What it leased is let go."""
        numbers = range(self.topic.count) if partition is None else [partition]
        if (to is not None) + (time_us is not None) + (offset is not None) != 1:
            raise InvalidInput("seek to earliest or latest, or to a time, or to an offset")
        if offset is not None and partition is None and self.topic.count > 1:
            raise InvalidInput("an offset is one of a partition; say which")
        if time_us is not None:
            check_time(time_us)
            found = await self._work.scan(self._positions_at(numbers, time_us))
        else:
            found = [self._position(self.topic.partition(number), to, offset) for number in numbers]
        for number, position in zip(numbers, found, strict=True):
            part = self.topic.partition(number)
            end = part.groups.state(self.name).end if part.groups.has_started(self.name) else None
            if end is not None:
                # A replay has its end, wherever in it the group is moved. Retention may have deleted all of it.
                last = max(end, part.messages.start_offset)
                await self.replay(number, min(position, last), last)
                continue
            await part.groups.start(self.name, position)
            part.groups.configure(self.name, self.settings, self.policy)

    def _positions_at(self, numbers: Iterable[int], time_us: int) -> Iterator[int]:
        for number in numbers:
            partition = self.topic.partition(number)
            yield min(partition.messages.offset_at(time_us), partition.reading.visible_offset)

    def _position(self, partition: Partition, to: str | None, offset: int | None) -> int:
        start, end = partition.messages.start_offset, partition.reading.visible_offset
        if offset is not None:
            if not is_int(offset) or not start <= offset <= end:
                raise OffsetOutOfRange(
                    f"{self.topic.name} has offsets {start} to {end}, not {offset!r}", start=start, end=end
                )
            return offset
        if to not in ("earliest", "latest"):
            raise InvalidInput(f"seek to earliest or latest, not {to!r}")
        return start if to == "earliest" else end

    async def replay(self, partition: int, first: int, last: int, *, delays: Delays | None = None) -> None:
        """The group gets the messages of [first, last) of this partition, and nothing else.

        With `delays`, those that were published with a delay are held back for as long as they were then.
        """
        part = self.topic.partition(partition)
        start, end = part.messages.start_offset, part.reading.visible_offset
        if not (is_int(first) and is_int(last)) or not start <= first <= last <= end:
            raise OffsetOutOfRange(
                f"offsets {first!r} to {last!r} are not within {start} to {end}", start=start, end=end
            )
        messages = BitMap64(range(first, last)) - part.groups.delays.cancelled
        now = self._clock.now_us()
        origin = part.groups.origin(self.name)
        events: list[GroupEvent] = [Started(self.name, last, pack(messages), last, *origin)]
        # What is not due yet comes when it is, here as everywhere.
        messages -= part.groups.delays.pending
        for delay_us, delayed in sorted((delays or {}).items()):
            if offsets := delayed & messages:
                events.append(Deferred(self.name, pack(offsets), now + delay_us))
                messages -= offsets
        if messages:
            events.append(Deferred(self.name, pack(messages), now))
        await part.groups.record(events)
        part.groups.configure(self.name, self.settings, self.policy)

    async def start_replay(self, number: int, delays: Delays | None = None) -> None:
        """In one of the partitions that the replay is of. Without the `delays` of its messages, they are read here."""
        assert self._replay is not None
        # Retention may have been faster.
        start = self.topic.partition(number).messages.start_offset
        first, last = (max(bound, start) for bound in self._replay.ranges[number])
        if delays is None and self._replay.delays:
            delays = {}
            await self._work.scan(find_delays(self.topic.partition(number), first, last, delays))
            if self.topic.partition(number).groups.has_started(self.name):
                # By another request, meanwhile: what its consumers have done must stay.
                return
        await self.replay(number, first, last, delays=delays)

    def lag(self) -> list[int]:
        """Messages in the log that are not done, for each partition."""
        lags = []
        for partition in self.topic.partitions:
            if partition.groups.has(self.name):
                lags.append(partition.lag(partition.groups.state(self.name)))
            else:
                end = partition.reading.visible_offset
                first = min(self._first_offset(partition), end)
                lags.append(partition.reading.count(first, end))
        return lags

    # --- parked keys -------------------------------------------------------------------------------------

    def parked(self) -> list[ParkedKey]:
        found = []
        for number, partition in self.topic.numbered:
            if partition.groups.has(self.name):
                for token, parked in partition.groups.state(self.name).parked.items():
                    key = None if token == WHOLE_PARTITION else token[len(KEY) :]
                    found.append(ParkedKey(number, key, parked))
        return found

    async def release_key(self, key: bytes | None, partition: int | None = None) -> int:
        """A parked key, or a whole partition if None, goes on with what comes after the message that was given up."""
        if key is not None and not isinstance(key, bytes):
            raise InvalidInput(f"a key is bytes, or None for the whole partition, not {type(key).__name__}")
        token = WHOLE_PARTITION if key is None else KEY + key
        released = 0
        for number, part in self.topic.numbered:
            is_meant = partition is None or partition == number
            if is_meant and part.groups.has(self.name) and token in part.groups.state(self.name).parked:
                await part.groups.unpark(self.name, [token])
                released += 1
        if not released:
            parked = "the partition" if key is None else "that key"
            raise NotFound(
                f"{parked} is not parked for group {self.name}. See what is: penstock group parked {self.name} "
                f"{self.topic.name}"
            )
        return released

    # --- helpers -----------------------------------------------------------------------------------------

    def _first_offset(self, partition: Partition) -> int:
        if self.settings.start == "earliest" and not self.settings.is_replay:
            return partition.messages.start_offset
        return partition.reading.visible_offset

    async def _started(self, number: int) -> Partition:
        partition = self.topic.partition(number)
        if not partition.groups.has_started(self.name):
            if self._replay is not None and number < len(self._replay.ranges):
                # A crash or a full queue has kept the replay from being started here.
                await self.start_replay(number)
            else:
                first = self._first_offset(partition)
                await partition.groups.start(self.name, first, end=first if self.settings.is_replay else None)
        if not partition.groups.is_configured(self.name):
            partition.groups.configure(self.name, self.settings, self.policy)
        return partition

    async def start(self) -> None:
        """In every partition, where the settings say: what is published from now on is not missed."""
        for number in range(self.topic.count):
            await self._started(number)

    async def start_in(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            await self._started(number)

    def _partition(self, receipt: Receipt) -> Partition:
        is_one = isinstance(receipt, Receipt) and is_int(receipt.lease) and isinstance(receipt.offsets, BitMap64)
        if not is_one:
            raise InvalidInput(f"a receipt has a partition, a lease and a set of offsets, not {receipt!r}")
        return self.topic.partition(receipt.partition)

    def _working_partition(self, receipt: Receipt) -> Partition:
        """For answers that depend on the group's settings. A leader serves a partition before it has looked at all its
        groups (`Upkeep.take_up_one`)."""
        partition = self._partition(receipt)
        self.configure_here(receipt.partition)
        return partition

    def _visibility(self, visibility_us: int | None) -> int:
        visibility = self.settings.visibility_us if visibility_us is None else visibility_us
        if not is_int(visibility) or not 1 <= visibility <= VISIBILITY_US_MAX:
            longest = duration_text(VISIBILITY_US_MAX)
            raise InvalidInput(f"visibility is 1us to {longest}, not {_shown(visibility_us)}")
        return visibility


def find_delays(partition: Partition, first: int, last: int, found: Delays) -> Iterator[None]:
    """How long each delayed one of the messages of [first, last) was held back, counted from its publishing: added to
    `found`. For `Work.scan`, with None for each batch."""
    messages = BitMap64()
    messages.add_range(first, last)
    for offsets, batch, times in partition.reading.timed_batches(messages):
        if batch.deliver_at is not None:
            # In steps, upwards: a row of the log for each, and not for each message.
            delays = -(-(batch.deliver_at - times) // _DELAY_STEP_US) * _DELAY_STEP_US
            for delay in set(delays[delays > 0].tolist()):
                found.setdefault(delay, BitMap64()).update(bitmap_of(offsets[delays == delay]) & messages)
        yield None


def _shown(us: object) -> str:
    return duration_text(us) if isinstance(us, int) and 0 <= us <= TIME_MAX_US else repr(us)


def _checked_reason(reason: object) -> str:
    if not isinstance(reason, str):
        raise InvalidInput(f"a reason is text, not {type(reason).__name__}")
    if not reason:
        return reason
    # Reasons are often the text of an exception, which may hold anything.
    return reason[:REASON_LENGTH_MAX].encode("utf-8", "backslashreplace").decode()


__all__ = ["Group", "GroupSettings", "Handed", "ParkedKey", "Priority", "Receipt"]
