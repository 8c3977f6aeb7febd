"""Which partition a producer's message goes to: as the broker would choose (ADR and `broker/partitioner.py`).

With a key: CRC-32C of the key modulo the number of partitions. A producer must know it itself, since its sequence
numbers count the messages of one partition.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from penstock.batch import Batch

Ints = npt.NDArray[np.int64]


def partition_of(key: bytes, partitions: int) -> int:
    return crc32c(key) % partitions


def split(batch: Batch, partitions: int, unkeyed: int) -> list[tuple[int, Ints, Batch]]:
    """For each partition: its number, the rows it gets in their order, and those rows as a batch."""
    if batch.key is None or partitions == 1:
        return [(unkeyed if partitions > 1 else 0, np.arange(batch.count), batch)]
    keys = batch.keys()
    chosen = np.array([unkeyed if key is None else partition_of(key, partitions) for key in keys], np.int64)
    numbers = np.unique(chosen).tolist()
    if len(numbers) == 1:
        return [(numbers[0], np.arange(batch.count), batch)]
    found = []
    for number in numbers:
        rows = np.flatnonzero(chosen == number)
        found.append((number, rows, batch.rows(rows)))
    return found
