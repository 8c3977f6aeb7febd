"""What many tests of the log need: making frames, reading everything back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.batch import Batch
from penstock.codec import NONE
from penstock.frame import Frame
from penstock.storage.files import Files
from penstock.storage.log import Log, LogSettings
from penstock.testing import ManualClock

SMALL_SEGMENTS = LogSettings(segment_bytes_max=4096)


class Row(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    append_time: int


def frame_of(
    *values: bytes | None, keys: Sequence[bytes | None] | None = None, codec: int = NONE, now_us: int = 1_000
) -> Frame:
    return Frame.of(Batch.from_columns(list(values), keys=keys, now_us=now_us), codec=codec)


def open_log(files: Files, clock: ManualClock | None = None, settings: LogSettings = SMALL_SEGMENTS) -> Log:
    return Log.open(files, clock=clock or ManualClock(), settings=settings)


def rows_of(log: Log, offset: int | None = None, *, bytes_max: int = 3000, until: int | None = None) -> list[Row]:
    """Every message from `offset` on, as a consumer would see them: decoded and trimmed to the bounds."""
    at = log.start_offset if offset is None else offset
    end = log.synced_offset if until is None else until
    rows = []
    while at < end:
        run = log.read(at, bytes_max=bytes_max, until=until)
        for frame in run:
            batch = frame.batch()
            columns = zip(
                frame.offsets(batch).tolist(),
                batch.keys(),
                batch.values(),
                frame.append_times(batch).tolist(),
                strict=True,
            )
            rows += [Row(*row) for row in columns if at <= row[0] < end]
        if not run:
            break
        assert run.next_offset > at, "a read must get on"
        at = run.next_offset
    return rows


def values_of(log: Log, offset: int | None = None, *, until: int | None = None) -> list[bytes | None]:
    return [row.value for row in rows_of(log, offset, until=until)]


def fill(log: Log, count: int, *, size: int = 100, key_count: int = 7, start: int = 0) -> list[bytes]:
    """`count` single messages of about `size` bytes, synced; returns their values."""
    values = [b"%d-" % i + b"x" * size for i in range(start, start + count)]
    for i, value in enumerate(values):
        log.append([frame_of(value, keys=[b"k%d" % ((start + i) % key_count)])])
    log.sync()
    return values
