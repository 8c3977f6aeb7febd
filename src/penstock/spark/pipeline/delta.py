"""Delta tables without Delta Lake's package for Spark: executors write the files, and `deltalake` commits them here.

That package is made for one version of Spark, often months after it. `deltalake` is not. With each batch the table has
its number, under the id of the query, as Delta Lake's own sink does it: a batch that is done again is seen to be there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame

from penstock.errors import InvalidInput
from penstock.spark.pipeline.delta_files import TableFile
from penstock.spark.pipeline.delta_task import FILES, file_of, writing
from penstock.spark.pipeline.session import check_deltalake
from penstock.spark.pipeline.spec import TableSink
from penstock.spark.telling import telling

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema

_DIVIDES = frozenset(("string", "byte", "short", "integer", "long", "boolean", "date", "timestamp", "timestamp_ntz"))
_FLAT = _DIVIDES | {"float", "double", "binary"}
_NOT_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")
# By mapInArrow, Spark names each column, and takes these for something else.
_NOT_IN_COLUMNS = re.compile(r"[.`]")
_NOT_IN_PATHS = re.compile(r"[/%\\]")
# What a commit is written to before it gets its name.
_STAGED = re.compile(r"\.tmp$|#\d+$")
# What can be in a table beside rows that are added, and needs no more of who adds them.
_FEATURES = frozenset(("appendOnly", "invariants", "timestampNtz"))


class DeltaSink:
    """What is wrong with the table, or with rows for it, is told before there are any."""

    def __init__(self, sink: TableSink, frame: DataFrame) -> None:
        check_deltalake()
        self._root = _local(sink.path)
        _check_names(frame.columns)
        self._by = _as_written(sink.partition_by, frame.columns)
        self._fields = _fields(json.loads(frame.schema.json()))
        self._replaces = sink.mode == "complete"
        _check_columns(self._fields, self._by)
        self._table()

    @telling
    def write(self, rows: DataFrame, batch: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        table = self._table() or self._created()
        last = table.transaction_version(query)
        if last is not None and last >= batch:
            # Its rows are there. What Spark counts or joins is in a state of its own, which is made by reading them.
            rows.write.format("noop").mode("overwrite").save()
            return
        found = rows.mapInArrow(writing(str(self._root), self._by), FILES).collect()
        files = [file_of(row) for row in found]
        self._check_files(files)
        if self._replaces:
            # Also what others made of its files meanwhile: deltalake replaces the files that this handle knows.
            table.update_incremental()
        self._commit(table, query, batch, files)

    def _check_files(self, files: list[TableFile]) -> None:
        for each in files:
            try:
                size = (self._root / each.path).stat().st_size
            except FileNotFoundError:
                size = None
            if size != each.bytes:
                there = "is not there" if size is None else f"has {size} bytes, not {each.bytes},"
                raise InvalidInput(
                    f"{each.path}, which an executor wrote, {there} where the driver looks: nothing is committed. "
                    f"The delta table {self._root} must be in a directory that all machines share"
                )

    def _commit(self, table: DeltaTable, query: str, batch: int, files: list[TableFile]) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction, RemoveAction

        if not files and not self._replaces:
            return
        added: list[AddAction | RemoveAction] = [
            AddAction(
                each.path, each.bytes, each.partition, each.modified_ms, True, json.dumps({"numRecords": each.rows})
            )
            for each in files
        ]
        table.create_write_transaction(
            added,
            "overwrite" if self._replaces else "append",
            # That of the table: when all is replaced, its schema would be, too.
            table.schema(),
            list(self._by),
            commit_properties=CommitProperties(app_transactions=[Transaction(query, batch)]),
        )

    def _table(self) -> DeltaTable | None:
        """None if there is none yet."""
        from deltalake import DeltaTable

        if not self._root.is_dir() or not DeltaTable.is_deltatable(str(self._root)):
            if self._root.exists() and not _is_empty(self._root):
                raise InvalidInput(f"{self._root} is there already, and is not a delta table")
            return None
        table = DeltaTable(str(self._root))
        self._check_features(table)
        self._check_fits(table)
        return table

    def _created(self) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable.create(str(self._root), self._schema(), mode="ignore", partition_by=list(self._by))

    def _schema(self) -> Schema:
        from deltalake import Schema

        return Schema.from_json(json.dumps({"type": "struct", "fields": list(self._fields.values())}))

    def _check_features(self, table: DeltaTable) -> None:
        versions, settings = table.protocol(), table.metadata().configuration
        needed = set(versions.writer_features or ()) - _FEATURES
        needed |= {name for name in settings if name.startswith("delta.constraints.")}
        if versions.min_writer_version not in (1, 2, 7):
            needed.add(f"version {versions.min_writer_version} of the protocol for writers")
        for name, field in _all_fields(json.loads(table.schema().to_json())):
            needed |= {f"{name} {key}" for key in field["metadata"] if "delta." in key}
            needed |= set() if field["nullable"] else {f"{name} NOT NULL"}
        if self._replaces and settings.get("delta.appendOnly", "").lower() == "true":
            raise InvalidInput(
                f"the delta table {self._root} can only be added to (delta.appendOnly), and sink.mode is complete"
            )
        if needed:
            raise InvalidInput(
                f"the delta table {self._root} has {', '.join(sorted(needed))}, which only Delta Lake's own package "
                "keeps to: name it in the pipeline's file (spark: {spark.jars.packages: 'io.delta:delta-spark_…'})"
            )

    def _check_fits(self, table: DeltaTable) -> None:
        there = _fields(json.loads(table.schema().to_json()))
        by = tuple(table.metadata().partition_columns)
        if by != self._by:
            raise InvalidInput(
                f"the delta table {self._root} is partitioned by {', '.join(by) or 'nothing'}, and "
                f"sink.partition_by is {', '.join(self._by) or 'nothing'}"
            )
        for name, field in self._fields.items():
            if name not in there:
                raise InvalidInput(
                    f"the delta table {self._root} has no column {name}; it has {', '.join(there)}. Add it to the "
                    "table, or leave it out"
                )
            if field["type"] != there[name]["type"]:
                raise InvalidInput(
                    f"the column {name} is {_told(field['type'])}, and in the delta table {self._root} it is "
                    f"{_told(there[name]['type'])}: cast it"
                )


def _is_empty(root: Path) -> bool:
    """But for the log of a table of which nothing was written yet: the process was killed that began it."""
    if not root.is_dir():
        return False
    log = root / "_delta_log"
    if any(each != log for each in root.iterdir()):
        return False
    return not log.exists() or all(_STAGED.search(each.name) for each in log.iterdir())


def _local(path: str) -> Path:
    parts = urlsplit(path)
    if parts.scheme not in ("", "file"):
        raise InvalidInput(
            f"a delta table at {path} is written by Delta Lake's own package, which is named in the pipeline's file "
            "(spark: {spark.jars.packages: 'io.delta:delta-spark_…'}). Without it, the table is in a directory"
        )
    return Path(unquote(parts.path) if parts.scheme else path).absolute()


def _as_written(named: tuple[str, ...], columns: list[str]) -> tuple[str, ...]:
    """Spark does not mind capitals, and Delta's log does."""
    known = {name.lower(): name for name in columns}
    return tuple(known[name.lower()] for name in named)


def _fields(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in _plain(schema)["fields"]}


def _all_fields(type: Any, inside: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Also those within others, which are called by both names."""
    if not isinstance(type, dict):
        return
    for field in type.get("fields", ()):
        yield inside + field["name"], field
        yield from _all_fields(field["type"], f"{inside}{field['name']}.")
    for part in ("elementType", "keyType", "valueType"):
        yield from _all_fields(type.get(part), inside)


def _plain(part: Any) -> Any:
    """Everything may be null, as in all tables that streams write; and without what Spark notes beside."""
    if isinstance(part, list):
        return [_plain(each) for each in part]
    if not isinstance(part, dict):
        return part
    free = {"nullable": True, "containsNull": True, "valueContainsNull": True, "metadata": {}}
    return {name: free.get(name, _plain(value)) for name, value in part.items()}


def _check_names(columns: list[str]) -> None:
    known: dict[str, str] = {}
    for name in columns:
        if (other := known.get(name.lower())) is not None:
            both = f"the name {name}" if other == name else f"the names {other} and {name}, and capitals do not count"
            raise InvalidInput(f"two columns for a delta table have {both}: give one of them another (AS …)")
        if _NOT_IN_COLUMNS.search(name):
            raise InvalidInput(f"the column '{name}' can't be in a delta table: it has a . or a ` in its name")
        known[name.lower()] = name


def _check_columns(fields: dict[str, dict[str, Any]], partition_by: tuple[str, ...]) -> None:
    for name, field in fields.items():
        if _NOT_IN_NAMES.search(name):
            raise InvalidInput(
                f"the column '{name}' can't be in a delta table: no spaces nor any of ,;{{}}()= in names"
            )
        if (unknown := _unknown(field["type"])) is not None:
            raise InvalidInput(f"the column {name} has the type {unknown}, which delta tables do not have: cast it")
    for name in partition_by:
        if _NOT_IN_PATHS.search(name):
            raise InvalidInput(f"sink.partition_by: the name {name} has a / or a %, which is in no name of a partition")
        if not isinstance(fields[name]["type"], str) or fields[name]["type"] not in _DIVIDES:
            raise InvalidInput(f"sink.partition_by: a delta table has no partitions by {_told(fields[name]['type'])}")
    if len(partition_by) == len(fields):
        raise InvalidInput("sink.partition_by has all columns: there must be one more")


def _unknown(type: Any) -> str | None:
    """The first of it that Delta does not know."""
    if isinstance(type, str):
        return None if type in _FLAT or type.startswith("decimal") else type
    inner = [field["type"] for field in type.get("fields", ())]
    inner += [type[name] for name in ("elementType", "keyType", "valueType") if name in type]
    return next((found for each in inner if (found := _unknown(each)) is not None), None)


def _told(type: Any) -> str:
    return type if isinstance(type, str) else str(type.get("type"))
