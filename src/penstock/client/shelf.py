"""What a consumer was given and nobody has seen yet, in the order in which it came.

The event loop puts it there, and takes back what has waited too long; any thread may take from it. One lock sees to it
that nobody takes from the middle of a change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock

from pyroaring import BitMap64

from penstock.client import forks
from penstock.client.lease import Lease
from penstock.client.received import Received, ReceivedBatch

Unseen = dict[Lease, BitMap64]


class Shelf:
    """Invariant: once it `is_closed`, nothing is handed out any more."""

    def __init__(self, monotonic_us: Callable[[], int], low: int, is_low: Callable[[], None]) -> None:
        """`is_low` is called by whoever takes a message of which `low` are left behind it, or fewer at the start of the
        last batch."""
        self._monotonic_us = monotonic_us
        self._low = low
        # How many there are before the one is taken that leaves `low`.
        self._low_rows = low + 1
        self._tell_low = is_low
        self._is_low = False
        self._batches: deque[ReceivedBatch] = deque()
        self._rows: deque[Received] = deque()
        self._is_closed = False
        self._lock = Lock()
        forks.guard(self)

    def __len__(self) -> int:
        with self._lock:
            return len(self._rows) + sum(map(len, self._batches))

    @property
    def has_batches(self) -> bool:
        return bool(self._batches)

    def add(self, batch: ReceivedBatch) -> None:
        """On the event loop, which is the only one to add."""
        self._batches.append(batch)

    # --- taking ------------------------------------------------------------------------------------------

    def take_batch(self) -> ReceivedBatch | None:
        with self._lock:
            return None if self._is_closed else self._next_batch()

    def take(self) -> Received | None:
        """The next message that is still ours."""
        with self._lock:
            return None if self._is_closed else self._next()

    def take_next(self, only_fresh: bool = False) -> Received | None:
        """The same for whoever takes one after the other: while the last ones are worked on, others are fetched.

        With `only_fresh`, only if it can be handed out as it is: its lease has most of its time left. Pass that by
        position: a keyword takes 50 ns more, for every message.
        """
        message: Received | None = None
        is_taken = False
        try:
            with self._lock:
                if self._is_closed:
                    return None
                rows = self._rows
                if rows and ((first := rows[0]).lease.is_whole or first._is_ours):
                    # As in `_first`, without another call: this runs for every message.
                    message = first
                elif (message := self._first()) is None:
                    return None
                else:
                    rows = self._rows
                if only_fresh and self._monotonic_us() >= message.lease.fresh_until_us:
                    return None
                is_low = len(rows) == self._low_rows or self._is_low
                self._is_low = False
                # Not `popleft`: Ctrl-C comes behind a call, and would lose the message until its lease is over.
                del rows[0]
                is_taken = True
            if is_low:
                self._tell_low()
            return message
        except BaseException:
            if is_taken and message is not None:
                self.put_back(message)
            raise

    def _first(self) -> Received | None:
        """The next message that is still ours, in front of the rows."""
        while True:
            while self._rows:
                message = self._rows[0]
                if message.lease.is_whole or message._is_ours:
                    return message
                del self._rows[0]
            if not self._batches:
                return None
            batch = self._batches[0]
            rows = deque() if batch.lease.is_over else deque(batch.messages())
            is_low = len(self._batches) == 1 and 0 < len(rows) <= self._low
            # No call between the two, as in `take_next`.
            del self._batches[0]
            self._rows, self._is_low = rows, is_low

    def next_lease(self) -> Lease | None:
        """Of the next message."""
        with self._lock:
            while self._rows and not self._rows[0]._is_ours:
                self._rows.popleft()
            if self._rows:
                return self._rows[0].lease
            while self._batches and self._batches[0].lease.is_over:
                self._batches.popleft()
            return self._batches[0].lease if self._batches else None

    def _next(self) -> Received | None:
        message = self._first()
        if message is not None:
            del self._rows[0]
        return message

    def _next_batch(self) -> ReceivedBatch | None:
        while self._batches:
            batch = self._batches.popleft()
            if not batch.lease.is_over:
                return batch
        return None

    # --- putting back ------------------------------------------------------------------------------------

    def put_back(self, *messages: Received) -> bool:
        """In front, as they were. False if it is closed: then they are the caller's to give back."""
        with self._lock:
            if not self._is_closed:
                self._rows.extendleft(reversed(messages))
            return not self._is_closed

    def put_back_batch(self, batch: ReceivedBatch) -> bool:
        """The same for a batch."""
        with self._lock:
            if not self._is_closed:
                self._batches.appendleft(batch)
            return not self._is_closed

    def take_stale(self) -> tuple[Unseen, list[Lease]]:
        """What has waited for half of its time, and the leases of the rest. On the event loop, as `add`."""
        unseen: Unseen = {}
        rows: deque[Received] = deque()
        batches: deque[ReceivedBatch] = deque()
        with self._lock:
            for message in self._rows:
                if message.lease.is_fresh:
                    rows.append(message)
                elif message._is_ours:
                    unseen.setdefault(message.lease, BitMap64()).add(message.offset)
            for batch in self._batches:
                if batch.lease.is_fresh:
                    batches.append(batch)
                elif not batch.lease.is_over:
                    unseen.setdefault(batch.lease, BitMap64()).update(batch.offsets)
            self._rows, self._batches = rows, batches
            return unseen, [message.lease for message in rows] + [batch.lease for batch in batches]

    def take_all(self) -> Unseen:
        """All that is left, to be given back."""
        unseen: Unseen = {}
        with self._lock:
            while (batch := self._next_batch()) is not None:
                unseen.setdefault(batch.lease, BitMap64()).update(batch.offsets)
            while (message := self._next()) is not None:
                unseen.setdefault(message.lease, BitMap64()).add(message.offset)
        return unseen

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
