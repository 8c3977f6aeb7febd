"""How messages of one partition wait for one another in one group.

    none        not at all
    key         one key at a time: while a message of a key is leased or waits for its next try, the others of that key
                are passed over, and nobody else is
    partition   one lease at a time, strictly in the order of the log

An order is derived from the state of the group and the keys in the log. It is never written: it is made anew when the
group is first asked for after a start, or when its settings change. `key_order.py` has the one by key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from penstock.broker.key_hash import Hashes
from penstock.broker.lanes import Lanes
from penstock.broker.offsets import Ints, from_on
from penstock.message import Priority

if TYPE_CHECKING:
    from penstock.broker.delivery import Delivery

Admitted = npt.NDArray[np.bool_]

# What is parked: one key, by this letter and its bytes, or all of the partition, by nothing.
KEY = b"k"
WHOLE_PARTITION = b""


class Order:
    """No order at all, and what the others have in common."""

    needs_keys = False

    def __init__(self, lanes: Lanes | None = None) -> None:
        self._lanes = lanes
        # Ready, but to be passed over for now.
        self.blocked = BitMap64()

    def restart(self) -> None:
        """The group was moved: nothing is leased, nothing waits."""

    def stands(self, delivery: Delivery) -> bool:
        """Whether nothing may be leased now."""
        return False

    def admit(self, lane: Priority, offsets: Ints, hashes: Hashes, looked_at: BitMap64) -> Admitted:
        """Which of these may be leased. `looked_at` are they and those that are passed over for good beside them."""
        return np.ones(len(hashes), np.bool_)

    def block(self, lane: Priority, offsets: Ints, hashes: Hashes) -> None:
        """Those that were not admitted, once they are ready: to be passed over until their key is free."""

    def more(self, lane: Priority, heads: BitMap64, count: int) -> BitMap64:
        """Up to `count` blocked messages that may be leased together with these, which come before them."""
        return BitMap64()

    def known(self, lane: Priority, offsets: Ints) -> Hashes:
        """Of the keys of those that need not be read again; 0 for the others."""
        return np.zeros(len(offsets), np.uint64)

    def leased(self, lease: int, offsets: BitMap64, hashes: Hashes) -> None:
        """The hashes are in the order of the offsets."""

    def left(self, lease: int, offsets: BitMap64) -> None:
        """Leased no more, and not waiting either."""

    def waits(self, lease: int, offsets: BitMap64) -> None:
        """Leased no more, but waiting for the next try."""

    def wait_anew(self, offsets: BitMap64) -> None:
        """Waiting, though nobody had leased them."""

    def due(self, offsets: BitMap64) -> None:
        """No longer waiting."""

    def later(self, lease: int, offsets: BitMap64, outstanding: BitMap64) -> BitMap64:
        """Those of the lease that must not be done ahead of `offsets`, which are not done yet."""
        return BitMap64()

    def over(self, offsets: BitMap64) -> None:
        """Ready, or about to be, and then done without having been leased."""

    def park(self, tokens: Iterable[bytes]) -> None: ...

    def unpark(self, tokens: Iterable[bytes]) -> None: ...

    def rebuild(self, delivery: Delivery) -> None: ...

    def check(self, delivery: Delivery) -> None: ...

    def by_lane(self, offsets: BitMap64) -> list[tuple[Priority, BitMap64]]:
        """The highest first, without empty ones."""
        if self._lanes is None or self._lanes.is_plain:
            return [(Priority.NORMAL, offsets)]
        high, low = offsets & self._lanes.high, offsets & self._lanes.low
        lanes = ((Priority.HIGH, high), (Priority.NORMAL, offsets - high - low), (Priority.LOW, low))
        return [(lane, some) for lane, some in lanes if some]

    def same_lane(self, offsets: BitMap64, like: int) -> BitMap64:
        """Those in the lane of that message."""
        return (
            next((some for _, some in self.by_lane(offsets | BitMap64([like])) if like in some), BitMap64()) & offsets
        )


NO_ORDER = Order()


class PartitionOrder(Order):
    def stands(self, delivery: Delivery) -> bool:
        return bool(delivery.leases or delivery.is_waiting or WHOLE_PARTITION in delivery.parked)

    def later(self, lease: int, offsets: BitMap64, outstanding: BitMap64) -> BitMap64:
        """All that were delivered behind the first of them: of its lane, and of lower lanes."""
        first_lane, some = self.by_lane(offsets)[0]
        later = BitMap64()
        for lane, others in self.by_lane(outstanding):
            if lane == first_lane:
                later |= from_on(others, some.min())
            elif lane < first_lane:
                later |= others
        return later - offsets

    def check(self, delivery: Delivery) -> None:
        assert len(delivery.leases) <= 1
