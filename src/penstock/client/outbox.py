"""What a producer has been given and not sent yet, by partition. No I/O, and any thread may add.

    add ─► open parcel ─ full, or its time has come ─► ready ─ take ─► on its way ─ settle ─► gone

Invariant: `buffered` is the bytes of all parcels that are not settled, and stays within `buffer_bytes` unless a single
parcel is larger than that.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

from crc32c import crc32c

from penstock.batch import Batch
from penstock.client.lane import SENDING, Hold, Lane
from penstock.client.parcel import Parcel
from penstock.limits import DEFAULT_LIMITS, KIB
from penstock.message import Message
from penstock.partitioner import partition_of

# What the columns around a message may add to its bytes.
_OVERHEAD = 48
# What is larger is looked at more closely.
_PLAIN_MAX = 16 * KIB


class Added(NamedTuple):
    """`row` is the message's place in its parcel. If that is new, its time begins to run.

    With `starts_sending`, the caller is the one to start the sending of this partition.
    """

    parcel: Parcel
    row: int
    is_new: bool
    starts_sending: bool


class Outbox:
    def __init__(
        self,
        *,
        partitions: int,
        batch_messages: int,
        batch_bytes: int,
        buffer_bytes: int,
        message_bytes_max: int = DEFAULT_LIMITS.message_bytes_max,
    ) -> None:
        self.partitions = partitions
        self.buffered = 0
        self.pending: set[Parcel] = set()
        self._batch_messages = batch_messages
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._plain_max = min(message_bytes_max, _PLAIN_MAX)
        self._lanes: dict[int, Lane] = {}
        self._turn = 0
        self._lock = Lock()

    def grow(self, partitions: int) -> None:
        """The topic has so many now, at least."""
        if partitions > self.partitions:
            with self._lock:
                self.partitions = max(partitions, self.partitions)

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
        with self._lock:
            if self.pending and self.buffered + size > self._buffer_bytes:
                return None
            number = self._choose(message.key) if partition is None else partition
            lane = self._lane(number)
            parcel, is_new = lane.open, False
            is_plain = _is_plain(message)
            if parcel is not None and (parcel.bytes + size > self._batch_bytes or (parcel.is_plain and not is_plain)):
                lane.ready.append(parcel)
                parcel = None
            if parcel is None:
                parcel = lane.open = Parcel(number, is_plain=is_plain)
                is_new = True
                self.pending.add(parcel)
            parcel.add(message)
            parcel.bytes += size
            self.buffered += size
            row = len(parcel) - 1
            if row + 1 >= self._batch_messages or parcel.bytes >= self._batch_bytes:
                self._close(lane)
            return Added(parcel, row, is_new, bool(lane.ready) and self._starts(lane))

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
            parcel = lane.open
            if parcel is None or not parcel.is_plain:
                return None
            parcel_bytes = parcel.bytes + size
            values = parcel.values
            row = len(values)
            if parcel_bytes >= self._batch_bytes or row + 1 >= self._batch_messages:
                return None
            values.append(value)
            parcel.keys.append(key)
            parcel.bytes = parcel_bytes
            self.buffered += size
            return parcel, row

    def add_batch(self, batch: Batch, size: int, partition: int) -> Added | None:
        """Behind everything that was added for this partition before."""
        with self._lock:
            if self.pending and self.buffered + size > self._buffer_bytes:
                return None
            lane = self._lane(partition)
            self._close(lane)
            parcel = Parcel(partition, batch=batch, size=size)
            lane.ready.append(parcel)
            self.pending.add(parcel)
            self.buffered += size
            return Added(parcel, 0, False, self._starts(lane))

    def _starts(self, lane: Lane) -> bool:
        """Whether it was not sending yet. Whoever hears so starts it."""
        starts = lane.holder is None
        if starts:
            lane.holder = SENDING
        return starts

    def _choose(self, key: bytes | None) -> int:
        if key is not None:
            return partition_of(key, self.partitions)
        # Without a key: one parcel after the other, each to the next partition.
        lane = self._lanes.get(self._turn)
        if lane is None or lane.open is None:
            self._turn = (self._turn + 1) % self.partitions
        return self._turn

    def next_turn(self) -> int:
        with self._lock:
            self._turn = (self._turn + 1) % self.partitions
            return self._turn

    # --- what goes out -----------------------------------------------------------------------------------

    def reserve(self, key: bytes | None, partition: int | None, hold: Hold) -> Lane | None:
        """A partition for which nothing waits and nothing is on its way. It is held until `release` or `give_up`."""
        with self._lock:
            number = self._choose(key) if partition is None else partition
            lane = self._lanes.get(number) or self._lane(number)
            if lane.open is not None or lane.ready or lane.holder is not None:
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

    def due(self, parcel: Parcel) -> bool:
        """It has waited long enough; what comes before it is taken still goes with it. Whether to start sending."""
        with self._lock:
            parcel.is_due = True
            lane = self._lane(parcel.partition)
            return lane.open is parcel and self._starts(lane)

    def due_all(self) -> list[int]:
        """Nothing shall wait any more. The partitions where to start sending."""
        with self._lock:
            for lane in self._lanes.values():
                if lane.open is not None:
                    lane.open.is_due = True
            waiting = [(number, lane) for number, lane in self._lanes.items() if lane.open or lane.ready]
            return [number for number, lane in waiting if self._starts(lane)]

    def take(self, partition: int) -> Parcel | None:
        """The next parcel to be sent; the lane is sending until there is none."""
        with self._lock:
            lane = self._lane(partition)
            if not lane.ready and lane.open is not None and lane.open.is_due:
                self._close(lane)
            lane.holder = SENDING if lane.ready else None
            return lane.ready.popleft() if lane.ready else None

    def unsent(self) -> int:
        """Messages that are not known to be stored. Without the lock: asked for in a debugger, or by the collector."""
        return sum(len(parcel) for parcel in list(self.pending))

    def settle(self, parcel: Parcel) -> None:
        with self._lock:
            self.pending.discard(parcel)
            self.buffered -= parcel.bytes

    def _close(self, lane: Lane) -> None:
        if lane.open is not None:
            lane.ready.append(lane.open)
            lane.open = None


def _is_plain(message: Message) -> bool:
    is_special = message.headers or message.timestamp or message.deliver_at or message.expires_at or message.priority
    return not is_special
