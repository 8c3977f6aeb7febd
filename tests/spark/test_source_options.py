"""What the options say, and what they may not say. No Spark is needed for that, and no broker."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidSetting
from penstock.spark.asked import Asked, Pace, asked_by, table_in
from penstock.spark.connecting import Connecting
from penstock.spark.schema import schema_of, wanted_of

URL = "penstock://localhost:7420"
GIVEN = {"url": URL, "subscribe": "orders"}


def asked(is_stream: bool = False, **options: str) -> Asked:
    given = {name.replace("__", "."): value for name, value in (GIVEN | options).items()}
    return asked_by({name: value for name, value in given.items() if value}, is_stream=is_stream)


def test_names_of_options_are_known_in_any_case() -> None:
    assert asked(MINPARTITIONS="4").cut.tasks_min == 4
    assert asked(minpartitions="4").cut.tasks_min == 4


def test_what_spark_adds_for_itself_is_no_mistake() -> None:
    assert asked(checkpointLocation="/tmp/x").subscription.topics == ("orders",)


def test_what_is_asked_can_be_sent_to_executors() -> None:
    whole = asked(startingTimestamp="1768402800000", endingOffsets='{"orders": {"0": 5}}', key="secret")
    assert pickle.loads(pickle.dumps(whole)) == whole
    assert "secret" not in repr(whole)


def test_topics_are_a_list_a_pattern_or_partitions() -> None:
    assert asked(subscribe=" a ,b,a").subscription.topics == ("a", "b")
    pattern = asked(subscribe="", subscribePattern="ord.*").subscription
    assert [name for name in ("orders", "my-orders") if pattern.has(name)] == ["orders"]
    assert not asked(subscribe="", subscribePattern=".*").subscription.has("__of-the-broker")
    assert asked(subscribe="", assign='{"b": [1, 0, 1], "a": [2]}').subscription.assigned == {"a": (2,), "b": (0, 1)}


def test_times_are_milliseconds_or_text() -> None:
    assert asked(startingTimestamp="1768402800000").start.everywhere == 1768402800000000
    assert asked(startingTimestamp="2026-01-14T15:00:00Z").start.everywhere == 1768402800000000
    times = asked(startingOffsetsByTimestamp='{"orders": {"0": 1768402800000, "1": "2026-01-14T15:00:00Z"}}').start
    assert times.by_partition == {"orders": {0: 1768402800000000, 1: 1768402800000000}}


def test_a_stream_starts_with_what_comes_and_a_batch_with_what_is_there() -> None:
    assert asked(is_stream=True).start.everywhere == -1
    assert asked().start.everywhere == -2
    assert asked().end.everywhere == -1


def test_the_pace_of_a_stream() -> None:
    pace = asked(True, maxOffsetsPerTrigger="10", maxBytesPerTrigger="500", minOffsetsPerTrigger="3").pace
    assert pace == Pace(10, 500, 3, 15 * 60 * 1_000_000)
    assert asked(True, minOffsetsPerTrigger="3", maxTriggerDelay="5s").pace.delay_us_max == 5_000_000


WRONG: list[tuple[dict[str, str], str]] = [
    ({"url": ""}, "the option url is missing"),
    ({"url": "http://x"}, "the option url: an address is penstock://host:port"),
    ({"tls__ca": "ca.pem"}, "tls.* are for an address with TLS: penstocks://localhost:7420"),
    ({"url": "penstocks://x", "tls__key": "key.pem"}, "name that as tls.cert"),
    ({"subscribe": ""}, "one of subscribe, subscribePattern, assign: none is given"),
    ({"assign": '{"a": [0]}'}, "subscribe and assign are given"),
    ({"subscribe": "a,,b"}, "the option subscribe is names of topics"),
    ({"subscribe": "", "subscribePattern": "("}, "the option subscribePattern is a regular expression"),
    ({"subscribe": "", "assign": '{"a": 0}'}, "the option assign is JSON as in"),
    ({"subscribe": "", "assign": "a"}, "the option assign is JSON as in"),
    ({"subscribe": "", "assign": '{"a": [true]}'}, "the option assign is JSON as in"),
    ({"topics": "a"}, "there is no option 'topics' for reading"),
    ({"startingOfset": "latest"}, "did you mean startingOffsets?"),
    ({"path": "orders"}, "topics are not named by a path"),
    ({"option__url": URL}, "CREATE TEMPORARY VIEW keeps them"),
    ({"startingOffsets": "latest"}, "the option startingOffsets is earliest, or JSON as in"),
    ({"startingOffsets": '{"orders": {"0": -1}}'}, "offsets of partitions, or -2 (earliest), and not -1 (latest), not"),
    ({"startingOffsets": '{"orders": {"0": -3}}'}, "a number of 0 or more for each partition, -2 or -1, not -3"),
    ({"startingOffsets": '{"orders": {"x": 0}}'}, "the option startingOffsets is JSON as in"),
    ({"startingOffsets": '{"orders": 0}'}, "the option startingOffsets is JSON as in"),
    ({"startingOffsets": "{orders}"}, "the option startingOffsets is JSON as in"),
    ({"endingOffsets": "earliest"}, "the option endingOffsets is latest, or JSON as in"),
    ({"endingOffsets": '{"orders": {"0": -2}}'}, "offsets of partitions, or -1 (latest), and not -2 (earliest), not"),
    ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "startingOffsets and startingTimestamp, not both"),
    ({"startingTimestamp": "2", "endingTimestamp": "1"}, "startingTimestamp is later than endingTimestamp"),
    ({"startingTimestamp": "yesterday"}, "the option startingTimestamp is a time in milliseconds since 1970"),
    ({"startingOffsetsByTimestamp": '{"orders": {"0": true}}'}, "is a time in milliseconds since 1970"),
    ({"startingOffsetsByTimestampStrategy": "latest"}, "is for startingTimestamp or startingOffsetsByTimestamp"),
    ({"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "x"}, "is error or latest, not 'x'"),
    ({"minPartitions": "0"}, "the option minPartitions is a whole number from 1 on, not '0'"),
    ({"minPartitions": "many"}, "the option minPartitions is a whole number"),
    ({"maxRecordsPerPartition": "1.5"}, "the option maxRecordsPerPartition is a whole number"),
    ({"failOnDataLoss": "no"}, "the option failOnDataLoss is true or false, not 'no'"),
    ({"failOnDataLoss": " "}, "the option failOnDataLoss is some text"),
    ({"include": "everything"}, "the option include is messages or deliveries"),
    ({"include": "deliveries", "startingTimestamp": "1"}, "startingTimestamp is not for deliveries"),
    ({"maxOffsetsPerTrigger": "5"}, "there are no triggers in spark.read"),
]


@pytest.mark.parametrize(("options", "told"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_option_is_told(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        asked(**options)
    assert told in raised.value.message


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"endingOffsets": "latest"}, "a stream does not end"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "more than maxOffsetsPerTrigger, which is 4"),
        ({"maxTriggerDelay": "5s"}, "is for minOffsetsPerTrigger, which is not given"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "5"}, 'the option maxTriggerDelay is a duration as in "30s"'),
        ({"include": "deliveries", "maxBytesPerTrigger": "5"}, "maxBytesPerTrigger is not for deliveries"),
    ],
)
def test_a_wrong_option_of_a_stream_is_told(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        asked(True, **options)
    assert told in raised.value.message


def test_files_for_tls_that_are_not_there_are_told() -> None:
    with pytest.raises(InvalidSetting, match=r"the files of tls.* \(nowhere.pem\) can't be used"):
        Connecting("penstocks://localhost", tls_ca="nowhere.pem").open()


# --- schemas ------------------------------------------------------------------------------------------------


def test_a_key_can_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("pk_1_secret\n")
    assert asked(keyFile=str(file)).connecting.key == "pk_1_secret"


@pytest.mark.parametrize("content", [b"", b" \n", b"pk_1_secret pk_2_secret", b"pk_1_secret \xff"])
def test_a_file_without_a_key_is_told_and_its_content_is_not(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(InvalidSetting, match=r"keyFile: .*key ") as caught:
        asked(keyFile=str(file))
    assert "secret" not in str(caught.value)


def test_a_file_with_a_key_must_be_there_and_be_the_only_way() -> None:
    with pytest.raises(InvalidSetting, match="/nowhere can't be read on the driver: No such file"):
        asked(keyFile="/nowhere")
    with pytest.raises(InvalidSetting, match="both key and keyFile"):
        asked(keyFile="/nowhere", key="pk_1_secret")


def test_the_two_tables_have_their_schemas() -> None:
    assert schema_of(table_in(GIVEN)).names == [
        "id", "topic", "partition", "offset", "timestamp", "append_time", "key", "value", "headers", "priority",
        "deliver_at",
    ]  # fmt: skip
    assert "event_offset" in schema_of(table_in({**GIVEN, "include": "deliveries"})).names


def test_mistakes_are_told_with_the_schema_already() -> None:
    with pytest.raises(InvalidSetting, match="failOnDataLoss is true or false"):
        table_in({**GIVEN, "failOnDataLoss": "maybe"})
    with pytest.raises(InvalidSetting, match="the option url is missing"):
        table_in({"subscribe": "orders"})
    assert table_in({**GIVEN, "startingOffsets": "latest", "maxOffsetsPerTrigger": "5"}) == "messages"


@pytest.mark.parametrize(
    ("ddl", "told"),
    [
        ("offest BIGINT", "there is no column 'offest'; did you mean offset?"),
        ("color STRING", "there is no column 'color'; there are id, topic"),
        ("offset INT", "the column offset is bigint, not int"),
        ("headers MAP<STRING, BINARY>", "the column headers is array<struct<key:string,value:binary>>"),
        ("timestamp TIMESTAMP_NTZ", "the column timestamp is timestamp, not timestamp_ntz"),
        ("offset BIGINT, Offset BIGINT", "the schema has the column offset twice"),
        ("", "a schema has at least one column"),
    ],
)
def test_a_wrong_schema_is_told(spark: Any, ddl: str, told: str) -> None:
    from pyspark.sql.types import StructType

    with pytest.raises(InvalidSetting) as raised:
        wanted_of("messages", StructType.fromDDL(ddl) if ddl else StructType())
    assert told in raised.value.message
