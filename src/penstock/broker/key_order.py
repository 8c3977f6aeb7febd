"""One key at a time.

While a message of a key is leased or waits for its next try, the key is busy, and the others of that key are passed
over; nobody else is. Those passed over wait in a queue of their key and lane. When the key is free again, the first of
each queue is ready, and as many of the next ones as a lease has room for go with it.

What is leased goes through here a lease at a time, in arrays; only what had to wait is looked at message by message.

Invariant: a key is marked LEASED or WAITING exactly while one of its messages is, and by a lane exactly while it has
a queue there. A message is blocked exactly while it is in a queue. A queue waits for a key that is busy or parked, or
for its head, which is ready.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from pyroaring import BitMap64

from penstock.broker.key_hash import NO_KEY, Hashes, hash_of
from penstock.broker.key_marks import KeyMarks, Marked
from penstock.broker.lanes import BY_PRIORITY, Lanes
from penstock.broker.offsets import Ints, array_of, bitmap_of
from penstock.broker.ordering import KEY, WHOLE_PARTITION, Admitted, Order
from penstock.message import Priority

if TYPE_CHECKING:
    from penstock.broker.delivery import Delivery

Lookup = Callable[[BitMap64], Hashes]

_LEASED = 1
_WAITING = 2
_PARKED = 4
# Nothing of such a key may be leased.
_SHUT = _LEASED | _WAITING | _PARKED
# There is a queue of that lane.
_QUEUED = {lane: 8 << number for number, lane in enumerate(BY_PRIORITY)}


class _Leased:
    """The keys of a lease. How many messages of each are left is counted once some are answered for on their own."""

    __slots__ = ("_counts", "_keys", "_marked", "_which", "hashes", "left", "offsets")

    def __init__(self, offsets: Ints, hashes: Hashes, marked: Marked) -> None:
        self.offsets = offsets
        self.hashes = hashes
        self.left = len(offsets)
        self._marked = marked
        self._keys: Hashes | None = None
        # For each message which of `_keys` it has, and for each of those how many messages are left.
        self._which: Ints
        self._counts: Ints

    def _rows(self, offsets: BitMap64) -> Ints:
        rows: Ints = np.searchsorted(self.offsets, array_of(offsets))
        return rows

    def hashes_of(self, offsets: BitMap64) -> Hashes:
        return self.hashes if len(offsets) == len(self.offsets) else self.hashes[self._rows(offsets)]

    def take(self, offsets: BitMap64) -> Hashes | Marked:
        """The keys of which nothing is left."""
        self.left -= len(offsets)
        if self._keys is None:
            if not self.left:
                return self._marked
            self._keys, self._which, self._counts = np.unique(self.hashes, return_inverse=True, return_counts=True)
        taken = self._which[self._rows(offsets)]
        np.subtract.at(self._counts, taken, 1)
        finished: Hashes = self._keys[taken[self._counts[taken] == 0]]
        return finished


class _Queues:
    """Blocked messages of one lane, by their keys and in order."""

    __slots__ = ("_head_offsets", "_mark", "_marks", "_next", "by_key", "heads")

    def __init__(self, marks: KeyMarks, mark: int) -> None:
        self.by_key: dict[int, deque[int]] = {}
        # The first of a queue whose key is free: ready, and not in the queue any more; and its key.
        self.heads: dict[int, int] = {}
        self._head_offsets = BitMap64()
        # What `next_of` said last, and their keys.
        self._next: dict[int, int] = {}
        self._marks = marks
        self._mark = mark

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
        self._marks.mark(hashes, self._mark)

    def pop(self, keys: Iterable[int]) -> list[int]:
        """The first message of each of these keys is its head now."""
        heads, empty = [], []
        for key in keys:
            queue = self.by_key[key]
            head = queue.popleft()
            heads.append(head)
            self.heads[head] = key
            if not queue:
                empty.append(key)
        self._head_offsets.update(heads)
        self._forget(empty)
        return heads

    def forget_heads(self, offsets: BitMap64) -> list[int]:
        """The keys of those of these that were heads."""
        if not self.heads:
            return []
        found = self._head_offsets & offsets
        self._head_offsets -= found
        return [self.heads.pop(head) for head in found.to_array()]

    def heads_in(self, offsets: BitMap64) -> set[int]:
        """Their keys."""
        return {self.heads[head] for head in (self._head_offsets & offsets).to_array()}

    def next_of(self, heads: BitMap64, count: int) -> BitMap64:
        """Up to `count` of those that come next in the queues of those of these that are heads."""
        self._next = {}
        if not self.heads or count <= 0:
            return BitMap64()
        keys = self.heads_in(heads) & self.by_key.keys()
        # A key that is shut since: its head goes back to the queue, and nothing with it.
        keys -= self._shut(keys)
        if not keys:
            return BitMap64()
        each = -(-count // len(keys))
        self._next = {offset: key for key in keys for offset in islice(self.by_key[key], each)}
        return BitMap64(self._next)[:count]

    def _shut(self, keys: set[int]) -> set[int]:
        hashes = np.fromiter(keys, np.uint64, len(keys))
        return set(hashes[self._marks.of(hashes) & _SHUT != 0].tolist())

    def known(self, offset: int) -> int:
        """The key of a head, or of what `next_of` said last."""
        return self.heads.get(offset) or self._next.get(offset, NO_KEY)

    def first_left(self, key: int, taken: BitMap64) -> int | None:
        """The first in the queue of this key that is not among these, which are from its front."""
        queue = self.by_key[key]
        return None if queue[-1] in taken else next(offset for offset in queue if offset not in taken)

    def take(self, offsets: BitMap64, keys: Iterable[int]) -> None:
        """From the front: what goes with a head are the next ones."""
        empty = []
        for key in keys:
            queue = self.by_key[key]
            if queue[-1] in offsets:
                empty.append(key)
                continue
            while queue[0] in offsets:
                queue.popleft()
        self._forget(empty)

    def remove(self, offsets: BitMap64) -> None:
        empty = []
        for key, queue in list(self.by_key.items()):
            if not offsets.isdisjoint(BitMap64(queue)):
                left = deque(offset for offset in queue if offset not in offsets)
                if left:
                    self.by_key[key] = left
                else:
                    empty.append(key)
        self._forget(empty)

    def _forget(self, keys: list[int]) -> None:
        for key in keys:
            del self.by_key[key]
        if keys:
            self._marks.unmark(np.array(keys, np.uint64), self._mark)


class KeyOrder(Order):
    needs_keys = True

    def __init__(self, lookup: Lookup, lanes: Lanes | None) -> None:
        """`lanes` None: the group does not mind them."""
        super().__init__(lanes)
        self._lookup = lookup
        self.restart()

    def restart(self) -> None:
        self.blocked = BitMap64()
        self._marks = KeyMarks()
        self._queues = {lane: _Queues(self._marks, mark) for lane, mark in _QUEUED.items()}
        self._is_blocked = False
        self._leases: dict[int, _Leased] = {}
        self._waiting: dict[int, int] = {}
        self._waiting_keys: Counter[int] = Counter()

    def rebuild(self, delivery: Delivery) -> None:
        self.restart()
        for lease in delivery.leases.values():
            self.leased(lease.id, lease.offsets, self._lookup(lease.offsets))
        self.wait_anew(delivery.waiting)
        self.park(delivery.parked)

    # --- leasing -----------------------------------------------------------------------------------------

    def stands(self, delivery: Delivery) -> bool:
        return self._is_blocked

    def admit(self, lane: Priority, offsets: Ints, hashes: Hashes, looked_at: BitMap64) -> Admitted:
        marks = self._marks.of(hashes)
        admitted: Admitted = marks & _SHUT == 0
        queued = np.flatnonzero(admitted & (marks & _QUEUED[lane] != 0))
        if len(queued):
            # Nobody of a key goes ahead of the first of its queue that does not come along.
            queues = self._queues[lane]
            keys = hashes[queued].tolist()
            first_left = {key: queues.first_left(key, looked_at) for key in set(keys)}
            for row, key, offset in zip(queued.tolist(), keys, offsets[queued].tolist(), strict=True):
                left = first_left[key]
                if left is not None and offset >= left:
                    admitted[row] = False
        return admitted

    def block(self, lane: Priority, offsets: Ints, hashes: Hashes) -> None:
        blocked = bitmap_of(offsets)
        self._queues[lane].add(offsets, hashes)
        self._queues[lane].forget_heads(blocked)
        self.blocked |= blocked

    def more(self, lane: Priority, heads: BitMap64, count: int) -> BitMap64:
        return self._queues[lane].next_of(heads, count)

    def known(self, lane: Priority, offsets: Ints) -> Hashes:
        queues = self._queues[lane]
        if not queues.heads:
            return np.zeros(len(offsets), np.uint64)
        return np.array([queues.known(offset) for offset in offsets.tolist()], np.uint64)

    def leased(self, lease: int, offsets: BitMap64, hashes: Hashes) -> None:
        leased = _Leased(array_of(offsets), hashes, self._marks.mark(hashes, _LEASED))
        self._leases[lease] = leased
        for queues in self._queues.values():
            queues.forget_heads(offsets)
        taken = self.blocked & offsets
        if taken:
            self.blocked -= taken
            keys = set(leased.hashes_of(taken).tolist())
            for queues in self._queues.values():
                queues.take(taken, keys & queues.by_key.keys())

    # --- answers -----------------------------------------------------------------------------------------

    def left(self, lease: int, offsets: BitMap64) -> None:
        held = self._leases[lease]
        finished = held.take(offsets)
        if not held.left:
            del self._leases[lease]
        self._free(finished, _LEASED)

    def waits(self, lease: int, offsets: BitMap64) -> None:
        self._wait(offsets, self._leases[lease].hashes_of(offsets))
        self.left(lease, offsets)

    def wait_anew(self, offsets: BitMap64) -> None:
        if offsets:
            self._wait(offsets, self._lookup(offsets))

    def _wait(self, offsets: BitMap64, hashes: Hashes) -> None:
        keys = hashes.tolist()
        self._waiting.update(zip(offsets.to_array(), keys, strict=True))
        self._waiting_keys.update(keys)
        self._marks.mark(hashes, _WAITING)

    def due(self, offsets: BitMap64) -> None:
        keys = [self._waiting.pop(offset) for offset in offsets.to_array()]
        self._waiting_keys.subtract(keys)
        finished = [key for key in set(keys) if not self._waiting_keys[key]]
        for key in finished:
            del self._waiting_keys[key]
        self._free(np.array(finished, np.uint64), _WAITING)

    def later(self, lease: int, offsets: BitMap64, outstanding: BitMap64) -> BitMap64:
        """Of the same key and lane."""
        held = self._leases[lease]
        found = BitMap64()
        for _, in_lane in self.by_lane(offsets):
            first: dict[int, int] = {}
            for offset, key in zip(in_lane.to_array(), held.hashes_of(in_lane).tolist(), strict=True):
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
        for lane, queues in self._queues.items():
            if queued:
                queues.remove(queued)
            headless = queues.forget_heads(offsets)
            if headless:
                self._unblock(lane, np.array(headless, np.uint64))

    # --- parking -----------------------------------------------------------------------------------------

    def park(self, tokens: Iterable[bytes]) -> None:
        for token in tokens:
            if token == WHOLE_PARTITION:
                self._is_blocked = True
            else:
                self._marks.mark(_hash_in(token), _PARKED)

    def unpark(self, tokens: Iterable[bytes]) -> None:
        for token in tokens:
            if token == WHOLE_PARTITION:
                self._is_blocked = False
            else:
                self._free(_hash_in(token), _PARKED)

    def _free(self, keys: Hashes | Marked, mark: int) -> None:
        """That does not keep these keys shut any more; something else may."""
        marks = self._marks.unmark(keys, mark)
        hashes = keys.hashes if isinstance(keys, Marked) else keys
        for lane, queues in self._queues.items():
            if queues.by_key:
                self._unblock(lane, hashes[marks & _QUEUED[lane] != 0])

    def _unblock(self, lane: Priority, hashes: Hashes) -> None:
        """The first message of each queue of those that are free: the others may go with it, or after it."""
        if len(hashes):
            marks = self._marks.of(hashes)
            keys = hashes[(marks & _SHUT == 0) & (marks & _QUEUED[lane] != 0)]
            self.blocked -= BitMap64(self._queues[lane].pop(set(keys.tolist())))

    def check(self, delivery: Delivery) -> None:
        """The invariant at the top."""
        queued = [queue for queues in self._queues.values() for queue in queues.by_key.values()]
        assert self.blocked == BitMap64(offset for queue in queued for offset in queue)
        assert len(self.blocked) == sum(map(len, queued)), "a message in two queues"
        assert self.blocked.issubset(delivery.ready)
        assert all(list(queue) == sorted(queue) for queue in queued)
        shut = self._marks.marked(_SHUT)
        for lane, queues in self._queues.items():
            assert queues.by_key.keys() <= shut | set(queues.heads.values()), "a queue that waits for nothing"
            assert BitMap64(queues.heads).issubset(delivery.ready - self.blocked)
            assert queues.by_key.keys() == self._marks.marked(_QUEUED[lane])
        leased: set[int] = set()
        for identity, lease in self._leases.items():
            leased.update(lease.hashes_of(delivery.leases[identity].offsets).tolist())
        assert self._marks.marked(_LEASED) == leased - {NO_KEY}
        assert self._marks.marked(_WAITING) == set(self._waiting.values()) - {NO_KEY}
        assert BitMap64(self._waiting) == delivery.waiting


def _hash_in(token: bytes) -> Hashes:
    return np.array([hash_of(token[len(KEY) :])], np.uint64)
