"""Mistakes in a pipeline's SQL, found by Spark's own parser and analyzer without a session.

A session takes many seconds to start. The classes that parse and analyze need only a JVM with Spark's jars, and a table
expression in front of the query that has the columns of the sources. They know nothing of a session's settings, its
functions and catalogs: only what is wrong whatever those are is reported. `penstock pipeline validate --plan` has a
session plan the whole query.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, NamedTuple

from penstock.errors import SparkMissing
from penstock.spark.pipeline.ddl import quoted
from penstock.spark.pipeline.session import check_spark
from penstock.spark.pipeline.spec import Source

_MISTAKES_MAX = 100
# Spark proposes no more columns than that.
_PROPOSED_MAX = 5
# Settings that change which queries are right.
_DECISIVE = re.compile(r"spark\.(sql\.(extensions|catalog|default|caseSensitive|ansi|legacy|parser)|jars|hadoop\.hive)")
_TYPES = {
    "topic": "STRING",
    "id": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "append_time": "TIMESTAMP",
    "deliver_at": "TIMESTAMP",
}
# Faster to start than to run: it runs for a moment.
_JAVA_OPTIONS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]


class _Mistake(NamedTuple):
    """`kind` is Spark's name of it. `start` and `text` are the part of the SQL that is wrong, if Spark says."""

    kind: str
    parameters: dict[str, str]
    message: str
    start: int
    text: str


def sql_mistakes(sql: str, sources: Sequence[Source], settings: Sequence[str] = ()) -> list[str]:
    """What is surely wrong with it. Nothing if Spark or Java is missing, or a source has a wrong schema.

    settings: names of Spark's settings of the pipeline.
    """
    if not all(source.decoded for source in sources) or any(map(_DECISIVE.match, settings)):
        return []
    try:
        spark = _spark()
    except SparkMissing:
        return []
    sql = sql.rstrip().removesuffix(";")
    mistake = spark.parse(sql)
    if mistake is not None:
        return [mistake.message] if mistake.kind.startswith("PARSE_") else []
    tables = ", ".join(f"{quoted(source.name)} AS ({_row(source)})" for source in sources)
    return list(dict.fromkeys(_found(spark, f"WITH {tables} SELECT * FROM (\n", sql, sources)))


def _found(spark: _Spark, head: str, sql: str, sources: Sequence[Source]) -> Iterator[str]:
    columns = [column for source in sources for column in source.row]
    for _ in range(_MISTAKES_MAX):
        mistake = spark.analyze(f"{head}{sql}\n)")
        if mistake is None or mistake.start < len(head) or not mistake.text:
            return
        start = mistake.start - len(head)
        line = sql.count("\n", 0, start) + 1
        where = f" (line {line})" if "\n" in sql.strip() else ""
        instead = "NULL"
        match mistake.kind.partition(".")[0]:
            case "UNRESOLVED_COLUMN":
                proposed = re.findall(r"`([^`]+)`(?:,|$)", mistake.parameters.get("proposal", ""))
                # In the order of the sources: Spark has them by likeness.
                names = sorted(proposed, key=lambda name: columns.index(name) if name in columns else len(columns))
                names += ["…"] if len(names) == _PROPOSED_MAX else []
                yield f"there is no column {_near(mistake.text.replace('`', '').rpartition('.')[2], names)}{where}"
            case "FIELD_NOT_FOUND":
                fields = re.findall(r"`([^`]+)`", mistake.parameters.get("fields", ""))
                name = mistake.parameters.get("fieldName", mistake.text).strip("`")
                yield f"there is no field {_near(name, fields)}{where}"
            case "TABLE_OR_VIEW_NOT_FOUND" if re.fullmatch(r"`?\w+`?", mistake.text):
                names = [source.name for source in sources]
                name = mistake.text.strip("`")
                yield f"there is no source {_near(name, names)}{where}"
                near = get_close_matches(name, names, n=1)
                if not near:
                    return
                instead = quoted(near[0])
            case "MISSING_GROUP_BY":
                yield f"{mistake.message}{where}"
                return
            case _:
                return
        # And on to the next mistake.
        sql = sql[:start] + instead + sql[start + len(mistake.text) :]


def _near(name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name, names, n=1)
    if near:
        return f"{name}; did you mean {near[0]}?"
    return f"{name}; there are {', '.join(dict.fromkeys(names))}" if names else name


def _row(source: Source) -> str:
    """A query that has the columns of a source. Those of Avro have no type here, which fits everywhere."""
    columns = [f"{_null(_TYPES.get(column, 'VOID'))} AS {quoted('_' + column)}" for column in source.columns]
    if source.decode == "json":
        schema = source.schema.replace("\\", "\\\\").replace("'", "\\'")
        decoded = f"(SELECT from_json({_null('STRING')}, '{schema}') AS decoded)"
        return f"SELECT {', '.join(['decoded.*', *columns])} FROM {decoded}"
    kind = {"text": "STRING", "bytes": "BINARY"}.get(source.decode, "VOID")
    return f"SELECT {', '.join([*(f'{_null(kind)} AS {quoted(name)}' for name in source.decoded), *columns])}"


def _null(kind: str) -> str:
    return f"CAST(NULL AS {kind})"


class _Spark:
    """A JVM with the parser and the analyzer."""

    def __init__(self) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

        package = find_spec("pyspark")
        assert package is not None
        assert package.origin is not None
        jars = Path(package.origin).parent / "jars"
        home = os.environ.get("JAVA_HOME")
        port, self._process = launch_gateway(
            classpath=str(jars / "*"),
            jarpath=str(next(jars.glob("py4j*.jar"))),
            javaopts=_JAVA_OPTIONS,
            java_path=str(Path(home) / "bin" / "java") if home else "java",
            die_on_exit=True,
            return_proc=True,
            redirect_stderr=DEVNULL,
        )
        self._gateway: Any = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        atexit.register(self._close)
        spark = self._gateway.jvm.org.apache.spark.sql
        self._parser = spark.execution.SparkSqlParser()
        self._analyzer = getattr(getattr(spark.catalyst.analysis, "SimpleAnalyzer$"), "MODULE$")

    def _close(self) -> None:
        with suppress(OSError):
            self._gateway.shutdown()
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()

    def parse(self, sql: str) -> _Mistake | None:
        return self._tried(lambda: self._parser.parsePlan(sql))

    def analyze(self, sql: str) -> _Mistake | None:
        return self._tried(lambda: self._analyzer.checkAnalysis(self._analyzer.execute(self._parser.parsePlan(sql))))

    def _tried(self, call: Any) -> _Mistake | None:
        from py4j.protocol import Py4JError, Py4JJavaError

        try:
            call()
            return None
        except Py4JJavaError as error:
            thrown = error.java_exception
            try:
                parameters = dict(thrown.getMessageParameters())
                kind = str(thrown.getCondition())
                context = next(iter(thrown.getQueryContext()), None)
                start, text = (-1, "") if context is None else (context.startIndex(), context.fragment())
            except Py4JError:
                # It is none of those that say what they are.
                return _Mistake("", {}, "", -1, "")
            return _Mistake(kind, parameters, _sentence(str(thrown.getMessage())), start, text)


def _sentence(message: str) -> str:
    """Without the name and the number of the error, and without the query."""
    lines = message.strip().splitlines() or [""]
    found = re.fullmatch(r"\[[^]]*\] (.*?)\.? SQLSTATE: \w+ ?(\(line \d+, pos \d+\))?.*", lines[0])
    return lines[0] if found is None else " ".join(part for part in found.groups() if part)


@cache
def _spark() -> _Spark:
    """SparkMissing if it can't be started. One for the process."""
    check_spark()
    return _Spark()
