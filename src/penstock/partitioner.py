"""Which partition a message goes to.

With a key: CRC-32C of the key (Castagnoli; initial value and final exclusive-or 0xFFFFFFFF, reflected, as in iSCSI),
modulo the number of partitions. Every language has it, and the same key goes to the same partition for as long as
the topic keeps its number of partitions. Without a key: a run of messages to one partition, the next run to the next
one, beginning at any of them; in a cluster, partitions without a leader that can be reached are passed over.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from penstock.batch import Batch, bits
from penstock.columns import Binary

# So many messages without a key go to one partition before the next one gets some: enough for frames that are worth
# their cost, and few enough for all partitions to get their share soon.
UNKEYED_RUN = 100
# Keys up to this length are hashed together, a byte of each at a time; longer ones one by one.
_TOGETHER_MAX = 64
_POLYNOMIAL = 0x82F63B78


def _table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table


_TABLE = _table()


def partition_of(key: bytes, partitions: int) -> int:
    return crc32c(key) % partitions


def key_hashes(column: Binary, start: int, count: int) -> npt.NDArray[np.uint32]:
    """CRC-32C of `count` keys from row `start` on, without looking at them one by one."""
    offsets = column.offsets[start : start + count + 1]
    starts, lengths = offsets[:-1], np.diff(offsets)
    data = np.frombuffer(column.data, np.uint8)
    hashes = np.full(count, 0xFFFFFFFF, np.uint32)
    rows = np.flatnonzero(lengths <= _TOGETHER_MAX)
    at = 0
    while True:
        rows = rows[lengths[rows] > at]
        if not len(rows):
            break
        state = hashes[rows]
        hashes[rows] = _TABLE[(state ^ data[starts[rows] + at]) & 0xFF] ^ (state >> 8)
        at += 1
    hashes = ~hashes
    for row in np.flatnonzero(lengths > _TOGETHER_MAX).tolist():
        hashes[row] = crc32c(column.data[int(offsets[row]) : int(offsets[row + 1])])
    return hashes


def partitions_of(batch: Batch, partitions: int, unkeyed: int) -> npt.NDArray[np.int64]:
    """The partition of each row; rows without a key go to `unkeyed`."""
    if batch.key is None or partitions == 1:
        return np.full(batch.count, unkeyed, np.int64)
    chosen = (key_hashes(batch.key, batch.start, batch.count) % np.uint32(partitions)).astype(np.int64)
    if batch.key.validity is not None:
        chosen[~bits(batch.key.validity, batch.start, batch.count)] = unkeyed
    return chosen


def split(batch: Batch, chosen: npt.NDArray[np.int64]) -> list[tuple[int, npt.NDArray[np.int64], Batch]]:
    """For each partition: its number, the rows it gets in their order, and those rows as a batch."""
    if (chosen == chosen[0]).all():
        return [(int(chosen[0]), np.arange(batch.count), batch)]
    # Brought into order once, and then cut: taking the rows of each partition by itself takes several times as long.
    order = np.argsort(chosen, kind="stable")
    together = batch.rows(order)
    numbers, starts = np.unique(chosen[order], return_index=True)
    bounds = [*starts.tolist(), batch.count]
    return [
        (number, order[start:stop], together.slice(start, stop))
        for number, start, stop in zip(numbers.tolist(), bounds, bounds[1:], strict=False)
    ]
