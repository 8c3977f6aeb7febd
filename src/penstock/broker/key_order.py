"""One key at a time.

While a message of a key is leased or waits for its next try, the key is busy, and the others of that key are passed
over; nobody else is. Those passed over wait in a queue of their key. When the key is free again, the first of them is
ready, and as many of the next ones as a lease has room for go with it.

Invariant: a key is in `_busy` exactly while one of its messages is leased or waits. A message is blocked exactly while
it is in a queue. A queue waits for a key that is busy or parked, or for its head, which is ready.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from pyroaring import BitMap64

from penstock.broker.key_hash import NO_KEY, Hashes, hash_of
from penstock.broker.offsets import Ints, array_of, bitmap_of
from penstock.broker.ordering import KEY, WHOLE_PARTITION, Admitted, Order

if TYPE_CHECKING:
    from penstock.broker.delivery import Delivery

Lookup = Callable[[BitMap64], Hashes]


class _Leased:
    """The keys of a lease. How many messages of each are left is counted once some are answered for on their own."""

    __slots__ = ("counts", "hashes", "left", "offsets")

    def __init__(self, offsets: Ints, hashes: Hashes) -> None:
        order = np.argsort(offsets, kind="stable")
        self.offsets = offsets[order]
        self.hashes = hashes[order]
        self.left = len(offsets)
        self.counts: Counter[int] | None = None

    def hashes_of(self, offsets: BitMap64) -> list[int]:
        is_all = len(offsets) == len(self.offsets)
        hashes = self.hashes if is_all else self.hashes[np.searchsorted(self.offsets, array_of(offsets))]
        keys: list[int] = hashes.tolist()
        return keys

    def take(self, keys: list[int]) -> set[int]:
        """The keys of which nothing is left."""
        if self.counts is None:
            if len(keys) == self.left:
                self.left = 0
                return set(keys)
            self.counts = Counter(self.hashes.tolist())
        self.left -= len(keys)
        self.counts.subtract(keys)
        return {key for key in keys if not self.counts[key]}

    def holds(self, key: int) -> bool:
        return bool(self.counts is not None and self.counts[key])


class KeyOrder(Order):
    needs_keys = True

    def __init__(self, lookup: Lookup) -> None:
        super().__init__()
        self._lookup = lookup
        self.restart()

    def restart(self) -> None:
        self.blocked = BitMap64()
        self._queues: dict[int, deque[int]] = {}
        # The first message of a queue whose key is free: ready, and not in the queue any more; and its key.
        self._heads: dict[int, int] = {}
        # The keys of what `more` said last.
        self._more: dict[int, int] = {}
        self._busy: set[int] = set()
        self._parked: set[int] = set()
        self._is_blocked = False
        self._leases: dict[int, _Leased] = {}
        self._waiting: dict[int, int] = {}
        self._waiting_keys: Counter[int] = Counter()

    def rebuild(self, delivery: Delivery) -> None:
        self.restart()
        for lease in delivery.leases.values():
            self.leased(lease.id, array_of(lease.offsets), self._lookup(lease.offsets))
        self.wait_anew(delivery.waiting)
        self.park(delivery.parked)

    # --- leasing -----------------------------------------------------------------------------------------

    def stands(self, delivery: Delivery) -> bool:
        return self._is_blocked

    def admit(self, hashes: Hashes) -> Admitted:
        busy = self._busy | self._parked if self._parked else self._busy
        keys = hashes.tolist()
        if busy.isdisjoint(keys):
            return np.ones(len(keys), np.bool_)
        return np.array([key not in busy for key in keys], np.bool_)

    def block(self, offsets: Ints, hashes: Hashes) -> None:
        queues = self._queues
        for offset, key in zip(offsets.tolist(), hashes.tolist(), strict=True):
            queue = queues.get(key)
            if queue is None:
                queues[key] = deque((offset,))
            elif queue[-1] < offset:
                queue.append(offset)
            elif offset not in self.blocked:
                queues[key] = deque(sorted((*queue, offset)))
        self._forget_heads(offsets)
        self.blocked |= bitmap_of(np.sort(offsets))

    def more(self, heads: BitMap64, count: int) -> BitMap64:
        if not self._heads or count <= 0:
            return BitMap64()
        keys = {self._heads[head] for head in self._heads.keys() & set(heads)} & self._queues.keys()
        if not keys:
            return BitMap64()
        each = -(-count // len(keys))
        self._more = {offset: key for key in keys for offset in islice(self._queues[key], each)}
        return BitMap64(self._more)[:count]

    def known(self, offsets: Ints) -> Hashes:
        if not self._heads:
            return np.zeros(len(offsets), np.uint64)
        heads, more = self._heads, self._more
        keys = [heads.get(offset) or more.get(offset, NO_KEY) for offset in offsets.tolist()]
        return np.array(keys, np.uint64)

    def leased(self, lease: int, offsets: Ints, hashes: Hashes) -> None:
        leased = self._leases[lease] = _Leased(offsets, hashes)
        self._forget_heads(offsets)
        self._take_from_queues(leased.offsets, leased.hashes)
        self._busy.update(hashes.tolist())
        self._busy.discard(NO_KEY)

    def _forget_heads(self, offsets: Ints) -> None:
        if self._heads:
            for head in self._heads.keys() & set(offsets.tolist()):
                del self._heads[head]

    def _take_from_queues(self, offsets: Ints, hashes: Hashes) -> None:
        taken = self.blocked & bitmap_of(offsets)
        if not taken:
            return
        self.blocked -= taken
        for key in set(hashes[np.searchsorted(offsets, array_of(taken))].tolist()):
            left = deque(offset for offset in self._queues[key] if offset not in taken)
            if left:
                self._queues[key] = left
            else:
                del self._queues[key]

    # --- answers -----------------------------------------------------------------------------------------

    def left(self, lease: int, offsets: BitMap64) -> None:
        self._free(self._taken(lease, offsets)[1])

    def waits(self, lease: int, offsets: BitMap64) -> None:
        keys, finished = self._taken(lease, offsets)
        self._waiting.update(zip(offsets, keys, strict=True))
        self._waiting_keys.update(keys)
        self._free(finished)

    def _taken(self, lease: int, offsets: BitMap64) -> tuple[list[int], set[int]]:
        held = self._leases[lease]
        keys = held.hashes_of(offsets)
        finished = held.take(keys)
        if not held.left:
            del self._leases[lease]
        return keys, finished

    def wait_anew(self, offsets: BitMap64) -> None:
        if offsets:
            keys = self._lookup(offsets).tolist()
            self._waiting.update(zip(offsets, keys, strict=True))
            self._waiting_keys.update(keys)
            self._busy.update(keys)
            self._busy.discard(NO_KEY)

    def due(self, offsets: BitMap64) -> None:
        keys = [self._waiting.pop(offset) for offset in offsets]
        self._waiting_keys.subtract(keys)
        held = [leased for leased in self._leases.values() if leased.counts is not None]
        self._free({key for key in keys if not any(leased.holds(key) for leased in held)})

    def later(self, lease: int, offsets: BitMap64, outstanding: BitMap64) -> BitMap64:
        held = self._leases[lease]
        first: dict[int, int] = {}
        for offset, key in zip(offsets, held.hashes_of(offsets), strict=True):
            first.setdefault(key, offset)
        first.pop(NO_KEY, None)
        same = np.isin(held.hashes, np.fromiter(first, np.uint64, len(first)))
        later = BitMap64(
            offset
            for offset, key in zip(held.offsets[same].tolist(), held.hashes[same].tolist(), strict=True)
            if offset > first[key]
        )
        return (later & outstanding) - offsets

    def over(self, offsets: BitMap64) -> None:
        """Done without having been leased: expired, or gone."""
        for head in self._heads.keys() & set(offsets):
            key = self._heads.pop(head)
            if key not in self._busy and key not in self._parked:
                self._unblock([key])
        queued = self.blocked & offsets
        if queued:
            self.blocked -= queued
            for key, queue in list(self._queues.items()):
                left = deque(offset for offset in queue if offset not in queued)
                if left:
                    self._queues[key] = left
                else:
                    del self._queues[key]

    # --- parking -----------------------------------------------------------------------------------------

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
                    self._unblock([key])

    def _free(self, keys: set[int]) -> None:
        """Nothing of these keys is leased any more; some may wait."""
        if self._waiting:
            keys = {key for key in keys if not self._waiting_keys[key]}
        self._busy -= keys
        if self._queues:
            freed = self._queues.keys() & keys
            self._unblock(freed - self._parked if self._parked else freed)

    def _unblock(self, keys: Iterable[int]) -> None:
        """The first message of each: the others may go with it, or after it."""
        heads = []
        for key in keys:
            queue = self._queues.get(key)
            if queue is None:
                continue
            head = queue.popleft()
            heads.append(head)
            self._heads[head] = key
            if not queue:
                del self._queues[key]
        if heads:
            self.blocked -= bitmap_of(np.sort(np.array(heads, np.int64)))

    def check(self, delivery: Delivery) -> None:
        """The invariant at the top."""
        assert self.blocked == BitMap64(offset for queue in self._queues.values() for offset in queue)
        assert self.blocked.issubset(delivery.ready)
        assert all(list(queue) == sorted(queue) for queue in self._queues.values())
        waited_for = self._busy | self._parked | set(self._heads.values())
        assert self._queues.keys() <= waited_for, "a queue that waits for nothing"
        assert BitMap64(self._heads).issubset(delivery.ready - self.blocked)
        busy = set(self._waiting.values())
        for identity, leased in self._leases.items():
            busy.update(leased.hashes_of(delivery.leases[identity].offsets))
        assert self._busy == busy - {NO_KEY}
        assert BitMap64(self._waiting) == delivery.waiting
