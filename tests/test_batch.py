from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.batch import Batch
from penstock.clock import TIME_MAX_US
from penstock.columns import SCHEMA
from penstock.errors import InvalidMessage, UnknownColumn
from penstock.frame import Frame
from penstock.message import Message

times = st.integers(0, TIME_MAX_US)
headers = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3).map(tuple)
messages = st.builds(
    Message,
    value=st.none() | st.binary(max_size=20),
    key=st.none() | st.binary(max_size=10),
    headers=headers,
    timestamp=st.integers(1, TIME_MAX_US),
    deliver_at=st.just(0) | times,
    expires_at=st.just(0) | times,
    priority=st.sampled_from((-1, 0, 1)),
)
rows = st.lists(messages, min_size=1, max_size=20)


@given(rows)
def test_messages_come_out_of_a_batch_as_they_went_in(given_rows: list[Message]) -> None:
    assert list(Batch.from_messages(given_rows, now_us=1).messages()) == given_rows


@given(rows)
def test_messages_survive_the_way_through_arrow(given_rows: list[Message]) -> None:
    table = Batch.from_messages(given_rows, now_us=1).to_arrow()
    table.validate(full=True)
    assert list(Batch.from_arrow(table, now_us=1).messages()) == given_rows


@given(rows, st.data())
def test_a_slice_holds_its_rows_and_encodes_like_a_batch_of_its_own(
    given_rows: list[Message], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(given_rows) - 1))
    stop = data.draw(st.integers(start + 1, len(given_rows)))
    part = Batch.from_messages(given_rows, now_us=1).slice(start, stop)
    assert list(part.messages()) == given_rows[start:stop]
    part.to_arrow().validate(full=True)
    assert list(Frame.accept(Frame.of(part).data).batch().messages()) == given_rows[start:stop]
    inner = part.slice(0, 1)
    assert list(inner.messages()) == given_rows[start : start + 1]


@given(rows, st.data())
def test_take_keeps_rows_and_the_offsets_they_had(given_rows: list[Message], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(given_rows), max_size=len(given_rows)).filter(any))
    taken = Batch.from_messages(given_rows, now_us=1).take(np.array(kept))
    assert list(taken.messages()) == [row for row, keep in zip(given_rows, kept, strict=True) if keep]
    assert taken.offset_deltas.tolist() == np.flatnonzero(kept).tolist()


@given(st.lists(rows, min_size=1, max_size=4))
def test_concat_is_one_after_the_other(parts: list[list[Message]]) -> None:
    whole = Batch.concat([Batch.from_messages(part, now_us=1) for part in parts])
    assert list(whole.messages()) == [row for part in parts for row in part]


def test_a_slice_shares_the_memory_of_its_batch() -> None:
    batch = Batch.from_columns([b"a" * 100] * 10, now_us=1)
    part = batch.slice(3, 7)
    assert part.value is batch.value
    assert batch.value is not None
    whole = part.to_arrow().column("value")
    assert whole.buffers()[2].address == pa.py_buffer(batch.value.data).address


def test_arrow_columns_are_taken_without_copying_the_data() -> None:
    values = pa.array([b"a" * 1000] * 100, pa.binary())
    batch = Batch.from_columns(values, now_us=1)
    assert batch.value is not None
    assert pa.py_buffer(batch.value.data).address == values.buffers()[2].address


def test_columns_that_are_all_default_are_left_out() -> None:
    batch = Batch.from_columns(
        [b"a", b"b"],
        keys=[None, None],
        headers=[(), {}],
        timestamps=[5, 5],
        deliver_at=[0, None],
        expires_at=[0, 0],
        priorities=[0, 0],
        now_us=9,
    )
    left_out = (batch.key, batch.headers, batch.timestamp_column, batch.deliver_at, batch.expires_at, batch.priority)
    assert left_out == (None,) * 6
    assert batch.timestamps.tolist() == [5, 5]


def test_a_message_without_a_timestamp_gets_the_time_of_batching() -> None:
    batch = Batch.from_messages([Message(b"a"), Message(b"b", timestamp=7)], now_us=42)
    assert batch.timestamps.tolist() == [42, 7]


def test_columns_may_be_strings_numpy_or_arrow_arrays_of_other_types() -> None:
    batch = Batch.from_columns(
        pa.array(["x", "y"], pa.large_string()),
        keys=["k", None],
        headers=pa.array([[("n", b"v")], None], pa.map_(pa.string(), pa.binary())),
        timestamps=pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("ms", tz="UTC")),
        deliver_at=np.array([1, 2], np.int64),
        priorities=pa.array([1, None], pa.int64()),
        now_us=1,
    )
    first, second = batch.messages()
    assert first == Message(b"x", b"k", (("n", b"v"),), 1_767_225_600_000_000, deliver_at=1, priority=1)
    assert second == Message(b"y", None, (), 1_767_225_600_000_000, deliver_at=2)


def test_a_map_that_is_null_has_no_headers_whatever_lies_beneath_it() -> None:
    full = pa.array([[("n", b"1")], [("gone", b"2")], [("m", b"3")]], pa.map_(pa.string(), pa.binary()))
    fields = [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
    entries = pa.StructArray.from_arrays([full.keys, full.items], fields=fields)
    validity = pa.py_buffer(b"\x05")
    headers = pa.Array.from_buffers(full.type, 3, [validity, full.buffers()[1]], children=[entries])
    batch = Batch.from_columns([b"x", b"y", b"z"], headers=headers, now_us=1)
    assert [message.headers for message in batch.messages()] == [(("n", b"1"),), (), (("m", b"3"),)]
    batch = Batch.from_columns([b"y", b"z"], headers=headers.slice(1), now_us=1)
    assert [message.headers for message in batch.messages()] == [(), (("m", b"3"),)]


def test_a_chunked_table_becomes_one_batch() -> None:
    table = pa.concat_tables([pa.table({"value": [b"a"], "key": [b"1"]}), pa.table({"value": [b"b"], "key": [b"2"]})])
    assert Batch.from_arrow(table, now_us=1).values() == [b"a", b"b"]


def test_the_arrow_schema_is_the_documented_one() -> None:
    assert Batch.from_columns([b"a"], now_us=1).to_arrow().schema == SCHEMA


@pytest.mark.parametrize(
    ("columns", "column"),
    [
        ({"keys": [b"a", b"b"]}, "keys"),
        ({"keys": [1]}, "keys"),
        ({"timestamps": [-1]}, "timestamps"),
        ({"timestamps": [TIME_MAX_US + 1]}, "timestamps"),
        ({"timestamps": ["yesterday"]}, "timestamps"),
        ({"deliver_at": [-5]}, "deliver_at"),
        ({"expires_at": [1 << 70]}, "expires_at"),
        ({"priorities": [2]}, "priorities"),
        ({"priorities": ["high"]}, "priorities"),
        ({"headers": [[("name",)]]}, "headers"),
        ({"headers": [[("name", None)]]}, "headers"),
        ({"headers": [[(3, b"x")]]}, "headers"),
    ],
)
def test_a_column_that_can_not_be_stored_is_refused_by_name(columns: dict[str, object], column: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        Batch.from_columns([b"a"], now_us=1, **columns)
    assert caught.value.details["column"] == column


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(InvalidMessage):
        Batch.from_columns([], now_us=1)


def test_arrow_columns_that_are_not_ours_are_refused_by_name() -> None:
    with pytest.raises(UnknownColumn) as caught:
        Batch.from_arrow(pa.table({"value": [b"a"], "colour": ["red"]}), now_us=1)
    assert caught.value.details["columns"] == ["colour"]


def test_arrow_tables_without_values_are_refused() -> None:
    with pytest.raises(InvalidMessage):
        Batch.from_arrow(pa.table({"key": [b"a"]}), now_us=1)


@pytest.mark.parametrize(
    "message",
    [
        Message(b"", timestamp=-1),
        Message(b"", deliver_at=TIME_MAX_US + 1),
        Message(b"", expires_at=-1),
        Message(b"", priority=2),
        Message("text"),  # type: ignore[arg-type]
        Message(b"", key=5),  # type: ignore[arg-type]
        Message(b"", headers=(("name", "text"),)),  # type: ignore[arg-type]
        Message(b"", headers=((b"name", b""),)),  # type: ignore[arg-type]
        Message(b"", headers=(("name",),)),  # type: ignore[arg-type]
        Message(b"", headers=(("\ud800", b""),)),
    ],
)
def test_a_message_out_of_range_is_refused(message: Message) -> None:
    with pytest.raises(InvalidMessage):
        Batch.from_messages([message], now_us=1)


# Below and above what Python counts by itself.
@pytest.mark.parametrize("count", [1, 64, 65, 1_000])
def test_a_list_of_bytes_becomes_the_same_column_with_and_without_arrow(count: int) -> None:
    for values in (
        [b"%d" % row for row in range(count)],
        [b"" for _ in range(count)],
        [None if row % 3 == 1 else b"x" * row for row in range(count)],
    ):
        plain = Batch.from_columns(values, keys=[None] * count, now_us=1).to_arrow()
        arrow = Batch.from_columns(
            pa.array(values, pa.binary()), keys=pa.nulls(count, pa.binary()), now_us=1
        ).to_arrow()
        assert plain.equals(arrow)
        assert plain.column("value").to_pylist() == values


def test_text_among_bytes_is_left_to_arrow_in_a_list_of_any_length() -> None:
    for count in (1, 100):
        batch = Batch.from_columns([b"bytes"] * count + ["text"], now_us=1)
        assert batch.to_arrow().column("value").to_pylist() == [b"bytes"] * count + [b"text"]
        with pytest.raises(InvalidMessage):
            Batch.from_columns([b"bytes"] * count + [7], now_us=1)


def test_sending_many_messages_does_not_import_pandas(tmp_path: Path) -> None:
    """It takes up to half a second, and would hold up whatever is being published."""
    script = """
import sys
import penstock

with penstock.open(sys.argv[1]) as q:
    q.create_topic("orders", partitions=1)
    with q.producer("orders") as producer:
        for sending in [producer.send(b"x", key=b"k" if row % 2 else None) for row in range(500)]:
            sending.result()
    assert sum(partition.end_offset for partition in q.topic("orders").partitions) == 500
print("pandas" in sys.modules)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_rows_of_a_frame_are_taken_without_importing_pandas() -> None:
    """A broker does so for each lease of a lane: the first one would wait for the import, and everybody behind it."""
    messages = [Message(b"%d" % i, key=b"k", headers=(("a", b"x"),), priority=i % 2) for i in range(4)]
    frame = Frame.of(Batch.from_messages(messages, 1))
    work = (
        "import sys; import numpy as np; from penstock.frame import Frame;"
        "batch = Frame(memoryview(sys.stdin.buffer.read())).batch();"
        "taken = batch.take(np.array([True, False, False, True]));"
        "assert taken.count == 2 and taken.priority.tolist() == [0, 1];"
        "assert 'pandas' not in sys.modules"
    )

    done = subprocess.run([sys.executable, "-c", work], input=bytes(frame.data), capture_output=True, check=False)

    assert done.returncode == 0, done.stderr.decode()
