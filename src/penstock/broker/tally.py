"""What a group has done in one partition since the broker was started, for whoever watches it.

Counted by leases and answers, never message by message. Not part of the state: no event depends on it, and a start
begins at nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from pyroaring import BitMap64

from penstock.frame import HAS_DELAYS, Frame

# In seconds. A message that is waited for is there within milliseconds; one that is behind may be hours old.
DELIVERY_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(30.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0),
)
# Of the frames of one lease so many are looked at; those between two of them are about as old.
_FRAMES_MAX = 32


class Histogram:
    """How many took how long. `bounds` are inclusive; the last count is of what is beyond all of them."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += count
        self.sum += seconds * count

    def tells_the_same(self, one: float, other: float) -> bool:
        """Of these two."""
        return bisect_left(self.bounds, one) == bisect_left(self.bounds, other)

    def merge(self, other: Histogram) -> None:
        assert self.bounds == other.bounds
        self.counts = [mine + others for mine, others in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


class Tally:
    """In messages. `redelivered` are among `delivered`, and `dead_lettered` among `given_up`."""

    __slots__ = (
        "acknowledged",
        "dead_lettered",
        "delivered",
        "expired",
        "given_back",
        "given_up",
        "nacked",
        "ran_out",
        "redelivered",
        "returned",
        "to_acknowledgement",
        "to_delivery",
    )

    def __init__(self) -> None:
        self.delivered = self.redelivered = 0
        self.acknowledged = self.nacked = self.ran_out = self.given_back = 0
        self.given_up = self.dead_lettered = self.expired = 0
        # Messages that were delivered once, and will be as if for the first time: given back unseen, or redriven.
        self.returned = BitMap64()
        # From publishing to the first delivery, and from the last delivery to the acknowledgement.
        self.to_delivery = Histogram(DELIVERY_BOUNDS)
        self.to_acknowledgement = Histogram(DELIVERY_BOUNDS)

    def hand(self, offsets: BitMap64, frames: Sequence[Frame], flags: int, now_us: int) -> None:
        """These were delivered out of these frames, and had not failed before. What was `returned` is left out: it has
        been counted. So are frames in which something was delayed: it waited on purpose. `flags` are those of all
        frames together: mostly none of them has to be asked."""
        if self.returned:
            offsets, self.returned = offsets - self.returned, self.returned - offsets
        if flags & HAS_DELAYS:
            offsets = offsets.copy()
            for frame in frames:
                if frame.flags & HAS_DELAYS:
                    offsets.remove_range(frame.base_offset, frame.next_offset)
            frames = [frame for frame in frames if not frame.flags & HAS_DELAYS]
        if not offsets:
            return
        oldest, newest = frames[0].append_time, frames[-1].append_time
        if self.to_delivery.tells_the_same((now_us - oldest) / 1e6, (now_us - newest) / 1e6):
            # As good as always: what comes together is about as old.
            self.to_delivery.add(max(now_us - (oldest + newest) / 2, 0) / 1e6, len(offsets))
            return
        if len(frames) > _FRAMES_MAX:
            frames = frames[:: -(-len(frames) // _FRAMES_MAX)]
        last = len(frames) - 1
        for number, frame in enumerate(frames):
            if last == 0:
                count = len(offsets)
            else:
                until = frames[number + 1].base_offset if number < last else offsets.max() + 1
                count = offsets.range_cardinality(frame.base_offset, max(until, frame.base_offset))
            if count:
                self.to_delivery.add(max(now_us - frame.append_time, 0) / 1e6, count)

    def acknowledge(self, count: int, leased_us: int, now_us: int) -> None:
        self.acknowledged += count
        self.to_acknowledgement.add(max(now_us - leased_us, 0) / 1e6, count)
