"""The built-in report, of a real workload, beside figures that are made of traces in plain Python."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import penstock
from broker_process import BrokerProcess
from cli.support import Run
from penstock.client.blocking import Client
from penstock.client.requests import Step
from penstock.client.rows import StoredMessage
from penstock.clock import rfc3339
from penstock.errors import TopicNotFound
from penstock.spark.builtin.report import make_report
from penstock.spark.builtin.report_scope import Asked
from penstock.spark.builtin.report_tables import PERCENTILES, TABLES, Report, Row, columns_of
from penstock.spark.connecting import Connecting

HOSTILE = b"<img src=x onerror=alert(1)>"
COUNT = 60
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "report.md"


def key_of(number: int) -> str | bytes | None:
    if number % 3:
        return HOSTILE
    return None if number == 9 else b"\xff\x00" if number == 12 else f"customer-{number % 4}"


def publish(q: Client) -> None:
    q.create_topic("orders", 3)
    q.create_topic("empty", 2)
    q.create_topic("quiet", 1)
    q.publish("quiet", "nobody reads this")
    more: dict[int, dict[str, Any]] = {
        5: {"delay": "20ms"},
        7: {"delay": "1h"},
        8: {"ttl": "1ms"},
        10: {"priority": "high"},
    }
    for number in range(COUNT):
        stored = q.publish("orders", f"{number}", key=key_of(number), **more.get(number, {}))
        if number == 7:
            q.scheduled.deliver_now(stored.id)


def consume(q: Client) -> None:
    """All but the one that has expired: for `billing` in the end, for `strict` with dead letters. `late` has begun."""
    answered = 0
    released = set()
    with q.consumer("billing", "orders") as billing:
        while answered < COUNT - 1:
            for message in billing.poll(7, wait="5s"):
                if message.offset == 0 and message.id not in released:
                    released.add(message.id)
                    message.release()
                elif message.offset % 7 == 3 and message.attempt == 1:
                    message.nack("1ms", reason="busy")
                else:
                    message.ack()
                    answered += 1
    q.create_group("strict", max_retries=1, backoff={"initial": "1ms"})
    settled = 0
    with q.consumer("strict", "orders") as strict:
        while settled < COUNT - 1:
            for message in strict.poll(20, wait="5s"):
                if message.offset % 5 == 1:
                    message.nack(reason="no")
                    settled += message.attempt == 2
                elif message.offset % 5 == 2:
                    message.reject("bad")
                    settled += 1
                else:
                    message.ack()
                    settled += 1


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[Client]:
    with penstock.connect(broker.address) as client:
        publish(client)
        consume(client)
        # All of them are written before that is answered.
        client.dead_letters.list("orders")
        late = client.consumer("late", "orders")
        first, *_ = late.poll(4, wait="5s")
        first.ack()
        yield client
        late.close()


@pytest.fixture(scope="module")
def messages(client: Client) -> list[StoredMessage]:
    return sorted(client.reader("orders"), key=lambda message: message.append_time)


@pytest.fixture(scope="module")
def report(client: Client, broker: BrokerProcess, spark: SparkSession) -> Report:
    return make_report(spark, Asked(Connecting(broker.address), ["orders", "empty", "quiet"]))


# --- the same, independently ------------------------------------------------------------------------------------


def ranked(values: list[int], part: float) -> int | None:
    return sorted(values)[math.ceil(part * len(values)) - 1] if values else None


def expected_of(q: Client, messages: list[StoredMessage], group: str) -> Row:
    latencies, processing = [], []
    count: Counter[str] = Counter()
    for message in messages:
        trace = q.trace(message.id)
        steps = [step for step in trace.steps if step.group == group]
        due_us = message.deliver_at or message.append_time
        for step in trace.steps:
            due_us = step.until_us if step.what == "RESCHEDULED" and step.until_us else due_us
        _count(count, steps)
        given_us = 0
        for step in steps:
            given_us = step.time_us if step.what in ("DELIVERED", "REDELIVERED") else given_us
            if step.what == "ACKNOWLEDGED":
                latencies.append(step.time_us - max(due_us, message.append_time))
                processing.append(step.time_us - given_us)
    found: Row = {**count}
    for name, values in (("latency", latencies), ("processing", processing)):
        found |= {f"{name}_{each}_us": ranked(values, part) for each, part in PERCENTILES.items()}
        found[f"{name}_max_us"] = max(values)
    return found


def _count(count: Counter[str], steps: list[Step]) -> None:
    words = Counter(step.what for step in steps)
    given = words["DELIVERED"] + words["REDELIVERED"] - words["GIVEN_BACK"]
    count["deliveries"] += given
    count["messages"] += given > 0
    count["redeliveries"] += words["REDELIVERED"]
    count["acknowledged"] += words["ACKNOWLEDGED"]
    count["nacks"] += words["NACKED"]
    count["given_up"] += words["EXHAUSTED"]
    count["dead_letters"] += words["DEAD_LETTERED"]
    count["expired"] += words["EXPIRED"]
    count["unacknowledged"] += given > 0 and not words["ACKNOWLEDGED"] and not words["EXHAUSTED"]


# --- tests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["billing", "strict", "late"])
def test_the_figures_of_a_group_are_those_of_the_traces_of_its_messages(
    client: Client, messages: list[StoredMessage], report: Report, group: str
) -> None:
    (row,) = report.of("groups", "orders", group)
    expected = expected_of(client, messages, group)
    assert {name: row[name] for name in expected} == expected
    assert row["redelivery_rate"] == row["redeliveries"] / row["messages"]
    assert row["nack_rate"] == row["nacks"] / row["deliveries"]
    assert row["dead_letter_rate"] == row["dead_letters"] / row["messages"]
    assert row["lag"] == sum(client.group(group).lag["orders"])
    assert row["gone"] == row["lease_expiries"] == 0
    shape = {
        "billing": (
            row["acknowledged"] == COUNT - 1,
            row["redeliveries"] > 0,
            row["dead_letters"] == 0,
            row["expired"] == 1,
        ),
        "strict": (row["dead_letters"] > 0, row["nacks"] > 0, row["acknowledged"] < COUNT - 1),
        "late": (row["unacknowledged"] == 3, row["acknowledged"] == 1, row["oldest_unacknowledged"] is not None),
    }
    assert all(shape[group])


def test_a_delayed_message_is_late_from_when_it_was_due(report: Report) -> None:
    (row,) = report.of("groups", "orders", "billing")
    # One was to wait for an hour, and was delivered at once.
    assert row["latency_max_us"] < 60_000_000


def test_topics_partitions_keys_and_times_add_up(messages: list[StoredMessage], report: Report) -> None:
    orders, empty, quiet = (report.of("topics", name)[0] for name in ("orders", "empty", "quiet"))
    keys = Counter(message.message.key for message in messages)
    assert (orders["messages"], orders["keys"], orders["unkeyed"]) == (COUNT, len(keys) - 1, 1)
    assert (orders["high"], orders["normal"], orders["delayed"]) == (1, COUNT - 1, 2)
    assert orders["first"].timestamp() * 1_000_000 == pytest.approx(messages[0].append_time, abs=1)
    assert (quiet["messages"], quiet["messages_per_s"], report.of("groups", "quiet")) == (1, None, [])
    assert (empty["messages"], empty["partitions"], empty["first"], empty["keys"]) == (0, 2, None, 0)

    by_partition = Counter(message.partition for message in messages)
    partitions = report.of("partitions", "orders")
    assert {row["partition"]: row["messages"] for row in partitions} == {n: by_partition[n] for n in range(3)}
    assert sum(row["share"] for row in partitions) == pytest.approx(1)
    (hot,) = (row for row in partitions if row["is_hot"])
    assert hot["partition"] == next(m.partition for m in messages if m.message.key == HOSTILE)

    listed = report.of("keys", "orders")
    assert [row["messages"] for row in listed] == [n for key, n in keys.most_common() if key is not None][:10]
    assert listed[0]["key"] == HOSTILE
    assert [row["key"] for row in listed if row["is_hot"]] == [HOSTILE]
    assert listed[0]["share"] == 40 / COUNT

    assert sum(row["messages"] for row in report.of("times", "orders")) == COUNT
    assert sum(row["acknowledged"] for row in report.of("group_times", "orders", "billing")) == COUNT - 1


def test_the_command_bounds_the_period_and_writes_a_page_parquet_and_json(
    client: Client,
    messages: list[StoredMessage],
    broker: BrokerProcess,
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = messages[20:45]
    bounds = ("--from-time", rfc3339(chosen[0].append_time), "--to-time", rfc3339(messages[45].append_time))
    chosen = [m for m in messages if chosen[0].append_time <= m.append_time < messages[45].append_time]
    html, parquet = tmp_path / "report.html", tmp_path / "tables"
    arguments = (
        "pipeline",
        "report",
        "--url",
        broker.address,
        *bounds,
        "--html",
        html,
        "--parquet",
        parquet,
        "-o",
        "json",
    )

    ran = Run(capsys).ok(*arguments, "--topics", "orders", "--keys", 2)
    (topic,), groups = ran.json["topics"], {row["group"]: row for row in ran.json["groups"]}
    assert topic["messages"] == len(chosen)
    expected = expected_of(client, chosen, "strict")
    assert {name: groups["strict"][name] for name in expected} == expected
    first, _ = ran.json["keys"]
    assert first["key"] == HOSTILE.decode()
    assert html.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "onerror=" in html.read_text(encoding="utf-8")
    assert "<img" not in html.read_text(encoding="utf-8")

    for table in TABLES:
        rows = pq.read_table(parquet / table).to_pylist()
        assert pq.read_schema(next((parquet / table).glob("*.parquet"))).names == columns_of(table)
        assert len(rows) == len(ran.json[table]), table
    (written,) = pq.read_table(parquet / "topics").to_pylist()
    assert written["messages"] == len(chosen)
    assert written["first"] == datetime.fromisoformat(topic["first"])

    again = Run(capsys)(*arguments, "--topics", "orders")
    assert again.code == 2
    assert re.search(r"has the tables topics, .*--overwrite \[already_exists\]", again.err)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "topics by their names, or of those that match a pattern"),
        (("--topics", "orders", "--pattern", "o.*"), "say one of both"),
        (("--topics", "orders,,"), "with commas between them"),
        (("--pattern", "("), "not a regular expression"),
        (("--pattern", "nothing-.*"), "no topic matches"),
        (("--topics", "orders,missing"), "there is no topic missing"),
        (("--topics", "orders", "--overwrite"), "--overwrite is for --parquet"),
        (("--topics", "orders", "--html", "/no/such/place.html"), "can't be written"),
        (("--topics", "orders", "--from-time", "yesterday"), "--from-time: "),
        (("--topics", "orders", "--from-time", "1m", "--to-time", "1h"), "ends before it begins"),
    ],
)
def test_what_makes_no_sense_is_refused_before_spark_starts(
    client: Client,
    broker: BrokerProcess,
    arguments: tuple[str, ...],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.spark.builtin.report.check_spark", lambda: pytest.fail("Spark was looked for"))
    ran = Run(capsys)("pipeline", "report", "--url", broker.address, *arguments)
    assert ran.code == 2
    assert told in ran.err


def test_a_topic_that_is_not_there_is_named(client: Client, broker: BrokerProcess, spark: SparkSession) -> None:
    with pytest.raises(TopicNotFound, match="there is no topic missing"):
        make_report(spark, Asked(Connecting(broker.address), ["missing"]))


def test_the_guide_names_every_column() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for table in TABLES:
        section = re.search(rf"^### {table}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
        assert section is not None, table
        named = [
            name
            for cell in re.findall(r"^\| (`.*?) \|", section[1], re.MULTILINE)
            for name in re.findall("`(.*?)`", cell)
        ]
        assert named == columns_of(table), table
