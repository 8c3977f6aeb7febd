"""One key at a time.

While a message of a key is leased or waits for its next try, the key is busy, and the others of that key are passed
over; nobody else is. Those passed over wait in a queue of their key and lane. When the key is free again, the first of
each queue is ready, and as many of the next ones as a lease has room for go with it.

Invariant: a key is in `_busy` exactly while one of its messages is leased or waits. A message is blocked exactly while
it is in a queue. A queue waits for a key that is busy or parked, or for its head, which is ready.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pyroaring import BitMap64

from penstock.broker.key_hash import NO_KEY, Hashes, hash_of
from penstock.broker.lanes import BY_PRIORITY, Lanes
from penstock.broker.offsets import Ints, array_of, bitmap_of
from penstock.broker.ordering import KEY, WHOLE_PARTITION, Admitted, Order
from penstock.message import Priority

if TYPE_CHECKING:
    from penstock.broker.delivery import Delivery

Lookup = Callable[[BitMap64], Hashes]


class _Leased:
    """The keys of a lease. How many messages of each are left is counted once some are answered for on their own."""

    __slots__ = ("counts", "hashes", "left", "offsets")

    def __init__(self, offsets: Ints, hashes: Hashes) -> None:
        if (offsets[1:] < offsets[:-1]).any():
            # Of several lanes.
            order = np.argsort(offsets, kind="stable")
            offsets, hashes = offsets[order], hashes[order]
        self.offsets = offsets
        self.hashes = hashes
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
        if self.counts is None:
            return bool(self.left and (self.hashes == np.uint64(key)).any())
        return self.counts[key] > 0


class _Waiting(NamedTuple):
    """A message that waits for its next try: its key, and the lease it was in; None if that is not known."""

    key: int
    lease: int | None


class _Queues:
    """Blocked messages of one lane, by their keys and in order."""

    __slots__ = ("by_key", "heads")

    def __init__(self) -> None:
        self.by_key: dict[int, deque[int]] = {}
        # The first of a queue whose key is free: ready, and not in the queue any more; and its key.
        self.heads: dict[int, int] = {}

    def add(self, offsets: Ints, hashes: Hashes) -> None:
        queues = self.by_key
        late: dict[int, list[int]] = {}
        for offset, key in zip(offsets.tolist(), hashes.tolist(), strict=True):
            queue = queues.get(key)
            if queue is None:
                queues[key] = deque((offset,))
            elif queue[-1] < offset:
                queue.append(offset)
            else:
                late.setdefault(key, []).append(offset)
        for key, some in late.items():
            queues[key] = deque(sorted({*queues[key], *some}))

    def pop(self, keys: Iterable[int]) -> list[int]:
        """The first message of each of these keys is its head now."""
        heads = []
        for key in keys:
            queue = self.by_key[key]
            head = queue.popleft()
            heads.append(head)
            self.heads[head] = key
            if not queue:
                del self.by_key[key]
        return heads

    def forget_heads(self, offsets: Iterable[int]) -> list[int]:
        """The keys of those of these that were heads."""
        return [self.heads.pop(head) for head in self.heads.keys() & set(offsets)] if self.heads else []

    def take(self, offsets: BitMap64, keys: Iterable[int]) -> None:
        """From the front: what goes with a head are the next ones."""
        for key in keys:
            queue = self.by_key[key]
            while queue and queue[0] in offsets:
                queue.popleft()
            if not queue:
                del self.by_key[key]

    def remove(self, offsets: BitMap64) -> None:
        for key, queue in list(self.by_key.items()):
            if not offsets.isdisjoint(BitMap64(queue)):
                left = deque(offset for offset in queue if offset not in offsets)
                if left:
                    self.by_key[key] = left
                else:
                    del self.by_key[key]


class KeyOrder(Order):
    needs_keys = True

    def __init__(self, lookup: Lookup, lanes: Lanes | None) -> None:
        """`lanes` None: the group does not mind them."""
        super().__init__(lanes)
        self._lookup = lookup
        self.restart()

    def restart(self) -> None:
        self.blocked = BitMap64()
        self._queues = {lane: _Queues() for lane in BY_PRIORITY}
        # The keys of what `more` said last.
        self._more: dict[int, int] = {}
        self._busy: set[int] = set()
        self._parked: set[int] = set()
        self._is_blocked = False
        self._leases: dict[int, _Leased] = {}
        self._waiting: dict[int, _Waiting] = {}
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

    def admit(self, lane: Priority, offsets: Ints, hashes: Hashes, looked_at: BitMap64) -> Admitted:
        busy = self._busy | self._parked if self._parked else self._busy
        queued = self._queues[lane].by_key
        keys = hashes.tolist()
        # The first of a queue that does not come along: nobody of its key goes ahead of it.
        first_left = {}
        for key in queued.keys() & set(keys) if queued else ():
            left = next((offset for offset in queued[key] if offset not in looked_at), None)
            if left is not None:
                first_left[key] = left
        if first_left:
            pairs = zip(keys, offsets.tolist(), strict=True)
            admitted = [key not in busy and offset < first_left.get(key, offset + 1) for key, offset in pairs]
            return np.array(admitted, np.bool_)
        if busy.isdisjoint(keys):
            return np.ones(len(keys), np.bool_)
        return np.array([key not in busy for key in keys], np.bool_)

    def block(self, lane: Priority, offsets: Ints, hashes: Hashes) -> None:
        self._queues[lane].add(offsets, hashes)
        self._queues[lane].forget_heads(offsets.tolist())
        self.blocked |= bitmap_of(offsets)

    def more(self, lane: Priority, heads: BitMap64, count: int) -> BitMap64:
        queues = self._queues[lane]
        if not queues.heads or count <= 0:
            return BitMap64()
        keys = {queues.heads[head] for head in queues.heads.keys() & set(heads)} & queues.by_key.keys()
        if not keys:
            return BitMap64()
        each = -(-count // len(keys))
        self._more = {offset: key for key in keys for offset in islice(queues.by_key[key], each)}
        return BitMap64(self._more)[:count]

    def known(self, lane: Priority, offsets: Ints) -> Hashes:
        heads, more = self._queues[lane].heads, self._more
        if not heads:
            return np.zeros(len(offsets), np.uint64)
        keys = [heads.get(offset) or more.get(offset, NO_KEY) for offset in offsets.tolist()]
        return np.array(keys, np.uint64)

    def leased(self, lease: int, offsets: Ints, hashes: Hashes) -> None:
        leased = self._leases[lease] = _Leased(offsets, hashes)
        for queues in self._queues.values():
            queues.forget_heads(offsets.tolist())
        self._take_from_queues(leased)
        self._busy.update(hashes.tolist())
        self._busy.discard(NO_KEY)

    def _take_from_queues(self, leased: _Leased) -> None:
        taken = self.blocked & bitmap_of(leased.offsets)
        if taken:
            self.blocked -= taken
            keys = set(leased.hashes[np.searchsorted(leased.offsets, array_of(taken))].tolist())
            for queues in self._queues.values():
                queues.take(taken, keys & queues.by_key.keys())

    # --- answers -----------------------------------------------------------------------------------------

    def left(self, lease: int, offsets: BitMap64) -> None:
        self._free(self._taken(lease, offsets)[1])

    def waits(self, lease: int, offsets: BitMap64) -> None:
        keys, finished = self._taken(lease, offsets)
        self._waiting.update((offset, _Waiting(key, lease)) for offset, key in zip(offsets, keys, strict=True))
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
            self._waiting.update((offset, _Waiting(key, None)) for offset, key in zip(offsets, keys, strict=True))
            self._waiting_keys.update(keys)
            self._busy.update(keys)
            self._busy.discard(NO_KEY)

    def due(self, offsets: BitMap64) -> None:
        came = [self._waiting.pop(offset) for offset in offsets]
        self._waiting_keys.subtract(waited.key for waited in came)
        self._free({waited.key for waited in came if not self._is_leased(waited)})

    def _is_leased(self, waited: _Waiting) -> bool:
        """A key that waits is busy: only the lease that the waiting message comes from can hold others of it."""
        if waited.lease is not None:
            return waited.lease in self._leases and self._leases[waited.lease].holds(waited.key)
        return any(leased.holds(waited.key) for leased in self._leases.values())

    def later(self, lease: int, offsets: BitMap64, outstanding: BitMap64) -> BitMap64:
        """Of the same key and lane."""
        held = self._leases[lease]
        found = BitMap64()
        for _, in_lane in self.by_lane(offsets):
            first: dict[int, int] = {}
            for offset, key in zip(in_lane, held.hashes_of(in_lane), strict=True):
                first.setdefault(key, offset)
            first.pop(NO_KEY, None)
            same = np.isin(held.hashes, np.fromiter(first, np.uint64, len(first)))
            later = BitMap64(
                offset
                for offset, key in zip(held.offsets[same].tolist(), held.hashes[same].tolist(), strict=True)
                if offset > first[key]
            )
            found |= self.same_lane(later, in_lane.min())
        return (found & outstanding) - offsets

    def over(self, offsets: BitMap64) -> None:
        queued = self.blocked & offsets
        self.blocked -= queued
        for queues in self._queues.values():
            if queued:
                queues.remove(queued)
            freed = set(queues.forget_heads(offsets)) - self._busy - self._parked
            self._unblock(queues, freed & queues.by_key.keys())

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
                    for queues in self._queues.values():
                        self._unblock(queues, {key} & queues.by_key.keys())

    def _free(self, keys: set[int]) -> None:
        """Nothing of these keys is leased any more; some may wait."""
        if self._waiting:
            keys = {key for key in keys if self._waiting_keys[key] <= 0}
        self._busy -= keys
        for queues in self._queues.values():
            if queues.by_key:
                freed = queues.by_key.keys() & keys
                self._unblock(queues, freed - self._parked if self._parked else freed)

    def _unblock(self, queues: _Queues, keys: set[int]) -> None:
        """The first message of each: the others may go with it, or after it."""
        if keys:
            self.blocked -= BitMap64(queues.pop(keys))

    def check(self, delivery: Delivery) -> None:
        """The invariant at the top."""
        queued = [queue for queues in self._queues.values() for queue in queues.by_key.values()]
        assert self.blocked == BitMap64(offset for queue in queued for offset in queue)
        assert len(self.blocked) == sum(map(len, queued)), "a message in two queues"
        assert self.blocked.issubset(delivery.ready)
        assert all(list(queue) == sorted(queue) for queue in queued)
        for queues in self._queues.values():
            waited_for = self._busy | self._parked | set(queues.heads.values())
            assert queues.by_key.keys() <= waited_for, "a queue that waits for nothing"
            assert BitMap64(queues.heads).issubset(delivery.ready - self.blocked)
        busy = {waiting.key for waiting in self._waiting.values()}
        for identity, leased in self._leases.items():
            busy.update(leased.hashes_of(delivery.leases[identity].offsets))
        assert self._busy == busy - {NO_KEY}
        assert BitMap64(self._waiting) == delivery.waiting
