"""Pipelines from files, on real Spark, from topics to topics and tables of a real broker."""

from __future__ import annotations

import json
import textwrap
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from penstock.client.blocking import Client
from penstock.clock import rfc3339
from penstock.durations import time_us
from penstock.errors import InvalidInput
from penstock.spark.pipeline.failures import cause_of
from penstock.spark.pipeline.planning import check_mode
from penstock.spark.pipeline.queries import main, output
from spark.pipeline_runs import Parse, Ran, Run

WRITTEN = "TIMESTAMP '2026-01-14 15:00:00'"


def values(q: Client, topic: str) -> list[object]:
    return [json.loads(each.value or b"null") for each in q.reader(topic)]


def test_json_becomes_rows_for_sql_and_bad_rows_go_to_their_own_topic_once(q: Client, run: Run) -> None:
    for topic in ("orders", "big", "bad-orders"):
        q.create_topic(topic, 2)
    for number in range(4):
        q.publish("orders", json.dumps({"id": number, "total": number * 10.0}), key=f"c{number}")
    for bad in (b"{", b"", b'{"id": "no number"}', b'{"id": 7, "note": "\xff"}'):
        q.publish("orders", bad, key="bad", headers={"came": "from here"})
    ran = run("""
        name: big-orders
        source:
          topics: orders
          decode: json
          schema: id BIGINT, total DOUBLE, note STRING
          columns: [key]
          on_bad_row: bad-orders
        transform:
          sql: SELECT id, total, _key, 'high' AS _priority FROM orders WHERE total > 5
        sink: {topic: big}
    """)
    assert ran.error is None
    assert (ran.progress.rows, ran.progress.bad_rows, ran.progress.lag) == (8, 4, 0)
    assert sorted(map(str, values(q, "big"))) == [str({"id": n, "total": n * 10.0}) for n in (1, 2, 3)]
    (first,) = (each for each in q.reader("big") if json.loads(each.value or b"")["id"] == 1)
    assert (first.key, first.priority) == (b"c1", 1)
    bad_rows = list(q.reader("bad-orders"))
    assert {each.value for each in bad_rows} == {b"{", b"", b'{"id": "no number"}', b'{"id": 7, "note": "\xff"}'}
    headers = dict(bad_rows[0].headers)
    assert (headers["came"], headers["penstock-pipeline"]) == (b"from here", b"big-orders")
    assert headers["penstock-source"].startswith(b"orders:")
    assert headers["penstock-error"].startswith(b"not JSON")


def test_counts_that_change_are_written_as_they_do(q: Client, run: Run) -> None:
    q.create_topic("visits", 1)
    q.create_topic("counts", 1)
    for page in ("a", "b", "a"):
        q.publish("visits", page)
    ran = run("""
        name: counting
        source: {topics: visits, decode: text}
        transform:
          sql: SELECT value AS _key, count(*) AS visits FROM visits GROUP BY value
        sink: {topic: counts, mode: update}
        spark: {spark.sql.shuffle.partitions: 1}
    """)
    assert ran.error is None
    assert {each.key: json.loads(each.value or b"") for each in q.reader("counts")} == {
        b"a": {"visits": 2},
        b"b": {"visits": 1},
    }


def test_json_that_does_not_fit_the_schema_is_bad_and_its_field_is_named(q: Client, run: Run) -> None:
    for topic in ("fits", "fitting", "misfits"):
        q.create_topic(topic, 1)
    misfits = {
        b'{"id": "x"}': b"not JSON of the schema: id is not BIGINT",
        b'{"at": {"lat": 1}}': b"not JSON of the schema: id is missing, and is NOT NULL",
        b'{"id": 1, "at": {"lat": "north"}}': b"not JSON of the schema: at is not STRUCT<LAT:DOUBLE>",
        b'{"id": 1': b"not JSON",
        b"": b"not JSON",
        # What Spark accepts by default.
        b'{"id": 1} garbage': b"not JSON: more follows the first value",
        b'{"id": 1}{"id": 2}': b"not JSON: more follows the first value",
        b'{"id": 1},{"id": 2}': b"not JSON: more follows the first value",
        b'{"id": 1}]': b"not JSON: more follows the first value",
        b'{"id": 1}}': b"not JSON: more follows the first value",
        b'{"id": 1}],"x":[2': b"not JSON: more follows the first value",
        b'{"id": 1},{}]} more': b"not JSON: more follows the first value",
        b'{"id": 1}]}': b"not JSON: more follows the first value",
        b'],"x":[2': b"not JSON",
        b"{'id': 1}": b"not JSON",
        b'{"id": 1, "at": {"lat": NaN}}': b"not JSON",
        b'{"id": 1, "at": {"lat": "Infinity"}}': b"not JSON of the schema: at is not STRUCT<LAT:DOUBLE>",
        # Numbers that are too large become infinite.
        b'{"id": 1, "at": {"lat": -1e999}}': b"not JSON of the schema: at is not STRUCT<LAT:DOUBLE>",
        b'{"id": 1, "sizes": [1, 1e39]}': b"not JSON of the schema: sizes is not ARRAY<FLOAT>",
        b'[{"id": 1}]': b"not JSON of the schema: it is not an object",
        b"null": b"not JSON of the schema: it is not an object",
    }
    for value in (b'{"id": 1, "at": {"lat": 1}}', b' {"id": 2}\r\n', *misfits):
        q.publish("fits", value)
    ran = run(
        """
        name: fitting
        source:
          topics: fits
          decode: json
          schema: "id BIGINT NOT NULL, at STRUCT<lat: DOUBLE>, sizes ARRAY<FLOAT>"
          on_bad_row: misfits
        sink: {topic: fitting}
        """
    )
    assert (ran.error, ran.progress.rows, ran.progress.bad_rows) == (None, 2 + len(misfits), len(misfits))
    assert {each.value: dict(each.headers)["penstock-error"] for each in q.reader("misfits")} == misfits
    assert values(q, "fitting") == [
        {"id": 1, "at": {"lat": 1.0}, "sizes": None},
        {"id": 2, "at": None, "sizes": None},
    ]


def test_a_bad_row_fails_the_query_unless_told_otherwise_and_is_named(q: Client, run: Run) -> None:
    q.create_topic("texts", 1)
    q.create_topic("copies", 1)
    q.publish("texts", "fine")
    q.publish("texts", b"\xff")
    text = "{name: t, source: {topics: texts, decode: text, %s}, sink: {topic: copies, encode: text}}"
    assert run(text % "rows_per_batch: 1").error == (
        "the message texts:0:1 is not text in UTF-8; with on_bad_row: skip, or a topic for such messages, the pipeline "
        "goes on without them"
    )
    assert [each.value for each in q.reader("copies")] == [b"fine"]
    skipping = run(text % "on_bad_row: skip")
    assert (skipping.error, skipping.progress.bad_rows) == (None, 1)
    assert [each.value for each in q.reader("copies")] == [b"fine"]


def test_a_bad_row_fails_the_query_also_if_a_filter_of_its_sql_would_drop_it(q: Client, run: Run) -> None:
    q.create_topic("totals", 1)
    q.create_topic("large", 1)
    for value in ('{"id": 1, "total": 200}', '{"id": 2, "total": "none"}', "garbage"):
        q.publish("totals", value)
    ran = run(
        """
        name: large
        source: {topics: totals, decode: json, schema: "id BIGINT, total DOUBLE"}
        transform: {sql: SELECT id FROM totals WHERE total >= 100}
        sink: {topic: large, encode: json}
        """
    )
    assert ran.error is not None
    assert ran.error.startswith("the message totals:0:1 is not JSON of the schema: total is not DOUBLE")
    assert list(q.reader("large")) == []


def test_a_function_beside_the_file_makes_other_rows_also_on_executors(q: Client, run: Run, tmp_path: Path) -> None:
    q.create_topic("words", 1)
    q.create_topic("loud", 1)
    q.publish("words", "hello", key="k", headers={"h": "v"})
    (tmp_path / "louder.py").write_text(
        textwrap.dedent("""
        from pyspark.sql.functions import udf

        MARK = "!"

        @udf("binary")
        def louder(value):
            return value.upper() + MARK.encode()

        def transform(words):
            return words.withColumn("value", louder("value"))
        """)
    )
    ran = run("""
        name: loud
        source: {topics: words, decode: bytes, columns: [key, headers]}
        transform: {python: louder.py:transform}
        sink: {topic: loud, encode: bytes}
    """)
    assert ran.error is None
    (message,) = q.reader("loud")
    assert (message.value, message.key, message.headers) == (b"HELLO!", b"k", (("h", b"v"),))


def test_two_topics_are_joined_into_a_partitioned_table(q: Client, run: Run, tmp_path: Path) -> None:
    for topic in ("sales", "customers.eu"):
        q.create_topic(topic, 1)
    for number in range(3):
        q.publish("customers.eu", json.dumps({"id": number, "country": "DE" if number else "FR"}))
        q.publish("sales", json.dumps({"customer": number, "total": number}))
    ran = run("""
        name: joined
        source:
          - topics: sales
            decode: json
            schema: [{customer: INT}, {total: "DECIMAL(10, 2)"}]
            columns: [timestamp]
            watermark: {column: _timestamp, delay: 1h}
          - {topics: customers.eu, decode: json, schema: "id INT, country STRING"}
        transform:
          sql: SELECT country, total FROM sales JOIN customers_eu ON customer = id
        sink: {parquet: table, partition_by: country}
    """)
    assert ran.error is None
    assert ran.progress.rows == 6
    assert ran.progress.state_rows > 0
    table = pq.read_table(tmp_path / "table")
    assert sorted((row["country"], int(row["total"])) for row in table.to_pylist()) == [("DE", 1), ("DE", 2), ("FR", 0)]
    assert sorted(path.name for path in (tmp_path / "table").glob("country=*")) == ["country=DE", "country=FR"]


def test_a_window_is_written_when_the_watermark_closes_it_and_what_comes_too_late_is_left_out(
    q: Client, run: Run, tmp_path: Path
) -> None:
    q.create_topic("clicks", 1)
    text = """
        name: windows
        source:
          topics: clicks
          decode: text
          columns: [timestamp]
          watermark: {column: _timestamp, delay: 10m}
        transform:
          sql: |
            SELECT date_format(window.start, 'HH:mm') AS start, count(*) AS clicks
            FROM clicks GROUP BY window(_timestamp, '5 minutes')
        sink: {parquet: table}
    """

    def ran(*minutes: int) -> Ran:
        for minute in minutes:
            q.publish("clicks", "x", timestamp=f"2026-01-14T15:{minute:02}:30Z")
        found = run(text)
        assert found.error is None
        return found

    def written() -> list[tuple[str, int]]:
        return sorted((row["start"], row["clicks"]) for row in pq.read_table(tmp_path / "table").to_pylist())

    # By 15:20:30 the watermark is at 15:10:30: the first window is closed, the second is not.
    first = ran(1, 2, 11, 20)
    assert written() == [("15:00", 2)]
    assert first.progress.watermark == "2026-01-14T15:10:30.000Z"
    assert first.progress.state_rows == 2
    # The one is too late for its window, the other is late, and in time for its own.
    second = ran(3, 12, 40)
    assert written() == [("15:00", 2), ("15:10", 2), ("15:20", 1)]
    assert (second.progress.rows, second.progress.state_rows) == (3, 1)


def test_a_source_is_a_pattern_or_partitions_and_starts_at_offsets_a_time_or_the_end(q: Client, run: Run) -> None:
    for topic in ("part-a", "part-b", "assigned", "timed", "ended", "found"):
        q.create_topic(topic, 2)
    for topic in ("part-a", "part-b", "assigned", "timed", "ended"):
        for number in range(4):
            stored = q.publish(topic, f"{topic} {number}", partition=number % 2)
            if (topic, number) == ("timed", 2):
                third = stored.append_time
    before = time.time_ns() // 1_000
    ran = run(f"""
        name: forms
        source:
          - {{pattern: part-., as: parts, decode: text}}
          - {{assign: {{assigned: [1], timed: [0]}}, as: numbered, starting: {{assigned: {{1: 1}}, timed: {{0: 1}}}},
             decode: text}}
          - {{topics: timed, starting: "{rfc3339(third)}", decode: text}}
          - {{topics: ended, starting: latest, decode: text}}
        transform:
          sql: |
            SELECT 'parts' AS _key, value, '1h' AS _delay, INTERVAL '2' HOUR AS _ttl, {WRITTEN} AS _timestamp FROM parts
            UNION ALL SELECT 'numbered', value, '1h', INTERVAL '2' HOUR, {WRITTEN} FROM numbered
            UNION ALL SELECT 'timed', value, '1h', INTERVAL '2' HOUR, {WRITTEN} FROM timed
            UNION ALL SELECT 'ended', value, '1h', INTERVAL '2' HOUR, {WRITTEN} FROM ended
        sink: {{topic: found, encode: text}}
    """)
    assert ran.error is None
    found = list(q.reader("found"))
    assert sorted((each.key, each.value) for each in found) == [
        (b"numbered", b"assigned 3"),
        (b"numbered", b"timed 2"),
        *((b"parts", f"part-{topic} {number}".encode()) for topic in "ab" for number in range(4)),
        (b"timed", b"timed 2"),
        (b"timed", b"timed 3"),
    ]
    assert {each.timestamp for each in found} == {time_us("2026-01-14T15:00:00Z")}
    hour = 3_600_000_000
    assert all(hour <= each.deliver_at - before < 2 * hour <= each.expires_at - before < 3 * hour for each in found)


def test_what_a_message_has_goes_with_it_if_its_columns_are_read(q: Client, run: Run) -> None:
    q.create_topic("dated", 1)
    q.create_topic("dated-too", 1)
    fields: dict[str, Any] = {
        "key": "k",
        "headers": {"h": "v"},
        "priority": "high",
        "timestamp": "2026-01-14T15:00:00Z",
    }
    q.publish("dated", "later", delay="1h", **fields)
    q.publish("dated", "now")
    ran = run("""
        name: dated
        source: {topics: dated, decode: text, columns: [key, headers, priority, timestamp, deliver_at]}
        sink: {topic: dated-too, encode: text}
    """)
    assert ran.error is None
    (later, now), (copied_later, copied_now) = q.reader("dated"), q.reader("dated-too")
    assert later.deliver_at > later.append_time
    assert (copied_later.message, copied_now.message) == (later.message, now.message)


class Mute(Exception):
    """As py4j's are, which ask Java what they say."""

    def __str__(self) -> str:
        raise ConnectionRefusedError("nobody is there")


def test_what_is_no_error_of_sparks_is_told_with_its_kind() -> None:
    assert cause_of(KeyError("x")) == "KeyError: 'x'"
    assert cause_of(ZeroDivisionError()) == "ZeroDivisionError"
    assert cause_of(ConnectionRefusedError("no")).startswith("Spark's Java process has ended")
    assert cause_of(Mute()).startswith("Spark's Java process has ended")


def test_an_error_of_ours_on_an_executor_is_told_with_its_code() -> None:
    told = (
        "[STREAM_FAILED] x\nTraceback (most recent call last):\n  File\npenstock.errors.ConnectionLost: {}\n\n\tat java"
    )
    for message in ("can't connect", "[connection_lost] can't connect"):
        assert cause_of(PySparkException(told.format(message))) == "can't connect [connection_lost]"


def test_a_checkpoint_of_other_topics_is_told_as_that(q: Client, run: Run) -> None:
    for topic in ("one", "other", "out"):
        q.create_topic(topic, 1)
        q.publish(topic, "x")
    text = "{name: t, source: {topics: %s, decode: text}, sink: {topic: out, encode: text}}"
    assert run(text % "one").error is None
    error = run(text % "other").error
    assert error is not None
    assert "one" in error
    assert "checkpoint" in error
    assert "\n" not in error


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("transform: {sql: SELECT nothing FROM plans}", "`nothing` cannot be resolved"),
        ("transform: {sql: SELEC value FROM plans}", "Syntax error at or near 'SELEC'"),
        ("transform: {sql: SELECT 1 AS value}", "the SQL does not read a source of this pipeline; there are plans"),
        ("transform: {sql: 'SELECT value, 1 AS more FROM plans'}", "writes the column value only; there is also more"),
        ("transform: {sql: SELECT value AS _key FROM plans}", "there is no column for the value"),
    ],
)
def test_what_only_spark_finds_wrong_is_told_in_a_sentence(
    spark: SparkSession, parse: Parse, more: str, message: str
) -> None:
    text = f"name: t\nsource: {{topics: plans, decode: text}}\nsink: {{topic: out, encode: text}}\n{more}\n"
    with pytest.raises((InvalidInput, AnalysisException)) as failed:
        output(spark, parse(text))
    told = failed.value.message if isinstance(failed.value, InvalidInput) else cause_of(failed.value)
    assert message in told
    assert "\n" not in told


def test_columns_that_a_delta_table_can_not_have_are_found_without_a_run(
    spark: SparkSession, parse: Parse, tmp_path: Path
) -> None:
    text = """
        name: t
        source: {topics: twins, decode: text}
        transform: {sql: "SELECT value, 1 AS Value FROM twins"}
        sink: {delta: ./table}
    """
    pipeline = parse(text)
    with pytest.raises(InvalidInput, match="two columns for a delta table have the names value and Value"):
        main(pipeline, output(spark, pipeline), str(tmp_path))
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(("sql", "mode"), [("SELECT value FROM s", "complete"), ("SELECT max(value) FROM s", "append")])
def test_a_mode_in_which_rows_can_not_be_written_is_found_without_a_run(
    spark: SparkSession, sql: str, mode: str
) -> None:
    spark.readStream.format("rate").load().createOrReplaceTempView("s")
    with pytest.raises(PySparkException) as failed:
        check_mode(spark.sql(sql), mode)
    assert f"Invalid streaming output mode: {mode}" in cause_of(failed.value)
    check_mode(spark.sql(sql), {"complete": "append", "append": "complete"}[mode])
