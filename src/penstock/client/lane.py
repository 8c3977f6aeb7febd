"""One partition of a producer's topic, and who may send to it now: one at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.client.parcel import Parcel

# 16 bits of a frame.
EPOCH_MAX = 0xFFFF


class Hold:
    """A claim to a lane. What is done with one that the lane does not have any more is done to nobody: whoever was
    interrupted lets go without knowing how far it had come."""

    __slots__ = ("lane",)

    def __init__(self) -> None:
        self.lane: Lane | None = None


# That of the event loop, as long as it takes parcels out.
SENDING = Hold()


class Lane:
    """What waits for a partition, who is sending, and where the producer's sequence is.

    Invariant: of `parcels`, all but the last are closed. `newest` is the last one that was appended, or an earlier one
    that is closed: it spares the common case a look into the queue.
    """

    __slots__ = ("epoch", "holder", "identity", "newest", "parcels", "partition", "sequence")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.parcels: deque[Parcel] = deque()
        self.newest: Parcel | None = None
        # None: nobody. One field, so that there is no moment between being reserved and being known whose it is.
        self.holder: Hold | None = None
        # None: that of the producer.
        self.identity: int | None = None
        self.epoch = 0
        self.sequence = 0

    @property
    def has_due(self) -> bool:
        """Something waits that is to be sent as soon as can be."""
        return bool(self.parcels) and (self.parcels[0].is_closed or self.parcels[0].is_due)

    @property
    def open(self) -> Parcel | None:
        """The parcel that still takes messages."""
        return self.parcels[-1] if self.parcels and not self.parcels[-1].is_closed else None

    def start_anew(self, new_identity: Callable[[], int]) -> None:
        """The next frame starts a new life of this producer; when it has had all of them, of another one."""
        self.epoch, self.sequence = self.epoch + 1, 0
        if self.epoch > EPOCH_MAX:
            self.identity, self.epoch = new_identity(), 0
