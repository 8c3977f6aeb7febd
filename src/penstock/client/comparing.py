"""Whether what is put again is what was stored before.

Not everything can be the same: where a row says no time, or counts it from now on, each attempt finds another now.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.batch import Batch
from penstock.columns import SCHEMA, Ints


class Given(NamedTuple):
    """Messages as they were put. A timestamp of `now_us` was not given, and `relative` are columns that count from then
    on."""

    batch: Batch
    now_us: int = 0
    relative: Collection[str] = ()


class Difference(NamedTuple):
    row: int
    column: str


def difference(given: Given, rows: Ints, kept: pa.RecordBatch) -> Difference | None:
    """The first in which these rows of `given`, one for each in `kept`, are not what is stored."""
    found: list[Difference] = []
    places = None if np.array_equal(rows, np.arange(given.batch.count)) else pa.array(rows)
    for name in SCHEMA.names:
        if name in given.relative:
            continue
        ours, theirs = given.batch.column(name), kept.column(name)
        if places is not None:
            ours = ours.take(places)
        if pa.types.is_timestamp(ours.type):
            ours, theirs = ours.cast(pa.int64()), theirs.cast(pa.int64())
        if name == "timestamp" and given.now_us:
            ours = pc.if_else(pc.equal(ours, given.now_us), theirs, ours)
        if not ours.equals(theirs):
            pairs = zip(ours.to_pylist(), theirs.to_pylist(), strict=True)
            found.append(Difference(next(int(row) for row, (a, b) in zip(rows, pairs, strict=True) if a != b), name))
    return min(found, key=lambda each: each.row, default=None)
