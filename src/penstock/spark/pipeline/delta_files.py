"""Parquet files of one task, one for each partition of a Delta table: rows are gathered to groups.

Gathered are less than GROUP_BYTES and GROUP_ROWS for a file, and GATHERED_BYTES for all of them, beside the batch that
Spark gives: however wide rows are, and however many partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as parquet

from penstock.errors import InvalidInput
from penstock.limits import MIB

# As in archives.
GROUP_BYTES = 16 * MIB
GROUP_ROWS = 131_072
GATHERED_BYTES = 64 * MIB
# A process may often have 1024 open.
OPEN_MAX = 500
PARTITIONS_MAX = 10_000

Values = tuple[str | None, ...]


@dataclass(frozen=True)
class TableFile:
    """`path` begins at the table's."""

    path: str
    bytes: int
    modified_ms: int
    rows: int
    partition: Mapping[str, str | None]


class TaskFiles:
    """Of one attempt: another one has other names."""

    def __init__(self, root: Path, partition_by: tuple[str, ...]) -> None:
        self._root = root
        self._by = partition_by
        self._attempt = uuid4()
        self._parts: dict[Values, _Part] = {}
        self._files: list[_File] = []
        self._open = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Columns of partitions are text."""
        for values, rows in _divided(batch, self._by):
            part = self._parts.get(values)
            if part is None:
                part = self._parts[values] = self._new_part(values)
            for piece in _pieces(rows):
                part.gather(piece)
                if part.is_full:
                    self._write(part)
        if sum(part.bytes for part in self._parts.values()) >= GATHERED_BYTES:
            for part in self._parts.values():
                self._write(part)

    def finish(self) -> list[TableFile]:
        """On disk, and whole."""
        for part in self._parts.values():
            self._write(part)
            self._close(part)
        return [file.entry(self._root) for file in self._files]

    def discard(self) -> None:
        """Removes what was written. Without it, or after a crash, a full vacuum of the table does."""
        for file in self._files:
            file.discard()

    def _new_part(self, values: Values) -> _Part:
        if len(self._parts) == PARTITIONS_MAX:
            raise InvalidInput(
                f"a task has rows for more than {PARTITIONS_MAX:,} partitions of the delta table: partition it by less "
                f"than {', '.join(self._by)}"
            )
        return _Part(dict(zip(self._by, values, strict=True)))

    def _write(self, part: _Part) -> None:
        if not part.rows:
            return
        if part.file is None:
            name = f"part-{self._attempt}-{len(self._files)}.parquet"
            part.file = _File(self._root / _directory(part.values) / name, part.values)
            self._files.append(part.file)
            self._open += 1
        part.file.write(pa.Table.from_batches(part.taken()))
        if self._open > OPEN_MAX:
            self._close(part)

    def _close(self, part: _Part) -> None:
        """Rows that it gets later go to another file."""
        if part.file is not None:
            part.file.close()
            part.file = None
            self._open -= 1


class _Part:
    """One partition. `file` is the one that is being written."""

    def __init__(self, values: Mapping[str, str | None]) -> None:
        self.values = values
        self.file: _File | None = None
        self._gathered: list[pa.RecordBatch] = []
        self.rows = self.bytes = 0

    @property
    def is_full(self) -> bool:
        return self.bytes >= GROUP_BYTES or self.rows >= GROUP_ROWS

    def gather(self, rows: pa.RecordBatch) -> None:
        self._gathered.append(rows)
        self.rows += rows.num_rows
        self.bytes += rows.nbytes

    def taken(self) -> list[pa.RecordBatch]:
        taken, self._gathered, self.rows, self.bytes = self._gathered, [], 0, 0
        return taken


class _File:
    def __init__(self, place: Path, values: Mapping[str, str | None]) -> None:
        self._place = place
        self._values = values
        self._rows = 0
        self._file: pa.NativeFile | None = None
        self._writer: parquet.ParquetWriter | None = None

    def write(self, rows: pa.Table) -> None:
        if self._writer is None:
            self._place.parent.mkdir(parents=True, exist_ok=True)
            self._file = pa.OSFile(str(self._place), "wb")
            self._writer = parquet.ParquetWriter(self._file, rows.schema)
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._rows += rows.num_rows

    def close(self) -> None:
        assert self._file is not None
        assert self._writer is not None
        self._writer.close()
        self._file.close()

    def discard(self) -> None:
        # What can't be written any more does not keep it from being removed.
        for each in (self._writer, self._file):
            with suppress(Exception):
                if each is not None:
                    each.close()
        with suppress(FileNotFoundError):
            self._place.unlink()

    def entry(self, root: Path) -> TableFile:
        about = self._place.stat()
        path = self._place.relative_to(root).as_posix()
        return TableFile(path, about.st_size, about.st_mtime_ns // 1_000_000, self._rows, self._values)


def _divided(batch: pa.RecordBatch, by: tuple[str, ...]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Each partition's rows, without the columns that all of them have in common."""
    if not by:
        yield (), batch
    if not by or not batch.num_rows:
        return
    names = [f"by{number}" for number in range(len(by))]
    keys = pa.table([*(batch.column(name) for name in by), pa.array(range(batch.num_rows))], [*names, "row"])
    groups = keys.group_by(names, use_threads=False).aggregate([("row", "list")])
    rest = batch.select([name for name in batch.schema.names if name not in by])
    columns = [groups.column(name).to_pylist() for name in names]
    for values, rows in zip(zip(*columns, strict=True), groups.column("row_list").chunk(0), strict=True):
        yield values, rest.take(rows.values)


def _pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A reader has a group in memory, however large the batches were that it was made of."""
    half = rows.num_rows // 2
    if half and rows.nbytes > GROUP_BYTES:
        yield from _pieces(rows.slice(0, half))
        yield from _pieces(rows.slice(half))
    elif rows.num_rows:
        yield rows


def _directory(values: Mapping[str, str | None]) -> str:
    """As Hive has it, and all that read it."""
    if not values:
        return ""
    form = ds.partitioning(pa.schema([(name, pa.string()) for name in values]), flavor="hive")
    fields = {name: pc.field(name) for name in values}
    each = [fields[name].is_null() if value is None else fields[name] == value for name, value in values.items()]
    directory: str = form.format(reduce(lambda one, other: one & other, each))[0]
    return directory
