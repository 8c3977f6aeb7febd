"""How a batch is cut so that each part of it fits into a frame."""

from __future__ import annotations

from penstock.batch import Batch
from penstock.limits import Limits


def size_of(batch: Batch) -> int:
    """Bytes of keys, values and headers, with what the columns around them may add."""
    size = 48 * batch.count
    for column in (batch.key, batch.value):
        if column is not None:
            size += int(column.offsets[batch.start + batch.count] - column.offsets[batch.start])
    if batch.headers is not None:
        first, last = batch.headers.offsets[batch.start], batch.headers.offsets[batch.start + batch.count]
        for part in (batch.headers.names, batch.headers.values):
            size += int(part.offsets[last] - part.offsets[first]) + 16 * int(last - first)
    return size


def cuts(batch: Batch, limits: Limits) -> list[tuple[int, int]]:
    """Halves of halves, until each fits. There is nothing to gather: the larger, the faster."""
    todo, found = [(0, batch.count)], []
    while todo:
        start, stop = todo.pop()
        is_large = size_of(batch.slice(start, stop)) > limits.frame_bytes_max // 2
        if stop - start > 1 and (is_large or stop - start > limits.batch_messages_max):
            middle = (start + stop) // 2
            todo += [(middle, stop), (start, middle)]
        else:
            found.append((start, stop))
    return found
