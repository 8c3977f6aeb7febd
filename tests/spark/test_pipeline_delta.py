"""Pipelines into Delta tables, on real Spark, without Delta Lake's package for it. They are read back by deltalake."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.client.blocking import Client
from penstock.errors import InvalidInput, SparkMissing
from penstock.spark.pipeline import delta_files, session
from penstock.spark.pipeline.delta import DeltaSink
from penstock.spark.pipeline.delta_files import GROUP_BYTES, TableFile, TaskFiles
from penstock.spark.pipeline.delta_task import written
from penstock.spark.pipeline.failures import cause_of
from penstock.spark.pipeline.spec import TableSink
from spark.pipeline_runs import Run

ODD = ["plain", "with space", "ü/x%=&", "c:d+e", "", None, "__HIVE_DEFAULT_PARTITION__x"]


def rows_of(path: Path, *by: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: [str(row[name]) for name in by])


def publish(q: Client, topic: str, *rows: dict[str, Any]) -> None:
    for row in rows:
        q.publish(topic, json.dumps(row))


ORDERS = """
    name: orders-table
    source: {{topics: {topic}, decode: json, schema: "id INT, city STRING, total DECIMAL(10, 2)", rows_per_batch: 3}}
    sink: {{delta: ./table, partition_by: [city]}}
"""


def test_each_row_is_in_the_table_once_run_after_run(q: Client, run: Run, tmp_path: Path) -> None:
    q.create_topic("delta-orders", 2)
    publish(q, "delta-orders", *({"id": n, "city": ODD[n % len(ODD)], "total": n / 4} for n in range(14)))
    for _ in range(2):
        assert run(ORDERS.format(topic="delta-orders")).error is None
    publish(q, "delta-orders", {"id": 14, "city": "plain", "total": 1})
    assert run(ORDERS.format(topic="delta-orders")).error is None

    found = DeltaTable(str(tmp_path / "table"))
    assert found.metadata().partition_columns == ["city"]
    rows = rows_of(tmp_path / "table", "id")
    assert sorted(row["id"] for row in rows) == list(range(15))
    assert {row["id"]: row["city"] for row in rows} == {n: ODD[n % len(ODD)] or None for n in range(14)} | {14: "plain"}
    assert {row["id"]: row["total"] for row in rows}[7] == Decimal("1.75")
    # That which made it, and one for each batch that had rows: of three at most, and of one the last time.
    assert found.version() >= -(-14 // 3) + 1


def forget_last_commit(checkpoint: Path) -> None:
    """As a driver leaves it that is killed between the table's commit and its own."""
    commits = sorted((checkpoint / "query" / "commits").glob("[0-9]*"), key=lambda each: int(each.name))
    for each in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        each.unlink(missing_ok=True)


def test_a_batch_that_is_done_again_is_seen_to_be_there(q: Client, run: Run, tmp_path: Path) -> None:
    q.create_topic("delta-again", 1)
    publish(q, "delta-again", *({"id": n, "city": "a", "total": 1} for n in range(6)))
    assert run(ORDERS.format(topic="delta-again")).error is None
    before = DeltaTable(str(tmp_path / "table")).version()
    forget_last_commit(tmp_path / "checkpoint")
    assert run(ORDERS.format(topic="delta-again")).error is None
    assert DeltaTable(str(tmp_path / "table")).version() == before
    assert [row["id"] for row in rows_of(tmp_path / "table", "id")] == list(range(6))


def test_a_batch_that_failed_before_its_commit_leaves_no_rows(
    q: Client, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.create_topic("delta-fails", 1)
    publish(q, "delta-fails", *({"id": n, "city": "a", "total": 1} for n in range(3)))

    def fail(*_: object) -> None:
        raise OSError("no space left on this device")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaSink, "_commit", fail)
        assert run(ORDERS.format(topic="delta-fails")).error == "OSError: no space left on this device"
    assert list((tmp_path / "table").rglob("*.parquet"))
    assert rows_of(tmp_path / "table") == []
    assert run(ORDERS.format(topic="delta-fails")).error is None
    assert [row["id"] for row in rows_of(tmp_path / "table", "id")] == [0, 1, 2]


def test_in_mode_complete_the_table_has_the_last_result_only_also_if_its_batch_is_done_again(
    q: Client, run: Run, tmp_path: Path
) -> None:
    q.create_topic("delta_counts", 1)
    text = """
        name: counts
        source: {topics: delta_counts, decode: json, schema: "city STRING"}
        transform: {sql: "SELECT city, count(*) AS orders FROM `delta_counts` GROUP BY city"}
        sink: {delta: ./table, mode: complete}
    """
    publish(q, "delta_counts", {"city": "a"}, {"city": "a"}, {"city": "b"})
    assert run(text).error is None
    assert rows_of(tmp_path / "table", "city") == [{"city": "a", "orders": 2}, {"city": "b", "orders": 1}]
    publish(q, "delta_counts", {"city": "b"}, {"city": "c"})
    assert run(text).error is None
    assert [tuple(row.values()) for row in rows_of(tmp_path / "table", "city")] == [("a", 2), ("b", 2), ("c", 1)]
    assert DeltaTable(str(tmp_path / "table"), version=1).to_pyarrow_table().num_rows == 2
    before = DeltaTable(str(tmp_path / "table")).version()
    forget_last_commit(tmp_path / "checkpoint")
    publish(q, "delta_counts", {"city": "c"})
    # Of what was counted nothing is lost by that.
    assert run(text).error is None
    assert [tuple(row.values()) for row in rows_of(tmp_path / "table", "city")] == [("a", 2), ("b", 2), ("c", 2)]
    assert DeltaTable(str(tmp_path / "table")).version() == before + 1


def test_every_type_that_delta_has_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("""
        SELECT CAST(1 AS BYTE) a, CAST(2 AS SHORT) b, 3 c, 4L d, CAST(1.5 AS FLOAT) e, 2.5D f, true g, X'00ff' h,
               DATE'2026-01-02' i, TIMESTAMP'2026-01-02 03:04:05.678901' j, TIMESTAMP_NTZ'2026-01-02 03:04:05' k,
               CAST(1.25 AS DECIMAL(10, 2)) l, array(1, null) m, map('x', 1) n, named_struct('y', 'z') o, 'text' p
    """)
    sink = DeltaSink(TableSink("delta", str(tmp_path / "types"), ("p", "i", "j", "g", "k")), frame)
    sink.write(as_batch(frame), 0)
    (row,) = rows_of(tmp_path / "types", "p")
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    assert [row[name] for name in "abcdefgh"] == [1, 2, 3, 4, 1.5, 2.5, True, b"\x00\xff"]
    assert [row[name] for name in "ijk"] == [date(2026, 1, 2), moment, datetime(2026, 1, 2, 3, 4, 5)]
    assert [row[name] for name in "lmnop"] == [Decimal("1.25"), [1, None], [("x", 1)], {"y": "z"}, "text"]


def as_batch(frame: Any) -> Any:
    """Of a stream, for what looks at whose it is."""
    frame.sparkSession.sparkContext.setLocalProperty("sql.streaming.queryId", "a-query")
    return frame


@pytest.mark.parametrize(
    ("sql", "by", "message"),
    [
        ("SELECT null AS x, 1 AS y", (), "the column x has the type void, which delta tables do not have: cast it"),
        ("SELECT array(INTERVAL 1 DAY) AS x, 1 AS y", (), "the column x has the type interval day, which"),
        ("SELECT 1 AS `a b`", (), "the column 'a b' can't be in a delta table"),
        ("SELECT 1 AS `a.b`", (), "the column 'a.b' can't be in a delta table: it has a . or a ` in its name"),
        ("SELECT 1 AS `a``b`", (), "the column 'a`b' can't be in a delta table: it has a . or a ` in its name"),
        ("SELECT 1 AS a, 2 AS b, 3 AS a", ("a",), "two columns for a delta table have the name a: give one of them"),
        ("SELECT 1 AS a, 2 AS b, 3 AS A", (), "two columns for a delta table have the names a and A, and capitals"),
        ("SELECT 1D AS x, 1 AS y", ("x",), "sink.partition_by: a delta table has no partitions by double"),
        ("SELECT array(1) AS x, 1 AS y", ("x",), "sink.partition_by: a delta table has no partitions by array"),
        ("SELECT 1.5BD AS x, 1 AS y", ("x",), "sink.partition_by: a delta table has no partitions by decimal(2,1)"),
        ("SELECT 1 AS `x/y`, 1 AS y", ("x/y",), "sink.partition_by: the name x/y has a / or a %"),
        ("SELECT 1 AS x", ("X",), "sink.partition_by has all columns"),
    ],
)
def test_what_a_delta_table_cannot_have_is_told_before_there_are_rows(
    spark: SparkSession, tmp_path: Path, sql: str, by: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InvalidInput) as failed:
        DeltaSink(TableSink("delta", str(tmp_path / "table"), by), spark.sql(sql))
    assert failed.value.message.startswith(message)
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    ("sql", "by", "message"),
    [
        ("SELECT 1 AS id, 'a' AS city, 1 AS new", ("city",), "has no column new; it has id, city. Add it"),
        ("SELECT 1L AS id, 'a' AS city", ("city",), "the column id is long, and in the delta table"),
        ("SELECT 1 AS id, 'a' AS city", (), "is partitioned by city, and sink.partition_by is nothing"),
    ],
)
def test_rows_that_do_not_fit_the_table_are_told_before_there_are_any(
    spark: SparkSession, tmp_path: Path, sql: str, by: tuple[str, ...], message: str
) -> None:
    table = TableSink("delta", f"file://{tmp_path}/table", ("city",))
    first = spark.sql("SELECT 1 AS id, 'a' AS city")
    DeltaSink(table, first).write(as_batch(first), 0)
    with pytest.raises(InvalidInput) as failed:
        DeltaSink(TableSink("delta", str(tmp_path / "table"), by), spark.sql(sql))
    assert message in failed.value.message
    DeltaSink(table, spark.sql("SELECT 'a' AS city, 2 AS id"))


def test_a_table_that_asks_for_more_than_rows_is_left_to_delta_lake(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("SELECT 1 AS id")
    path = tmp_path / "constrained"
    DeltaSink(TableSink("delta", str(path)), frame).write(as_batch(frame), 0)
    DeltaTable(str(path)).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(
        InvalidInput, match=r"has .*delta\.constraints\.positive.*, which only Delta Lake's own package"
    ):
        DeltaSink(TableSink("delta", str(path)), frame)
    strict = tmp_path / "strict"
    DeltaTable.create(str(strict), pa.schema([pa.field("id", pa.int32(), nullable=False)]))
    with pytest.raises(InvalidInput, match="has id NOT NULL, which only Delta Lake's own package"):
        DeltaSink(TableSink("delta", str(strict)), frame)
    inside = pa.struct([pa.field("deep", pa.list_(pa.struct([pa.field("x", pa.int32(), nullable=False)])))])
    DeltaTable.create(str(tmp_path / "inside"), pa.schema([("id", pa.int32()), ("part", inside)]))
    with pytest.raises(InvalidInput, match=r"has part\.deep\.x NOT NULL, which only Delta Lake's own package"):
        DeltaSink(TableSink("delta", str(tmp_path / "inside")), frame)


def test_a_table_that_can_only_be_added_to_is_not_replaced(spark: SparkSession, tmp_path: Path) -> None:
    path, frame = str(tmp_path / "table"), spark.sql("SELECT 1 AS id")
    DeltaTable.create(path, pa.schema([("id", pa.int32())]), configuration={"delta.appendOnly": "true"})
    with pytest.raises(InvalidInput, match=r"can only be added to \(delta\.appendOnly\), and sink\.mode is complete"):
        DeltaSink(TableSink("delta", path, mode="complete"), frame)
    DeltaSink(TableSink("delta", path), frame).write(as_batch(frame), 0)
    assert rows_of(tmp_path / "table") == [{"id": 1}]


def test_other_places_are_left_alone(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = spark.sql("SELECT 1 AS id")
    (tmp_path / "mine.txt").write_text("not yours")
    for place in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(InvalidInput, match="is there already, and is not a delta table"):
            DeltaSink(TableSink("delta", str(place)), frame)
    with pytest.raises(
        InvalidInput, match="a delta table at s3a://bucket/table is written by Delta Lake's own package"
    ):
        DeltaSink(TableSink("delta", "s3a://bucket/table"), frame)
    monkeypatch.setattr(session, "find_spec", lambda _: None)
    with pytest.raises(SparkMissing, match=r"pip install 'penstock\[delta\]'"):
        DeltaSink(TableSink("delta", str(tmp_path / "table")), frame)


def test_others_may_write_to_the_table_meanwhile(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.sql("SELECT 1 AS id")
    sink = DeltaSink(TableSink("delta", str(tmp_path / "table")), frame)
    sink.write(as_batch(frame), 0)
    other = DeltaTable(str(tmp_path / "table"))
    properties = CommitProperties(app_transactions=[Transaction("another", 7)])
    other.create_write_transaction([], "append", other.schema(), commit_properties=properties)
    sink.write(as_batch(frame), 1)
    orphan = tmp_path / "table" / "part-of-a-killed-task.parquet"
    orphan.touch()
    os.utime(orphan, (0, 0))
    other = DeltaTable(str(tmp_path / "table"))
    assert other.optimize.compact()["numFilesRemoved"] == 2
    assert other.vacuum(dry_run=False) == []
    assert other.vacuum(full=True, dry_run=False) == [orphan.name]
    sink.write(as_batch(frame), 1)
    assert DeltaTable(str(tmp_path / "table")).transaction_version("another") == 7
    assert len(rows_of(tmp_path / "table", "id")) == 2


@pytest.mark.parametrize("moment", ["DATE'+58000-01-01'", "TIMESTAMP'+58000-01-01 00:00:00Z'", "DATE'-0001-12-31'"])
def test_a_time_that_no_table_can_be_partitioned_by_is_told_and_leaves_it_whole(
    spark: SparkSession, tmp_path: Path, moment: str
) -> None:
    good, bad = (spark.sql(f"SELECT 1 AS id, {day} AS day") for day in ("DATE'2026-01-01'", moment))
    good = good.select("id", good.day.cast(bad.schema["day"].dataType).alias("day"))
    sink = DeltaSink(TableSink("delta", str(tmp_path / "table"), ("day",)), bad)
    sink.write(as_batch(good), 0)
    with pytest.raises(PySparkException) as failed:
        sink.write(as_batch(bad), 1)
    told = "the column day, by which the delta table is partitioned, has a time that is not in the years 1 to 9999"
    assert cause_of(failed.value) == f"{told} [invalid_input]"
    sink.write(as_batch(good), 1)
    assert len(rows_of(tmp_path / "table", "id")) == 2


def test_where_everything_is_replaced_the_table_keeps_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    first = spark.sql("SELECT 1 AS id, 'a' AS note")
    DeltaSink(TableSink("delta", str(tmp_path / "table")), first).write(as_batch(first), 0)
    less = spark.sql("SELECT 2 AS id")
    DeltaSink(TableSink("delta", str(tmp_path / "table"), mode="complete"), less).write(as_batch(less), 1)
    assert rows_of(tmp_path / "table", "id") == [{"id": 2, "note": None}]


def test_what_others_made_of_the_files_while_rows_were_written_is_replaced_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, frame = str(tmp_path / "table"), spark.sql("SELECT 1 AS id")
    for batch in range(2):
        DeltaSink(TableSink("delta", path), frame).write(as_batch(frame), batch)
    sink, check = DeltaSink(TableSink("delta", path, mode="complete"), frame), DeltaSink._check_files

    def compacted(self: DeltaSink, files: list[TableFile]) -> None:
        assert DeltaTable(path).optimize.compact()["numFilesRemoved"] == 2
        check(self, files)

    monkeypatch.setattr(DeltaSink, "_check_files", compacted)
    sink.write(as_batch(frame), 2)
    assert rows_of(tmp_path / "table") == [{"id": 1}]


def test_a_table_of_which_only_the_directory_of_its_log_is_there_is_begun(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    for staged in ("_commit_1f0c.json.tmp", "00000000000000000000.json#1"):
        (log / staged).write_text("{")
    frame = spark.sql("SELECT 1 AS id")
    DeltaSink(TableSink("delta", str(tmp_path / "table")), frame).write(as_batch(frame), 0)
    assert rows_of(tmp_path / "table", "id") == [{"id": 1}]


def test_a_directory_that_is_only_called_as_a_log_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "table" / "_delta_log"
    log.mkdir(parents=True)
    (log / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="is there already, and is not a delta table"):
        DeltaSink(TableSink("delta", str(tmp_path / "table")), spark.sql("SELECT 1 AS id"))


@pytest.mark.parametrize("loss", ["is not there", "has 3 bytes, not"])
def test_files_that_the_driver_does_not_see_as_they_were_written_are_not_committed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    """As with executors on machines whose directory of that name is another one."""
    check = DeltaSink._check_files

    def elsewhere(sink: DeltaSink, files: list[TableFile]) -> None:
        place = tmp_path / "table" / files[0].path
        if loss == "is not there":
            place.unlink()
        else:
            place.write_bytes(b"abc")
        check(sink, files)

    frame = spark.sql("SELECT 1 AS id")
    monkeypatch.setattr(DeltaSink, "_check_files", elsewhere)
    with pytest.raises(
        InvalidInput, match=rf"which an executor wrote, {loss}.* in a directory that all machines share"
    ):
        DeltaSink(TableSink("delta", str(tmp_path / "table")), frame).write(as_batch(frame), 0)
    assert rows_of(tmp_path / "table") == []


def test_a_task_without_rows_writes_nothing(tmp_path: Path) -> None:
    assert written(iter(()), str(tmp_path), ()) == []


def test_a_task_writes_one_file_for_each_partition_however_many_batches(tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, 1000, 100):
            numbers = range(start, start + 100)
            yield pa.record_batch({"n": list(numbers), "odd": [n % 2 == 1 for n in numbers]})

    files = sorted(written(batches(), str(tmp_path), ("odd",)), key=lambda each: each.path)
    assert [(each.rows, each.partition) for each in files] == [(500, {"odd": "false"}), (500, {"odd": "true"})]
    assert all(isinstance(each, TableFile) and (tmp_path / each.path).stat().st_size == each.bytes for each in files)


def wide(number: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number] * rows, "value": [bytes([number]) * 100_000] * rows})


@pytest.mark.parametrize(("batches", "rows"), [(20, 20), (1, 400)])
def test_wide_rows_are_written_before_there_are_many(tmp_path: Path, batches: int, rows: int) -> None:
    (file,) = written((wide(number, rows) for number in range(batches)), str(tmp_path), ())
    about = pq.read_metadata(tmp_path / file.path)
    assert (about.num_rows, file.rows) == (400, 400)
    groups = [about.row_group(number).num_rows * 100_000 for number in range(about.num_row_groups)]
    assert max(groups) < 2 * GROUP_BYTES
    assert 2 <= len(groups) <= 4


def test_however_many_partitions_what_is_gathered_and_open_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_files, "GATHERED_BYTES", 200)
    monkeypatch.setattr(delta_files, "OPEN_MAX", 2)
    files = TaskFiles(tmp_path, ("by",))
    before = open_files(tmp_path)
    for start in range(0, 100, 10):
        numbers = range(start, start + 10)
        files.add(pa.record_batch({"n": list(numbers), "by": [str(n % 5) for n in numbers]}))
        assert sum(part.bytes for part in files._parts.values()) < 200
        assert open_files(tmp_path) - before <= 2
    found = files.finish()
    assert len(found) > 5
    assert open_files(tmp_path) == before
    assert sorted(
        (n, each.partition["by"])
        for each in found
        for n in pq.ParquetFile(tmp_path / each.path).read()["n"].to_pylist()
    ) == [(n, str(n % 5)) for n in range(100)]


def open_files(directory: Path) -> int:
    links = (link.resolve() for link in Path("/proc/self/fd").iterdir())
    return sum(directory in place.parents for place in links)


def test_a_task_that_fails_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_files, "GROUP_ROWS", 2)

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [1, 2, 3], "by": ["a", "a", "b"]})
        assert len(list(tmp_path.rglob("*.parquet"))) == 1
        raise OSError("the shuffle is gone")

    with pytest.raises(OSError, match="the shuffle is gone"):
        written(batches(), str(tmp_path), ("by",))
    assert list(tmp_path.rglob("*.parquet")) == []
    monkeypatch.setattr(delta_files, "PARTITIONS_MAX", 2)
    many = pa.record_batch({"n": [1, 2, 3, 4], "by": ["a", "a", "b", "c"]})
    with pytest.raises(InvalidInput, match="rows for more than 2 partitions of the delta table: partition it by less"):
        written(iter([many]), str(tmp_path), ("by",))
    assert list(tmp_path.rglob("*.parquet")) == []


_LATE = 253_402_300_799_000_000  # 9999-12-31T23:59:59Z, in microseconds


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_whether_a_time_has_a_year_that_readers_take_goes_by_utc_as_it_is_told(tmp_path: Path, zone: str) -> None:
    def at(moment: int) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [1], "at": pa.array([moment], pa.timestamp("us", zone))})

    (file,) = written(at(_LATE), str(tmp_path), ("at",))
    assert file.partition == {"at": "9999-12-31T23:59:59.000000Z"}
    with pytest.raises(InvalidInput, match="not in the years 1 to 9999"):
        written(at(_LATE + 1_000_000), str(tmp_path), ("at",))
