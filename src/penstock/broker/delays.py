"""Delayed messages of one partition: which are not due yet, and when the next one is.

A message is pending from its publishing until it is due or cancelled. Times are in the log, with the messages; here
they are a timing wheel, made anew at every start. What was rescheduled has its own time, from the deliveries log, and
leaves a timer behind in the wheel that means nothing any more.
"""

from __future__ import annotations

import numpy as np
from pyroaring import BitMap64

from penstock.broker.offsets import Ints, add_all, array_of, bitmap_of
from penstock.broker.wheel import Wheel

_NEW_MAX = 65_536
_NEVER_US = 1 << 62


class Delays:
    def __init__(self, now_us: int) -> None:
        self.pending = BitMap64()
        self.cancelled = BitMap64()
        # Rescheduled: its time now.
        self.moved: dict[int, int] = {}
        self._wheel = Wheel(now_us)
        # New timers wait here until there are many, or until one of them is due: the wheel takes them by the slot.
        self._new: list[tuple[Ints, Ints]] = []
        self._new_count = 0
        self._new_due_us = _NEVER_US

    def add(self, offsets: Ints, dues_us: Ints, now_us: int) -> None:
        """Those of these messages that have a time to come; 0 is for no delay."""
        self._follow(now_us)
        later = dues_us > now_us
        if later.any():
            add_all(self.pending, bitmap_of(offsets[later]))
            self._add_timers(dues_us[later], offsets[later])

    def add_one(self, offset: int, due_us: int, now_us: int) -> None:
        self._follow(now_us)
        if due_us > now_us:
            self.pending.add(offset)
            self._wheel.add(due_us, offset)

    def recall(self, offsets: Ints, dues_us: Ints) -> None:
        """Pending ones of a life before; those due meanwhile come out at once."""
        dues = dues_us
        if self.moved:
            dues = np.array([self.moved.get(o, due) for o, due in zip(offsets.tolist(), dues_us.tolist(), strict=True)])
        if len(offsets):
            add_all(self.pending, bitmap_of(offsets))
            self._add_timers(dues, offsets)

    def due(self, now_us: int) -> BitMap64:
        """Pending messages whose time has come. Taken from the wheel: to be told with `release`."""
        self._follow(now_us)
        if not self.pending and not self._new and not self._wheel:
            return BitMap64()
        if self._new_due_us <= now_us:
            self._put_in_timers()
        dues, offsets = self._wheel.advance(now_us)
        if not len(offsets):
            return BitMap64()
        if self.moved:
            current = [self.moved.get(o, due) == due for o, due in zip(offsets.tolist(), dues.tolist(), strict=True)]
            offsets = offsets[np.array(current)]
        return bitmap_of(offsets) & self.pending

    def put_back(self, offsets: BitMap64, now_us: int) -> None:
        """They are due still; whoever took them could not say so."""
        numbers = array_of(offsets)
        for offset in numbers.tolist():
            if offset in self.moved:
                self.moved[offset] = now_us
        self._add_timers(np.full(len(numbers), now_us), numbers)

    def next_due(self) -> int | None:
        if not self.pending:
            return None
        due = self._wheel.next_due()
        return self._new_due_us if due is None else min(due, self._new_due_us)

    def release(self, offsets: BitMap64) -> None:
        self.pending -= offsets
        self._forget_moves(offsets)

    def cancel(self, offsets: BitMap64) -> None:
        self.pending -= offsets
        self.cancelled |= offsets
        self._forget_moves(offsets)

    def move(self, offset: int, due_us: int) -> None:
        self.moved[offset] = due_us
        self._wheel.add(due_us, offset)

    def forget_below(self, offset: int) -> None:
        """Retention has deleted these. Pending ones it never does."""
        if self.cancelled and self.cancelled.min() < offset:
            self.cancelled.remove_range(0, offset)

    def _add_timers(self, dues_us: Ints, offsets: Ints) -> None:
        self._new.append((dues_us, offsets))
        self._new_count += len(offsets)
        self._new_due_us = min(self._new_due_us, int(dues_us.min()))
        if self._new_count >= _NEW_MAX:
            self._put_in_timers()

    def _put_in_timers(self) -> None:
        dues, offsets = zip(*self._new, strict=True)
        self._wheel.add_many(np.concatenate(dues), np.concatenate(offsets))
        self._new, self._new_count, self._new_due_us = [], 0, _NEVER_US

    def _follow(self, now_us: int) -> None:
        """A clock that was set back must not make anything due early, nor late for as long as it takes to catch up."""
        if now_us < self._wheel.now_us:
            self._wheel.turn_back(now_us)

    def _forget_moves(self, offsets: BitMap64) -> None:
        if self.moved:
            for offset in array_of(offsets).tolist():
                self.moved.pop(offset, None)
