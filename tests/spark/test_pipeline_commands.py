"""`penstock pipeline validate --plan` and `run` in a pipe, each with a Spark of its own; and one that is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
import sys
import textwrap
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import penstock
from broker_process import BrokerProcess
from penstock.client.blocking import Client
from penstock.spark.pipeline.queries import start
from penstock.spark.pipeline.reading import read
from penstock.spark.pipeline.spec import Trigger
from penstock.spark.pipeline.state import Store

ZONES = """
name: zones
source: {topics: numbers, decode: json, schema: n INT, rows_per_batch: 5}
transform: {sql: 'SELECT %s, current_timezone() AS zone FROM numbers'}
sink: {topic: zones}
spark: {spark.sql.session.timeZone: Europe/Berlin}
"""
TABLE = """
name: table
source: {topics: numbers, decode: json, schema: n INT, rows_per_batch: 4}
transform: {python: 'mortal.py:mortal'}
sink: {parquet: table}
"""
AVRO = """
name: avro
source: {topics: records, decode: avro, schema_file: order.avsc, on_bad_row: no-records}
transform: {sql: 'SELECT note, total * 2 AS twice FROM records'}
sink: {topic: more-records, encode: avro, schema_file: twice.avsc, key: note}
"""
RECORD = """
{"type": "record", "name": "order", "fields": [
  {"name": "note", "type": ["null", "string"]}, {"name": "%s", "type": ["null", "double"]}
]}
"""
# The number of a branch, zigzag, and what is in it: a text has its length before it.
NOTHING, NOTE, SOLD = b"\0\0", b"\2\6\x68\xc3\xa9\0", b"\2\2x\2" + struct.pack("<d", 2.5)
# Also a good one with more behind it.
BAD_RECORDS = [b"", b"\2\7nonsense", NOTHING + b"\0"]
# Two batches of two tasks each. In the second batch the first task is done, and the other is not.
MORTAL = """
import os
import signal
import time
from pathlib import Path

from pyspark.sql.functions import expr, udf


def is_whole(file):
    return file.read_bytes().endswith(b"PAR1")


@udf("int")
def checked(n):
    if n == 7 and "VICTIMS" in os.environ:
        while sum(map(is_whole, Path(os.environ["TABLE"]).glob("*.parquet"))) < 3:
            time.sleep(0.01)
        os.killpg(int(os.environ["VICTIMS"]), signal.SIGKILL)
    return n


def mortal(numbers):
    return numbers.withColumn("n", checked("n")).withColumn("until", expr("TIMESTAMP'9999-12-31 00:00:00Z'"))
"""


class Said(NamedTuple):
    """What each command printed, and its exit code; and how all of it ended."""

    directory: Path
    commands: dict[str, tuple[str, int]]
    code: int
    errors: str


@pytest.fixture(scope="module")
def said(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Said:
    directory = tmp_path_factory.mktemp("pipelines")
    with penstock.connect(broker.address) as q:
        q.create_topic("numbers", 2)
        for name in ("zones", "records", "no-records", "more-records"):
            q.create_topic(name, 1)
        for number in range(8):
            q.publish("numbers", json.dumps({"n": number}), partition=number // 4)
        for record in (NOTHING, NOTE, *BAD_RECORDS, SOLD):
            q.publish("records", record)
    files = {
        "good.yaml": ZONES % "n",
        # A cast that only Spark knows: without it, the file is refused before Spark starts.
        "bad.yaml": ZONES % "m::string",
        "table.yaml": TABLE,
        "mortal.py": MORTAL,
        "avro.yaml": AVRO,
        "unfit.yaml": AVRO.replace("AS twice", "AS thrice"),
        "order.avsc": RECORD % "total",
        "twice.avsc": RECORD % "twice",
    }
    for name, text in files.items():
        (directory / name).write_text(textwrap.dedent(text))
    running = ["--once", "--master", "local[2]", "--state-dir", str(directory / "state")]
    commands = {
        "avro plan": ["validate", "avro.yaml", "--plan"],
        "unfit plan": ["validate", "unfit.yaml", "--plan"],
        "avro": ["run", "avro.yaml", *running],
        "good plan": ["validate", "good.yaml", "--plan"],
        "bad plan": ["validate", "bad.yaml", "--plan"],
        "zones": ["run", "good.yaml", *running, "--conf", "spark.sql.session.timeZone=Asia/Tokyo"],
        "table": ["run", "table.yaml", *running],
    }
    ran = subprocess.run(
        [
            sys.executable,
            Path(__file__).with_name("pipeline_commands.py"),
            json.dumps([["pipeline", *command] for command in commands.values()]),
        ],
        cwd=directory,
        env={**os.environ, "PENSTOCK_SERVER": broker.address, "TABLE": str(directory / "table")},
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    parts = re.split(r"^exit (\d+)\n", ran.stdout, flags=re.MULTILINE)
    found = dict(zip(commands, zip(parts[::2], map(int, parts[1::2]), strict=False), strict=False))
    return Said(directory, found, ran.returncode, ran.stderr)


def test_a_plan_finds_a_column_that_is_not_there_and_nothing_wrong_with_the_others(said: Said) -> None:
    assert "bad plan" in said.commands, said.errors
    assert said.commands["good plan"] == ("good.yaml: zones is a pipeline from numbers to zones\n", 0)
    told, code = said.commands["bad plan"]
    assert code == 1
    # Found without the plan: the line is known.
    assert told == "bad.yaml:4: transform.sql: there is no column m; there are n\n"


def test_a_run_of_what_is_there_tells_rows_rate_lag_and_time_of_each_batch_and_ends(said: Said, q: Client) -> None:
    told, code = said.commands["zones"]
    *batches, last = told.splitlines()
    assert (last, code) == ("zones finished: 8 rows", 0)
    # All that was between two looks is told as one.
    lines = (
        r"(batch 0: 5 rows in [\d.]+ m?s, [\d.,]+ rows/s, lag 3\n)?batch 1: 3 rows in [\d.]+ m?s, [\d.,]+ rows/s, lag 0"
    )
    assert re.fullmatch(lines, "\n".join(batches)), told
    assert f"zones starts on local[2]; Spark's log: {said.directory}/state/zones/log.txt\n" in said.errors
    # What the command says goes before what the file says.
    written = [json.loads(each.value or b"") for each in q.reader("zones")]
    assert sorted(row["n"] for row in written) == list(range(8))
    assert {row["zone"] for row in written} == {"Asia/Tokyo"}
    state = Store(said.directory / "state").get("zones")
    assert (state.status, state.master) == ("finished", "local[2]")
    assert state.progress is not None
    assert (state.progress.rows, state.progress.batches, state.progress.lag) == (8, 2, 0)


def test_a_parquet_table_whose_pipeline_was_killed_has_each_row_once_when_it_went_on(
    said: Said, spark: SparkSession, broker: BrokerProcess
) -> None:
    assert said.code == -signal.SIGKILL, said.errors
    killed, table = Store(said.directory / "state").get("table"), said.directory / "table"
    assert killed.status == "killed"
    pipeline = read(said.directory / "table.yaml", {"PENSTOCK_SERVER": broker.address})
    assert sorted(row["n"] for row in spark.read.parquet(str(table)).collect()) == [0, 1, 4, 5]
    # There is more, which Spark has not counted as done: a file of the one task, and maybe some bytes of the other's.
    left = [path for path in table.glob("*.parquet") if path.read_bytes().endswith(b"PAR1")]
    assert sorted(n for path in left for n in pq.read_table(path)["n"].to_pylist()) == [0, 1, 2, 3, 4, 5]
    # As everybody reads them, whatever the year.
    assert set(pq.read_table(left[0])["until"].to_pylist()) == {datetime(9999, 12, 31, tzinfo=UTC)}
    for query in start(spark, replace(pipeline, trigger=Trigger(available_now=True)), killed.checkpoint):
        query.awaitTermination()
    assert sorted(row["n"] for row in spark.read.parquet(str(table)).collect()) == list(range(8))


def test_avro_becomes_rows_and_rows_become_avro(said: Said, q: Client) -> None:
    planned = said.commands["avro plan"]
    assert planned == ("avro.yaml: avro is a pipeline from records to more-records\n", 0), said.errors
    unfit = "unfit.yaml: thrice is not in the Avro schema, which has note, twice: add it there, or leave it out\n"
    assert said.commands["unfit plan"] == (unfit, 1)
    told, code = said.commands["avro"]
    assert (told.splitlines()[-1], code) == ("avro finished: 6 rows, 3 of them bad", 0)
    doubled = SOLD[:4] + struct.pack("<d", 5.0)
    found = [(each.key, each.value) for each in q.reader("more-records")]
    assert found == [(None, NOTHING), ("hé".encode(), NOTE), (b"x", doubled)]
    assert [each.value for each in q.reader("no-records")] == BAD_RECORDS
    assert {dict(each.headers)["penstock-error"] for each in q.reader("no-records")} == {b"not Avro of the schema"}
