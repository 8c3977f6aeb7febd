"""One task of the sink, without Spark around it: rows as Arrow batches, to a real broker."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from broker_process import BrokerProcess
from penstock.client.blocking import Client
from penstock.client.rows import StoredMessage
from penstock.durations import time_us
from penstock.errors import (
    AttemptDiffers,
    BatchTooLarge,
    InvalidInput,
    InvalidMessage,
    InvalidSetting,
    PenstockError,
    ProducerFenced,
    TopicNotFound,
)
from penstock.partitioner import partition_of
from penstock.spark import sink_task
from penstock.spark.connecting import Connecting
from penstock.spark.sink import stream_writer, writer
from penstock.spark.sink_columns import columns_of
from penstock.spark.sink_task import Origin, Pinned, Target, write_task

JOB = Origin.of_job("job", 4)


@pytest.fixture
def topic(q: Client) -> str:
    name = f"t{uuid4().hex[:8]}"
    q.create_topic(name, partitions=3)
    return name


class Sink:
    """Writes rows as a task does."""

    def __init__(self, broker: BrokerProcess, q: Client) -> None:
        self._connecting = Connecting(broker.address)
        self._q = q

    def write(
        self,
        topic: str | None,
        *tables: dict[str, Any] | pa.RecordBatch,
        origin: Origin = JOB,
        pinned: dict[str, Pinned] | None = None,
    ) -> int:
        batches = [each if isinstance(each, pa.RecordBatch) else pa.RecordBatch.from_pydict(each) for each in tables]
        # As Spark has it: all batches of a task have the same types.
        schema = pa.unify_schemas([each.schema for each in batches], promote_options="permissive")
        batches = [each.cast(schema) for each in batches]
        topics = {info.name: Pinned.of(info) for info in self._q.topics()} if pinned is None else pinned
        target = Target(self._connecting, topic, tuple(batches[0].schema.names), topics, "none")
        return write_task(target, origin, batches)


@pytest.fixture
def sink(broker: BrokerProcess, q: Client) -> Sink:
    return Sink(broker, q)


def stored(q: Client, topic: str) -> list[StoredMessage]:
    return list(q.reader(topic))


def texts(q: Client, topic: str, partition: int | None = None) -> list[str]:
    partitions = None if partition is None else [partition]
    return [(message.value or b"").decode() for message in q.reader(topic, partitions=partitions)]


# --- columns ------------------------------------------------------------------------------------------------


def test_every_column_becomes_what_it_names(q: Client, sink: Sink, topic: str) -> None:
    table = pa.RecordBatch.from_pydict(
        {
            "value": ["one", "two", None],
            "key": [b"k", None, b"k"],
            "headers": pa.array(
                [[{"key": "a", "value": "1"}, {"key": "b", "value": "2"}], None, []],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])),
            ),
            "priority": ["high", None, "low"],
            "timestamp": pa.array([1_700_000_000_000_000, None, 5], pa.timestamp("us", "UTC")),
            "delay": ["1h", None, "0s"],
            "ttl": ["2h", "10m", None],
            "partition": pa.array([2, 2, 2], pa.int32()),
        }
    )
    assert sink.write(topic, table) == 3
    one, two, three = stored(q, topic)
    assert (one.value, two.value, three.value) == (b"one", b"two", None)
    assert (one.key, two.key, three.key) == (b"k", None, b"k")
    assert (one.headers, two.headers) == ((("a", b"1"), ("b", b"2")), ())
    assert (one.priority, two.priority, three.priority) == (1, 0, -1)
    assert (one.timestamp, three.timestamp) == (1_700_000_000_000_000, 5)
    assert abs(two.timestamp - two.append_time) < 60_000_000
    assert abs(one.deliver_at - one.append_time - 3_600_000_000) < 60_000_000
    assert (two.deliver_at, three.deliver_at, three.expires_at) == (0, 0, 0)
    assert abs(two.expires_at - two.append_time - 600_000_000) < 60_000_000
    assert {message.partition for message in (one, two, three)} == {2}


def test_intervals_times_maps_and_numbers_do_as_well(q: Client, sink: Sink, topic: str) -> None:
    due = datetime.now(UTC) + timedelta(days=30)
    table = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"v"], pa.binary()),
            "headers": pa.array([[("a", b"1")]], pa.map_(pa.string(), pa.binary())),
            "priority": pa.array([1], pa.int64()),
            "ttl": pa.array([timedelta(days=1)], pa.duration("us")),
        }
    )
    later = {"value": ["w"], "deliver_at": pa.array([due], pa.timestamp("us", "UTC"))}
    later["expires_at"] = pa.array([due + timedelta(hours=1)], pa.timestamp("us", "UTC"))
    sink.write(topic, table)
    sink.write(topic, later, origin=Origin.of_job("other", 4))
    one, two = stored(q, topic)
    assert (one.headers, one.priority) == ((("a", b"1"),), 1)
    assert abs(one.expires_at - one.append_time - 86_400_000_000) < 60_000_000
    assert (two.deliver_at, two.expires_at) == (time_us(due), time_us(due) + 3_600_000_000)


def test_keys_go_where_producers_send_them_and_rows_without_take_turns(
    q: Client, sink: Sink, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_task, "_RUN_ROWS", 4)
    keys = [f"k{number}" if number % 2 else None for number in range(24)]
    sink.write(topic, {"value": [str(number) for number in range(24)], "key": keys})
    for message in stored(q, topic):
        number = int(message.value or b"")
        if number % 2:
            assert message.key is not None
            assert message.partition == partition_of(message.key, 3)
        else:
            assert message.partition == (4 + number // 4) % 3


def test_rows_say_their_topic_unless_the_option_does(q: Client, sink: Sink) -> None:
    first, second = names = [f"t{uuid4().hex[:8]}" for _ in range(2)]
    for name in names:
        q.create_topic(name, partitions=1)
    rows = {"value": ["a", "b", "c"], "topic": [first, second, first]}
    for _ in range(2):
        assert sink.write(None, rows, {"value": ["e"], "topic": [second]}) == 4
    assert [texts(q, name) for name in names] == [["a", "c"], ["b", "e"]]
    sink.write(first, rows, origin=Origin.of_job("option", 0))
    assert texts(q, first) == ["a", "c", "a", "b", "c"]


def test_a_topic_that_was_made_after_the_write_began_is_refused(q: Client, sink: Sink, topic: str) -> None:
    """If it were looked at by each attempt, and got more partitions in between, its rows would be stored twice."""
    before = {info.name: Pinned.of(info) for info in q.topics()}
    late = f"t{uuid4().hex[:8]}"
    q.create_topic(late, partitions=1)
    rows = {"value": ["a", "b"], "topic": [topic, late]}
    with pytest.raises(
        TopicNotFound, match=f"row 1 of Spark partition 4: the topic '{late}' was made after this write"
    ):
        sink.write(None, rows, pinned=before)
    sink.write(None, rows)
    assert [texts(q, name) for name in (topic, late)] == [["a"], ["b"]]


# --- rows that can't be -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "kind", "told"),
    [
        ({"delay": ["1s", "soon"]}, InvalidMessage, "delay: a duration is written as"),
        ({"delay": pa.array([0, -1], pa.duration("us"))}, InvalidMessage, "delay: a duration can't be negative"),
        ({"delay": ["1s", "20000d"]}, InvalidMessage, "it is to be delivered 20000d from now, the topic allows 3650d"),
        ({"ttl": ["1s", "0s"]}, InvalidMessage, "the ttl would be over before the message is due"),
        ({"ttl": ["3s", "1s"], "delay": ["2s", "2s"]}, InvalidMessage, "the ttl would be over"),
        ({"priority": ["low", "urgent"]}, InvalidMessage, "priority is high, normal or low, not 'urgent'"),
        ({"priority": [0, 7]}, InvalidMessage, "priority is high, normal or low, not 7"),
        ({"partition": [0, 3]}, InvalidMessage, "has partitions 0 to 2, not 3"),
        ({"partition": [0, -1]}, InvalidMessage, "has partitions 0 to 2, not -1"),
        ({"key": ["k", "x" * 1_100_000]}, BatchTooLarge, "a message of 1100001 bytes; message_bytes_max is 1048576"),
        ({"topic": ["here", None]}, InvalidMessage, "the topic is null"),
        ({"topic": ["here", "nowhere"]}, TopicNotFound, "there is no topic 'nowhere', and writing does not make one: "),
        (
            {"headers": [[], [{"key": str(number), "value": b""} for number in range(101)]]},
            BatchTooLarge,
            "a message with more than 100 headers (headers_max)",
        ),
        (
            {"deliver_at": pa.array([None, -1], pa.timestamp("us", "UTC"))},
            InvalidMessage,
            "deliver_at is before 1970",
        ),
        (
            {"deliver_at": pa.array([None, 1 << 60], pa.timestamp("us", "UTC"))},
            InvalidMessage,
            "deliver_at is after the year 9999",
        ),
        (
            {"expires_at": pa.array([None, 1 << 60], pa.timestamp("us", "UTC"))},
            InvalidMessage,
            "expires_at is after the year 9999",
        ),
        (
            {"expires_at": pa.array([None, 0], pa.timestamp("us", "UTC"))},
            InvalidMessage,
            "expires_at is 1970-01-01T00:00:00Z, which no message can have",
        ),
        ({"timestamp": pa.array([None, -1], pa.timestamp("us", "UTC"))}, InvalidMessage, "timestamp is before 1970"),
        (
            {"timestamp": pa.array([1, 1 << 60], pa.timestamp("us", "UTC"))},
            InvalidMessage,
            "timestamp is after the year 9999",
        ),
        (
            {"timestamp": pa.array([None, 0], pa.timestamp("us", "UTC"))},
            InvalidMessage,
            "timestamp is 1970-01-01T00:00:00Z, which no message can have: use null for none",
        ),
        ({"delay": pa.array([0, 1 << 60], pa.duration("us"))}, InvalidMessage, "delay goes beyond the year 9999"),
        ({"ttl": pa.array([9, 1 << 60], pa.duration("us"))}, InvalidMessage, "ttl goes beyond the year 9999"),
        (
            {"headers": [[{"key": "h", "value": b"1"}], [{"key": "h", "value": None}]]},
            InvalidMessage,
            "headers: a name or value is null",
        ),
    ],
)
def test_a_row_that_can_not_be_a_message_fails_the_task_by_its_number(
    q: Client, sink: Sink, topic: str, columns: dict[str, Any], kind: type[PenstockError], told: str
) -> None:
    if "topic" in columns:
        columns = {"topic": [topic if name == "here" else name for name in columns["topic"]]}
    rows = {"value": ["a", "b"], **columns}
    with pytest.raises(kind) as caught:
        sink.write(None if "topic" in columns else topic, rows)
    assert caught.value.message.startswith("row 1 of Spark partition 4: ")
    assert told in caught.value.message
    assert caught.value.details["row"] == 1


@pytest.mark.parametrize("wrong", [0, 1, 6, 16])
def test_a_header_without_a_value_is_found_among_many(sink: Sink, topic: str, wrong: int) -> None:
    headers = [[{"key": "h", "value": None if row in (wrong, 16) else b"1"}] for row in range(17)]
    first = {"value": ["a"] * 3, "headers": [[{"key": "h", "value": b"1"}]] * 3}
    with pytest.raises(
        InvalidMessage, match=f"^row {3 + wrong} of Spark partition 4: headers: a name or value is null"
    ):
        sink.write(topic, first, {"value": ["a"] * 17, "headers": headers})


def test_rows_are_counted_over_all_batches_of_the_task(sink: Sink, topic: str) -> None:
    with pytest.raises(InvalidMessage, match="row 5 of Spark partition 4: delay"):
        sink.write(topic, {"value": ["a"] * 4, "delay": ["1s"] * 4}, {"value": ["a"] * 2, "delay": ["1s", "x"]})


# --- once ---------------------------------------------------------------------------------------------------


def cut(rows: dict[str, list[Any]], *sizes: int) -> Sequence[dict[str, list[Any]]]:
    start, found = 0, []
    for size in sizes:
        found.append({name: column[start : start + size] for name, column in rows.items()})
        start += size
    return found


ROWS = {
    "value": [str(number) for number in range(40)],
    "key": [None if number % 3 == 0 else f"k{number % 7}" for number in range(40)],
}


def test_an_attempt_that_is_repeated_stores_nothing_twice_however_spark_cuts_it(
    q: Client, sink: Sink, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_task, "_RUN_ROWS", 5)
    origin = Origin.of_stream("query", 70_000, 1)
    # The first attempt ends before the last of its rows.
    sink.write(topic, *cut(ROWS, 13, 12), origin=origin)
    for sizes in ((40,), (1, 9, 30), (20, 20), (7,) * 5 + (5,)):
        assert sink.write(topic, *cut(ROWS, *sizes), origin=origin) == 40
    assert sorted(texts(q, topic), key=int) == ROWS["value"]
    for partition in range(3):
        numbers = [int(text) for text in texts(q, topic, partition)]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("frames", [1, 13])
def test_other_rows_in_an_attempt_that_is_repeated_fail_and_nothing_is_taken_for_another(
    q: Client, sink: Sink, topic: str, frames: int
) -> None:
    """Whether the broker remembers the frames of the first attempt, or they are too many for that."""
    origin = Origin.of_stream(f"changed {frames}", 3, 1)
    size = 26 // frames
    for end in range(size, 27, size):
        sink.write(topic, *cut(ROWS, end), origin=origin)
    before = texts(q, topic)
    assert sorted(before, key=int) == ROWS["value"][:26]
    changed = {name: column[9:] for name, column in ROWS.items()}
    with pytest.raises(AttemptDiffers, match=r"of Spark partition 1 are not those .* another checkpointLocation, with"):
        sink.write(topic, *cut(changed, 31), origin=origin)
    swapped = {name: [column[1], column[0], *column[2:]] for name, column in ROWS.items()}
    swapped["key"] = ["k"] * 40
    with pytest.raises(AttemptDiffers):
        sink.write(topic, *cut(swapped, 40), origin=origin)
    assert texts(q, topic) == before
    sink.write(topic, *cut(ROWS, 40), origin=origin)
    assert sorted(texts(q, topic), key=int) == ROWS["value"]


def test_times_that_count_from_now_on_may_be_others_when_an_attempt_is_repeated(
    q: Client, sink: Sink, topic: str
) -> None:
    given = pa.array([None, 5, None, 7], pa.timestamp("us", "UTC"))
    rows = {"value": ["a", "b", "c", "d"], "timestamp": given, "delay": ["1h", None] * 2, "ttl": ["2h"] * 4}
    for _ in range(2):
        assert sink.write(topic, rows) == 4
    assert sorted(texts(q, topic)) == ["a", "b", "c", "d"]
    with pytest.raises(AttemptDiffers, match="timestamp is another"):
        sink.write(topic, {**rows, "timestamp": pa.array([None, 5, None, 8], pa.timestamp("us", "UTC"))})
    due = [datetime.now(UTC) + timedelta(days=days) for days in (1, 2)]
    origin = Origin.of_job("absolute", 0)
    for _ in range(2):
        sink.write(topic, {"value": ["x"], "deliver_at": due[:1]}, origin=origin)
    with pytest.raises(AttemptDiffers, match="deliver_at is another"):
        sink.write(topic, {"value": ["x"], "deliver_at": due[1:]}, origin=origin)


def test_partitions_that_are_added_do_not_move_the_rows_of_a_repeated_attempt(
    q: Client, sink: Sink, topic: str
) -> None:
    pinned = {topic: Pinned.of(q.topic(topic))}
    sink.write(topic, *cut(ROWS, 25), pinned=pinned)
    q.change_topic(topic, partitions=5)
    sink.write(topic, *cut(ROWS, 40), pinned=pinned)
    assert sorted(texts(q, topic), key=int) == ROWS["value"]
    # A driver that was started again sees all five. Then rows may be stored twice, but none is taken for another.
    sink.write(topic, *cut(ROWS, 40))
    assert set(texts(q, topic)) == set(ROWS["value"])
    assert len(texts(q, topic)) == 80


def test_the_next_batch_fences_what_is_left_of_the_one_before(q: Client, sink: Sink, topic: str) -> None:
    row = {"value": ["a"]}
    sink.write(topic, row, origin=Origin.of_stream("query", 2, 0))
    # Unkeyed rows take turns: three batches later it is the same partition.
    sink.write(topic, row, origin=Origin.of_stream("query", 5, 0))
    with pytest.raises(ProducerFenced, match=r"\(epoch 2\) is over.* start it with another checkpointLocation"):
        sink.write(topic, row, origin=Origin.of_stream("query", 2, 0))
    assert texts(q, topic) == ["a", "a"]


def test_identities_are_those_of_what_a_task_is_a_part_of() -> None:
    identity = Origin.of_stream("query", 65_537, 3).identity("orders", 6)
    assert identity == Origin.of_stream("query", 65_537, 3).identity("orders", 6)
    assert 0 < identity.id < 1 << 63
    assert identity.epoch == 1
    others = [
        Origin.of_stream("other", 65_537, 3).identity("orders", 6),
        Origin.of_stream("query", 65_537, 4).identity("orders", 6),
        Origin.of_stream("query", 1, 3).identity("orders", 6),
        Origin.of_stream("query", 65_537, 3).identity("others", 6),
        Origin.of_stream("query", 65_537, 3).identity("orders", 7),
        Origin.of_job("query", 3).identity("orders", 6),
        Origin.of_job("name", 3, query="query", batch=65_537).identity("orders", 6),
        Origin.of_job("other", 3, query="query", batch=65_537).identity("orders", 6),
        Origin.of_job("name", 3, query="other", batch=65_537).identity("orders", 6),
    ]
    assert len({each.id for each in others} | {identity.id}) == len(others) + 1
    # Never changed: a query that goes on after an upgrade must be known by what it was known by before.
    assert identity == (6_946_644_918_135_151_432, 1)


# --- the schema ---------------------------------------------------------------------------------------------


def schema_of(text: str) -> t.StructType:
    kinds: dict[str, t.DataType] = {
        "binary": t.BinaryType(),
        "string": t.StringType(),
        "int": t.IntegerType(),
        "double": t.DoubleType(),
        "timestamp": t.TimestampType(),
        "timestamp_ntz": t.TimestampNTZType(),
        "interval": t.DayTimeIntervalType(),
        "map": t.MapType(t.StringType(), t.StringType()),
        "map_of_int": t.MapType(t.StringType(), t.IntegerType()),
        "array": t.ArrayType(
            t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
        ),
        "array_of_int": t.ArrayType(t.IntegerType()),
    }
    fields = [field.split(":") for field in text.split()]
    return t.StructType([t.StructField(name, kinds[kind]) for name, kind in fields])


@pytest.mark.parametrize(
    "text",
    [
        "value:binary",
        "value:string key:string headers:array partition:int priority:string timestamp:timestamp deliver_at:timestamp",
        "Value:string KEY:binary topic:string headers:map priority:int delay:interval ttl:string",
        "value:string delay:string expires_at:timestamp",
    ],
)
def test_these_columns_can_be_written(text: str) -> None:
    assert columns_of(schema_of(text), has_topic=True) == tuple(field.split(":")[0].lower() for field in text.split())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("key:string", r"there is no column value \(binary or string\)"),
        ("value:double", "column value is binary or string, not double"),
        ("value:string key:int", "column key is binary or string, not int"),
        ("value:string topic:int", "column topic is string, not int"),
        ("value:string headers:array_of_int", "column headers is array<struct<key:string,value:binary>> or map"),
        ("value:string headers:map_of_int", r"not map<string,int>"),
        ("value:string partition:string", "column partition is int, not string"),
        ("value:string priority:double", r"column priority is string \(.*\) or int \(1, 0 or -1\), not double"),
        ("value:string timestamp:timestamp_ntz", "column timestamp is timestamp, not timestamp_ntz"),
        ("value:string delay:int", 'column delay is string, as in "30s", or interval day to second, not int'),
        ("value:string deliver_at:string", "column deliver_at is timestamp, not string"),
        ("value:string delay:string deliver_at:timestamp", "there are columns delay and deliver_at"),
        ("value:string ttl:string expires_at:timestamp", "there are columns ttl and expires_at"),
        ("value:string VALUE:string", "there are two columns named value"),
        ("value:string colour:string", "column colour is nothing a message has: there may be value, key, topic"),
        ("value:string offset:int", "column offset is nothing a message has: the broker gives that itself; select"),
    ],
)
def test_other_columns_are_refused_by_their_names(text: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        columns_of(schema_of(text), has_topic=True)


def test_without_a_topic_in_the_options_there_must_be_a_column() -> None:
    with pytest.raises(InvalidInput, match=r"where to\? Set the option topic, or have a column topic \(string\)"):
        columns_of(schema_of("value:string"), has_topic=False)
    assert columns_of(schema_of("value:string topic:string"), has_topic=False) == ("value", "topic")


# --- options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"url": ""}, "the option url is some text"),
        ({"url": "http://here"}, "the option url"),
        ({"topics": "x"}, "there is no option 'topics' for writing; did you mean topic"),
        ({"retryFor": "5"}, "the option retryFor is a duration"),
        ({"compression": "zip"}, "the option compression is none or lz4 or zstd, not 'zip'"),
        ({"path": "/there"}, "topics are not named by a path"),
    ],
)
def test_options_that_can_not_be_are_refused(broker: BrokerProcess, options: dict[str, str], told: str) -> None:
    for make in (writer, stream_writer):
        with pytest.raises(InvalidSetting, match=told):
            make({"url": broker.address, "topic": "orders", **options}, schema_of("value:string"), False)


def test_topics_are_not_replaced_and_streams_have_no_write_id(broker: BrokerProcess) -> None:
    options = {"url": broker.address, "topic": "orders"}
    with pytest.raises(InvalidSetting, match=r'topics can only be appended to: use mode\("append"\)'):
        writer(options, schema_of("value:string"), True)
    with pytest.raises(InvalidSetting, match=r'topics can only be appended to: use outputMode\("append"\)'):
        stream_writer(options, schema_of("value:string"), True)
    with pytest.raises(InvalidSetting, match=r"the option writeId is for df\.write"):
        stream_writer({**options, "writeId": "x"}, schema_of("value:string"), False)
    streaming = stream_writer(options, schema_of("value:string"), False)
    with pytest.raises(pickle.PicklingError, match=r"\[topic_not_found\] .* penstock topic create orders"):
        pickle.dumps(streaming)


def test_a_writer_goes_to_executors_as_it_is_and_without_its_key_in_sight(broker: BrokerProcess, topic: str) -> None:
    made = writer({"url": broker.address, "topic": topic, "key": "secret"}, schema_of("value:string"), False)
    there = pickle.loads(pickle.dumps(made))
    assert there.__dict__ == made.__dict__
    assert "secret" not in repr(there.__dict__)
