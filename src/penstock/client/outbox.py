"""What a producer has been given and not sent yet, by partition. No I/O, and any thread may add.

    add ─► open parcel ─ full, or its time has come ─► closed ─ take ─► on its way ─ settle ─► gone

Invariant: `buffered` is the bytes of all parcels that are not settled, and stays within `buffer_bytes` unless a single
parcel is larger than that.

A thread that adds may be interrupted (Ctrl-C) behind any call. A message is in the outbox once one append has put it
there, as a row of a parcel or with its new parcel; nothing else has to happen for it to be sent by a later call. Only
the event loop, which is not interrupted, decides that a partition is being sent to. An interruption may leave
`buffered` too low, by the size of one message, until the outbox is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple

from crc32c import crc32c

from penstock.batch import Batch
from penstock.client import forks
from penstock.client.lane import SENDING, Hold, Lane
from penstock.client.parcel import Parcel
from penstock.limits import DEFAULT_LIMITS, KIB
from penstock.message import Message
from penstock.partitioner import UNKEYED_RUN, partition_of, partitions_of, split

# What the columns around a message may add to its bytes.
_OVERHEAD = 48
# What is larger is looked at more closely.
_PLAIN_MAX = 16 * KIB


class Added(NamedTuple):
    """`row` is the message's place in its parcel. With `is_to_note`, the event loop has to be told: see `noted`."""

    parcel: Parcel
    row: int
    is_to_note: bool


class Outbox:
    def __init__(
        self,
        *,
        partitions: int,
        batch_messages: int,
        batch_bytes: int,
        buffer_bytes: int,
        message_bytes_max: int = DEFAULT_LIMITS.message_bytes_max,
        is_led: Callable[[int], bool],
        first: int = 0,
    ) -> None:
        """Messages without a key go to partitions that `is_led` says can be written to, if there are some; from `first`
        on. Not from the same one for all producers: many send a message or two."""
        self._is_led = is_led
        self.partitions = partitions
        self.buffered = 0
        self.under_way: dict[Parcel, None] = {}
        self._batch_messages = batch_messages
        # Of a parcel that stays open.
        self._last_row = batch_messages - 1
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._plain_max = min(message_bytes_max, _PLAIN_MAX)
        self._lanes: dict[int, Lane] = {}
        # The partition that gets messages without a key, the parcel there that takes them, if one is open, and the row
        # at which the next partition has its turn. When the parcel is full or taken, the turn ends earlier.
        self._turn = self._table_turn = first % partitions
        self._unkeyed: Parcel | None = None
        self._turn_ends = 0
        self._lock = Lock()
        forks.guard(self)

    def grow(self, partitions: int) -> None:
        """The topic has so many now, at least."""
        if partitions > self.partitions:
            with self._lock:
                self.partitions = max(partitions, self.partitions)

    def shrink(self, partitions: int, failed: Sequence[Parcel] = (), now_us: int = 0) -> list[Parcel]:
        """The topic was deleted, and created again with fewer partitions. On the event loop.

        What `failed` for that reason, and what waits, is divided among the partitions that there are, by key and in
        order. Returns what can't be sent: its callers have chosen a partition that is gone.
        """
        with self._lock:
            self.partitions = max(1, min(partitions, self.partitions))
            self._turn %= self.partitions
            self._unkeyed = None
            moving = list(failed)
            for parcel in failed:
                lane = self._lane(parcel.partition)
                lane.holder = None if lane.holder is SENDING else lane.holder
            for lane in list(self._lanes.values()):
                moving += lane.parcels
                lane.parcels.clear()
            return [part for parcel in moving for part in self._divide(parcel, now_us)]

    def _divide(self, parcel: Parcel, now_us: int) -> list[Parcel]:
        """Returns the part that can't be sent, if there is one."""
        parcel.close()
        batch = parcel.batch(now_us)
        chosen = partitions_of(batch, self.partitions, self._turn)
        gone, pinned = -1, set(parcel.pinned or ())
        chosen[list(pinned)] = parcel.partition if parcel.partition < self.partitions else gone
        parts, refused = [], []
        for number, rows, some in split(batch, chosen):
            part = Parcel(parcel.partition if number == gone else number, batch=some)
            part.bytes = parcel.bytes * len(rows) // batch.count
            parts.append((rows, part))
            if number == gone:
                refused.append(part)
                continue
            part.pinned = [at for at, row in enumerate(rows.tolist()) if row in pinned] if pinned else None
            lane = self._lane(number)
            if lane.open is not None:
                lane.open.close()
            lane.parcels.append(part)
        self.buffered -= parcel.bytes - sum(part.bytes for _, part in parts)
        self.under_way[parcel] = None
        parcel.divide(parts)
        parcel.done.add_done_callback(lambda _: self.under_way.pop(parcel, None))
        return refused

    def lane(self, partition: int) -> Lane:
        with self._lock:
            return self._lane(partition)

    def _lane(self, partition: int) -> Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = Lane(partition)
        return lane

    # --- what comes in -----------------------------------------------------------------------------------

    def add(self, message: Message, size: int, partition: int | None) -> Added | None:
        """None if there is no room for it."""
        size += _OVERHEAD
        is_pinned = partition is not None
        with self._lock:
            if not self._has_room(size):
                return None
            is_plain = _is_plain(message)
            is_unkeyed = partition is None and message.key is None
            if partition is None:
                partition = self._choose(message.key, size, is_plain=is_plain)
            lane = self._lane(partition)
            parcel = lane.open
            if parcel is not None and not self._fits(parcel, size, is_plain=is_plain):
                parcel.close()
                parcel = None
            if parcel is None:
                parcel = Parcel(partition, is_plain=is_plain, size=size)
                parcel.add(message)
                lane.parcels.append(parcel)
                lane.newest = parcel
            else:
                parcel.bytes += size
                parcel.add(message)
            self.buffered += size
            row = len(parcel) - 1
            if is_unkeyed and parcel is not self._unkeyed:
                self._begin_turn(parcel, row)
            if is_pinned:
                parcel.pin(row)
            if row + 1 >= self._batch_messages or parcel.bytes >= self._batch_bytes:
                parcel.close()
            return Added(parcel, row, not parcel.is_noted or (parcel.is_closed and lane.holder is None))

    def noted(self, parcel: Parcel) -> None:
        """The event loop was told of it, and that was not interrupted: messages may be added without telling it."""
        with self._lock:
            parcel.is_noted = True
            parcel.takes_plain = parcel.is_plain and not parcel.is_closed

    def add_plain(self, value: bytes, key: bytes | None) -> tuple[Parcel, int] | None:
        """Into a parcel that is open and stays so: which, and its place in it. None if there is more to it than that.

        Spelled out, and without a `Message`: this runs for every message of a producer in a hurry.
        """
        size = len(value) + _OVERHEAD
        if key is not None:
            size += len(key)
        if size > self._plain_max:
            return None
        with self._lock:
            if key is None:
                parcel = self._unkeyed
            else:
                lane = self._lanes.get(crc32c(key) % self.partitions)
                parcel = None if lane is None else lane.newest
            if parcel is None or not parcel.takes_plain:
                return None
            buffered = self.buffered + size
            parcel_bytes = parcel.bytes + size
            rows = parcel.rows
            row = len(rows) // 2
            if buffered > self._buffer_bytes or parcel_bytes >= self._batch_bytes or row >= self._last_row:
                return None
            parcel.bytes = parcel_bytes
            self.buffered = buffered
            rows += (value, key)
            if key is None and row + 1 >= self._turn_ends:
                self._end_turn()
            return parcel, row

    def add_batch(self, batch: Batch, size: int, partition: int, *, is_pinned: bool = False) -> Added | None:
        """Behind everything that was added for this partition before."""
        with self._lock:
            if not self._has_room(size):
                return None
            lane = self._lane(partition)
            if lane.open is not None:
                lane.open.close()
            parcel = Parcel(partition, batch=batch, size=size)
            if is_pinned:
                parcel.pinned = range(batch.count)
            lane.parcels.append(parcel)
            self.buffered += size
            return Added(parcel, 0, lane.holder is None)

    def _has_room(self, size: int) -> bool:
        return self.buffered <= 0 or self.buffered + size <= self._buffer_bytes

    def _fits(self, parcel: Parcel, size: int, *, is_plain: bool) -> bool:
        return (
            not parcel.is_closed
            and parcel.bytes + size <= self._batch_bytes
            and len(parcel) < self._batch_messages
            and (is_plain or not parcel.is_plain)
        )

    def _choose(self, key: bytes | None, size: int, *, is_plain: bool) -> int:
        if key is not None:
            return partition_of(key, self.partitions)
        # Without a key: a run of messages to one partition, and the next to another.
        parcel = self._unkeyed
        if parcel is None:
            is_over = not self._is_led(self._turn)
        else:
            is_over = len(parcel) >= self._turn_ends or not self._fits(parcel, size, is_plain=is_plain)
            is_over = is_over or not self._is_led(self._turn)
        if is_over:
            self._end_turn()
        return self._turn

    def _begin_turn(self, parcel: Parcel, row: int) -> None:
        """It gets the messages without a key from this row on."""
        self._turn_ends = row + UNKEYED_RUN
        self._unkeyed = parcel

    def _end_turn(self) -> None:
        """The next partition has its turn; a parcel that is open there takes the messages."""
        self._unkeyed = None
        self._turn = self._after(self._turn)
        lane = self._lanes.get(self._turn)
        parcel = None if lane is None else lane.open
        if parcel is not None:
            self._begin_turn(parcel, len(parcel))

    def _after(self, turn: int) -> int:
        """The next one that is led; if none is, the next one."""
        for step in range(1, self.partitions + 1):
            number = (turn + step) % self.partitions
            if self._is_led(number):
                return number
        return (turn + 1) % self.partitions

    def next_turn(self) -> int:
        """The partition for the rows of a table that have no key. Apart from the turns of messages: with one count for
        both, a program that sends them alternately would send all tables to every other partition."""
        with self._lock:
            self._table_turn = self._after(self._table_turn)
            return self._table_turn

    # --- what goes out -----------------------------------------------------------------------------------

    def reserve(self, key: bytes | None, partition: int | None, hold: Hold) -> Lane | None:
        """A partition for which nothing waits and nothing is on its way. It is held until `release` or `give_up`."""
        with self._lock:
            number = self._choose(key, 0, is_plain=True) if partition is None else partition
            lane = self._lanes.get(number) or self._lane(number)
            if lane.parcels or lane.holder is not None:
                return None
            hold.lane = lane
            lane.holder = hold
            if partition is None and key is None:
                # The next call looks whether that one is led.
                self._turn, self._unkeyed = (number + 1) % self.partitions, None
            return lane

    def release(self, hold: Hold) -> bool:
        """Whether something has come meanwhile. Then it is held until it was passed on to who goes on sending."""
        with self._lock:
            return self._release(hold)

    def give_up(self, hold: Hold, new_identity: Callable[[], int]) -> bool:
        """The same when nobody knows whether what was sent is stored. May be done again, and when nothing is held."""
        with self._lock:
            if hold.lane is not None and hold.lane.holder is hold:
                hold.lane.start_anew(new_identity)
            return self._release(hold)

    def _release(self, hold: Hold) -> bool:
        lane = hold.lane
        if lane is None or lane.holder is not hold:
            return False
        if not lane.has_due:
            lane.holder = None
        return lane.holder is hold

    def pass_on(self, hold: Hold, to: Hold = SENDING) -> Lane | None:
        """What is held belongs to somebody else now. None if it is not held any more."""
        with self._lock:
            lane = hold.lane
            if lane is None or lane.holder is not hold:
                return None
            if to is not SENDING:
                to.lane = lane
            lane.holder = to
            return lane

    def begin(self, partition: int) -> bool:
        """Whether to start sending now. On the event loop, as all that follows."""
        with self._lock:
            return self._begins(self._lane(partition))

    def _begins(self, lane: Lane) -> bool:
        begins = lane.holder is None and lane.has_due
        if begins:
            lane.holder = SENDING
        return begins

    def due(self, parcel: Parcel) -> bool:
        """It has waited long enough; what comes before it is taken still goes with it. Whether to start sending."""
        with self._lock:
            parcel.is_due = True
            return self._begins(self._lane(parcel.partition))

    def due_all(self) -> list[int]:
        """Nothing shall wait any more. The partitions where to start sending."""
        with self._lock:
            for lane in self._lanes.values():
                for parcel in lane.parcels:
                    parcel.is_due = True
            return [number for number, lane in self._lanes.items() if self._begins(lane)]

    def take(self, partition: int) -> Parcel | None:
        """The next parcel to be sent; the lane is sending until there is none."""
        with self._lock:
            lane = self._lane(partition)
            if not lane.has_due:
                lane.holder = None
                return None
            lane.holder = SENDING
            parcel = lane.parcels[0]
            parcel.close()
            self.under_way[parcel] = None
            lane.parcels.popleft()
            return parcel

    def drop(self) -> list[Parcel]:
        """All that wait: they are not sent any more."""
        with self._lock:
            dropped = []
            for lane in self._lanes.values():
                for parcel in lane.parcels:
                    parcel.close()
                    dropped.append(parcel)
                lane.parcels.clear()
            return dropped

    def unsettled(self) -> list[Parcel]:
        """All that wait or are on their way. Without the lock, which a finalizer or a forked child may not get."""
        waiting = [parcel for lane in list(self._lanes.values()) for parcel in list(lane.parcels)]
        return list(dict.fromkeys([*self.under_way, *waiting]))

    def unsent(self) -> int:
        """Messages that are not known to be stored."""
        return sum(map(len, self.unsettled()))

    def settle(self, parcel: Parcel) -> None:
        """Give back its room. It stays under way until its outcome is known to all."""
        with self._lock:
            self.buffered = max(self.buffered - parcel.bytes, 0)

    def disown(self) -> None:
        """In a forked child: its parent learns what becomes of these, and the child never does."""
        for parcel in self.unsettled():
            parcel.abandon(forks.forked())


def _is_plain(message: Message) -> bool:
    is_special = message.headers or message.timestamp or message.deliver_at or message.expires_at or message.priority
    return not is_special
