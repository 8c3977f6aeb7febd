"""A task's rows of one batch, as files of a Delta table: on an executor, and beside the table until they are committed.

A task that is done again writes other files. Those of the first time are never named, and the table's vacuum removes
them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.errors import InvalidInput
from penstock.spark.telling import telling

FILES = "path STRING, bytes LONG, modified_ms LONG, rows LONG, partition STRING"
_SCHEMA = pa.schema(
    {"path": pa.string(), "bytes": pa.int64(), "modified_ms": pa.int64(), "rows": pa.int64(), "partition": pa.string()}
)
_ROWS_PER_GROUP = 128 * 1024
_PARTITIONS_MAX = 10_000
# Since 1970.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896


@dataclass(frozen=True)
class TableFile:
    """`path` begins at the table's."""

    path: str
    bytes: int
    modified_ms: int
    rows: int
    partition: Mapping[str, str | None]


def file_of(row: Any) -> TableFile:
    return TableFile(row["path"], row["bytes"], row["modified_ms"], row["rows"], json.loads(row["partition"]))


def writing(
    table: str, partition_by: tuple[str, ...]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: rows in, FILES out."""

    @telling
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = [
            vars(each) | {"partition": json.dumps(each.partition)} for each in written(batches, table, partition_by)
        ]
        yield pa.RecordBatch.from_pylist(files, schema=_SCHEMA)

    return write


def written(batches: Iterator[pa.RecordBatch], table: str, partition_by: tuple[str, ...]) -> list[TableFile]:
    first = next(batches, None)
    if first is None:
        return []
    first, root = _told(first, partition_by), Path(table)
    partitioning = ds.partitioning(pa.schema([(name, pa.string()) for name in partition_by]), flavor="hive")
    files: list[TableFile] = []

    def visit(file: Any) -> None:
        place = Path(file.path)
        about, path = place.stat(), place.relative_to(root).as_posix()
        keys = ds.get_partition_keys(partitioning.parse(f"/{path}"))
        values = {name: keys[name] for name in partition_by}
        files.append(TableFile(path, about.st_size, about.st_mtime_ns // 1_000_000, file.metadata.num_rows, values))

    ds.write_dataset(
        chain([first], (_told(batch, partition_by) for batch in batches)),
        root,
        schema=first.schema,
        format="parquet",
        partitioning=partitioning,
        basename_template=f"part-{uuid4()}-{{i}}.parquet",
        existing_data_behavior="overwrite_or_ignore",
        min_rows_per_group=_ROWS_PER_GROUP,
        max_partitions=_PARTITIONS_MAX,
        file_visitor=visit,
    )
    return files


def _told(batch: pa.RecordBatch, partition_by: tuple[str, ...]) -> pa.RecordBatch:
    """Partitions as Delta's log has them: by text. There is none of the empty one: it is that of null."""
    for name in partition_by:
        text = _text(name, batch.column(name))
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, pa.field(name, pa.string()), pc.if_else(pc.equal(text, ""), None, text))
    return batch


def _text(name: str, column: pa.Array) -> pa.Array:
    if not pa.types.is_temporal(column.type):
        return column.cast(pa.string())
    if pa.types.is_date(column.type) or column.type.tz is None:
        _check_years(name, column)
        return column.cast(pa.string())
    # In UTC, as it is told: whether it is of a year goes by that, too.
    moment = column.cast(pa.timestamp("us"))
    _check_years(name, moment)
    # Without its zone, a reader would take it for a time in its own.
    return pc.binary_join_element_wise(pc.strftime(moment, "%Y-%m-%dT%H:%M:%S"), "Z", "")


def _check_years(name: str, column: pa.Array) -> None:
    """No reader takes others, and a table whose log has one can't be opened any more."""
    days = column.cast(pa.date32(), safe=False).cast(pa.int32())
    if pc.any(pc.or_(pc.less(days, _FIRST_DAY), pc.greater(days, _LAST_DAY))).as_py():
        raise InvalidInput(
            f"the column {name}, by which the delta table is partitioned, has a time that is not in the years 1 to 9999"
        )
