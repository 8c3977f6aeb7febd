"""Timers by the million: a hierarchical timing wheel over plain arrays.

    level 0   256 slots of 4 ms       next second
    level 1   256 slots of 1 s        next 4 minutes
    level 2   256 slots of 4.5 min    next 19 hours
    level 3   256 slots of 19 h       next 200 days
    level 4   256 slots of 204 d      next 143 years
    level 5   the rest

A timer goes into the finest level that reaches its due time. When time reaches a coarse slot, its timers move to finer
ones. A slot is two arrays, due times and offsets: 16 bytes a timer, put in and taken out as whole batches. Nothing is
early: a timer comes out when its due time has come, not when its slot has.

Invariant: every timer is in exactly one slot, or found to be due; and unless it was advanced by a part of them, no slot
of a level above 0 begins at or before `now_us`.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_TICK_BITS = 12
_LEVEL_BITS = 8
_LEVELS = 6
_SHIFTS = [_TICK_BITS + _LEVEL_BITS * level for level in range(_LEVELS)]
_SLOTS = 1 << _LEVEL_BITS


class _Slot:
    __slots__ = ("dues", "offsets")

    def __init__(self) -> None:
        self.dues = array("q")
        self.offsets = array("q")


class _Level:
    """Slots by their number, which is the due time without its low bits; and the numbers in order."""

    __slots__ = ("numbers", "shift", "slots")

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.slots: dict[int, _Slot] = {}
        self.numbers: list[int] = []

    def slot(self, number: int) -> _Slot:
        slot = self.slots.get(number)
        if slot is None:
            slot = self.slots[number] = _Slot()
            heapq.heappush(self.numbers, number)
        return slot

    def take(self, now_us: int, count_max: int | None) -> tuple[Ints, Ints] | None:
        """Due times and offsets of the first slot that begins at or before `now_us`; with `count_max` so many of them,
        the others stay. None if there is no such slot."""
        if not self.numbers or self.numbers[0] << self.shift > now_us:
            return None
        slot = self.slots[self.numbers[0]]
        if count_max is not None and len(slot.dues) > count_max:
            part = _Slot()
            part.dues, part.offsets = slot.dues[-count_max:], slot.offsets[-count_max:]
            del slot.dues[-count_max:], slot.offsets[-count_max:]
            slot = part
        else:
            del self.slots[heapq.heappop(self.numbers)]
        return np.frombuffer(slot.dues, np.int64), np.frombuffer(slot.offsets, np.int64)


class Wheel:
    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self._levels = [_Level(shift) for shift in _SHIFTS]
        # Found to be due, and not handed out yet.
        self._due: deque[tuple[Ints, Ints]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, due_us: int, offset: int) -> None:
        slot = self._slot(due_us)
        slot.dues.append(due_us)
        slot.offsets.append(offset)
        self._count += 1

    def add_many(self, dues_us: Ints, offsets: Ints) -> None:
        """Whole batches, a slot at a time."""
        assert len(dues_us) == len(offsets)
        self._put(np.ascontiguousarray(dues_us, np.int64), np.ascontiguousarray(offsets, np.int64))
        self._count += len(dues_us)

    def advance(self, now_us: int, count_max: int | None = None) -> tuple[Ints, Ints]:
        """Due times and offsets of the timers that are due, the earliest first. A clock that is set back waits.

        With `count_max`, so many timers are looked at, and the earliest come first but for a few milliseconds. There
        are more as long as `next_due` is not later than `now_us`.
        """
        self.now_us = max(self.now_us, now_us)
        left = count_max
        for level in reversed(self._levels[1:]):
            while left != 0 and (taken := level.take(self.now_us, left)) is not None:
                self._put(*taken)
                left = None if left is None else left - len(taken[0])
        if left != 0:
            self._find_due()
        found = 0
        due: list[tuple[Ints, Ints]] = []
        while self._due and (count_max is None or found < count_max):
            dues, offsets = self._due.popleft()
            if count_max is not None and (most := count_max - found) < len(dues):
                self._due.appendleft((dues[most:], offsets[most:]))
                dues, offsets = dues[:most], offsets[:most]
            due.append((dues, offsets))
            found += len(dues)
        if not due:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        self._count -= found
        all_due, all_offsets = (np.concatenate(parts) for parts in zip(*due, strict=True))
        order = np.lexsort((all_offsets, all_due))
        return all_due[order], all_offsets[order]

    def _find_due(self) -> None:
        """In the finest slots."""
        early: list[tuple[Ints, Ints]] = []
        while (taken := self._levels[0].take(self.now_us, None)) is not None:
            dues, offsets = taken
            is_due = dues <= self.now_us
            if is_due.any():
                self._due.append((dues[is_due], offsets[is_due]))
            if not is_due.all():
                early.append((dues[~is_due], offsets[~is_due]))
        for dues, offsets in early:
            self._put(dues, offsets)

    def turn_back(self, now_us: int) -> None:
        """The clock was set back: every timer is put in anew, since slots are chosen by how far ahead they are."""
        slots = [slot for level in self._levels for slot in level.slots.values()]
        timers = [
            *self._due,
            *((np.frombuffer(slot.dues, np.int64), np.frombuffer(slot.offsets, np.int64)) for slot in slots),
        ]
        self.now_us = now_us
        self._levels = [_Level(shift) for shift in _SHIFTS]
        self._due.clear()
        for dues, offsets in timers:
            self._put(dues, offsets)

    def next_due(self) -> int | None:
        """No timer is due before this; None if there is none. Exact for what is due within a second."""
        if self._due:
            return int(self._due[0][0].min())
        starts = [level.numbers[0] << level.shift for level in self._levels[1:] if level.numbers]
        first = self._levels[0]
        if first.numbers:
            starts.append(int(np.frombuffer(first.slots[first.numbers[0]].dues, np.int64).min()))
        return min(starts, default=None)

    def _slot(self, due_us: int) -> _Slot:
        due_us = max(due_us, self.now_us)
        for level in self._levels[:-1]:
            number = due_us >> level.shift
            if number - (self.now_us >> level.shift) < _SLOTS:
                return level.slot(number)
        return self._levels[-1].slot(due_us >> self._levels[-1].shift)

    def _put(self, dues: Ints, offsets: Ints) -> None:
        left = np.arange(len(dues))
        for level in self._levels:
            numbers = np.maximum(dues[left], self.now_us) >> level.shift
            fits = numbers - (self.now_us >> level.shift) < _SLOTS
            if level is self._levels[-1]:
                fits[:] = True
            self._put_in(level, numbers[fits], dues[left[fits]], offsets[left[fits]])
            left = left[~fits]
            if not len(left):
                return

    def _put_in(self, level: _Level, numbers: Ints, dues: Ints, offsets: Ints) -> None:
        if not len(numbers):
            return
        order = np.argsort(numbers, kind="stable")
        found, starts = np.unique(numbers[order], return_index=True)
        for number, rows in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
            slot = level.slot(number)
            slot.dues.frombytes(dues[rows].tobytes())
            slot.offsets.frombytes(offsets[rows].tobytes())
