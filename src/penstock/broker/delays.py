"""Delayed messages of one partition: which are not due yet, and when the next one is.

A message is pending from its publishing until it is due or cancelled. Times are in the log, with the messages; here
they are a timing wheel, made anew at every start. What was rescheduled has its own time, from the deliveries log, and
leaves a timer behind in the wheel that means nothing any more.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from penstock.broker.offsets import Ints, add_all, array_of, below, bitmap_of, mask_of
from penstock.broker.wheel import Wheel
from penstock.errors import InvalidFrame, LogCorrupt
from penstock.frame import HAS_DELAYS
from penstock.storage.log import Log

_NEW_MAX = 65_536
# In one step: 2 ms.
_DUE_MAX = 20_000
_NEVER_US = 1 << 62


class DueTimes(NamedTuple):
    moved: dict[int, int]
    cancelled: BitMap64


NOTHING_MOVED = DueTimes({}, BitMap64())


class LatelyDue:
    """Which messages retention must keep although their delay is over: groups need time for them.

    They are kept for as long as they were delayed, and for `age_us` at most. To be asked for ascending ranges of
    offsets; each frame is read once.
    """

    def __init__(self, log: Log, times: DueTimes, *, now_us: int, age_us: int) -> None:
        self._log = log
        self._times = times
        self._now_us = now_us
        self._age_us = age_us
        self._found = BitMap64()
        self._reached = 0

    def __call__(self, offsets: Ints) -> npt.NDArray[np.bool_]:
        end = int(offsets[-1]) + 1 if len(offsets) else 0
        if self._reached < end:
            for head in self._log.heads(offset=max(int(offsets[0]), self._reached)):
                if head.base_offset >= end:
                    break
                if head.flags & HAS_DELAYS:
                    # A damaged frame can't be delivered, so it is not kept.
                    with suppress(LogCorrupt, InvalidFrame):
                        self._look_at(max(head.base_offset, self._log.start_offset))
            self._reached = end
        return mask_of(offsets, self._found)

    def _look_at(self, offset: int) -> None:
        for frame in self._log.read(offset, bytes_max=1, until=offset + 1):
            batch = frame.batch()
            if batch.deliver_at is None:
                continue
            offsets = frame.offsets(batch)
            dues = batch.deliver_at[batch.start : batch.start + batch.count].copy()
            if moved := self._times.moved:
                dues[:] = [moved.get(at, due) for at, due in zip(offsets.tolist(), dues.tolist(), strict=True)]
            since_us = self._now_us - dues
            is_kept = (dues > 0) & (since_us >= 0) & (since_us < np.minimum(dues - frame.append_time, self._age_us))
            self._found |= bitmap_of(offsets[is_kept]) - self._times.cancelled


class Delays:
    def __init__(self, now_us: int) -> None:
        self.pending = BitMap64()
        self.cancelled = BitMap64()
        # Rescheduled: its time now. Kept once it has passed: retention counts from there on.
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
        """Pending messages whose time has come, some of them if there are very many (`is_more_due`). Taken from the
        wheel: to be told with `release`."""
        self._follow(now_us)
        if not self.pending and not self._new and not self._wheel:
            return BitMap64()
        if self._new_due_us <= now_us:
            self._put_in_timers()
        dues, offsets = self._wheel.advance(now_us, _DUE_MAX)
        if not len(offsets):
            return BitMap64()
        if self.moved:
            current = [self.moved.get(o, due) == due for o, due in zip(offsets.tolist(), dues.tolist(), strict=True)]
            offsets = offsets[np.array(current)]
        return bitmap_of(offsets) & self.pending

    def is_more_due(self, now_us: int) -> bool:
        next_us = self.next_due()
        return next_us is not None and next_us <= now_us

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

    def cancel(self, offsets: BitMap64) -> None:
        self.pending -= offsets
        self.cancelled |= offsets
        for offset in array_of(offsets).tolist() if self.moved else ():
            self.moved.pop(offset, None)

    def move(self, offset: int, due_us: int) -> None:
        self.moved[offset] = due_us
        self._wheel.add(due_us, offset)

    def forget(self, below: int, removed: BitMap64) -> None:
        """Messages that are no longer in the log, and that every group is done with. Pending ones are never deleted."""
        if self.cancelled and self.cancelled.min() < below:
            self.cancelled.remove_range(0, below)
        self.cancelled -= removed
        if self.moved:
            self.moved = {at: due for at, due in self.moved.items() if at >= below and at not in removed}

    def times(self) -> DueTimes:
        """A copy, for a thread."""
        return DueTimes(self.moved.copy(), self.cancelled.copy())

    def truncate(self, offset: int) -> None:
        """Forget messages at `offset` and above, while the state is recovered: the wheel is still empty."""
        self.pending, self.cancelled = below(self.pending, offset), below(self.cancelled, offset)
        self.moved = {number: due for number, due in self.moved.items() if number < offset}

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
