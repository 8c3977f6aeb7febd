"""Sets of offsets, as Roaring bitmaps, and the ways from and to arrays that do not go through Python integers."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

Ints = npt.NDArray[np.int64]


def bitmap_of(offsets: Ints) -> BitMap64:
    if len(offsets) > 1 and offsets[-1] - offsets[0] == len(offsets) - 1 and (np.diff(offsets) == 1).all():
        return BitMap64(range(int(offsets[0]), int(offsets[-1]) + 1))
    numbers = array("Q")
    numbers.frombytes(np.ascontiguousarray(offsets, np.int64).tobytes())
    return BitMap64(numbers)


def array_of(offsets: BitMap64) -> Ints:
    """In ascending order."""
    return np.frombuffer(offsets.to_array(), np.int64) if offsets else np.empty(0, np.int64)


def add_all(offsets: BitMap64, more: BitMap64) -> None:
    """In place. Neighbours as a range: a union would go through all of `offsets`, however far away from them."""
    if not more:
        return
    first, stop = more.min(), more.max() + 1
    if stop - first == len(more):
        offsets.add_range(first, stop)
    else:
        offsets.update(more)


def remove_all(offsets: BitMap64, gone: BitMap64) -> None:
    """In place. Neighbours as a range: what is left stays a few runs, and does not become a list of numbers."""
    if not gone:
        return
    first, stop = gone.min(), gone.max() + 1
    if stop - first == len(gone):
        offsets.remove_range(first, stop)
    else:
        offsets -= gone


def mask_of(numbers: Ints, offsets: BitMap64) -> npt.NDArray[np.bool_]:
    """Which of these ascending numbers are in the set."""
    if not len(numbers) or not offsets:
        return np.zeros(len(numbers), np.bool_)
    first, stop = int(numbers[0]), int(numbers[-1]) + 1
    there = offsets.range_cardinality(first, stop)
    if there in (0, stop - first):
        return np.full(len(numbers), there > 0)
    return np.isin(numbers, array_of(offsets & BitMap64(range(first, stop))))


def below(offsets: BitMap64, bound: int) -> BitMap64:
    """Those smaller than `bound`."""
    if not offsets or offsets.min() >= bound:
        return BitMap64()
    kept = offsets.copy()
    if offsets.max() >= bound:
        kept.remove_range(bound, offsets.max() + 1)
    return kept


def from_on(offsets: BitMap64, bound: int) -> BitMap64:
    """Those of at least `bound`."""
    if not offsets or offsets.max() < bound:
        return BitMap64()
    kept = offsets.copy()
    kept.remove_range(0, bound)
    return kept


def stretches(offsets: BitMap64) -> Iterator[tuple[int, int]]:
    """Runs of neighbours, as (first, last + 1)."""
    if not offsets:
        return
    low, high = offsets.min(), offsets.max() + 1
    if high - low == len(offsets):
        yield low, high
        return
    numbers = array_of(offsets)
    ends = np.flatnonzero(np.diff(numbers) != 1)
    starts = np.concatenate(([0], ends + 1))
    stops = np.concatenate((ends, [len(numbers) - 1]))
    for start, stop in zip(numbers[starts].tolist(), numbers[stops].tolist(), strict=True):
        yield start, stop + 1


def run_from(offsets: BitMap64, start: int) -> int:
    """The end of the run of neighbours that starts at `start`, by halving; `start` itself if it is not there."""
    if start not in offsets:
        return start
    low, high = start, offsets.max() + 1
    if offsets.contains_range(start, high):
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if offsets.contains_range(start, middle):
            low = middle
        else:
            high = middle - 1
    return low
