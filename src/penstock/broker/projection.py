"""Some columns of the log: frames made anew without the others, so that a reader of a few gets only those.

What is sent counts, not what is read: a page of narrow frames holds many rows. How much of the log one request may read
for it is bounded. All of this runs on a thread.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.batch import Batch
from penstock.codec import NONE
from penstock.columns import SCHEMA, Binary
from penstock.errors import InvalidFrame, InvalidInput, OffsetOutOfRange
from penstock.frame import Frame, narrow
from penstock.limits import KIB, MIB
from penstock.storage.log import Log

READ_BYTES_MAX = 16 * MIB
# More at once is slower: memory of that size is new every time.
_READ_AT_ONCE = MIB
# To make a small frame smaller costs more than to send it; so it does to take out a little.
_SMALL = KIB
_WASTE_MAX = 1 / 8


def check_columns(names: Sequence[str]) -> frozenset[str]:
    unknown = [name for name in names if name not in SCHEMA.names]
    if unknown:
        raise InvalidInput(
            f"a message has the columns {', '.join(SCHEMA.names)}, not {unknown[0][:50]!r}", argument="columns"
        )
    return frozenset(names)


def read_columns(
    log: Log, offset: int, until: int, bytes_max: int, columns: Collection[str]
) -> tuple[list[Frame], int]:
    """As `Log.read`: whole frames, at least one if there is any, and where to read on."""
    frames: list[Frame] = []
    sent = read = usual = 0
    # As long as there is room for one more of the usual size: what does not fit was read in vain.
    while offset < until and read < READ_BYTES_MAX and sent + sent // max(len(frames), 1) <= bytes_max:
        try:
            run = log.read(offset, bytes_max=max(_READ_AT_ONCE, usual), until=until)
        except OffsetOutOfRange:
            # Deleted meanwhile: whoever reads on hears of it.
            if frames:
                break
            raise
        for frame in run:
            part = _narrowed(frame, columns)
            if frames and sent + len(part.data) > bytes_max:
                return frames, offset
            frames.append(part)
            sent += len(part.data)
            read += len(frame.data)
            usual = len(frame.data)
            offset = frame.next_offset
        if not run:
            return frames, run.next_offset
    return frames, offset


def _narrowed(frame: Frame, columns: Collection[str]) -> Frame:
    # A value goes compressed, with whatever is in there with it, rather than alone as it is.
    if len(frame.data) < _SMALL or (frame.codec != NONE and "value" in columns):
        return frame
    try:
        batch = frame.batch(verify=False)
        if _unwanted(batch, columns) < frame.raw_length * _WASTE_MAX:
            return frame
        # What is made anew gets a checksum that is right, whatever is in it.
        frame.check_body()
        narrowed = narrow(frame, batch, columns)
    except InvalidFrame:
        # It is damaged, and the reader will find that where it is.
        return frame
    return narrowed if len(narrowed.data) < len(frame.data) else frame


def _unwanted(batch: Batch, columns: Collection[str]) -> int:
    """Bytes of what is not wanted."""
    size = sum(_size(column) for name, column in (("key", batch.key), ("value", batch.value)) if name not in columns)
    if batch.headers is not None and "headers" not in columns:
        size += batch.headers.offsets.nbytes + _size(batch.headers.names) + _size(batch.headers.values)
    for name, column in (
        ("timestamp", batch.timestamp_column),
        ("deliver_at", batch.deliver_at),
        ("expires_at", batch.expires_at),
        ("priority", batch.priority),
    ):
        if column is not None and name not in columns:
            size += column.nbytes
    return size


def _size(column: Binary | None) -> int:
    return 0 if column is None else column.offsets.nbytes + len(column.data)
