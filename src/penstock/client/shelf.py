"""What a consumer was given and nobody has seen yet, in the order in which it came.

The event loop puts it there, and takes back what has waited too long; any thread may take from it. One lock sees to it
that nobody takes from the middle of a change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock

from pyroaring import BitMap64

from penstock.client.lease import Lease
from penstock.client.received import Received, ReceivedBatch

Unseen = dict[Lease, BitMap64]


class Shelf:
    """Invariant: once it `is_closed`, nothing is handed out any more."""

    def __init__(self, now_us: Callable[[], int], low: int, is_low: Callable[[], None]) -> None:
        """`is_low` is called by whoever takes a message of which `low` are left behind it, or fewer at the start of the
        last batch."""
        self._now_us = now_us
        self._low = low
        self._tell_low = is_low
        self._is_low = False
        self._batches: deque[ReceivedBatch] = deque()
        self._rows: deque[Received] = deque()
        self._is_closed = False
        self._lock = Lock()

    def __bool__(self) -> bool:
        return bool(self._rows or self._batches)

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

    def take_next(self, *, only_fresh: bool = False) -> Received | None:
        """The same for whoever takes one after the other: while the last ones are worked on, others are fetched.

        With `only_fresh`, only if it can be handed out as it is: its lease has most of its time left.
        """
        with self._lock:
            if self._is_closed:
                return None
            rows = self._rows
            message: Received | None
            try:
                first = rows.popleft()
            except IndexError:
                message = self._next()
            else:
                # As in `_next`, without another call: this runs for every message.
                message = first if first.lease.is_whole or first.is_held else self._next()
            if message is None:
                return None
            if only_fresh and self._now_us() >= message.lease.fresh_until_us:
                rows.appendleft(message)
                return None
            is_low = self._is_low or len(rows) == self._low
            self._is_low = False
        if is_low:
            self._tell_low()
        return message

    def _next(self) -> Received | None:
        while True:
            try:
                message = self._rows.popleft()
            except IndexError:
                batch = self._next_batch()
                if batch is None:
                    return None
                self._rows.extend(batch.messages())
                self._is_low = not self._batches and len(self._rows) <= self._low
                continue
            if message.lease.is_whole or message.is_held:
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

    def take_stale(self) -> tuple[Unseen, list[Lease]]:
        """What has waited for half of its time, and the leases of the rest. On the event loop, as `add`."""
        unseen: Unseen = {}
        rows: deque[Received] = deque()
        batches: deque[ReceivedBatch] = deque()
        with self._lock:
            for message in self._rows:
                if message.lease.is_fresh:
                    rows.append(message)
                elif message.is_held:
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
