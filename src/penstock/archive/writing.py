"""Messages of one partition to Parquet files, one a day, and more than one if they grow large.

Nothing of it counts before the entries are committed. A writer that dies leaves files that nobody looks at, and that
`vacuum` removes.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterable
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from penstock.archive.layout import COLUMNS, COLUMNS_VERSION, NEEDED, VERSION_KEY, FileEntry, date_of, directory_of
from penstock.archive.place import Place
from penstock.archive.reading import footer_crc
from penstock.errors import InvalidInput
from penstock.limits import MIB

# Spark and its kin like files of 128 MiB and more.
FILE_BYTES = 128 * MIB
# A reader that wants a few messages reads one of these.
GROUP_BYTES = 16 * MIB
GROUP_ROWS = 131_072
_DAY_US = 86_400_000_000
_REQUIRED = (*NEEDED, "value")
_STORED = COLUMNS.with_metadata({VERSION_KEY: str(COLUMNS_VERSION).encode()})
_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": ["topic", "partition", "key", "priority"],
    # Offsets and times go up in small steps.
    "column_encoding": dict.fromkeys(("offset", "append_time", "timestamp"), "DELTA_BINARY_PACKED"),
    "write_page_checksum": True,
}


class PartitionWriter:
    """Takes batches of one partition in the order of their offsets, from `first_offset` on."""

    def __init__(
        self,
        archive: str | os.PathLike[str] | Place,
        *,
        topic: str,
        topic_id: str,
        partition: int,
        first_offset: int,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._place = archive if isinstance(archive, Place) else Place(archive)
        self._place.check_writable()
        self._topic = topic
        self._topic_id = topic_id
        self._partition = partition
        self._file_bytes = file_bytes
        # Everything before it is in an entry.
        self._reached = first_offset
        self._next_offset = first_offset
        self._entries: list[FileEntry] = []
        self._file: _File | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """With `offset`, `append_time` and `value`, and any other columns of a message; others are passed over."""
        if not batch.num_rows:
            return
        rows = self._conformed(batch)
        offsets = rows.column("offset").to_numpy()
        if offsets[0] < self._next_offset or (np.diff(offsets) <= 0).any():
            raise InvalidInput(f"offsets must ascend, from {self._next_offset} on; the batch starts at {offsets[0]}")
        times = rows.column("append_time").cast(pa.int64()).to_numpy()
        days = times // _DAY_US
        bounds = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
        for start, stop in itertools.pairwise(bounds):
            self._write(rows.slice(start, stop - start), offsets[start:stop], times[start:stop])

    def _write(self, rows: pa.RecordBatch, offsets: np.ndarray[Any, Any], times: np.ndarray[Any, Any]) -> None:
        """Rows of one day."""
        date = date_of(int(times[0]))
        if self._file is not None and (self._file.date != date or self._file.size >= self._file_bytes):
            self._close(self._next_offset)
        if self._file is None:
            name = f"{self._partition:05d}-{self._reached:020d}-{secrets.token_hex(8)}.parquet"
            self._file = _File(self._place, f"{directory_of(self._topic, date)}/{name}", date)
        self._file.add(rows, int(times[0]), int(times[-1]))
        self._next_offset = int(offsets[-1]) + 1

    def finish(self, end_offset: int) -> list[FileEntry]:
        """On disk. The entries cover all offsets from the first one up to this, whether there were messages or not."""
        if end_offset < self._next_offset:
            raise InvalidInput(f"the messages go up to {self._next_offset}, and can't end at {end_offset}")
        if self._file is not None:
            self._close(end_offset)
        elif end_offset > self._reached:
            self._entries.append(self._entry(end_offset))
        return self._entries

    def abort(self) -> None:
        """Removes what was written. Without it, or after a crash, `vacuum` does."""
        if self._file is not None:
            self._file.discard()
            self._file = None
        for entry in self._entries:
            if entry.path:
                self._place.remove(entry.path)
        self._entries = []

    def _close(self, end_offset: int) -> None:
        assert self._file is not None
        file, self._file = self._file, None
        file.close()
        self._entries.append(self._entry(end_offset, file))
        self._reached = end_offset

    def _entry(self, end_offset: int, file: _File | None = None) -> FileEntry:
        return FileEntry(
            path=file.path if file else "",
            topic=self._topic,
            topic_id=self._topic_id,
            partition=self._partition,
            first_offset=self._reached,
            end_offset=end_offset,
            rows=file.rows if file else 0,
            min_append_time=file.earliest_us if file else 0,
            max_append_time=file.latest_us if file else 0,
            bytes=file.size if file else 0,
            footer_crc=file.footer_crc if file else 0,
        )

    def _conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        count, names = batch.num_rows, batch.schema.names
        columns = []
        for field in COLUMNS:
            if field.name == "topic":
                columns.append(pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), [self._topic]))
            elif field.name == "partition":
                columns.append(pa.array(np.full(count, self._partition, np.int32)))
            elif field.name in names:
                columns.append(batch.column(field.name))
            elif field.name in _REQUIRED:
                raise InvalidInput(f"an archive needs the column {field.name}; there are {', '.join(names)}")
            else:
                columns.append(pa.nulls(count, field.type))
            try:
                columns[-1] = columns[-1].cast(field.type)
            except pa.ArrowException as error:
                raise InvalidInput(f"column {field.name} is no {field.type}: {error}", column=field.name) from error
            if field.name in NEEDED and columns[-1].null_count:
                raise InvalidInput(f"column {field.name} has nulls", column=field.name)
        return pa.RecordBatch.from_arrays(columns, schema=COLUMNS)


class _File:
    """One that is being written: rows are gathered to groups."""

    def __init__(self, place: Place, path: str, date: str) -> None:
        self.path = path
        self.date = date
        self.rows = 0
        self.earliest_us = self.latest_us = 0
        # So far, as far as it is written.
        self.size = 0
        self.footer_crc = 0
        self._place = place
        self._file: IO[bytes] = place.create(path)
        self._writer = parquet.ParquetWriter(self._file, _STORED, **_OPTIONS)
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = self._gathered_bytes = 0

    def add(self, rows: pa.RecordBatch, earliest_us: int, latest_us: int) -> None:
        if not self.rows:
            self.earliest_us = earliest_us
        self.latest_us = latest_us
        self.rows += rows.num_rows
        self._gather(rows)

    def _gather(self, rows: pa.RecordBatch) -> None:
        half = rows.num_rows // 2
        if rows.nbytes > GROUP_BYTES and half:
            # A reader has a group in memory, however large the batches were that it was made of.
            self._gather(rows.slice(0, half))
            self._gather(rows.slice(half))
            return
        self._gathered.append(rows)
        self._gathered_rows += rows.num_rows
        self._gathered_bytes += rows.nbytes
        if self._gathered_bytes >= GROUP_BYTES or self._gathered_rows >= GROUP_ROWS:
            self._write()

    def _write(self) -> None:
        if self._gathered:
            with self._place.translated(self.path):
                table = pa.Table.from_batches(self._gathered)
                self._writer.write_table(table, row_group_size=GROUP_ROWS)
                self.size = self._file.tell()
        self._gathered, self._gathered_rows, self._gathered_bytes = [], 0, 0

    def close(self) -> None:
        """On disk, and with its size and checksum known."""
        self._write()
        with self._place.translated(self.path):
            self._writer.close()
        self._place.sync(self.path, self._file)
        self.size = self._file.tell()
        self._file.close()
        with self._place.open(self.path) as written:
            self.footer_crc = footer_crc(written)

    def discard(self) -> None:
        self._writer.close()
        self._file.close()
        self._place.remove(self.path)


def write_files(
    archive: str | os.PathLike[str] | Place,
    batches: Iterable[pa.RecordBatch],
    *,
    topic: str,
    topic_id: str,
    partition: int,
    first_offset: int,
    end_offset: int,
    file_bytes: int = FILE_BYTES,
) -> list[FileEntry]:
    """All of a range of one partition to files; the entries to commit. If it fails, nothing is left."""
    writer = PartitionWriter(
        archive,
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        first_offset=first_offset,
        file_bytes=file_bytes,
    )
    try:
        for batch in batches:
            writer.write(batch)
        return writer.finish(end_offset)
    except BaseException:
        writer.abort()
        raise
