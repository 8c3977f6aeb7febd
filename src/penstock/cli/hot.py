"""Which partitions of a topic are hot, by how many messages each got in a while."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

# One with so many times the average of its topic is hot, as in the dashboard.
HOT = 3
_ROUNDING = 0.999
# Of so few messages of a topic, it is chance where they went.
_COUNTED_MIN = 10


def hot_of(counts: Mapping[T, int]) -> list[T]:
    """Those that are, of the partitions of one topic."""
    total = sum(counts.values())
    if total < _COUNTED_MIN:
        return []
    return [each for each, count in counts.items() if count >= HOT * total / len(counts) * _ROUNDING]
