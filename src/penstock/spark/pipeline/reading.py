"""From a YAML file to a pipeline: everything that can be known to be wrong without Spark is told, with its line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from penstock.errors import InvalidInput, PipelineInvalid
from penstock.limits import NAME_LENGTH_MAX
from penstock.net.address import places_of
from penstock.spark.pipeline.document import TOPIC, Document, Field, Problem, Section
from penstock.spark.pipeline.functions import check_function
from penstock.spark.pipeline.reading_sources import read_sources
from penstock.spark.pipeline.schemas import read_avro
from penstock.spark.pipeline.spec import Broker, Pipeline, Source, TableSink, TopicSink, Transform, Trigger
from penstock.spark.pipeline.sql_analysis import sql_mistakes

ADDRESS = "penstock://127.0.0.1:7420"
FIELDS = ("name", "url", "key", "tls", "source", "transform", "sink", "trigger", "checkpoint", "spark")
SINK_FIELDS = ("topic", "parquet", "delta", "encode", "schema_file", "key", "value", "partition_by", "mode")
ENCODINGS = ("json", "avro", "text", "bytes")
MODES = ("append", "update", "complete")


def read(file: Path, environment: Mapping[str, str] | None = None) -> Pipeline:
    """PipelineInvalid with all its mistakes; InvalidInput if there is no such file."""
    pipeline, problems = examine(file, environment, has_sql_analyzed=False)
    if pipeline is None:
        shown = [problem.shown(str(file)) for problem in problems]
        told = shown[0] if len(shown) == 1 else f"{len(shown)} mistakes:\n  " + "\n  ".join(shown)
        raise PipelineInvalid(told, problems=[problem._asdict() for problem in problems])
    return pipeline


def examine(
    file: Path, environment: Mapping[str, str] | None = None, *, has_sql_analyzed: bool = True
) -> tuple[Pipeline | None, list[Problem]]:
    """The pipeline if there is nothing wrong with it, and what is wrong otherwise, from top to bottom.

    has_sql_analyzed: also look for mistakes in its SQL, which starts a JVM.
    """
    document = Document(file.resolve(), environment)
    root = document.root()
    section = None if root is None else root.section(FIELDS, f"names and values: {', '.join(FIELDS)}")
    found = None if section is None else _pipeline(document, section, has_sql_analyzed)
    problems = sorted(document.problems, key=lambda problem: problem.line)
    return (None if problems else found), problems


def _pipeline(document: Document, root: Section, has_sql_analyzed: bool) -> Pipeline | None:
    directory = document.file.parent
    name = _name(root.required("name", "orders-by-hour"))
    broker = _broker(document, root)
    sources = read_sources(root.required("source", "{topics: orders, decode: text}"), directory)
    spark_field = root.get("spark")
    spark = {} if spark_field is None else _settings(spark_field)
    transform = _transform(root.get("transform"), directory, sources, list(spark), has_sql_analyzed)
    if len(sources) > 1 and root.get("transform") is None:
        root.wrong("transform is missing: it says what becomes of several sources, as in transform: {sql: SELECT …}")
    is_plain = root.get("transform") is None and len(sources) == 1
    sink = _sink(root.required("sink", "{topic: big-orders}"), directory, sources[0].row if is_plain else None)
    trigger = _trigger(root.get("trigger"))
    checkpoint = root.get("checkpoint")
    where = None if checkpoint is None else checkpoint.text("a directory")
    if name is None or sink is None or not sources:
        return None
    where = None if where is None else path_of(directory, where)
    return Pipeline(
        name, document.file, broker, tuple(sources), transform, sink, trigger, where, spark, dict(document.topics)
    )


def path_of(directory: Path, text: str) -> str:
    """As it is, if it is a URL: s3a://… or hdfs://…"""
    return text if "://" in text else str(directory / Path(text).expanduser())


def _name(field: Field | None) -> str | None:
    name = None if field is None else field.text("a name")
    if field is not None and name is not None and (not TOPIC.fullmatch(name) or len(name) > NAME_LENGTH_MAX):
        field.wrong(f"is made of a-z A-Z 0-9 . _ - and does not start with a dot: {field.raw}")
    return name


def _broker(document: Document, root: Section) -> Broker:
    url_field, key_field, tls_field = root.get("url"), root.get("key"), root.get("tls")
    url: str | None = document.environment.get("PENSTOCK_SERVER") or ADDRESS
    if url_field is not None:
        url = url_field.text("an address, as in penstock://localhost:7420")
        try:
            places_of(url or ADDRESS)
        except InvalidInput as error:
            url_field.refuse(error.message)
    key = document.environment.get("PENSTOCK_KEY") or None
    if key_field is not None:
        key = key_field.secret()
    tls = {}
    if tls_field is not None:
        section = tls_field.section(("ca", "cert", "key"), "the files ca, cert and key")
        for name, field in section.fields.items() if section is not None else ():
            if (text := field.text("a file")) is not None:
                tls[name] = path_of(document.file.parent, text)
    return Broker(url or ADDRESS, key, tls)


def _settings(field: Field) -> dict[str, str]:
    found = {}
    for name, value in field.pairs("names and values, as in spark.executor.memory: 2g"):
        if not name.startswith("spark."):
            value.wrong("Spark's settings have names that begin with spark.")
        elif (text := value.plain()) is not None:
            found[name] = text
    return found


def _transform(
    field: Field | None, directory: Path, sources: Sequence[Source], settings: Sequence[str], has_sql_analyzed: bool
) -> Transform:
    if field is None:
        return Transform()
    section = field.section(("sql", "python"), "sql: … or python: …")
    chosen = None if section is None else section.one_of(("sql", "python"), is_required=True)
    if section is None or chosen is None:
        return Transform()
    text = chosen.text("SQL" if chosen.name.endswith("sql") else "module:function or file.py:function")
    if text is None or chosen.name.endswith("sql"):
        for mistake in sql_mistakes(text, sources, settings) if text is not None and has_sql_analyzed else ():
            chosen.refuse(mistake)
        return Transform(sql=text)
    try:
        return Transform(None, *check_function(text, directory))
    except InvalidInput as error:
        chosen.refuse(error.message)
    return Transform()


def _refuse_column(field: Field, column: str, columns: Sequence[str]) -> None:
    near = get_close_matches(column, columns, n=1)
    did = f"did you mean {near[0]}?" if near else f"there are {', '.join(columns)}"
    field.refuse(f"there is no column {column}; {did}")


def _check_columns(field: Field | None, named: Iterable[str | None], columns: Sequence[str] | None) -> None:
    """`columns` is None or empty if they are not known without Spark."""
    if field is None or not columns:
        return
    for name in named:
        if name is not None and name.lower() not in map(str.lower, columns):
            _refuse_column(field, name, columns)


def _sink(field: Field | None, directory: Path, row: Sequence[str] | None) -> TopicSink | TableSink | None:
    """`row` has the columns that are written, if they are known without Spark."""
    section = None if field is None else field.section(SINK_FIELDS, "topic: …, parquet: … or delta: …")
    chosen = None if section is None else section.one_of(("topic", "parquet", "delta"), is_required=True)
    if section is None or chosen is None:
        return None
    text = chosen.text("the name of a topic" if chosen.name.endswith("topic") else "a path")
    mode_field = section.get("mode")
    mode = (None if mode_field is None else mode_field.word(MODES)) or "append"
    if text is None:
        return None
    if chosen.name.endswith("topic"):
        section.refuse(("partition_by",), "is for tables: a topic has partitions by key")
        if mode_field is not None and mode == "complete":
            mode_field.wrong("a topic can only be added to: mode is append or update")
        return _topic_sink(chosen, section, text, mode, directory, row)
    section.refuse(("encode", "schema_file", "key", "value"), "is for topics: a table has columns")
    if mode_field is not None and mode == "update":
        mode_field.wrong("a table is written in mode append, or complete if it is a delta table")
    if mode_field is not None and mode == "complete" and chosen.name.endswith("parquet"):
        mode_field.wrong("files in Parquet can only be added to: mode is append")
    by = section.get("partition_by")
    columns = tuple(by.texts("names of columns")) if by is not None else ()
    _check_columns(by, columns, row)
    kind = chosen.name.rpartition(".")[2]
    return TableSink("delta" if kind == "delta" else "parquet", path_of(directory, text), columns, mode)


def _topic_sink(
    chosen: Field, section: Section, topic: str, mode: str, directory: Path, row: Sequence[str] | None
) -> TopicSink:
    chosen.topic(topic)
    encode_field, file_field = section.get("encode"), section.get("schema_file")
    encode = (None if encode_field is None else encode_field.word(ENCODINGS)) or "json"
    schema = ""
    if encode == "avro":
        file_field = section.required("schema_file", "order.avsc")
        schema = "" if file_field is None else read_avro(file_field, directory)[0]
    else:
        section.refuse(("schema_file",), "is for encode: avro")
    if encode in ("json", "avro"):
        section.refuse(("value",), "is for encode: text or bytes; json and avro have all columns in the value")
    key, value = (
        None if each is None else each.text("the name of a column")
        for each in (section.get("key"), section.get("value"))
    )
    _check_columns(section.get("key"), [key], row)
    _check_columns(section.get("value"), [value], row)
    return TopicSink(topic, encode, schema, key, value or "value", mode)  # type: ignore[arg-type]


def _trigger(field: Field | None) -> Trigger:
    section = None if field is None else field.section(("every", "available_now"), "every: 10s or available_now: true")
    chosen = None if section is None else section.one_of(("every", "available_now"), is_required=True)
    if chosen is None:
        return Trigger()
    if chosen.name.endswith("every"):
        return Trigger(every_us=chosen.duration_us(1_000))
    if chosen.flag() is False:
        chosen.wrong("is true, or left out")
    return Trigger(available_now=True)
