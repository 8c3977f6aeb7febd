"""Avro's schemas, without Spark: what is none is told, and what is one has the types that Spark's own package has."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import InvalidInput
from penstock.spark.pipeline.avro_schema import parse
from penstock.spark.pipeline.avro_types import NULL, Fixed, Union, arrow_type

UTC_US, LOCAL_US = pa.timestamp("us", "UTC"), pa.timestamp("us")


def record(*types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{place}", "type": each} for place, each in enumerate(types)]
    return {"type": "record", "name": "r", "fields": fields}


def with_default(type: Any, default: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": "f", "type": type, "default": default}]}


def logical(type: str, known_as: str, **more: Any) -> dict[str, Any]:
    return {"type": type, "logicalType": known_as, **more}


@pytest.mark.parametrize(
    ("type", "expected"),
    [
        ("null", pa.null()),
        ("boolean", pa.bool_()),
        ("int", pa.int32()),
        ({"type": "long"}, pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("string", pa.string()),
        ("bytes", pa.binary()),
        (logical("int", "date"), pa.date32()),
        (logical("long", "timestamp-millis"), UTC_US),
        (logical("long", "timestamp-micros"), UTC_US),
        (logical("long", "local-timestamp-millis"), LOCAL_US),
        (logical("long", "local-timestamp-micros"), LOCAL_US),
        (logical("int", "time-millis"), pa.int32()),
        (logical("long", "time-micros"), pa.int64()),
        (logical("long", "timestamp-nanos"), pa.int64()),
        (logical("string", "uuid"), pa.string()),
        ([logical("null", "unknown"), "int"], pa.int32()),
        (logical("string", "date"), pa.string()),
        (logical("fixed", "duration", name="d", size=12), pa.binary()),
        (logical("bytes", "decimal", precision=38, scale=38), pa.decimal128(38, 38)),
        (logical("fixed", "decimal", name="d", size=4, precision=9), pa.decimal128(9, 0)),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, pa.string()),
        ({"type": "array", "items": "int"}, pa.list_(pa.field("element", pa.int32()))),
        ({"type": "map", "values": ["null", "int"]}, pa.map_(pa.string(), pa.int32())),
        ({"type": "record", "name": "i", "fields": [{"name": "x", "type": "int"}]}, pa.struct({"x": pa.int32()})),
        ({"type": "record", "name": "i", "fields": []}, pa.struct([])),
        (["null", "string"], pa.string()),
        (["string", "null"], pa.string()),
        (["string"], pa.string()),
        (["null"], pa.null()),
        (["int", "long"], pa.int64()),
        (["long", "null", "int"], pa.int64()),
        ([logical("int", "date"), "long"], pa.int64()),
        (["float", "double"], pa.float64()),
        (["int", "string"], pa.struct({"member0": pa.int32(), "member1": pa.string()})),
        (["int", "null", "double"], pa.struct({"member0": pa.int32(), "member1": pa.float64()})),
        (["int", "long", "float"], pa.struct({"member0": pa.int32(), "member1": pa.int64(), "member2": pa.float32()})),
    ],
)
def test_types_are_those_of_sparks_own_package(type: Any, expected: pa.DataType) -> None:
    assert arrow_type(parse(record(type))) == pa.struct({"f0": expected})


def test_types_are_found_by_their_names_in_any_namespace() -> None:
    four = {"type": "fixed", "name": "four", "size": 4}
    inner = {"type": "record", "name": "i", "namespace": "a.b", "fields": [{"name": "x", "type": four}]}
    plain = {"type": "enum", "name": "plain", "namespace": "", "symbols": ["A"]}
    types = {
        "inner": inner,
        "four": "a.b.four",
        "again": ["null", "a.b.i"],
        "plain": plain,
        "both": "plain",
        "own": {"type": "fixed", "name": "z", "size": 1},
        "full": "x.y.z",
        "wrapped": {"type": "z"},
    }
    fields = [{"name": name, "type": type} for name, type in types.items()]
    found = parse({"type": "record", "name": "r", "namespace": "x.y", "fields": fields})
    shapes = {field.name: field.shape for field in found.fields}
    assert shapes["four"] == Fixed(4)
    assert shapes["again"] == Union((NULL, shapes["inner"]))
    assert shapes["both"] == shapes["plain"]
    assert shapes["own"] == shapes["full"] == shapes["wrapped"] == Fixed(1)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("int", "is no schema of a record"),
        (record(), "has no fields"),
        (record("strng"), "f0: there is no type 'strng'"),
        (record(["null", ["int"]]), "f0 is a union within a union"),
        (record([]), "f0 is a union of nothing"),
        (record(["int", "int"]), "f0 is a union that has int twice"),
        (record({"type": "enum", "name": "e"}), "f0 is an enum without symbols"),
        (record({"type": "enum", "name": "e", "symbols": []}), "f0 is an enum without symbols"),
        (record({"type": "enum", "name": "e", "symbols": ["A", "A"]}), "f0 is an enum that has a symbol twice"),
        (record({"type": "enum", "name": "e", "symbols": ["a b"]}), 'f0 is an enum with "a b" for a symbol'),
        (record({"type": "enum", "name": "e", "symbols": ["\ud800"]}), 'f0 is an enum with "\\ud800" for a symbol'),
        (record({"type": "fixed", "name": "e"}), "f0 is a fixed with null for a size"),
        (record({"type": "fixed", "size": 3}), "f0 is a fixed without a name, or with null for one"),
        (record({"type": "array"}), "f0 is a type array without items"),
        (record({"type": "map", "values": 3}), "f0.values has no type, but 3"),
        (record({"type": "array", "items": "null"}), "f0 is an array of what takes no bytes"),
        (record({"type": "array", "items": record()}), "there is a type r already"),
        (
            record({"type": "array", "items": {"type": "record", "name": "e", "fields": []}}),
            "f0 is an array of what takes no bytes",
        ),
        (record({"type": "record", "name": "e"}), "f0 is a record without fields"),
        (record({"type": "record", "name": "e", "fields": [{"type": "int"}]}), "f0 has a field without a name"),
        (record({"type": "record", "name": "e", "fields": [{"name": "x"}]}), "f0.x has no type"),
        (record(["null", "r"]), "f0 is a r again, which is in itself: Spark has no such types"),
        (record(logical("bytes", "decimal")), "f0 is a decimal with a precision of null; it is 1 to 38"),
        (record(logical("bytes", "decimal", precision=39)), "f0 is a decimal with a precision of 39; it is 1 to 38"),
        (
            record(logical("fixed", "decimal", name="d", size=4, precision=10)),
            "f0 is a decimal with a precision of 10; it is 1 to 9",
        ),
        (
            record(logical("bytes", "decimal", precision=4, scale=5)),
            "f0 is a decimal with a scale of 5; it is 0 to 4",
        ),
        (with_default("int", "1"), 'f has a default of another type: "1"'),
        (with_default("int", 1 << 31), "f has a default of another type: 2147483648"),
        (with_default("boolean", 0), "f has a default of another type: 0"),
        (with_default("bytes", "\u0100"), "f has a default of another type: "),
        (with_default(["int", "string"], None), "f has a default of another type: null"),
        (with_default({"type": "enum", "name": "e", "symbols": ["A"]}, "B"), 'f has a default of another type: "B"'),
        (with_default({"type": "fixed", "name": "e", "size": 2}, "B"), 'f has a default of another type: "B"'),
        (with_default(logical("bytes", "decimal", precision=2), ""), 'f has a default of another type: ""'),
        (with_default(logical("bytes", "decimal", precision=2), "d"), 'f has a default of another type: "d"'),
        (with_default(logical("fixed", "decimal", name="e", size=1, precision=2), "\x9c"), "f has a default of anot"),
        (with_default({"type": "array", "items": "int"}, {}), "f has a default of another type: {}"),
        (with_default(record("int"), {}), "there is a type r already"),
        (
            {"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}, {"name": "ID", "type": "int"}]},
            "the record has the fields id and ID: to Spark that is one name",
        ),
    ],
)
def test_what_is_no_schema_is_told_with_where_it_is(schema: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as told:
        parse(schema)
    assert message in told.value.message


def test_a_schema_that_grows_without_end_is_refused_at_once() -> None:
    doubling: Any = "int"
    for level in range(40):
        fields = [{"name": "a", "type": doubling}, {"name": "b", "type": "int" if level == 0 else f"r{level - 1}"}]
        doubling = {"type": "record", "name": f"r{level}", "fields": fields}
    with pytest.raises(InvalidInput, match="has more than 10000 types in it"):
        parse(doubling)
    deep: Any = "int"
    for _ in range(200):
        deep = {"type": "array", "items": deep}
    with pytest.raises(InvalidInput, match="is nested too deeply"):
        parse(record(deep))


def nested(levels: int, kind: str, within: Any = "int") -> Any:
    for _ in range(levels):
        within = {"type": kind, {"array": "items", "map": "values"}[kind]: within}
    return within


def named(number: int, type: Any) -> dict[str, Any]:
    return {"type": "record", "name": f"n{number}", "fields": [{"name": "x", "type": type}]}


def test_what_is_nested_as_deep_as_it_may_be_is_read_by_arrow_and_nothing_deeper_is_a_schema() -> None:
    by_name = [named(0, nested(22, "array")), named(1, nested(23, "array", "n0")), "n1"]
    for schema in (record(nested(49, "array")), record(nested(24, "map")), record(*by_name)):
        # With `bad` beside it, it is a struct within the batch.
        rows = pa.StructArray.from_arrays([pa.nulls(1, arrow_type(parse(schema)))], names=["row"])
        batch = pa.record_batch([rows], names=["_0"])
        file = pa.BufferOutputStream()
        with pa.ipc.new_stream(file, batch.schema) as stream:
            stream.write_batch(batch)
        assert pa.ipc.open_stream(file.getvalue()).read_all().num_rows == 1
    by_name[1] = named(1, nested(40, "array", "n0"))
    for schema in (record(nested(50, "array")), record(nested(25, "map")), record(*by_name)):
        with pytest.raises(InvalidInput, match="is nested too deeply: more than 50 types in each other"):
            parse(schema)


@pytest.mark.parametrize(
    ("type", "default", "encoded"),
    [
        ("null", None, b""),
        ("boolean", True, b"\1"),
        ("int", -1, b"\1"),
        ("long", 1 << 62, b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\1"),
        ("long", -(1 << 63), b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\1"),
        ("double", 1, b"\0\0\0\0\0\0\xf0\x3f"),
        ("float", 0.5, b"\0\0\0\x3f"),
        ("string", "é", b"\4\xc3\xa9"),
        ("bytes", "é", b"\2\xe9"),
        ({"type": "fixed", "name": "f", "size": 1}, "é", b"\xe9"),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B", b"\2"),
        ({"type": "array", "items": "int"}, [], b"\0"),
        ({"type": "array", "items": "int"}, [1, 2], b"\4\2\4\0"),
        ({"type": "map", "values": "int"}, {"a": 1}, b"\2\2a\2\0"),
        (["null", "string"], None, b"\0"),
        (["null", "string"], "a", b"\2\2a"),
        (logical("bytes", "decimal", precision=4), "\1", b"\2\1"),
        (
            {"type": "record", "name": "i", "fields": [{"name": "x", "type": "int", "default": 3}]},
            {},
            b"\6",
        ),
    ],
)
def test_defaults_are_encoded_as_avro_has_them(type: Any, default: Any, encoded: bytes) -> None:
    (field,) = parse(with_default(type, default)).fields
    assert field.default == encoded
