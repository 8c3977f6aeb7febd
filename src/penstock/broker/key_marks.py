"""What is known of keys, a few bits each, asked and told for a thousand keys at a time.

A hash table in two arrays, with linear probing: all keys of a lease take their steps together, and most take none.
Keys without a mark are left where they are until the table is made anew, so that nothing has to be moved when a lease
ends.

Invariant: an empty place has no marks. A key that is not there is found at an empty place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.broker.key_hash import NO_KEY, Hashes

Marks = npt.NDArray[np.uint8]
_Places = npt.NDArray[np.intp]

_PLACES_MIN = 256
# One of so many places may be used, so that hardly any key takes more than three steps; and of a table made anew.
_FULL = 5
_ROOMY = 10
# The golden ratio: numbers that resemble one another come to lie far apart.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class Marked(NamedTuple):
    """Keys that were marked together, and where they are until the table is made anew."""

    hashes: Hashes
    places: _Places
    table: int


class KeyMarks:
    """By the hash of the key. What has no key has no marks, and is never given any."""

    def __init__(self) -> None:
        # How often it was made anew.
        self._table = 0
        self._empty(_PLACES_MIN)

    def _empty(self, places: int) -> None:
        self._hashes = np.zeros(places, np.uint64)
        self._marks = np.zeros(places, np.uint8)
        self._mask = places - 1
        self._shift = np.uint64(64 - self._mask.bit_length())
        # At least as many places as are used.
        self._used = 0

    @property
    def places(self) -> int:
        return len(self._marks)

    def of(self, hashes: Hashes) -> Marks:
        return self._marks[self._find(hashes)]

    def mark(self, hashes: Hashes, mark: int) -> Marked:
        if not hashes.all():
            hashes = hashes[hashes != NO_KEY]
        if _FULL * (self._used + len(hashes)) > self.places:
            self._make_anew(len(hashes))
        places = self._place(hashes)
        self._marks[places] |= np.uint8(mark)
        return Marked(hashes, places, self._table)

    def unmark(self, keys: Hashes | Marked, mark: int) -> Marks:
        """What marks are left on each."""
        if not isinstance(keys, Marked):
            places = self._find(keys)
        else:
            places = keys.places if keys.table == self._table else self._find(keys.hashes)
        left = self._marks[places] & np.uint8(0xFF ^ mark)
        self._marks[places] = left
        return left

    def marked(self, mark: int) -> set[int]:
        return set(self._hashes[self._marks & np.uint8(mark) != 0].tolist())

    def _find(self, hashes: Hashes) -> _Places:
        """Where each of them is, or the empty place where it would be."""
        places = ((hashes * _SPREAD) >> self._shift).astype(np.intp)
        there = self._hashes[places]
        astray = np.flatnonzero((there != hashes) & (there != NO_KEY))
        while len(astray):
            wanted = hashes[astray]
            further = (places[astray] + 1) & self._mask
            places[astray] = further
            there = self._hashes[further]
            astray = astray[(there != wanted) & (there != NO_KEY)]
        return places

    def _place(self, hashes: Hashes) -> _Places:
        places = self._find(hashes)
        new = np.flatnonzero(self._hashes[places] != hashes)
        while len(new):
            # Of several that want the same place one gets it, and the others look for the next.
            self._hashes[places[new]] = hashes[new]
            self._used += len(new)
            new = new[self._hashes[places[new]] != hashes[new]]
            places[new] = self._find(hashes[new])
        return places

    def _make_anew(self, more: int) -> None:
        """With the keys that have marks, and room for more."""
        is_marked = self._marks != 0
        hashes, marks = self._hashes[is_marked], self._marks[is_marked]
        self._table += 1
        self._empty(max(_PLACES_MIN, 1 << (_ROOMY * (len(hashes) + more)).bit_length()))
        self._marks[self._place(hashes)] = marks
