"""Which messages of a task were stored by an earlier attempt at it.

Mostly the first so many, in the same order. But compaction may have taken some out of the source in between:

    read at first   40  41  42  43  44 │ 45  46        up to 44 it was stored, as 0 to 4; then the task was killed
    read again          41      43       45  46        41 is 1 and 43 is 3, found by what they are; 45 and 46 are new

A source only ever loses messages, and keeps the order of the others. So each is looked for behind the one before it,
and the first that is not there begins what is new. If two are the same in everything, timestamp and all, one may be
taken for the other: then it is the source that has one less of them.

That takes all that was stored. If the target has compacted some of it away, or deleted it, what is left must be what it
is by its number, and the rest is trusted to be: AttemptDiffers if it is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.client.blocking import IdentifiedWriter
from penstock.client.comparing import Given, difference
from penstock.client.placing import Kept, Placed
from penstock.columns import SCHEMA, Ints
from penstock.errors import AttemptDiffers

_TIMESTAMP = SCHEMA.names.index("timestamp")
_TIMES = [name for name in SCHEMA.names if pa.types.is_timestamp(SCHEMA.field(name).type)]


class Again:
    """`stored` is how many were stored, in the order of the source. They are read as far as they are needed."""

    def __init__(self, writer: IdentifiedWriter, partition: int, places: Sequence[Placed], stored: int) -> None:
        self._writer = writer
        self._partition = partition
        self._pieces = self._read(places)
        self._piece: Kept | None = None
        self._stored = stored
        # The number of the next one that should come.
        self._next = 0
        self._is_whole = True
        # Once something was missing.
        self._rest: Iterator[tuple[int, tuple[Any, ...]]] | None = None

    def numbers(self, given: Given) -> Ints:
        """Of those of the next messages that were stored, which are the first of them; all that follow are new."""
        found = np.empty(0, np.int64)
        while self._rest is None and len(found) < given.batch.count and self._next < self._stored:
            part = given._replace(batch=given.batch.slice(len(found), given.batch.count))
            count = self._same(part)
            found = np.concatenate([found, np.arange(self._next, self._next + count)])
            self._next += count
        if self._rest is None or len(found) == given.batch.count:
            return found
        more = [number for number in self._looked_for(given, len(found)) if number is not None]
        return np.concatenate([found, np.array(more, np.int64)])

    def _same(self, given: Given) -> int:
        """How many messages, from the first on, are what is stored by the next numbers."""
        piece = self._at(self._next)
        if piece is None:
            self._is_whole = False
            return min(given.batch.count, self._stored - self._next)
        first, last = np.searchsorted(piece.numbers, (self._next, self._next + given.batch.count))
        count = min(given.batch.count, int(piece.numbers[-1]) + 1 - self._next)
        self._is_whole &= bool(last - first == count)
        rows = piece.numbers[first:last] - self._next
        differs = difference(given, rows, piece.rows.slice(first, last - first))
        if differs is None:
            return count
        if not self._is_whole:
            raise self._unknown(self._next + differs.row)
        self._rest = self._rows(int(first))
        return 0

    def _at(self, number: int) -> Kept | None:
        """What is left of the piece that ends at that number or behind it; None if there is nothing more."""
        while self._piece is None or self._piece.numbers[-1] < number:
            self._piece = next(self._pieces, None)
            if self._piece is None:
                return None
        return self._piece

    def _looked_for(self, given: Given, first: int) -> Iterator[int | None]:
        assert self._rest is not None
        for wanted in _tuples(given.batch.slice(first, given.batch.count).to_arrow()):
            is_dated = wanted[_TIMESTAMP] != given.now_us
            number = next((number for number, row in self._rest if _is_same(row, wanted, is_dated)), None)
            yield number
            if number is None:
                self._next = self._stored
                return

    def _rows(self, first: int) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """All that is stored, from that row of the piece on. None may be missing."""
        assert self._piece is not None
        due = self._next
        for piece in chain([Kept(self._piece.numbers[first:], self._piece.rows.slice(first))], self._pieces):
            for number, row in zip(piece.numbers.tolist(), _tuples(piece.rows), strict=True):
                if number != due:
                    raise self._unknown(due)
                yield number, row
                due += 1
        if due < self._stored:
            raise self._unknown(due)

    def _read(self, places: Sequence[Placed]) -> Iterator[Kept]:
        for place in places:
            yield from self._writer.kept(self._partition, place)

    def _unknown(self, number: int) -> AttemptDiffers:
        return AttemptDiffers(
            f"message {number} that an earlier attempt has copied to partition {self._partition} of "
            f"{self._writer.topic} is not what is read now, or not there any more: both the source and the target were "
            "compacted in between, and nobody can tell what is copied already. Nothing more was. Mirror to another "
            "--prefix with another --checkpoint, or delete the topic at the target and use another --checkpoint",
            topic=self._writer.topic,
            partition=self._partition,
            number=number,
        )


def _is_same(row: tuple[Any, ...], wanted: tuple[Any, ...], is_dated: bool) -> bool:
    """Without its timestamp, if it has none at the source: then it got the time at which it was copied."""
    if is_dated:
        return row == wanted
    return all(one == other for at, (one, other) in enumerate(zip(row, wanted, strict=True)) if at != _TIMESTAMP)


def _tuples(rows: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    columns = [
        rows.column(name).cast(pa.int64()) if name in _TIMES else rows.column(name) for name in rows.schema.names
    ]
    return zip(*(column.to_pylist() for column in columns), strict=True)
