"""Sets of offsets as runs of neighbours: [first, count, first, count, …], ascending.

A Roaring bitmap is smaller, but its decoder trusts what it reads, and not every language has one.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from pyroaring import BitMap64

from penstock.errors import ProtocolError

# Of a client: more than anybody has in flight; a run of more would only be a way to make the broker work.
OFFSETS_MAX = 1_000_000
_OFFSET_MAX = 1 << 63


def to_runs(offsets: BitMap64) -> list[int]:
    if not offsets:
        return []
    first, last = offsets.min(), offsets.max()
    if last - first + 1 == len(offsets):
        return [first, len(offsets)]
    numbers = np.frombuffer(offsets.to_array(), np.int64)
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    starts = np.concatenate(([0], breaks))
    counts = np.diff(np.concatenate((starts, [len(numbers)])))
    runs: list[int] = np.stack((numbers[starts], counts), axis=1).ravel().tolist()
    return runs


def from_runs(runs: list[int], most: int = OFFSETS_MAX) -> BitMap64:
    """ProtocolError if they are none, or of more than `most`."""
    if len(runs) > 2 * most:
        raise ProtocolError(f"{len(runs) // 2} runs of offsets at once; the limit is {most}", limit=most)
    firsts, counts = runs[::2], runs[1::2]
    if len(runs) % 2 or (runs and min(runs) < 0):
        raise ProtocolError("runs of offsets are pairs of a first one and a count")
    if sum(counts) > most:
        raise ProtocolError(f"{sum(counts)} offsets at once; the limit is {most}", limit=most)
    ends = [first + count for first, count in zip(firsts, counts, strict=True)]
    if any(count < 1 for count in counts) or any(end >= _OFFSET_MAX for end in ends[-1:]):
        raise ProtocolError("a run of offsets is empty or reaches too far")
    if any(end > first for end, (_, first) in zip(ends, pairwise(firsts), strict=False)):
        raise ProtocolError("runs of offsets are ascending and apart")
    offsets = BitMap64()
    for first, end in zip(firsts, ends, strict=True):
        offsets.add_range(first, end)
    return offsets
