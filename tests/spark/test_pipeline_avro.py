"""Pipelines from Avro and to Avro, on real Spark, without its own package for it."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastavro import parse_schema, schemaless_reader
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from broker_process import BrokerProcess
from docs.page import ROOT, blocks_of
from penstock.client.blocking import Client
from penstock.errors import InvalidInput, SparkMissing
from penstock.spark.pipeline import decode, encode, session
from penstock.spark.pipeline.avro_default import number
from penstock.spark.pipeline.queries import output
from spark.pipeline_runs import Parse, Run


def named(name: str, type: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type, **more}


def logical(type: str, known_as: str, **more: Any) -> dict[str, Any]:
    return {"type": type, "logicalType": known_as, **more}


ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
LINE = {"type": "record", "name": "line", "fields": [named("item", "string"), named("count", ["null", "int"])]}
# Each field with its bytes. Of the first record everything is there, of the second as little as possible.
FIELDS: list[tuple[dict[str, Any], bytes, bytes]] = [
    (named("void", "null"), b"", b""),
    (named("is_new", "boolean"), b"\1", b"\0"),
    (named("small", "int"), b"\5", b"\0"),
    (named("id", "long"), b"\x80\x80\x80\x80\x80\x40", b"\0"),
    (named("ratio", "float"), struct.pack("<f", 1.5), bytes(4)),
    (named("total", "double"), struct.pack("<d", -2.5), bytes(8)),
    (named("name", "string"), b"\6h\xc3\xa9", b"\0"),
    (named("raw", "bytes"), b"\4\0\xff", b"\0"),
    (named("four", {"type": "fixed", "name": "four", "size": 4}), b"abcd", bytes(4)),
    (named("color", {"type": "enum", "name": "color", "symbols": ["RED", "BLUE"]}), b"\2", b"\0"),
    (named("day", logical("int", "date")), b"\1", b"\0"),
    (named("at", logical("long", "timestamp-millis")), b"\1", b"\0"),
    (named("exactly", logical("long", "timestamp-micros")), b"\2", b"\0"),
    (named("here", ["null", logical("long", "local-timestamp-millis")]), b"\2\2", b"\0"),
    (named("price", logical("bytes", "decimal", precision=10, scale=2)), b"\2\x80", b"\2\0"),
    (named("tax", logical("fixed", "decimal", name="tax", size=5, precision=10, scale=4)), b"\xff" * 5, bytes(5)),
    (named("first", ["null", LINE]), b"\2\2a\2\6", b"\0"),
    (named("lines", {"type": "array", "items": ["null", "line"]}), b"\4\0\2\2b\0\0", b"\0"),
    (named("labels", {"type": "map", "values": "double"}), b"\2\2k" + bytes(8) + b"\0", b"\0"),
    (named("size", ["null", "int", "long"]), b"\4\2", b"\0"),
    (named("any", ["null", "int", "string", "line"]), b"\6\2c\0", b"\0"),
]
SCHEMA = {"type": "record", "name": "order", "namespace": "shop", "fields": [field for field, _, _ in FIELDS]}
FULL, SPARSE = b"".join(full for _, full, _ in FIELDS), b"".join(sparse for _, _, sparse in FIELDS)
TYPES = (
    "struct<void:void,is_new:boolean,small:int,id:bigint,ratio:float,total:double,name:string,raw:binary,four:binary,"
    "color:string,day:date,at:timestamp,exactly:timestamp,here:timestamp_ntz,price:decimal(10,2),tax:decimal(10,4),"
    "first:struct<item:string,count:int>,lines:array<struct<item:string,count:int>>,labels:map<string,double>,"
    "size:bigint,any:struct<member0:int,member1:string,member2:struct<item:string,count:int>>>"
)
SHOWN = {
    "is_new": True,
    "small": -3,
    "id": 1 << 40,
    "name": "hé",
    "color": "BLUE",
    "day": "1969-12-31",
    "at": "1969-12-31T23:59:59.999Z",
    "price": -1.28,
    "tax": -0.0001,
    "first": {"item": "a", "count": 3},
    "lines": [None, {"item": "b", "count": None}],
    "labels": {"k": 0.0},
    "size": 1,
    "any": {"member0": None, "member1": None, "member2": {"item": "c", "count": None}},
}


def schema_file(tmp_path: Path, schema: Any, name: str = "order.avsc") -> None:
    (tmp_path / name).write_text(json.dumps(schema))


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": list(fields)}


def test_all_types_go_through_as_they_came_and_what_is_bad_goes_to_its_topic(
    q: Client, run: Run, tmp_path: Path
) -> None:
    for topic in ("all-types", "all-again", "all-json", "all-bad"):
        q.create_topic(topic, 1)
    file, registered = b"Obj\x01" + FULL, b"\0\0\0\0\7" + FULL
    bad = [b"", FULL[:-1], FULL + b"\0", b"\xff" * 100, file, registered]
    for value in (FULL, *bad, SPARSE):
        q.publish("all-types", value)
    schema_file(tmp_path, SCHEMA)
    source = "{topics: all-types, as: orders, decode: avro, schema_file: order.avsc, on_bad_row: %s}"
    again = f"""
        name: again
        source: {source % "all-bad"}
        sink: {{topic: all-again, encode: avro, schema_file: order.avsc}}
    """
    ran = run(again)
    assert (ran.error, ran.progress.rows, ran.progress.bad_rows) == (None, 8, 6)
    assert [each.value for each in q.reader("all-again")] == [FULL, SPARSE]
    assert [each.value for each in q.reader("all-bad")] == bad
    what = b"not Avro of the schema"
    told = [dict(each.headers)["penstock-error"].removeprefix(what) for each in q.reader("all-bad")]
    assert told == [
        *[b""] * 4,
        b" (it is a file, with a schema of its own)",
        b" (it may have the five bytes of a schema registry before it: 00 and a number)",
    ]

    (tmp_path / "checkpoint").rename(tmp_path / "old")
    q.publish("all-types", None, key="a message without a value is no bad row")
    ran = run(f"""
        name: shown
        source: {source % "skip"}
        sink: {{topic: all-json}}
    """)
    assert (ran.error, ran.progress.bad_rows) == (None, 6)
    shown, _, nothing = (json.loads(each.value or b"") for each in q.reader("all-json"))
    assert {name: shown[name] for name in SHOWN} == SHOWN
    assert set(nothing.values()) == {None}


def test_the_example_of_the_guide_does_what_it_says(
    broker: BrokerProcess, q: Client, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = blocks_of((ROOT / "docs" / "guides" / "pipelines.md").read_text(encoding="utf-8"))
    (schema,) = (each for each in blocks if each.note == "order.avsc")
    (pipeline,) = (each.text for each in blocks if each.language == "yaml" and schema.note in each.text)
    (publish,) = (each.text for each in blocks if each.language == "python" and schema.note in each.text)
    for topic in ("orders-in-avro", "big-orders-in-avro"):
        q.create_topic(topic, 1)
    (tmp_path / schema.note).write_text(schema.text)
    monkeypatch.chdir(tmp_path)
    exec(publish.replace("penstock://localhost:7420", broker.address), {})
    assert run(pipeline).error is None
    parsed = parse_schema(json.loads(schema.text))
    (message,) = q.reader("big-orders-in-avro")
    order = schemaless_reader(BytesIO(message.value or b""), parsed, None)
    placed = datetime(2026, 1, 14, 15, tzinfo=UTC)
    expected = {"id": 1, "customer": "ada", "total": Decimal("100.00"), "placed": placed, "note": None}
    assert (message.key, order) == (b"ada", expected)


@pytest.mark.parametrize("on_bad_row", ["fail", "skip"])
def test_each_message_is_decoded_once_and_types_are_those_of_sparks_own_package(
    spark: SparkSession, parse: Parse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_bad_row: str
) -> None:
    schema_file(tmp_path, SCHEMA)
    pipeline = parse(f"""
        name: planned
        source: {{topics: t, decode: avro, schema_file: order.avsc, on_bad_row: {on_bad_row}}}
        sink: {{topic: out}}
    """)
    # What is not streamed can be planned without being run.
    messages = spark.createDataFrame([("0-0", FULL)], "id STRING, value BINARY")
    monkeypatch.setattr(decode, "messages", lambda *_: messages)
    frame = decode.rows(spark, pipeline.broker, pipeline.sources[0])
    assert frame.schema.simpleString() == TYPES
    plan = frame.select("id", "first.item", "any")._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("decode(value") == 1, plan


def test_a_bad_row_and_a_row_that_can_not_be_written_fail_the_pipeline_in_one_sentence(
    q: Client, run: Run, tmp_path: Path
) -> None:
    for topic in ("avro-fails", "avro-failed"):
        q.create_topic(topic, 1)
    q.publish("avro-fails", b"\2\2A")
    schema_file(tmp_path, record(named("a", ["null", "string"])))
    schema_file(tmp_path, record(named("a", {"type": "enum", "name": "e", "symbols": ["B"]})), "out.avsc")
    text = """
        name: fails
        source: {topics: avro-fails, as: t, decode: avro, schema_file: order.avsc}
        sink: {topic: avro-failed, encode: avro, schema_file: out.avsc}
    """
    ran = run(text)
    assert ran.error == "a is 'A' in a row, and the schema has B [invalid_input]"
    schema_file(tmp_path, record(named("a", ["null", "int"])))
    (message,) = q.reader("avro-fails")
    ran = run(text.replace("out.avsc", "order.avsc"))
    assert ran.error is not None
    assert ran.error.startswith(
        f"the message {message.id} is not Avro of the schema; with on_bad_row: skip, or a topic"
    )
    assert list(q.reader("avro-failed")) == []


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT a, b, 1 AS c FROM t", "c is not in the Avro schema, which has a, b: add it there, or leave it out"),
        ("SELECT b FROM t", "there is no column for a of the Avro schema, which has no default, and is never null"),
        ("SELECT CAST(a AS BIGINT) AS A FROM t", "a is long, and in the Avro schema it is int, which takes byte, date"),
    ],
)
def test_columns_that_do_not_fit_the_schema_are_told_before_anything_starts(
    spark: SparkSession, parse: Parse, tmp_path: Path, sql: str, message: str
) -> None:
    schema_file(tmp_path, record(named("a", "int"), named("b", ["null", "string"])))
    pipeline = parse(f"""
        name: unfit
        source: {{topics: t, decode: avro, schema_file: order.avsc}}
        transform: {{sql: "{sql}"}}
        sink: {{topic: out, encode: avro, schema_file: order.avsc}}
    """)
    with pytest.raises(InvalidInput) as told:
        output(spark, pipeline)
    assert told.value.message.startswith(message)


@pytest.mark.parametrize(
    ("conf", "is_theirs"),
    [
        ({"spark.jars.packages": "io.x:y:1,org.apache.spark:spark-avro_2.13:4.1.1"}, True),
        ({"spark.jars": "/jars/spark-avro_2.13-4.1.1.jar"}, True),
        ({"spark.driver.extraClassPath": "/jars/spark-avro_2.13-4.1.1.jar"}, True),
        ({"spark.jars": "/jars/a.jar,/jars/spark-avro_2.13-4.1.1.jar,/jars/b.jar"}, True),
        ({"spark.driver.extraClassPath": "/a.jar:/jars/spark-avro_2.13-4.1.1.jar:/b.jar"}, True),
        ({"spark.jars": "/jars/avro.jar"}, False),
        ({"spark.jars": "/home/spark-avro/a.jar,/no-spark-avro.jar"}, False),
        ({"spark.driver.extraClassPath": "/opt/spark-avro:/opt/spark-avro/jars/1.jar"}, False),
        ({}, False),
    ],
)
def test_sparks_own_package_is_used_if_it_is_named(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, parse: Parse, tmp_path: Path, conf: Any, is_theirs: bool
) -> None:
    own: Any = SimpleNamespace(conf=conf)
    assert session.has_spark_avro(own) is is_theirs
    if not is_theirs:
        return
    monkeypatch.setattr(decode, "has_spark_avro", lambda _: True)
    monkeypatch.setattr(encode, "has_spark_avro", lambda _: True)
    called: list[str] = []
    for module, name in ((decode, "sparks_from_avro"), (encode, "sparks_to_avro")):
        is_from = name == "sparks_from_avro"

        def use(column: Any, *_: Any, name: str = name, is_from: bool = is_from) -> Any:
            called.append(name)
            return decode.from_avro(column, json.dumps(SCHEMA))["row"] if is_from else column["name"].cast("binary")

        monkeypatch.setattr(module, name, use)
    schema_file(tmp_path, SCHEMA)
    output(
        spark,
        parse("""
        name: theirs
        source: {topics: t, decode: avro, schema_file: order.avsc}
        sink: {topic: out, encode: avro, schema_file: order.avsc}
        """),
    )
    assert called == ["sparks_from_avro", "sparks_to_avro"]


def test_batches_for_python_are_bounded_in_bytes_unless_the_settings_say_how_large_they_are() -> None:
    for conf, expected in (({}, str(session.BATCH_BYTES)), ({ARROW_BYTES: "5"}, "5")):
        found = dict(conf)
        settings = SimpleNamespace(get=found.get, set=found.__setitem__)
        session.bound_batches(cast(Any, SimpleNamespace(conf=settings)))
        assert found == {ARROW_BYTES: expected}


def test_rows_that_come_in_many_pieces_stay_beside_what_else_their_messages_have(spark: SparkSession) -> None:
    symbols = {"type": "enum", "name": "e", "symbols": ["S" * 60]}
    schema = json.dumps(record(named("a", {"type": "array", "items": symbols}), named("id", "long")))
    count = 1 << 16
    value = number(count) + bytes(count) + b"\0"
    messages = spark.range(20, numPartitions=1).select(
        "id", F.concat(F.lit(bytearray(value)), F.encode(F.chr(F.col("id") * 2), "UTF-8")).alias("value")
    )
    rows = messages.select("id", decode.from_avro(messages["value"], schema).alias("avro"))
    found = rows.select("id", "avro.row.id", "avro.bad", F.size("avro.row.a")).collect()
    assert [tuple(row) for row in found] == [(place, place, False, count) for place in range(20)]


def test_without_fastavro_it_is_told_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = session.find_spec
    monkeypatch.setattr(session, "find_spec", lambda name: None if name == "fastavro" else found(name))
    conf = {"spark.master": "local[1]"}
    with pytest.raises(
        SparkMissing,
        match=r"^Avro needs the package fastavro, on executors too: pip install --upgrade 'penstock\[spark\]'$",
    ):
        session.open_session("p", conf, tmp_path / "log.txt", needs_avro=True)
    assert not (tmp_path / "log.txt").exists()
