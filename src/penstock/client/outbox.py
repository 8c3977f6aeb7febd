"""What a producer has been given and not sent yet, by partition. No I/O, and any thread may add.

    add ─► open parcel ─ full, or its time has come ─► ready ─ take ─► on its way ─ settle ─► gone

Invariant: `buffered` is the bytes of all parcels that are not settled, and stays within `buffer_bytes` unless a single
parcel is larger than that.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from threading import Lock
from typing import NamedTuple

from penstock.batch import Batch
from penstock.client.transport import Stored
from penstock.message import Message
from penstock.partitioner import partition_of

# What the columns around a message may add to its bytes.
_OVERHEAD = 48


class Parcel:
    """Messages that are going to be one frame. `done` tells where the first of them went."""

    __slots__ = ("batch", "bytes", "done", "is_due", "messages", "partition")

    def __init__(self, partition: int, batch: Batch | None = None, size: int = 0) -> None:
        self.partition = partition
        self.messages: list[Message] = []
        self.batch = batch
        self.bytes = size
        self.is_due = False
        self.done: Future[Stored] = Future()
        # Under way from the start: that somebody gives up waiting for it can't cancel it.
        self.done.set_running_or_notify_cancel()

    def __len__(self) -> int:
        return len(self.messages) if self.batch is None else self.batch.count


class Added(NamedTuple):
    """`row` is the message's place in its parcel. If that is new, its time begins to run.

    With `starts_sending`, the caller is the one to start the sending of this partition.
    """

    parcel: Parcel
    row: int
    is_new: bool
    starts_sending: bool


class Lane:
    """One partition of the topic: what waits for it, and where its producer's sequence is."""

    __slots__ = ("epoch", "is_sending", "open", "ready", "sequence")

    def __init__(self) -> None:
        self.open: Parcel | None = None
        self.ready: deque[Parcel] = deque()
        self.is_sending = False
        self.epoch = 0
        self.sequence = 0


class Outbox:
    def __init__(self, *, partitions: int, batch_messages: int, batch_bytes: int, buffer_bytes: int) -> None:
        self.partitions = partitions
        self.buffered = 0
        self.pending: set[Parcel] = set()
        self._batch_messages = batch_messages
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._lanes: dict[int, Lane] = {}
        self._turn = 0
        self._lock = Lock()

    def lane(self, partition: int) -> Lane:
        with self._lock:
            return self._lane(partition)

    def _lane(self, partition: int) -> Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = Lane()
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
            if parcel is not None and parcel.bytes + size > self._batch_bytes:
                lane.ready.append(parcel)
                parcel = None
            if parcel is None:
                parcel = lane.open = Parcel(number)
                is_new = True
                self.pending.add(parcel)
            parcel.messages.append(message)
            parcel.bytes += size
            self.buffered += size
            row = len(parcel.messages) - 1
            if len(parcel.messages) >= self._batch_messages or parcel.bytes >= self._batch_bytes:
                self._close(lane)
            return Added(parcel, row, is_new, bool(lane.ready) and self._starts(lane))

    def add_batch(self, batch: Batch, size: int, partition: int) -> Added | None:
        """Behind everything that was added for this partition before."""
        with self._lock:
            if self.pending and self.buffered + size > self._buffer_bytes:
                return None
            lane = self._lane(partition)
            self._close(lane)
            parcel = Parcel(partition, batch, size)
            lane.ready.append(parcel)
            self.pending.add(parcel)
            self.buffered += size
            return Added(parcel, 0, False, self._starts(lane))

    def _starts(self, lane: Lane) -> bool:
        """Whether it was not sending yet. Whoever hears so starts it."""
        starts, lane.is_sending = not lane.is_sending, True
        return starts

    def _choose(self, key: bytes | None) -> int:
        if key is not None:
            return partition_of(key, self.partitions)
        # Without a key: one parcel after the other, each to the next partition.
        if self._lane(self._turn).open is None:
            self._turn = (self._turn + 1) % self.partitions
        return self._turn

    def next_turn(self) -> int:
        with self._lock:
            self._turn = (self._turn + 1) % self.partitions
            return self._turn

    # --- what goes out -----------------------------------------------------------------------------------

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
            lane.is_sending = bool(lane.ready)
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
