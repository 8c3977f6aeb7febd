"""`penstock pipeline validate`, and what the others do without Spark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.support import Ran, Run
from penstock.client.blocking import Client
from penstock.errors import SparkMissing
from penstock.spark.pipeline import session, sql_analysis
from penstock.spark.pipeline.progress import Progress
from penstock.spark.pipeline.reading import FIELDS, SINK_FIELDS, examine, read
from penstock.spark.pipeline.reading_sources import FIELDS as SOURCE_FIELDS
from penstock.spark.pipeline.spec import MESSAGE_COLUMNS, Source, TopicSink
from penstock.spark.pipeline.sql_analysis import sql_mistakes
from penstock.spark.pipeline.state import State, Store

ROOT = Path(__file__).parents[2]
GOOD = "{name: p, source: {topics: orders, decode: text}, sink: {topic: out, encode: text}}"


def validated(run: Run, directory: Path, text: str, *options: str) -> Ran:
    file = directory / "p.yaml"
    file.write_text(textwrap.dedent(text), encoding="utf-8")
    ran = run("pipeline", "validate", file, *options)
    return Ran(ran.code, ran.out.replace(f"{directory}/", ""), ran.err)


def test_a_pipeline_without_mistakes_is_told_as_what_it_is(run: Run, tmp_path: Path) -> None:
    ran = validated(run, tmp_path, GOOD)
    assert (ran.code, ran.out) == (0, "p.yaml: p is a pipeline from orders to out\n")
    answer = json.loads(validated(run, tmp_path, GOOD, "-o", "json").out)
    assert (answer["valid"], answer["name"], answer["problems"]) == (True, "p", [])


def test_every_mistake_is_told_with_its_line_and_what_is_allowed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def other(rows): ...")
    text = """\
        name: a b
        url: nowhere://x
        source:
          - topics: [orders, .hidden]
            as: 1st
            starting: yesterday
            decode: jsn
            on_bad_rows: skip
          - pattern: "("
            as: all
            decode: json
            schema: id BIGNT, id INT
            rows_per_batch: 0
            options: {failOnDataLoss: false, subscribe: x}
            watermark: {column: _timestamp, delay: 10}
          - assign: {orders: [0, x]}
            as: all
            decode: text
            schema: a INT
            columns: [key, offsets]
        transform: {python: "f.py:transform"}
        sink: {topic: out, parquet: p, mode: complete}
        trigger: {every: 10}
        sparks: {}
        spark: {executor.memory: 1g}
    """
    ran = validated(run, tmp_path, text)
    assert ran.code == 1
    told = dict(line.removeprefix("p.yaml:").split(": ", 1) for line in reversed(ran.lines))
    expected = {
        "1": "name: is made of",
        "2": "url: an address is penstock://host:port",
        "4": "source[0].topics[1]: names of topics are made of",
        "5": "source[0].as: is a name for SQL",
        "6": "source[0].starting: is earliest, latest, offsets by topic and partition, or a time",
        "7": "source[0].decode: is json, avro, text or bytes, not 'jsn'; did you mean json?",
        "8": "source[0].on_bad_rows: there is no such field; did you mean on_bad_row?",
        "9": "source[1].pattern: is no regular expression",
        "12": "source[1].schema: there is no type 'BIGNT'; did you mean BIGINT?",
        "13": "source[1].rows_per_batch: is a whole number from 1 on, not '0'",
        "14": "source[1].options.subscribe: is not for options",
        "15": "source[1].watermark.delay: is a duration, as in 10s, not '10'",
        "16": "source[2].assign.orders[1]: is a whole number from 0 on, not 'x'",
        "19": "source[2].schema: is for decode: json or avro, not text",
        "20": "source[2].columns[1]: is id, topic, partition, offset,",
        "21": "transform.python: ",
        "22": "sink.parquet: there is one of topic, parquet or delta, not several",
        "23": "trigger.every: is a duration, as in 10s, not '10'",
        "24": "sparks: there is no such field; did you mean spark?",
        "25": "spark.executor.memory: Spark's settings have names that begin with spark.",
    }
    assert {line: message for line, message in expected.items() if not told.get(line, "").startswith(message)} == {}
    assert "p.yaml:15: source[1].watermark.column: there is no column '_timestamp'; list it in columns" in ran.out
    assert "p.yaml:16: source[2]: another source is called all, too" in ran.out
    assert "f.py has no function transform" in told["21"]
    assert "p.yaml:22: sink.mode: a topic can only be added to" in ran.out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p.yaml: the file is empty"),
        ("name: [", "p.yaml:1: not YAML: expected the node content"),
        ("just words", "p.yaml:1: is names and values"),
        ("{name: p, name: q, source: {topics: a, decode: text}, sink: {topic: b}}", "p.yaml:1: name: is there twice"),
        ("name: p", "p.yaml:1: source is missing, as in source: "),
        ("{name: p, source: {decode: text}, sink: {topic: b}}", "one of topics, pattern or assign is missing"),
        (
            "{name: p, source: {topics: a, decode: json}, sink: {topic: b}}",
            "schema is missing, as in schema: id BIGINT",
        ),
        ("{name: p, source: {topics: a, decode: avro, schema_file: no.avsc}, sink: {topic: b}}", "No such file"),
        ("{name: p, source: {topics: [a, b], decode: text}, sink: {topic: c}}", "as is missing: several topics"),
        (
            "{name: p, source: {topics: a, decode: json, schema: 'a ARRAY<INT'}, sink: {topic: c}}",
            "expected '>' to end",
        ),
        (
            "{name: p, source: {topics: a, decode: json, schema: '_key INT'}, sink: {topic: c}}",
            "_key is what the message",
        ),
        ("{name: p, source: {topics: a, decode: text}, sink: {parquet: c, key: k}}", "sink.key: is for topics"),
        ("{name: p, source: {topics: a, decode: text}, sink: {topic: '${NOT_SET}'}}", "no variable NOT_SET"),
        (
            "{name: p, source: [{topics: a, decode: text}, {topics: b, decode: text}], sink: {topic: c}}",
            "transform is missing: it says what becomes of several sources",
        ),
        (
            "{name: p, source: {topics: a, decode: text}, transform: {python: 'no.such:f'}, sink: {topic: c}}",
            "no module",
        ),
    ],
)
def test_a_mistake_is_told(run: Run, tmp_path: Path, text: str, message: str) -> None:
    ran = validated(run, tmp_path, text)
    assert ran.code == 1
    assert message in ran.out


@pytest.mark.parametrize("file", sorted((ROOT / "examples" / "pipelines").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_examples_have_no_mistakes(run: Run, file: Path) -> None:
    run.ok("pipeline", "validate", file)


def test_what_the_guide_shows_has_no_mistakes_and_it_names_every_field(run: Run, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "pipelines.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for name, schema in re.findall(r"^```json (\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(schema)
    for block in blocks:
        assert validated(run, tmp_path, block).code == 0
    named = set(re.findall(r"`(\w+)[`:]", page))
    assert {*FIELDS, *SOURCE_FIELDS, *SINK_FIELDS, *MESSAGE_COLUMNS} - named == set()


def test_a_file_that_is_not_there_is_no_answer(run: Run, tmp_path: Path) -> None:
    ran = run("pipeline", "validate", tmp_path / "none.yaml")
    assert (ran.code, ran.out) == (2, "")
    assert "can't be read: No such file or directory [invalid_input]" in ran.err


def test_a_run_tells_all_mistakes_before_anything_is_started(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("{name: p, source: {topics: a, decode: txt}, sink: {topc: b}}")
    ran = run("pipeline", "run", file, "--state-dir", tmp_path / "state")
    assert ran.code == 2
    assert "did you mean text?" in ran.err
    assert "did you mean topic?" in ran.err
    assert not (tmp_path / "state").exists()


def test_variables_are_filled_in_and_a_key_is_never_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "pk_secret")
    monkeypatch.setenv("TOPIC", "orders")
    text = """\
        name: p
        url: ${URL:-penstock://elsewhere:7420}
        key: ${MY_KEY}
        source: {topics: "${TOPIC}", decode: text}
        transform: {sql: "SELECT '$${x}' AS value FROM orders"}
        sink: {topic: out}
    """
    file = tmp_path / "p.yaml"
    file.write_text(textwrap.dedent(text))
    pipeline = read(file)
    assert (pipeline.broker.url, pipeline.broker.key) == ("penstock://elsewhere:7420", "pk_secret")
    assert (pipeline.sources[0].topics, pipeline.transform.sql) == (("orders",), "SELECT '${x}' AS value FROM orders")
    assert "pk_secret" not in repr(pipeline)
    for field in ("topic: '${MY_KEY} x'", "topic: out}\ntrigger: {every: '${MY_KEY}'"):
        shown = validated(run, tmp_path, text.replace("topic: out", field))
        assert (shown.code, len(shown.lines)) == (1, 1)
        assert "pk_secret" not in shown.out
    wrong_key = validated(run, tmp_path, text.replace("key: ${MY_KEY}", "key: [pk_secret]"))
    assert wrong_key.code == 1
    assert "pk_secret" not in wrong_key.out


def test_paths_start_at_the_file_and_defaults_are_as_told(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("{name: p, source: {topics: a.b-c, decode: text}, sink: {topic: o}, checkpoint: here}")
    pipeline, problems = examine(file, {"PENSTOCK_SERVER": "penstock://there:1", "PENSTOCK_KEY": "k"})
    assert pipeline is not None
    assert problems == []
    assert (pipeline.broker.url, pipeline.broker.key) == ("penstock://there:1", "k")
    assert pipeline.checkpoint == str(tmp_path / "here")
    assert pipeline.sources[0].name == "a_b_c"
    assert pipeline.sources[0].options["startingOffsets"] == "earliest"
    assert isinstance(pipeline.sink, TopicSink)
    assert pipeline.sink.encode == "json"


def test_topics_that_are_not_there_are_told_with_their_lines(run: Run, q: Client, topic: str, tmp_path: Path) -> None:
    source = f"source:\n  topics:\n    - {topic}\n    - nowhere\n  as: x\n  decode: text\n"
    text = f"name: p\n{source}sink: {{topic: neither}}\n"
    ran = validated(run, tmp_path, text, "--connect")
    assert ran.code == 1
    assert [line.partition(" at ")[0] for line in ran.lines] == [
        "p.yaml:5: there is no topic nowhere",
        "p.yaml:8: there is no topic neither",
    ]
    ran = run("pipeline", "run", tmp_path / "p.yaml", "--state-dir", tmp_path / "state")
    assert ran.code == 2
    assert "there is no topic nowhere" in ran.err
    assert not (tmp_path / "state").exists()


def test_without_pyspark_or_java_it_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    old = tmp_path / "java"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkMissing, match=r"there is none in the PATH: install Java 17 \(Debian"):
        session.check_spark()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    old.chmod(0o755)
    with pytest.raises(SparkMissing, match=r"needs Java 17 or later, and .*java is Java 11"):
        session.check_spark()
    monkeypatch.setattr(session, "version", lambda _: "3.5.1")
    with pytest.raises(SparkMissing, match=r"need pyspark 4\.2 or later, not 3\.5\.1"):
        session.check_spark()

    def missing(_: str) -> str:
        raise session.PackageNotFoundError

    monkeypatch.setattr(session, "version", missing)
    with pytest.raises(SparkMissing, match=r"pip install 'penstock\[spark\]'"):
        session.check_spark()


def test_the_extra_of_spark_has_what_rows_go_to_python_by() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(each.startswith("pandas>=2.2") for each in extras["spark"])
    assert "penstock[spark]" in extras["delta"]


@pytest.mark.parametrize(
    ("pandas", "told"), [(None, "which is not installed"), ("2.1.4", r"not 2\.1\.4")], ids=["none", "old"]
)
def test_without_pandas_a_mirror_and_a_delta_table_are_refused_before_spark_starts(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pandas: str | None, told: str
) -> None:
    known = session.version

    def installed(package: str) -> str:
        if package != "pandas":
            return known(package)
        if pandas is None:
            raise session.PackageNotFoundError
        return pandas

    monkeypatch.setattr(session, "version", installed)
    monkeypatch.setattr(session, "_check_java", lambda: None)
    monkeypatch.setattr(session, "_has_own_settings", lambda: False)
    ran = run("pipeline", "mirror", "--from", "penstock://a", "--to", "penstock://b", "--topics", "orders")
    need = rf"mirrors and delta tables need pandas 2\.2 or later, {told}: pip install --upgrade 'penstock\[spark\]'"
    assert ran.code == 2
    assert re.search(need, ran.err)
    conf = {"spark.master": "local[1]"}
    with pytest.raises(SparkMissing, match=need):
        session.open_session("p", conf, tmp_path / "log.txt", needs_delta=True)
    assert not (tmp_path / "log.txt").exists()


def test_what_spark_itself_is_set_up_with_is_not_judged_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(variable, raising=False)
    assert not session._has_own_settings()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert not session._has_own_settings()
    (tmp_path / "spark-defaults.conf").touch()
    assert session._has_own_settings()


@pytest.mark.parametrize(
    ("named", "spark"),
    [
        ("io.delta:delta-spark_2.13:4.4.0", "4.3.0"),
        ("org.x:y:1,io.delta:delta-spark_4.2_2.13:4.4.0", "4.3.0"),
        ("io.delta:delta-spark_2.13:4.3.1", "4.2.1"),
        ("/jars/delta-spark_2.13-4.4.0.jar", "4.3.0"),
        ("io.delta:delta-core_2.12:2.4.0", "4.3.0"),
    ],
)
def test_a_delta_lake_of_another_spark_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, spark: str
) -> None:
    monkeypatch.setattr(session, "version", lambda _: spark)
    conf = {"spark.master": "local[1]", "spark.jars" if ".jar" in named else "spark.jars.packages": named}
    with pytest.raises(SparkMissing, match=rf"^\S*delta-(spark|core)_\S+ is not made for Spark {spark}: "):
        session.open_session("p", conf, tmp_path / "log.txt", needs_delta=True)
    assert not (tmp_path / "log.txt").exists()


@pytest.mark.parametrize(
    ("named", "spark"),
    [
        ("io.delta:delta-spark_2.13:4.4.0", "4.2.1"),
        ("io.delta:delta-spark_4.3_2.13:4.5.0", "4.3.0"),
        ("io.delta:delta-spark_2.13:4.5.0", "4.3.0"),
        ("/jars/delta-spark_of_ours.jar", "4.3.0"),
    ],
)
def test_a_delta_lake_that_may_fit_is_used(monkeypatch: pytest.MonkeyPatch, named: str, spark: str) -> None:
    monkeypatch.setattr(session, "version", lambda _: spark)
    settings = session.with_delta({"spark.jars.packages": named})
    assert settings["spark.sql.catalog.spark_catalog"] == "org.apache.spark.sql.delta.catalog.DeltaCatalog"


@pytest.mark.parametrize("named", ["/jars/other.jar", "/data/delta/rules.jar", "org.x:deltas-of-rivers:1.0"])
def test_what_only_sounds_like_delta_lake_is_not_taken_for_it(named: str) -> None:
    assert session.with_delta({"spark.jars": named}) == {"spark.jars": named}


@pytest.mark.parametrize(
    ("catalog", "is_theirs"),
    [
        ("org.apache.spark.sql.delta.catalog.DeltaCatalog", True),
        ("org.x.rivers.delta.Catalog", False),
        ("", False),
    ],
)
def test_spark_writes_delta_tables_itself_if_its_catalog_is_delta_lakes(catalog: str, is_theirs: bool) -> None:
    spark: Any = SimpleNamespace(conf={"spark.sql.catalog.spark_catalog": catalog} if catalog else {})
    assert session.has_delta_lake(spark) is is_theirs


def test_files_are_checked_and_states_shown_without_pyspark(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(GOOD.replace("decode: text", "decode: avro, schema_file: order.avsc"))
    (tmp_path / "order.avsc").write_text(RECORD % '"int"')
    code = """
import sys
sys.modules["pyspark"] = sys.modules["fastavro"] = None
from penstock.cli import main
main(sys.argv[1:])
"""
    command = [sys.executable, "-c", code, "pipeline"]
    environment = {**os.environ, "PENSTOCK_PIPELINES": str(tmp_path)}
    done = subprocess.run(
        [*command, "validate", str(file)], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_states_are_listed_and_a_killed_one_is_told_as_that(run: Run, tmp_path: Path) -> None:
    options = ["--state-dir", str(tmp_path)]
    nothing = run("pipeline", "list", *options)
    assert (nothing.code, nothing.err) == (0, f"no pipeline has run here (in {tmp_path})\n")
    unknown = run("pipeline", "status", "p", *options)
    assert unknown.code == 2
    assert "no pipeline 'p' has run here" in unknown.err
    store = Store(tmp_path)
    with store.held("p"):
        store.put(State("p", "p.yaml", "running", 1, 1_700_000_000_000_000, "local[*]", "cp", "log"))
        assert run.ok("pipeline", "status", "p", "-o", "json", *options).json["status"] == "running"
    killed = run("pipeline", "status", "p", *options)
    assert killed.code == 1
    assert "killed: the process 1 is gone, and did not say why" in killed.out
    assert run("pipeline", "status", *options).lines[1].split()[:2] == ["p", "killed"]
    assert run.ok("pipeline", "list", *options).lines[1].split()[:2] == ["p", "killed"]
    (tmp_path / "p" / "state.json").write_text("{")
    assert "is not the state of a pipeline" in run("pipeline", "list", *options).err


@pytest.mark.parametrize("number", ["010", "99999999999999999999999999", "9223372036854775808", "0x10", "1_000", "-1"])
def test_numbers_are_decimal_and_no_larger_than_sparks(run: Run, tmp_path: Path, number: str) -> None:
    ran = validated(run, tmp_path, GOOD.replace("decode: text", f"decode: text, rows_per_batch: {number}"))
    assert ran.code == 1
    most = "to 9223372036854775807" if len(number) > 18 else "on"
    assert f"rows_per_batch: is a whole number from 1 {most}, not '{number}'" in ran.out


def test_a_file_that_is_nested_too_deeply_is_told_as_that(run: Run, tmp_path: Path) -> None:
    ran = validated(run, tmp_path, "a: " + "[" * 3_000 + "]" * 3_000)
    assert (ran.code, ran.out) == (1, "p.yaml: nested too deeply\n")


RECORD = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": %s}]}'


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("[" * 100_000, "order.avsc is not JSON: "),
        ('"int"', "order.avsc is no schema of a record: "),
        (RECORD % '"strng"', "order.avsc: a: there is no type 'strng'"),
        (RECORD % '["null", ["int"]]', "order.avsc: a is a union within a union"),
        (RECORD % '{"type": "enum", "name": "e"}', "order.avsc: a is an enum without symbols"),
        (RECORD % '"int", "default": "x"', 'order.avsc: a has a default of another type: "x"'),
        (RECORD % '["null", "r"]', "order.avsc: a is a r again, which is in itself: Spark has no such types"),
    ],
)
@pytest.mark.parametrize("side", ["decode", "encode"])
def test_a_schema_that_is_none_is_told_with_its_file(
    run: Run, tmp_path: Path, schema: str, message: str, side: str
) -> None:
    (tmp_path / "order.avsc").write_text(schema)
    ran = validated(run, tmp_path, GOOD.replace(f"{side}: text", f"{side}: avro, schema_file: order.avsc"))
    assert ran.code == 1
    assert message in ran.out


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_what_a_variable_holds_is_not_told_by_the_file_it_names(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.setenv("WHERE", "TOPSECRET")
    if content is not None:
        (tmp_path / "TOPSECRET.avsc").write_text(content)
    ran = validated(
        run, tmp_path, GOOD.replace("decode: text", "decode: avro, schema_file: '${WHERE}.avsc'")
    )  # fmt: skip
    assert "TOPSECRET" not in ran.out + ran.err
    assert "schema_file: can't be '${WHERE}.avsc' with what its variables hold" in ran.out


def test_a_decoding_that_is_none_is_one_mistake(run: Run, tmp_path: Path) -> None:
    text = "{name: p, source: {topics: orders, decode: jsn, schema: id INT}, sink: {topic: out}}"
    told = validated(run, tmp_path, text, "-o", "json")
    (problem,) = json.loads(told.out)["problems"]
    assert problem["message"] == "is json, avro, text or bytes, not 'jsn'; did you mean json?"


def test_a_run_without_a_batch_has_no_last_one(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    Store(tmp_path).put(State("p", "", "finished", 1, 1, "local", "c", "l", progress=Progress()))
    assert re.search(r"^last batch +-$", run.ok("pipeline", "status", "p", "--state-dir", tmp_path).out, re.MULTILINE)
    assert "None" not in run.ok("pipeline", "status", "--state-dir", tmp_path).out


ORDERS = """
name: p
source: {topics: orders, decode: json, schema: "id BIGINT, total DOUBLE, at STRUCT<lat: DOUBLE>", columns: [timestamp]}
"""


def test_all_wrong_columns_are_told_without_a_session(run: Run, tmp_path: Path) -> None:
    sql = "SELECT idd, o.totl, at.lat, upper(nam) AS n FROM orders o WHERE _timestamp > '2026-01-01'"
    ran = validated(run, tmp_path, f'{ORDERS}transform: {{sql: "{sql}"}}\nsink: {{topic: out, mode: complete}}\n')
    assert ran.code == 1
    assert re.findall("there is no column ([^\n]*)", ran.out) == [
        "idd; did you mean id?",
        "totl; did you mean total?",
        "nam; there are id, total, at, _timestamp",
    ]
    assert "mode is append or update" in ran.out
    ran = validated(run, tmp_path, f"{ORDERS}sink: {{topic: out, key: ID}}\n")
    assert ran.code == 0
    ran = validated(run, tmp_path, f"{ORDERS}sink: {{parquet: out, partition_by: [id, day]}}\n")
    assert ran.out.endswith("there is no column day; there are id, total, at, _timestamp\n")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT window.start, count(*) AS n FROM orders GROUP BY window(_timestamp, '1 hour')",
        "SELECT total * 2 AS twice, twice + 1 AS more FROM orders",
        "SELECT `ID`, orders.TOTAL, at.lat FROM orders",
        "WITH some AS (SELECT id AS i FROM orders) SELECT i, localtimestamp() FROM some",
        "SELECT id::string, tag FROM orders LATERAL VIEW explode(array(1)) t AS tag",
        "SELECT id FROM orders WHERE _timestamp > current_timestamp() - INTERVAL 1 HOUR",
    ],
)
def test_sql_of_sparks_own_is_no_mistake(run: Run, tmp_path: Path, sql: str) -> None:
    ran = validated(run, tmp_path, f'{ORDERS}transform: {{sql: "{sql}"}}\nsink: {{topic: out}}\n')
    assert (ran.code, ran.out) == (0, "p.yaml: p is a pipeline from orders to out\n")


SOURCES = [
    Source(
        "orders",
        ("orders",),
        {},
        False,
        "json",
        "id BIGINT, total DOUBLE, at STRUCT<lat: DOUBLE>, items ARRAY<STRING>, m MAP<STRING, INT>, name STRING",
        ("id", "total", "at", "items", "m", "name"),
        MESSAGE_COLUMNS,
    ),
    Source("payments", ("payments",), {}, False, "avro", "{}", ("id", "amount", "card")),
    Source("lines", ("lines",), {}, False, "text", "", ("value",)),
]


@pytest.mark.parametrize(
    "sql",
    """\
SELECT window.start, count(*) AS n FROM orders GROUP BY window(_timestamp, '1 hour')
SELECT window(_timestamp, '1 hour').start AS s FROM orders
SELECT session_window.start, count(*) FROM orders GROUP BY session_window(_timestamp, '5 minutes'), id
SELECT total * 2 AS twice, twice + 1 AS more FROM orders
SELECT total * 2 dbl, dbl + 1 AS q FROM orders
SELECT `ID`, orders.TOTAL, at.lat, o.at.lat FROM orders o JOIN orders USING (id)
SELECT transform(items, x -> x || 'a'), aggregate(items, '', (acc, x) -> acc || x) FROM orders
SELECT dateadd(DAY, 1, _timestamp), date_add(_timestamp, 1), timestampdiff(HOUR, _timestamp, now()) FROM orders
SELECT id, date '2026-01-01', timestamp '2026-01-01 00:00:00', INTERVAL 1 HOUR, x'1F', 1.5BD FROM orders
SELECT col FROM (SELECT explode(items) FROM orders)
SELECT id, col FROM orders LATERAL VIEW explode(items) t
SELECT id, i, x FROM orders LATERAL VIEW OUTER posexplode(items) t AS i, x
SELECT id, k, v FROM orders, LATERAL explode(m) AS t(k, v)
SELECT stack(2, id, total) AS (a) FROM orders
SELECT user, current_user, current_timestamp, current_date, id FROM orders
SELECT id, count(*) FROM orders GROUP BY ALL
SELECT * FROM (SELECT id, total FROM orders) PIVOT (sum(total) FOR id IN (1 AS a, 2 AS b))
SELECT * EXCEPT (id) FROM orders
FROM orders SELECT id
FROM orders |> WHERE total > 1 |> SELECT id
SELECT id, sum(total) OVER (PARTITION BY id ORDER BY _timestamp ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) s FROM orders
SELECT /*+ BROADCAST(p) */ o.id FROM orders o LEFT ANTI JOIN payments p ON o.id = p.id
SELECT o.id, p.card.last FROM orders o JOIN payments p ON o.id = p.id AND p.amount > o.total
SELECT id FROM orders UNION ALL SELECT id FROM payments
SELECT id, grouping_id() FROM orders GROUP BY id WITH ROLLUP
SELECT items[0], m['a'], m.a, named_struct('a', id).a, CAST(id AS STRING), id::string FROM orders
SELECT count(*) FILTER (WHERE id > 1), percentile_cont(0.5) WITHIN GROUP (ORDER BY total) FROM orders
SELECT x FROM VALUES (1, 'a'), (2, 'b') AS t(x, y)
SELECT id FROM range(10)
SELECT id FROM orders WHERE id IN (SELECT id FROM payments WHERE orders.total > amount)
SELECT from_json(value, 'a INT, b STRING').a, value:a FROM lines
SELECT my_function(id) FROM orders
SELECT id FROM elsewhere.some_table
SELECT x FROM parquet.`/data/x`
SELECT explode(card) FROM payments
SELECT "text", r'\\d', TRIM(BOTH 'x' FROM name), EXTRACT(HOUR FROM _timestamp) FROM orders WHERE name RLIKE 'a'
SELECT _headers[0].key, decode(_key, 'UTF-8'), _priority FROM orders
SELECT id FROM orders;
SELECT 1 AS one -- comment""".splitlines(),
)
def test_sql_that_spark_takes_has_no_mistakes(sql: str) -> None:
    assert sql_mistakes(sql, SOURCES) == []


@pytest.mark.parametrize(
    ("sql", "mistakes"),
    [
        ("WITH some AS (SELECT id FROM orders) SELECT id, total FROM some", ["column total; there are id"]),
        ("SELECT p.totl, nam FROM orders o JOIN payments p ON o.id = p.id", ["column totl", "column nam"]),
        (
            "SELECT count(*) FROM orders GROUP BY window(_timestmp, '1 hour')",
            ["column _timestmp; did you mean _timestamp?"],
        ),
        ("SELECT date_add(_timestamp, 1), tota, explode(items) FROM orders", ["column tota; did you mean total?"]),
        ("SELECT tota, x FROM orders LATERAL VIEW explode(items) t AS x", ["column tota; did you mean total?"]),
        ("SELECT timestamp '2026-01-01 00:00:00', nam FROM orders", ["column nam; did you mean name?"]),
        ("SELECT at.lon FROM orders", ["field lon; there are lat"]),
        ("SELECT idd FROM ordrs", ["source ordrs; did you mean orders?", "column idd; did you mean id?"]),
        ("SELECT a, b FROM nowhere", ["source nowhere; there are orders, payments, lines"]),
        ("SELECT id\nFROM orders\nWHERE nam = 1", ["column nam; did you mean name? (line 3)"]),
    ],
)
def test_wrong_names_in_sql_are_told_all_at_once(sql: str, mistakes: list[str]) -> None:
    found = sql_mistakes(sql, SOURCES)
    assert len(found) == len(mistakes), found
    for mistake in mistakes:
        assert any(each.startswith(f"there is no {mistake}") for each in found), found


@pytest.mark.parametrize(
    ("sql", "mistake"),
    [
        ("SELECT id, count(*) FROM orders GROUP BY", "Syntax error at or near 'BY': extra input 'BY' (line 1, pos 38)"),
        ("SELEC id", "Syntax error at or near 'SELEC' (line 1, pos 0)"),
    ],
)
def test_sql_that_spark_can_not_parse_is_told_with_its_place(sql: str, mistake: str) -> None:
    assert sql_mistakes(sql, SOURCES) == [mistake]


def test_sql_is_not_judged_if_settings_change_what_it_means() -> None:
    assert sql_mistakes("SELECT id FROM nowhere", SOURCES, ["spark.sql.catalog.lake"]) == []


def test_files_with_sql_are_checked_without_java(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise SparkMissing("no Java")

    monkeypatch.setattr(sql_analysis, "check_spark", missing)
    sql_analysis._spark.cache_clear()
    ran = validated(run, tmp_path, f'{ORDERS}transform: {{sql: "SELECT nam FROM orders"}}\nsink: {{topic: out}}\n')
    assert ran.code == 0
