"""How messages of one partition wait for one another in one group.

    none        not at all
    key         one key at a time: while a message of a key is leased or waits for its next try, the others of that key
                are passed over, and nobody else is
    partition   one lease at a time, strictly in the order of the log

An order is derived from the state of the group and the keys in the log. It is never written: it is made anew when the
group is first asked for after a start, or when its settings change.

Keys are told apart by a 64-bit hash. Two keys that share one wait for each other needlessly, and nothing worse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from penstock.batch import Batch, bits
from penstock.broker.offsets import Ints, array_of, bitmap_of

if TYPE_CHECKING:
    from penstock.broker.delivery import Delivery

Hashes = npt.NDArray[np.uint64]
Admitted = npt.NDArray[np.bool_]
Lookup = Callable[[BitMap64], Hashes]

# A message without a key waits for nobody.
NO_KEY = 0
# What is parked: one key, by this letter and its bytes, or all of the partition, by nothing.
KEY = b"k"
WHOLE_PARTITION = b""

_PRIME = np.uint64(0x100000001B3)
_SEED = np.uint64(0xCBF29CE484222325)


class Order:
    """No order at all, and what the others have in common."""

    needs_keys = False

    def __init__(self) -> None:
        # Ready, but to be passed over for now.
        self.blocked = BitMap64()

    def restart(self) -> None:
        """The group was moved: nothing is leased, nothing waits."""

    def stands(self, delivery: Delivery) -> bool:
        """Whether nothing may be leased now."""
        return False

    def admit(self, hashes: Hashes) -> Admitted:
        """Which of these may be leased."""
        return np.ones(len(hashes), np.bool_)

    def block(self, offsets: Ints, hashes: Hashes) -> None:
        """Those that were not admitted, once they are ready: to be passed over until their key is free."""

    def leased(self, lease: int, offsets: Ints, hashes: Hashes) -> None: ...

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

    def park(self, tokens: Iterable[bytes]) -> None: ...

    def unpark(self, tokens: Iterable[bytes]) -> None: ...

    def rebuild(self, delivery: Delivery) -> None: ...

    def check(self, delivery: Delivery) -> None: ...


NO_ORDER = Order()


class PartitionOrder(Order):
    def stands(self, delivery: Delivery) -> bool:
        return bool(delivery.leases or delivery.is_waiting or delivery.parked)

    def later(self, lease: int, offsets: BitMap64, outstanding: BitMap64) -> BitMap64:
        others = outstanding - offsets
        others.remove_range(0, offsets.min())
        return others

    def check(self, delivery: Delivery) -> None:
        assert len(delivery.leases) <= 1


class _Leased(NamedTuple):
    offsets: Ints
    hashes: Hashes


class KeyOrder(Order):
    """Invariant: a key is busy exactly when it is counted in `_busy`; only keys that are busy or parked block."""

    needs_keys = True

    def __init__(self, lookup: Lookup) -> None:
        super().__init__()
        self._lookup = lookup
        self.restart()

    def restart(self) -> None:
        self.blocked = BitMap64()
        self._blocked_by: dict[int, BitMap64] = {}
        self._busy: dict[int, int] = {}
        self._parked: set[int] = set()
        self._is_blocked = False
        self._leases: dict[int, _Leased] = {}
        self._left: dict[int, int] = {}
        self._waiting: dict[int, int] = {}

    def rebuild(self, delivery: Delivery) -> None:
        self.restart()
        for lease in delivery.leases.values():
            self.leased(lease.id, array_of(lease.offsets), self._lookup(lease.offsets))
        self.wait_anew(delivery.waiting)
        self.park(delivery.parked)

    def stands(self, delivery: Delivery) -> bool:
        return self._is_blocked

    def admit(self, hashes: Hashes) -> Admitted:
        if not self._busy and not self._parked:
            return np.ones(len(hashes), np.bool_)
        busy = self._busy.keys() | self._parked if self._parked else self._busy
        return np.fromiter((key not in busy for key in hashes.tolist()), np.bool_, len(hashes))

    def block(self, offsets: Ints, hashes: Hashes) -> None:
        for offset, key in zip(offsets.tolist(), hashes.tolist(), strict=True):
            blocked = self._blocked_by.get(key)
            if blocked is None:
                blocked = self._blocked_by[key] = BitMap64()
            blocked.add(offset)
        self.blocked |= bitmap_of(np.sort(offsets))

    def leased(self, lease: int, offsets: Ints, hashes: Hashes) -> None:
        order = np.argsort(offsets, kind="stable")
        self._leases[lease] = _Leased(offsets[order], hashes[order])
        self._left[lease] = len(offsets)
        busy = self._busy
        for key in hashes.tolist():
            busy[key] = busy.get(key, 0) + 1
        busy.pop(NO_KEY, None)

    def left(self, lease: int, offsets: BitMap64) -> None:
        self._free(self._taken(lease, offsets).tolist())

    def waits(self, lease: int, offsets: BitMap64) -> None:
        self._waiting.update(zip(offsets, self._taken(lease, offsets).tolist(), strict=True))

    def wait_anew(self, offsets: BitMap64) -> None:
        if offsets:
            hashes = self._lookup(offsets).tolist()
            self._waiting.update(zip(offsets, hashes, strict=True))
            for key in hashes:
                if key != NO_KEY:
                    self._busy[key] = self._busy.get(key, 0) + 1

    def due(self, offsets: BitMap64) -> None:
        self._free([self._waiting.pop(offset) for offset in offsets])

    def later(self, lease: int, offsets: BitMap64, outstanding: BitMap64) -> BitMap64:
        held = self._leases[lease]
        given_back = array_of(offsets)
        first: dict[int, int] = {}
        for offset, key in zip(
            given_back.tolist(), held.hashes[np.searchsorted(held.offsets, given_back)].tolist(), strict=True
        ):
            first.setdefault(key, offset)
        first.pop(NO_KEY, None)
        same = np.isin(held.hashes, np.fromiter(first, np.uint64, len(first)))
        later = BitMap64(
            offset
            for offset, key in zip(held.offsets[same].tolist(), held.hashes[same].tolist(), strict=True)
            if offset > first[key]
        )
        return (later & outstanding) - offsets

    def park(self, tokens: Iterable[bytes]) -> None:
        for token in tokens:
            if token == WHOLE_PARTITION:
                self._is_blocked = True
            else:
                self._parked.add(hash_of(token[len(KEY) :]))

    def unpark(self, tokens: Iterable[bytes]) -> None:
        for token in tokens:
            if token == WHOLE_PARTITION:
                self._is_blocked = False
            else:
                key = hash_of(token[len(KEY) :])
                self._parked.discard(key)
                if key not in self._busy:
                    self._unblock(key)

    def _taken(self, lease: int, offsets: BitMap64) -> Hashes:
        held = self._leases[lease]
        self._left[lease] -= len(offsets)
        if not self._left[lease]:
            del self._leases[lease], self._left[lease]
        if len(offsets) == len(held.offsets):
            return held.hashes
        return held.hashes[np.searchsorted(held.offsets, array_of(offsets))]

    def _free(self, keys: list[int]) -> None:
        busy = self._busy
        for key in keys:
            count = busy.get(key)
            if count is None:
                continue
            if count > 1:
                busy[key] = count - 1
                continue
            del busy[key]
            if key in self._blocked_by and key not in self._parked:
                self._unblock(key)

    def _unblock(self, key: int) -> None:
        offsets = self._blocked_by.pop(key, None)
        if offsets is not None:
            self.blocked -= offsets

    def check(self, delivery: Delivery) -> None:
        assert self.blocked.issubset(delivery.ready)
        assert self.blocked == BitMap64().union(*self._blocked_by.values())
        assert all(key in self._busy or key in self._parked for key in self._blocked_by)
        outstanding = sum(1 for held in self._waiting.values() if held != NO_KEY)
        for identity, leased in self._leases.items():
            keyed = leased.hashes != NO_KEY
            outstanding += len(delivery.leases[identity].offsets & bitmap_of(leased.offsets[keyed]))
        assert sum(self._busy.values()) == outstanding
        assert BitMap64(self._waiting) == delivery.waiting


def key_hashes(batch: Batch) -> Hashes:
    """FNV-1a over 64 bits of each key, a byte of all of them at a time; 0 for no key."""
    if batch.key is None:
        return np.zeros(batch.count, np.uint64)
    column = batch.key
    offsets = column.offsets[batch.start : batch.start + batch.count + 1].astype(np.int64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    data = np.frombuffer(column.data, np.uint8)
    hashes = np.full(batch.count, _SEED, np.uint64)
    rows = np.flatnonzero(lengths > 0)
    at = 0
    while len(rows):
        hashes[rows] = (hashes[rows] ^ data[starts[rows] + at]) * _PRIME
        at += 1
        if at >= 64:
            break
        rows = rows[lengths[rows] > at]
    # Long keys: what is behind their first bytes, one key at a time.
    for row in np.flatnonzero(lengths > 64).tolist():
        rest = bytes(data[starts[row] + 64 : starts[row] + lengths[row]])
        hashes[row] = hash_of(rest, int(hashes[row]))
    hashes[hashes == NO_KEY] = 1
    if column.validity is not None:
        hashes[~bits(column.validity, batch.start, batch.count)] = NO_KEY
    return hashes


def hash_of(key: bytes, state: int = int(_SEED)) -> int:
    for byte in key:
        state = ((state ^ byte) * int(_PRIME)) & 0xFFFFFFFFFFFFFFFF
    return state or 1
