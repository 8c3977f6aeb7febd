"""A task's rows of one batch, as files of a Delta table: on an executor, and beside the table until they are committed.

A task that fails removes what it wrote. One that is killed, or done again, leaves files that are never named, and that
a full vacuum of the table removes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInput
from penstock.spark.pipeline.delta_files import TableFile, TaskFiles
from penstock.spark.telling import telling

FILES = "path STRING, bytes LONG, modified_ms LONG, rows LONG, partition STRING"
_SCHEMA = pa.schema(
    {"path": pa.string(), "bytes": pa.int64(), "modified_ms": pa.int64(), "rows": pa.int64(), "partition": pa.string()}
)
# Since 1970.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896


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
    """If it fails, nothing is left."""
    files = TaskFiles(Path(table), partition_by)
    try:
        for batch in batches:
            files.add(_told(batch, partition_by))
        return files.finish()
    except BaseException:
        files.discard()
        raise


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
