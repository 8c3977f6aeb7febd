"""Priority lanes: which messages of a partition travel in another lane than the normal one, and whose turn it is.

A bitmap for each of the other two lanes, so that a high message far ahead is found without looking at those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pyroaring import BitMap64

from penstock.batch import Batch
from penstock.broker.offsets import Ints, below, bitmap_of
from penstock.message import Priority

LanesPolicy = Literal["strict", "weighted", "none"]
BY_PRIORITY = (Priority.HIGH, Priority.NORMAL, Priority.LOW)
# Of ten messages, when all lanes are full. RabbitMQ and SQS leave this to several queues and their consumers.
WEIGHTS = {Priority.HIGH: 6.0, Priority.NORMAL: 3.0, Priority.LOW: 1.0}
# A lane whose oldest message has waited this long counts double, after twice that three times, and so on.
AGEING_US = 60_000_000


class Lanes:
    """Of one partition."""

    def __init__(self, high: BitMap64 | None = None, low: BitMap64 | None = None) -> None:
        self.high = high or BitMap64()
        self.low = low or BitMap64()

    def add(self, offsets: Ints, batch: Batch) -> None:
        if batch.priority is None:
            return
        priority = batch.priority[batch.start : batch.start + batch.count]
        self.high |= bitmap_of(offsets[priority > 0])
        self.low |= bitmap_of(offsets[priority < 0])

    def add_one(self, offset: int, priority: int) -> None:
        if priority:
            (self.high if priority > 0 else self.low).add(offset)

    def forget(self, below: int, removed: BitMap64) -> None:
        """Messages that are no longer in the log, and that every group is done with."""
        for lane in (self.high, self.low):
            if lane and lane.min() < below:
                lane.remove_range(0, below)
            lane -= removed

    def truncate(self, offset: int) -> None:
        """Forget messages at `offset` and above."""
        self.high, self.low = below(self.high, offset), below(self.low, offset)

    @property
    def is_plain(self) -> bool:
        return not self.high and not self.low

    def of(self, offset: int) -> Priority:
        if offset in self.high:
            return Priority.HIGH
        return Priority.LOW if offset in self.low else Priority.NORMAL


class Waiting(NamedTuple):
    """How many messages a lane could give, and since when its first one waits."""

    lane: Priority
    messages: int
    oldest_us: int


def weights_of(waiting: Sequence[Waiting], now_us: int) -> dict[Priority, float]:
    """Of the lanes that could give something."""
    return {
        lane.lane: WEIGHTS[lane.lane] * (1 + max(now_us - lane.oldest_us, 0) / AGEING_US)
        for lane in waiting
        if lane.messages
    }


class Turns:
    """Weighted lanes: how many of the next messages each lane gives.

    Each lane earns its share of what is leased, and pays for what it gives. A lane that has nothing to give earns
    nothing.
    """

    def __init__(self) -> None:
        self._credit = dict.fromkeys(BY_PRIORITY, 0.0)

    def share(self, waiting: Sequence[Waiting], count: int, weights: dict[Priority, float]) -> dict[Priority, int]:
        """`count` divided among the lanes. A pure decision: `took` tells what came of it."""
        left = {lane.lane: lane.messages for lane in waiting if lane.messages}
        shares = dict.fromkeys(left, 0)
        credit = self._earned(weights, count)
        while count > 0 and left:
            lane = max(left, key=lambda lane: (credit[lane], lane))
            # At least one, and as many as it has earned ahead of the others.
            some = min(left[lane], count, max(1, int(credit[lane])))
            shares[lane] += some
            credit[lane] -= some
            left[lane] -= some
            count -= some
            if not left[lane]:
                del left[lane]
        return shares

    def took(self, weights: dict[Priority, float], taken: dict[Priority, int]) -> None:
        """What was really leased of each lane."""
        earned = self._earned(weights, sum(taken.values()))
        for lane in BY_PRIORITY:
            self._credit[lane] = earned[lane] - taken.get(lane, 0) if lane in earned else 0.0

    def _earned(self, weights: dict[Priority, float], count: int) -> dict[Priority, float]:
        total = sum(weights.values())
        return {lane: self._credit[lane] + count * weight / total for lane, weight in weights.items()}
