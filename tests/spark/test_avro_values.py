"""Avro's bytes to Arrow and back, without Spark, against fastavro with the schema itself, and against garbage."""

from __future__ import annotations

import json
import pickle
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from time import process_time
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_type

from penstock.errors import InvalidInput, SparkMissing
from penstock.spark.pipeline import avro_decoder, session
from penstock.spark.pipeline.avro_decoder import PIECE_BYTES, Decoder
from penstock.spark.pipeline.avro_default import number
from penstock.spark.pipeline.avro_encoder import Encoder
from penstock.spark.pipeline.avro_schema import parse
from penstock.spark.pipeline.avro_size import base, per_byte, sizing


def record(*types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{place}", "type": each} for place, each in enumerate(types)]
    return {"type": "record", "name": "r", "fields": fields}


def logical(type: str, known_as: str, **more: Any) -> dict[str, Any]:
    return {"type": type, "logicalType": known_as, **more}


def read(decoder: Decoder, values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The pieces as one."""
    pieces = list(decoder.decode(values))
    rows, is_bad = (pa.concat_arrays([piece[side] for piece in pieces]) for side in (0, 1))
    assert (len(rows), len(is_bad), rows.type) == (len(values), len(values), decoder.type)
    rows.validate(full=True)
    return rows, is_bad


def decoded(type: Any, *values: bytes | None) -> list[Any]:
    """Of a record with one field: what is in it; ... for a bad row."""
    rows, is_bad = read(Decoder(record(type)), pa.array(values, pa.binary()))
    found = [row and row["f0"] for row in rows.to_pylist()]
    return [... if bad else value for value, bad in zip(found, is_bad.to_pylist(), strict=True)]


def spark_type(type: pa.DataType) -> Any:
    return json.loads(from_arrow_type(type).json())


def encoded(schema: Any, rows: pa.Array) -> list[bytes]:
    found: list[bytes] = Encoder(schema, spark_type(rows.type)).encode(rows).to_pylist()
    return found


def column(values: list[Any], type: pa.DataType, name: str = "f0") -> pa.Array:
    return pa.StructArray.from_arrays([pa.array(values, type)], names=[name])


DECIMAL = logical("bytes", "decimal", precision=4, scale=2)
FIXED_DECIMAL = logical("fixed", "decimal", name="d", size=2, precision=4, scale=2)
COLOR = {"type": "enum", "name": "color", "symbols": ["RED", "BLUE"]}
MOMENT = datetime(2026, 1, 14, 15, 0, 0, 123456)
UTC_US = pa.timestamp("us", "UTC")
LONGEST = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\1"


@pytest.mark.parametrize(
    ("type", "value", "bytes_"),
    [
        ("null", None, b""),
        ("boolean", True, b"\1"),
        ("int", -3, b"\5"),
        ("long", -(1 << 63), LONGEST),
        ("float", 1.5, b"\0\0\xc0\x3f"),
        ("double", 2.5, struct.pack("<d", 2.5)),
        ("string", "hé", b"\6h\xc3\xa9"),
        ("bytes", b"\xff\0", b"\4\xff\0"),
        ({"type": "fixed", "name": "f", "size": 2}, b"ab", b"ab"),
        (COLOR, "BLUE", b"\2"),
        (logical("int", "date"), date(1969, 12, 31), b"\1"),
        (logical("long", "timestamp-millis"), datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC), b"\1"),
        (logical("long", "timestamp-micros"), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), number(1_000_000)),
        (logical("long", "local-timestamp-millis"), datetime(1970, 1, 1, 0, 0, 1), number(1000)),
        (logical("long", "local-timestamp-micros"), MOMENT, number(1_768_402_800_123_456)),
        (logical("long", "time-micros"), 3, b"\6"),
        (logical("long", "timestamp-nanos"), 3, b"\6"),
        (logical("int", "time-millis"), 3, b"\6"),
        (DECIMAL, Decimal("1.27"), b"\2\x7f"),
        (DECIMAL, Decimal("1.28"), b"\4\0\x80"),
        (DECIMAL, Decimal("-1.28"), b"\2\x80"),
        (DECIMAL, Decimal("-1.29"), b"\4\xff\x7f"),
        (DECIMAL, Decimal("99.99"), b"\4\x27\x0f"),
        (DECIMAL, Decimal("-99.99"), b"\4\xd8\xf1"),
        (DECIMAL, Decimal("0.00"), b"\2\0"),
        (FIXED_DECIMAL, Decimal("-0.01"), b"\xff\xff"),
        (logical("bytes", "decimal", precision=38), Decimal("9" * 38), number(16) + (10**38 - 1).to_bytes(16, "big")),
        ({"type": "array", "items": "int"}, [1, 2], b"\4\2\4\0"),
        ({"type": "array", "items": {"type": "array", "items": "int"}}, [[], [1]], b"\4\0\2\2\0\0"),
        ({"type": "map", "values": ["null", "int"]}, [("a", 1), ("b", None)], b"\4\2a\2\2\2b\0\0"),
        ({"type": "record", "name": "i", "fields": [{"name": "x", "type": "int"}]}, {"x": 1}, b"\2"),
        (["null", "string"], None, b"\0"),
        (["null", "string"], "a", b"\2\2a"),
        (["string", "null"], "a", b"\0\2a"),
        (["string"], "a", b"\0\2a"),
        (["int", "long"], 5, b"\2\x0a"),
        (["null", "double", "float"], 2.5, b"\2" + struct.pack("<d", 2.5)),
        (["null", "int", COLOR], {"member0": None, "member1": "BLUE"}, b"\4\2"),
        (["null", "int", COLOR], {"member0": 1, "member1": None}, b"\2\2"),
        (["null", "int", COLOR], None, b"\0"),
        (["int", DECIMAL], {"member0": None, "member1": Decimal("1.00")}, b"\2\2\x64"),
    ],
)
def test_bytes_become_values_and_values_become_the_same_bytes(type: Any, value: Any, bytes_: bytes) -> None:
    assert decoded(type, bytes_, bytes_) == [value, value]
    rows, _ = read(Decoder(record(type)), pa.array([b"bad", bytes_, bytes_]))
    # Also of an array that is a part of another.
    assert encoded(record(type), rows[1:]) == [bytes_, bytes_]


def test_a_smaller_number_of_a_union_is_read_as_the_larger_type() -> None:
    assert decoded(["int", "long"], b"\0\2", b"\2\4") == [1, 2]
    assert decoded(["float", "double"], b"\0\0\0\xc0\x3f", b"\2" + struct.pack("<d", 2.5)) == [1.5, 2.5]


def test_an_array_in_blocks_with_their_sizes_is_one_array() -> None:
    assert decoded({"type": "array", "items": "int"}, b"\3\4\2\2\2\6\0", b"\0") == [[1, 1, 3], []]


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("int", b""),
        ("int", b"\x80"),
        ("int", b"\2\2"),
        ("int", number(1 << 31)),
        ("boolean", b"\2"),
        ("float", b"\0\0\0"),
        ("string", b"\2\xff"),
        ("string", b"\6\xed\xa0\x80"),
        ("string", b"\1"),
        ("string", b"\3ab"),
        ("string", number(1 << 62) + b"ab"),
        ("string", number(-(1 << 62)) + b"ab"),
        ("bytes", number(1 << 40)),
        ({"type": "fixed", "name": "f", "size": 1 << 30}, b"ab"),
        (COLOR, b"\4"),
        (COLOR, b"\1"),
        (["null", "string"], b"\4\2a"),
        (["null", "string"], b"\1\2a"),
        (["null", "string"], b"\3"),
        (["null", "string"], number(-5_000)),
        (["null", "int", COLOR], b"\4\4"),
        (["null", "int", COLOR], b"\1\2"),
        (logical("long", "timestamp-millis"), LONGEST),
        (logical("int", "date"), number(1 << 31)),
        (DECIMAL, b"\4\x27\x10"),
        (DECIMAL, b"\4\xd8\xf0"),
        (DECIMAL, b"\0"),
        (DECIMAL, number(400) + b"\x7f" * 400),
        ({"type": "array", "items": "int"}, number(1 << 50) + b"\2"),
        ({"type": "array", "items": "string"}, b"\2\0"),
        ({"type": "map", "values": "null"}, number(1 << 50) + b"\0" * 10),
        ({"type": "map", "values": "int"}, b"\2\2\xff\2\0"),
    ],
)
def test_what_is_not_of_the_schema_is_a_bad_row_and_no_other_is(type: Any, value: bytes) -> None:
    begun = process_time()
    good = {"int": b"\2", "string": b"\2a", "boolean": b"\1"}.get(str(type))
    if good is not None:
        rows = decoded(type, *[good] * 50, value, *[good] * 50)
        assert rows == [*[rows[0]] * 50, ..., *[rows[0]] * 50]
        assert rows[0] is not ...
    assert decoded(type, None, value) == [None, ...]
    assert process_time() - begun < 5


def test_rows_that_fit_are_kept_beside_those_that_do_not_and_looking_for_them_takes_no_longer_the_more_they_are() -> (
    None
):
    good, bad = b"\2a", b"\2\xff"
    begun = process_time()
    assert decoded("string", *[bad, good, None, bad] * 5_000) == [..., "a", None, ...] * 5_000
    assert decoded("string", *[bad] * 3) == [...] * 3
    assert process_time() - begun < 5


def test_a_mistake_of_ours_makes_no_row_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("ours")

    monkeypatch.setattr(avro_decoder, "_plain", fail)
    for values in ([b"\2"], [], [None]):
        with pytest.raises(ValueError, match="ours"):
            list(Decoder(record("int")).decode(pa.array([*values, b"\2"], pa.binary())))


@pytest.mark.parametrize("error", [MemoryError, pa.ArrowMemoryError])
@pytest.mark.parametrize("place", ["read", "build"])
def test_rows_are_not_bad_because_memory_is_short(
    monkeypatch: pytest.MonkeyPatch, error: type[MemoryError], place: str
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    decoder = Decoder(record("int"))
    if place == "read":
        monkeypatch.setattr(decoder, "_reader", (fail, None))
    else:
        monkeypatch.setattr(avro_decoder, "_plain", fail)
    with pytest.raises(MemoryError):
        list(decoder.decode(pa.array([b"\2"])))


def zeros(count: int) -> bytes:
    """An array of them."""
    return number(count) + bytes(count) + b"\0"


def long_symbol(size: int) -> Any:
    return {"type": "array", "items": {"type": "enum", "name": "e", "symbols": ["S" * size]}}


def test_rows_that_become_far_larger_than_their_bytes_come_in_pieces_none_of_which_is_large() -> None:
    values = pa.array([None, zeros(1 << 16), b"bad"] * 20)
    pieces = list(Decoder(record(long_symbol(60))).decode(values))
    assert len(pieces) == 20
    assert max(rows.nbytes for rows, _ in pieces) < PIECE_BYTES
    assert sum(len(rows) for rows, _ in pieces) == 60
    assert [bad for _, is_bad in pieces for bad in is_bad.to_pylist()] == [False, False, True] * 20
    assert [row.is_valid for rows, _ in pieces for row in rows] == [False, True, False] * 20
    # Rows that are small are one piece.
    ((rows, _),) = Decoder(record("long", "string")).decode(pa.array([b"\2\2a"] * 10_000))
    assert len(rows) == 10_000


@pytest.mark.parametrize(
    ("type", "count"),
    [
        (long_symbol(3_000), 100_000),
        ({"type": "array", "items": ["null", record(*["long"] * 400) | {"name": "wide"}]}, 100_000),
    ],
)
def test_a_row_that_becomes_larger_than_one_may_be_is_bad(type: Any, count: int) -> None:
    assert decoded(type, zeros(1), zeros(count), zeros(1))[1] is ...
    assert ... not in decoded(type, zeros(1), zeros(count // 100), zeros(1))


# --- against fastavro with the schema itself ----------------------------------------------------------------------

PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=8),
    "bytes": st.binary(max_size=8),
}


@st.composite
def types(draw: st.DrawFn, names: list[int], depth: int = 2, is_in_union: bool = False) -> Any:
    """A schema, and a strategy for its values as fastavro takes them."""
    kinds = [*PRIMITIVES, "date", "time", "fixed", "enum", "decimal"]
    kinds += ["array", "map", "record", *([] if is_in_union else ["union", "optional"])] if depth else []
    kind = draw(st.sampled_from(kinds))
    names[0] += 1
    name = f"n{names[0]}"
    if kind in PRIMITIVES:
        return kind, PRIMITIVES[kind]
    if kind == "date":
        return logical("int", "date"), PRIMITIVES["int"]
    if kind == "time":
        unit = draw(st.sampled_from(["timestamp-millis", "timestamp-micros", "local-timestamp-millis"]))
        return logical("long", unit), st.integers(-(1 << 53), 1 << 53)
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": 3}, st.binary(min_size=3, max_size=3)
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")
    if kind == "decimal":
        # Those left out get a byte more from fastavro than from Java and us.
        unscaled = st.integers(-(10**9) + 1, 10**9 - 1).filter(
            lambda each: each not in (-(1 << 7), -(1 << 15), -(1 << 23))
        )
        digits = unscaled.map(lambda each: Decimal(each).scaleb(-2))
        sized = logical("fixed", "decimal", name=name, size=5, precision=9, scale=2)
        return draw(st.sampled_from([sized, logical("bytes", "decimal", precision=9, scale=2)])), digits
    if kind == "optional":
        inner, values = draw(types(names, depth - 1, is_in_union=True))
        assume(inner != "null")
        return draw(st.permutations(["null", inner])), st.none() | values
    if kind == "union":
        # Types of which no value could be one of the others.
        inner, values = draw(types(names, depth - 1, is_in_union=True).filter(lambda found: _is_named(found[0])))
        return ["null", "string", "boolean", inner], st.none() | PRIMITIVES["string"] | values.map(
            lambda value: (inner["name"], value)
        )
    if kind == "record":
        fields = [draw(types(names, depth - 1)) for _ in range(draw(st.integers(0, 3)))]
        schema = [{"name": f"f{place}", "type": each} for place, (each, _) in enumerate(fields)]
        values = st.fixed_dictionaries({f"f{place}": each for place, (_, each) in enumerate(fields)})
        return {"type": "record", "name": name, "fields": schema}, values
    inner, values = draw(types(names, depth - 1))
    if kind == "map":
        return {"type": "map", "values": inner}, st.dictionaries(st.text(max_size=3), values, max_size=3)
    assume(inner != "null" and not (isinstance(inner, dict) and inner["type"] == "record"))
    return {"type": "array", "items": inner}, st.lists(values, max_size=3)


def _is_named(schema: Any) -> bool:
    return isinstance(schema, dict) and schema["type"] in ("record", "fixed") and "logicalType" not in schema


@st.composite
def messages(draw: st.DrawFn) -> tuple[Any, list[bytes]]:
    names = [0]
    fields = [draw(types(names)) for _ in range(draw(st.integers(1, 4)))]
    schema = record(*(each for each, _ in fields))
    rows = draw(
        st.lists(
            st.fixed_dictionaries({f"f{place}": each for place, (_, each) in enumerate(fields)}), min_size=1, max_size=4
        )
    )
    parsed = parse_schema(schema)
    found = []
    for row in rows:
        file = BytesIO()
        schemaless_writer(file, parsed, row)
        found.append(file.getvalue())
    return schema, found


@given(messages())
@settings(max_examples=150)
def test_what_is_read_is_no_larger_than_was_told_from_its_length(given_: tuple[Any, list[bytes]]) -> None:
    schema, values = given_
    shape, decoder = parse(schema), Decoder(schema)
    read_one, as_read = decoder._reader
    for value in values:
        size = sizing(shape)(read_one(BytesIO(value), as_read, None))
        assert base(shape) + per_byte(shape) * len(value) >= size
        ((rows, _),) = decoder.decode(pa.array([value] * 64))
        # Arrow's arrays have a multiple of 8 bytes, and lists an offset more than they have items.
        assert rows.nbytes <= 64 * size + 64 * 100


@given(messages())
@settings(max_examples=150)
def test_what_fastavro_writes_is_read_and_written_the_same(given_: tuple[Any, list[bytes]]) -> None:
    schema, values = given_
    rows, is_bad = read(Decoder(schema), pa.array(values))
    assert not any(is_bad.to_pylist())
    assert encoded(schema, rows) == values


# --- against garbage ----------------------------------------------------------------------------------------------


class Strict:
    """Where a value ends, by Avro's specification, byte by byte. ValueError or IndexError if it is none."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.at:
            raise ValueError
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self) -> int:
        found = shift = 0
        while True:
            (byte,) = self.take(1)
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                # fastavro is lenient there.
                assume(found < 1 << 64)
                return (found >> 1) ^ -(found & 1)

    def text(self) -> str:
        return self.take(self.number()).decode()

    def blocks(self) -> int:
        """Of how many items the next block is."""
        count = self.number()
        assume(count != -(1 << 63))
        if count < 0:
            self.number()
        return abs(count)

    def value(self, type: Any) -> None:
        if isinstance(type, list):
            place = self.number()
            if not 0 <= place < len(type):
                raise ValueError
            return self.value(type[place])
        match type if isinstance(type, str) else type["type"]:
            case "boolean":
                if self.take(1)[0] > 1:
                    raise ValueError
            case "int":
                if not -(1 << 31) <= self.number() < 1 << 31:
                    raise ValueError
            case "long":
                self.number()
            case "double":
                self.take(8)
            case "string":
                self.text()
            case "color":
                self.value(COLOR)
            case "enum":
                if not 0 <= self.number() < len(type["symbols"]):
                    raise ValueError
            case "bytes":
                (found := self.take(self.number()))[0]
                if abs(int.from_bytes(found, "big", signed=True)) >= 10 ** type["precision"]:
                    raise ValueError
            case "array":
                while count := self.blocks():
                    for _ in range(count):
                        self.value(type["items"])
            case "map":
                while count := self.blocks():
                    for _ in range(count):
                        self.text()
                        self.value(type["values"])
            case "record":
                for field in type["fields"]:
                    self.value(field["type"])
        return None


ALL = record(
    ["null", "string"],
    "int",
    {"type": "array", "items": ["null", "string", COLOR]},
    "boolean",
    DECIMAL,
    # Whose values are whatever their bytes are: of those under one name, only the last is looked at.
    {"type": "map", "values": "long"},
    "color",
    ["double", {"type": "array", "items": "long"}],
)
GOOD = b"".join([b"\2\4ab", b"\5", b"\4\0\2\2x\0", b"\1", b"\2\x10", b"\2\2k\2\0", b"\2", b"\2\4\2\4\0"])


def is_good(data: bytes) -> bool:
    strict = Strict(data)
    try:
        strict.value(ALL)
    except (ValueError, IndexError):
        return False
    return strict.at == len(data)


def torn(data: bytes) -> st.SearchStrategy[bytes]:
    places = st.integers(0, len(data) - 1)
    changed = st.tuples(places, st.integers(0, 255)).map(lambda at: data[: at[0]] + bytes([at[1]]) + data[at[0] + 1 :])
    return (
        changed
        | places.map(lambda end: data[:end])
        | st.tuples(places, places).map(lambda at: data[: at[0]] + data[at[1] :])
    )


@given(st.lists(torn(GOOD) | torn(GOOD).flatmap(lambda once: torn(once or GOOD)) | st.binary(max_size=40), min_size=1))
@example([GOOD, GOOD + b"\0", GOOD[:-1]])
@settings(max_examples=150)
def test_whatever_the_bytes_are_a_row_is_bad_just_if_they_are_not_of_the_schema(values: list[bytes]) -> None:
    assert is_good(GOOD)
    _, is_bad = read(Decoder(ALL), pa.array(values))
    assert is_bad.to_pylist() == [not is_good(value) for value in values]


# --- rows that do not fit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type", "kind", "message"),
    [
        ("int", pa.int64(), "f0 is long, and in the Avro schema it is int, which takes byte, date, integer, short"),
        ("long", pa.float64(), "f0 is double, and in the Avro schema it is long"),
        ("float", pa.float64(), "f0 is double, and in the Avro schema it is float"),
        ("double", pa.int64(), "f0 is long, and in the Avro schema it is double"),
        ("string", pa.binary(), "f0 is binary, and in the Avro schema it is string"),
        ("string", pa.struct({"x": pa.int32()}), "f0 is struct, and in the Avro schema it is string"),
        (logical("long", "timestamp-millis"), pa.timestamp("us"), "f0 is timestamp_ntz, and in the Avro schema it is"),
        (logical("long", "timestamp-nanos"), UTC_US, "f0 is timestamp, and in the Avro schema it is timestamp-nanos"),
        (logical("long", "time-micros"), UTC_US, "f0 is timestamp, and in the Avro schema it is time-micros"),
        (logical("long", "local-timestamp-nanos"), pa.timestamp("us"), "it is local-timestamp-nanos: cast it"),
        (logical("int", "time-millis"), pa.date32(), "f0 is date, and in the Avro schema it is time-millis, which"),
        (DECIMAL, pa.decimal128(5, 2), "f0 is decimal(5,2), and in the Avro schema it is decimal(4,2): cast it"),
        (DECIMAL, pa.decimal128(4, 3), "f0 is decimal(4,3), and in the Avro schema it is decimal(4,2): cast it"),
        (DECIMAL, pa.list_(pa.int32()), "f0 is array, and in the Avro schema it is decimal(4,2): cast it"),
        (COLOR, pa.int32(), "f0 is integer, and in the Avro schema it is an enum, which takes string"),
        ({"type": "array", "items": "int"}, pa.list_(pa.int64()), "f0.element is long"),
        ({"type": "map", "values": "int"}, pa.map_(pa.int32(), pa.int32()), "a map whose keys are string"),
        (["int", "string"], pa.int32(), "f0 is integer, and in the Avro schema it is a union, which takes a struct of"),
    ],
)
def test_columns_that_do_not_fit_are_told_before_there_are_rows(type: Any, kind: pa.DataType, message: str) -> None:
    with pytest.raises(InvalidInput) as told:
        Encoder(record(type), spark_type(pa.struct({"f0": kind})))
    assert message in told.value.message


@pytest.mark.parametrize(
    ("type", "kind", "value", "bytes_"),
    [
        ("long", pa.int8(), 1, b"\2"),
        ("double", pa.int32(), 1, struct.pack("<d", 1)),
        ("double", pa.float32(), 1.5, struct.pack("<d", 1.5)),
        ("double", pa.float64(), float("inf"), struct.pack("<d", float("inf"))),
        ("long", pa.timestamp("us", "UTC"), -1, b"\1"),
        (logical("long", "timestamp-millis"), pa.timestamp("us", "Europe/Berlin"), 1_999, b"\2"),
        ("int", pa.date32(), date(1970, 1, 2), b"\2"),
        (DECIMAL, pa.decimal128(3, 1), Decimal("-99.9"), number(2) + (-9990).to_bytes(2, "big", signed=True)),
        (["null", "string"], pa.null(), None, b"\0"),
        (["null", "int", "string"], pa.struct({"member0": pa.int32(), "member1": pa.string()}), {}, b"\0"),
    ],
)
def test_a_column_may_be_less_than_the_schema_has(type: Any, kind: pa.DataType, value: Any, bytes_: bytes) -> None:
    assert encoded(record(type), column([value], kind)) == [bytes_]


@pytest.mark.parametrize(
    ("type", "kind", "value", "message"),
    [
        ("boolean", pa.bool_(), None, "f0 is null in a row"),
        (["string"], pa.string(), None, "f0 is null in a row"),
        (COLOR, pa.string(), "GREEN", "f0 is 'GREEN' in a row, and the schema has RED, BLUE"),
        (
            {"type": "fixed", "name": "f", "size": 2},
            pa.binary(),
            b"abc",
            "f0 has 3 bytes in a row, and the schema has 2",
        ),
        ({"type": "array", "items": "int"}, pa.list_(pa.int32()), [1, None], "f0.element is null in a row"),
        ({"type": "map", "values": "int"}, pa.map_(pa.string(), pa.int32()), {"a": None}, "f0.value is null in a row"),
        (["int", "string"], pa.struct({"member0": pa.int32(), "member1": pa.string()}), {}, "f0 is null in a row"),
        (
            ["null", "int", "string"],
            pa.struct({"member0": pa.int32(), "member1": pa.string()}),
            {"member0": 1, "member1": "x"},
            "f0 has several members in a row that are not null, and a union has one",
        ),
        (["null", record("int") | {"name": "i"}], pa.struct({"f0": pa.int32()}), {}, "f0.f0 is null in a row"),
    ],
)
def test_a_row_that_can_not_be_written_is_told_by_its_field(
    type: Any, kind: pa.DataType, value: Any, message: str
) -> None:
    with pytest.raises(InvalidInput) as told:
        encoded(record(type), column([value], kind))
    assert told.value.message.startswith(message)


NO_UTF_8 = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())


@pytest.mark.parametrize(
    ("type", "values", "path"),
    [
        ("string", NO_UTF_8, "f0"),
        (COLOR, NO_UTF_8, "f0"),
        ({"type": "map", "values": "int"}, pa.MapArray.from_arrays([0, 1], NO_UTF_8, pa.array([1])), "f0.key"),
    ],
)
def test_text_that_is_not_utf_8_is_not_written(type: Any, values: pa.Array, path: str) -> None:
    rows = pa.StructArray.from_arrays([values], names=["f0"])
    kind = {"type": "struct", "fields": [{"name": "f0", "type": spark_type(values.type)}]}
    if path == "f0.key":
        kind["fields"][0]["type"]["valueType"] = "integer"  # type: ignore[index]
    with pytest.raises(InvalidInput, match=rf"^{path} has a text in a row that is not UTF-8$"):
        Encoder(record(type), kind).encode(rows)


def test_columns_and_fields_find_each_other_whatever_their_capitals_and_order() -> None:
    fields = [
        {"name": "Total", "type": "int"},
        {"name": "none", "type": ["string", "null"]},
        {"name": "id", "type": "int"},
        {"name": "some", "type": ["null", "string"], "default": "x"},
        {"name": "nothing", "type": "null"},
    ]
    schema = {"type": "record", "name": "r", "fields": fields}
    rows = pa.array([{"ID": 1, "TOTAL": 2}, {"ID": 3, "TOTAL": 4}], pa.struct({"ID": pa.int32(), "TOTAL": pa.int32()}))
    assert encoded(schema, rows) == [b"\4\2\2\2\2x", b"\x08\2\6\2\2x"]
    for kind, message in (
        (
            {"id": pa.int32()},
            "there is no column for Total of the Avro schema, which has no default, and is never null",
        ),
        ({"id": pa.int32(), "more": pa.int32()}, "more is not in the Avro schema, which has Total, none, id, some, "),
    ):
        with pytest.raises(InvalidInput) as told:
            Encoder(schema, spark_type(pa.struct(kind)))
        assert told.value.message.startswith(message)


def test_an_executor_without_fastavro_tells_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = column([1], pa.int32())
    sent = pickle.dumps((Decoder(record("int")), Encoder(record("int"), spark_type(rows.type))))
    monkeypatch.setattr(session, "find_spec", lambda _: None)
    decoder, encoder = pickle.loads(sent)
    with pytest.raises(SparkMissing, match="fastavro, on executors too"):
        list(decoder.decode(pa.array([b"\2"])))
    with pytest.raises(SparkMissing, match="fastavro, on executors too"):
        encoder.encode(rows)
