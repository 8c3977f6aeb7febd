"""One Parquet file of an archive, as columns: from an offset on, whatever version it was written by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
from crc32c import crc32c

from penstock.archive.layout import COLUMNS, NEEDED, FileEntry
from penstock.archive.place import Place
from penstock.errors import ArchiveCorrupt, InvalidInput

ROWS_MAX = 16_384
# The last bytes of a Parquet file: the length of the footer before them, and PAR1.
_TAIL = 8


class Read(NamedTuple):
    """Some rows, and the offset behind them."""

    data: pa.RecordBatch
    next_offset: int


def read_file(
    place: Place, entry: FileEntry, first: int, until: int, columns: Sequence[str] | None = None
) -> Iterator[Read]:
    """The messages with offsets [first, until) that the file has. FileNotFoundError if it is not there."""
    wanted = list(COLUMNS.names if columns is None else columns)
    unknown = [name for name in wanted if name not in COLUMNS.names]
    if unknown:
        raise InvalidInput(f"an archive has no column {unknown[0]!r}; it has {', '.join(COLUMNS.names)}")
    if not entry.rows:
        return
    with place.open(entry.path) as file, _damage(place, entry):
        if footer_crc(file) != entry.footer_crc:
            raise ArchiveCorrupt(f"{entry.path} of the archive {place.uri} is damaged: its footer", file=entry.path)
        opened = parquet.ParquetFile(file, page_checksum_verification=True)
        stored = opened.schema_arrow.names
        _check(opened, entry)
        groups = [group for group in range(opened.num_row_groups) if _overlaps(opened, group, first, until)]
        names = [name for name in COLUMNS.names if name in stored and (name in wanted or name == "offset")]
        for batch in opened.iter_batches(ROWS_MAX, row_groups=groups, columns=names):
            offsets = batch.column("offset").to_numpy()
            if (np.diff(offsets) <= 0).any():
                raise ArchiveCorrupt(f"{entry.path}: its offsets do not ascend", file=entry.path)
            start, stop = np.searchsorted(offsets, (first, until)).tolist()
            if start < stop:
                yield Read(_conformed(batch.slice(start, stop - start), entry, wanted), int(offsets[stop - 1]) + 1)


def has_unknown_columns(place: Place, entry: FileEntry) -> bool:
    """Whether a later version has written it. FileNotFoundError if it is not there."""
    if not entry.rows:
        return False
    with place.open(entry.path) as file, _damage(place, entry):
        return not set(parquet.ParquetFile(file).schema_arrow.names) <= set(COLUMNS.names)


def footer_crc(file: pa.NativeFile) -> int:
    """CRC-32C of the footer, its length and the magic behind it."""
    size = file.size()
    length = int.from_bytes(file.read_at(4, max(size - _TAIL, 0)), "little") + _TAIL
    return crc32c(file.read_at(min(length, size), max(size - length, 0)))


def _check(opened: parquet.ParquetFile, entry: FileEntry) -> None:
    missing = [name for name in NEEDED if name not in opened.schema_arrow.names]
    if missing:
        raise ArchiveCorrupt(f"{entry.path} has no column {missing[0]}", file=entry.path)
    if opened.metadata.num_rows != entry.rows:
        raise ArchiveCorrupt(
            f"{entry.path} has {opened.metadata.num_rows} messages; by the manifest it has {entry.rows}",
            file=entry.path,
        )


def _overlaps(opened: parquet.ParquetFile, group: int, first: int, until: int) -> bool:
    """By the statistics of its offsets; without any it has to be read."""
    found = opened.metadata.row_group(group)
    for number in range(found.num_columns):
        column = found.column(number)
        if column.path_in_schema == "offset" and column.statistics is not None and column.statistics.has_min_max:
            return bool(column.statistics.min < until and column.statistics.max >= first)
    return True


def _conformed(batch: pa.RecordBatch, entry: FileEntry, wanted: Sequence[str]) -> pa.RecordBatch:
    """With the columns that are wanted, of the types we know. Of a file that has them not, they are null."""
    count = batch.num_rows
    columns = []
    for name in wanted:
        kind = COLUMNS.field(name).type
        if name in batch.schema.names:
            column = batch.column(name)
            columns.append(column if column.type == kind else pc.cast(column, kind))
        elif name == "topic":
            columns.append(pa.array([entry.topic] * count, kind))
        elif name == "partition":
            columns.append(pa.array(np.full(count, entry.partition, np.int32)))
        else:
            columns.append(pa.nulls(count, kind))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([COLUMNS.field(name) for name in wanted]))


@contextmanager
def _damage(place: Place, entry: FileEntry) -> Iterator[None]:
    """What pyarrow says of a file that is not what it should be, with the name of the file."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ArchiveCorrupt(f"{entry.path} of the archive {place.uri} is damaged: {error}", file=entry.path) from error
