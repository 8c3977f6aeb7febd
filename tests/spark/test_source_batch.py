"""`spark.read.format("penstock")` against a real broker."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

import penstock
from broker_process import BrokerProcess, broker_process
from penstock.client.blocking import Client
from penstock.client.rows import StoredMessage
from penstock.clock import rfc3339
from penstock.server.keys import make
from penstock.spark.tables import LOGS

Reading = Callable[..., DataFrame]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def read(spark: SparkSession, broker: BrokerProcess) -> Reading:
    def reading(schema: str | None = None, **options: str) -> DataFrame:
        given = spark.read.format("penstock").option("url", broker.address).options(**options)
        return (given if schema is None else given.schema(schema)).load()

    return reading


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.set(PUSHDOWN, "false")


def at(time_us: int) -> datetime | None:
    """As Spark's driver shows it: without a zone, in that of this machine."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).astimezone().replace(tzinfo=None) if time_us else None


def row_of(stored: StoredMessage) -> dict[str, Any]:
    return {
        "id": stored.id,
        "topic": stored.topic,
        "partition": stored.partition,
        "offset": stored.offset,
        "timestamp": at(stored.timestamp),
        "append_time": at(stored.append_time),
        "key": stored.key,
        "value": stored.value,
        "headers": [{"key": name, "value": value} for name, value in stored.headers],
        "priority": stored.priority,
        "deliver_at": at(stored.deliver_at),
    }


def rows_in(frame: DataFrame) -> list[dict[str, Any]]:
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    for row in rows:
        for name, value in row.items():
            row[name] = bytes(value) if isinstance(value, bytearray) else value
        for header in row.get("headers", []):
            header["value"] = bytes(header["value"])
    return rows


def values_in(frame: DataFrame) -> list[str]:
    return sorted(bytes(row["value"]).decode() for row in frame.select("value").collect())


# --- what is read -------------------------------------------------------------------------------------------


def test_everything_that_was_published_is_read_as_it_was(q: Client, read: Reading) -> None:
    q.create_topic("all-kinds", 3)
    q.publish("all-kinds", "plain")
    q.publish("all-kinds", None, key="tombstone")
    q.publish("all-kinds", b"", key=b"")
    q.publish("all-kinds", "with headers", headers=[("a", b"1"), ("a", b""), ("ü", b"\xff")])
    q.publish("all-kinds", "later", delay="1h", priority="high")
    q.publish("all-kinds", "earlier", timestamp="2001-02-03T04:05:06.789012Z", priority="low", ttl="1d")
    with q.producer("all-kinds") as producer:
        for number in range(500):
            producer.send(f"many {number}", key=f"key {number}")
    expected = sorted((row_of(each) for each in q.reader("all-kinds")), key=lambda row: row["id"])
    assert len(expected) == 506
    assert sorted(rows_in(read(subscribe="all-kinds")), key=lambda row: row["id"]) == expected


def test_columns_that_are_not_in_the_schema_are_not_read(q: Client, read: Reading) -> None:
    q.create_topic("columns", 1)
    first = q.publish("columns", "x", key="k", ttl="1h")
    frame = read("Offset BIGINT, key BINARY, expires_at TIMESTAMP, topic STRING", subscribe="columns")
    row = frame.collect()[0]
    assert frame.columns == ["Offset", "key", "expires_at", "topic"]
    assert (row["Offset"], bytes(row["key"]), row["topic"]) == (first.offset, b"k", "columns")
    assert row["expires_at"] == at(next(iter(q.reader("columns"))).expires_at)
    sent = next(LOGS["messages"].batches(q, "columns", 0, 0, 1, ["id", "offset", "timestamp"]))
    assert sent.schema.names == ["partition", "offset", "append_time", "timestamp"]


def test_nothing_is_read_from_a_topic_without_messages(q: Client, read: Reading) -> None:
    q.create_topic("empty", 2)
    assert read(subscribe="empty").collect() == []
    assert read(subscribePattern="no-such-.*").collect() == []


def test_topics_by_list_pattern_and_partition(q: Client, read: Reading) -> None:
    for name in ("by-a", "by-b", "by-c"):
        q.create_topic(name, 2)
        for partition in (0, 1):
            q.publish(name, f"{name} {partition}", partition=partition)
    assert values_in(read(subscribe="by-a, by-c")) == ["by-a 0", "by-a 1", "by-c 0", "by-c 1"]
    assert values_in(read(subscribePattern="by-[bc]")) == ["by-b 0", "by-b 1", "by-c 0", "by-c 1"]
    assert values_in(read(assign='{"by-a": [1], "by-b": [0]}')) == ["by-a 1", "by-b 0"]


# --- from where to where ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def numbers(broker: BrokerProcess) -> list[int]:
    """Ten messages in each of two partitions of a topic; the time at which each of the first partition was stored."""
    with penstock.connect(broker.address) as q:
        q.create_topic("numbers", 2)
        times = [q.publish("numbers", f"0-{number}", partition=0).append_time for number in range(10)]
        for number in range(10):
            q.publish("numbers", f"1-{number}", partition=1)
    return times


def test_offsets_bound_each_partition(read: Reading, numbers: list[int]) -> None:
    starting = json.dumps({"numbers": {"0": 8, "1": -2}})
    ending = json.dumps({"numbers": {"0": -1, "1": 1}})
    assert values_in(read(subscribe="numbers", startingOffsets=starting, endingOffsets=ending)) == ["0-8", "0-9", "1-0"]


def test_times_bound_all_partitions_or_each(read: Reading, numbers: list[int]) -> None:
    start, end = rfc3339(numbers[7]), rfc3339(numbers[9])
    bounded = read(assign='{"numbers": [0]}', startingTimestamp=start, endingTimestamp=end)
    assert values_in(bounded) == ["0-7", "0-8"]
    each = json.dumps({"numbers": {"0": start, "1": numbers[0] // 1000}})
    until = json.dumps({"numbers": {"0": end, "1": 0}})
    bounded = read(subscribe="numbers", startingOffsetsByTimestamp=each, endingOffsetsByTimestamp=until)
    assert values_in(bounded) == ["0-7", "0-8"]


def test_a_time_after_everything_is_an_error_or_the_end(read: Reading, numbers: list[int]) -> None:
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    with pytest.raises(AnalysisException, match=r"\[offset_out_of_range\] .* nothing was appended to partition 0"):
        read(subscribe="numbers", startingTimestamp=tomorrow).collect()
    options = {"startingTimestamp": tomorrow, "startingOffsetsByTimestampStrategy": "latest"}
    assert read(subscribe="numbers", **options).collect() == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingOffsets": '{"numbers": {"0": 0}}'}, r"\[invalid_setting\] .* partition 1 of numbers is missing"),
        ({"startingOffsets": '{"numbers": {"0": 0, "1": 0, "2": 0}}'}, "names partition 2 of numbers"),
        (
            {"endingOffsets": '{"numbers": {"0": 11, "1": 0}}'},
            r"\[data_lost\] .* offset 11, and partition 0 .* 0 to 10",
        ),
        (
            {
                "startingOffsets": '{"numbers": {"0": 5, "1": 0}}',
                "endingOffsets": '{"numbers": {"0": 3, "1": 0}}',
            },
            r"\[invalid_setting\] partition 0 of numbers is read from offset 5 \(startingOffsets\) to 3",
        ),
        ({"subscribe": "nowhere"}, r"\[topic_not_found\] there is no topic nowhere"),
        (
            {"subscribe": "", "assign": '{"numbers": [2]}'},
            r"\[partition_not_found\] numbers has partitions 0 to 1, not 2",
        ),
        (
            {"url": "penstock://127.0.0.1:1", "retryFor": "0s"},
            r"\[connection_lost\] can't connect to penstock://127.0.0.1:1",
        ),
    ],
)
def test_what_is_not_there_is_told_before_anything_is_read(
    read: Reading, numbers: list[int], options: dict[str, str], told: str
) -> None:
    given = {"subscribe": "numbers", **options}
    with pytest.raises(AnalysisException, match=told):
        read(**{name: value for name, value in given.items() if value}).collect()


def test_without_fail_on_data_loss_what_is_there_is_read(read: Reading, numbers: list[int]) -> None:
    ending = json.dumps({"numbers": {"0": 11, "1": 0}})
    assert len(values_in(read(subscribe="numbers", endingOffsets=ending, failOnDataLoss="false"))) == 10


# --- tasks and filters --------------------------------------------------------------------------------------


def test_long_ranges_are_read_by_several_tasks(read: Reading, numbers: list[int]) -> None:
    whole = read("id STRING, value BINARY", subscribe="numbers")
    cut = read("id STRING, value BINARY", subscribe="numbers", minPartitions="5")
    short = read("id STRING, value BINARY", subscribe="numbers", maxRecordsPerPartition="3")
    assert [frame.rdd.getNumPartitions() for frame in (whole, cut, short)] == [2, 6, 8]
    assert values_in(cut) == values_in(short) == values_in(whole)


def test_a_table_may_be_used_with_many_filters(read: Reading, numbers: list[int], pushdown: None) -> None:
    frame = read("partition INT, offset BIGINT", subscribe="numbers")
    assert frame.where("partition = 1 and offset = 3").count() == 1
    assert frame.union(frame.where("offset < 2")).count() == 24
    of_one, of_all = frame.where("partition = 0").alias("l"), frame.alias("r")
    joined = of_one.join(of_all, expr("l.offset = r.offset")).select("l.partition")
    assert {row["partition"] for row in joined.collect()} == {0}
    with pytest.raises(AnalysisException, match="there is no option 'pushdownfilters'"):
        read(subscribe="numbers", pushDownFilters="true")


def test_a_view_and_the_static_side_of_a_join_see_later_messages(
    read: Reading, q: Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    q.create_topic("users", 1)
    q.create_topic("visits", 1)
    q.publish("users", "ada", key="1")
    read("key BINARY, value BINARY", subscribePattern="users.*").createOrReplaceTempView("users")
    assert values_in(spark.table("users")) == ["ada"]
    visits = spark.readStream.format("penstock").schema("key BINARY").option("url", broker.address)
    visits = visits.option("subscribe", "visits").option("startingOffsets", "earliest").load()
    seen: list[str] = []

    def take(frame: DataFrame, number: int) -> None:
        seen.extend(values_in(frame))

    writing = visits.join(spark.table("users"), "key").writeStream.foreachBatch(take)
    query = writing.option("checkpointLocation", str(tmp_path)).start()
    try:
        for key, name in (("1", "ada"), ("2", "bob")):
            if key == "2":
                q.publish("users", name, key=key)
            q.publish("visits", "", key=key)
            query.processAllAvailable()
    finally:
        query.stop()
    assert seen == ["ada", "bob"]
    q.create_topic("users-of-later", 1)
    q.publish("users-of-later", "eve", key="3")
    q.change_topic("users", partitions=2)
    q.publish("users", "dan", partition=1)
    assert values_in(spark.table("users")) == ["ada", "bob", "dan", "eve"]


# --- ways in ------------------------------------------------------------------------------------------------


def test_a_broker_with_tls_and_keys_is_read_by_who_has_them(spark: SparkSession, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, trusted, access = (str(tmp_path / name) for name in ("server.pem", "ca.pem", "access.yaml"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    authority.cert_pem.write_to_path(trusted)
    key, kept = make("analysts")
    told = {"id": kept.id, "principal": kept.principal, "hash": kept.hash}
    Path(access).write_text(yaml.safe_dump({"keys": [told]}), encoding="utf-8")
    with broker_process(tmp_path / "data", "--tls-cert", certificate, "--access", access) as broker:
        address = broker.address.replace("penstock:", "penstocks:")
        with penstock.connect(address, key=key, tls=ssl.create_default_context(cafile=trusted)) as q:
            q.create_topic("safe", 1)
            q.publish("safe", "secret")
        reading = spark.read.format("penstock").schema("value BINARY").option("subscribe", "safe")
        reading = reading.option("url", address)
        with pytest.raises(AnalysisException, match=r"\[connection_lost\] .* its certificate is not trusted"):
            reading.load().collect()
        reading = reading.option("tls.ca", trusted)
        with pytest.raises(AnalysisException, match=r"\[unauthenticated\]"):
            reading.load().collect()
        assert values_in(reading.option("key", key).load()) == ["secret"]
        (tmp_path / "key").write_text(key)
        options = {"url": address, "tls.ca": trusted, "keyFile": str(tmp_path / "key"), "subscribe": "safe"}
        assert values_in(spark.read.format("penstock").options(**options).load()) == ["secret"]
