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
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._plain_max = min(message_bytes_max, _PLAIN_MAX)
        self._lanes: dict[int, Lane] = {}
        # The partition of messages without a key, and at which row of its parcel another has its turn.
        self._turn = first % partitions
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
            number = self._choose(message.key) if partition is None else partition
            lane = self._lane(number)
            parcel = lane.open
            is_plain = _is_plain(message)
            if parcel is not None and (
                parcel.bytes + size > self._batch_bytes
                or len(parcel) >= self._batch_messages
                or (parcel.is_plain and not is_plain)
            ):
                parcel.close()
                parcel = None
            if parcel is None:
                parcel = Parcel(number, is_plain=is_plain, size=size)
                parcel.add(message)
                lane.parcels.append(parcel)
                lane.newest = parcel
            else:
                parcel.bytes += size
                parcel.add(message)
            self.buffered += size
            row = len(parcel) - 1
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
            lane = self._lanes.get(self._turn if key is None else crc32c(key) % self.partitions)
            if lane is None or self.buffered + size > self._buffer_bytes:
                return None
            parcel = lane.newest
            if parcel is None or not parcel.takes_plain:
                return None
            parcel_bytes = parcel.bytes + size
            rows = parcel.rows
            row = len(rows) // 2
            if parcel_bytes >= self._batch_bytes or row + 1 >= self._batch_messages:
                return None
            if key is None and row >= self._turn_ends:
                return None
            parcel.bytes = parcel_bytes
            self.buffered += size
            rows += (value, key)
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

    def _choose(self, key: bytes | None) -> int:
        if key is not None:
            return partition_of(key, self.partitions)
        # Without a key: a run of messages to one partition, and the next to another.
        if not 0 < self._rows(self._turn) < self._turn_ends or not self._is_led(self._turn):
            self._turn = self._after(self._turn)
            self._turn_ends = self._rows(self._turn) + UNKEYED_RUN
        return self._turn

    def _after(self, turn: int) -> int:
        """The next one that is led; if none is, the next one."""
        for step in range(1, self.partitions + 1):
            number = (turn + step) % self.partitions
            if self._is_led(number):
                return number
        return (turn + 1) % self.partitions

    def _rows(self, partition: int) -> int:
        """Of the open parcel; 0 without one."""
        lane = self._lanes.get(partition)
        parcel = None if lane is None else lane.open
        return 0 if parcel is None else len(parcel)

    def next_turn(self) -> int:
        with self._lock:
            self._turn = self._after(self._turn)
            return self._turn

    # --- what goes out -----------------------------------------------------------------------------------

    def reserve(self, key: bytes | None, partition: int | None, hold: Hold) -> Lane | None:
        """A partition for which nothing waits and nothing is on its way. It is held until `release` or `give_up`."""
        with self._lock:
            number = self._choose(key) if partition is None else partition
            lane = self._lanes.get(number) or self._lane(number)
            if lane.parcels or lane.holder is not None:
                return None
            hold.lane = lane
            lane.holder = hold
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
