"""The part of a pipeline's file that says what is read, and how it is decoded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from penstock.durations import time_us
from penstock.errors import InvalidInput
from penstock.spark.pipeline.document import Field, Section
from penstock.spark.pipeline.schemas import read_avro, read_ddl
from penstock.spark.pipeline.spec import FAIL, MESSAGE_COLUMNS, SKIP, Source, Watermark

FIELDS = (
    "topics",
    "pattern",
    "assign",
    "as",
    "starting",
    "rows_per_batch",
    "bytes_per_batch",
    "options",
    "decode",
    "schema",
    "schema_file",
    "columns",
    "on_bad_row",
    "watermark",
)
DECODINGS = ("json", "avro", "text", "bytes")
# Those that a file says in other words, and those that would change what a row is.
_OURS = ("url", "key", "include", "subscribe", "subscribepattern", "assign", "startingoffsets", "startingtimestamp")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def read_sources(field: Field | None, directory: Path) -> list[Source]:
    """One, or a list of several."""
    if field is None:
        return []
    found: dict[str, Source] = {}
    for item in field.items("a source, or a list of them"):
        source = _source(item, directory)
        if source is not None and source.name.lower() in found:
            item.wrong(f"another source is called {source.name}, too; give one of them another name with as: …")
        elif source is not None:
            found[source.name.lower()] = source
    return list(found.values())


def _source(field: Field, directory: Path) -> Source | None:
    section = field.section(FIELDS, "topics: …, decode: … and so on")
    chosen = None if section is None else section.one_of(("topics", "pattern", "assign"), is_required=True)
    if section is None:
        return None
    topics, options = _subscription(chosen)
    name = _view(section, field, topics)
    starts_latest = _starting(section.get("starting"), options)
    for ours, theirs in (("rows_per_batch", "maxOffsetsPerTrigger"), ("bytes_per_batch", "maxBytesPerTrigger")):
        limit = section.get(ours)
        if limit is not None and (number := limit.whole()) is not None:
            options[theirs] = str(number)
    options |= _options(section.get("options"))
    decode_field = section.required("decode", "json")
    decode = None if decode_field is None else decode_field.word(DECODINGS)
    schema, decoded = _schema(section, decode, directory)
    columns_field = section.get("columns")
    columns = [] if columns_field is None else _columns(columns_field)
    on_bad_row = _on_bad_row(section.get("on_bad_row"), decode)
    if decode is None or name is None:
        return None
    watermark = _watermark(section.get("watermark"), [*decoded, *(f"_{column}" for column in columns)])
    return Source(
        name,
        tuple(topics),
        options,
        starts_latest,
        decode,  # type: ignore[arg-type]
        schema,
        tuple(decoded),
        tuple(columns),
        on_bad_row,
        watermark,
    )


def _subscription(field: Field | None) -> tuple[list[str], dict[str, str]]:
    if field is None:
        return [], {}
    way = field.name.rpartition(".")[2]
    if way == "pattern":
        pattern = field.text("a regular expression")
        try:
            re.compile(pattern or "")
        except re.error as error:
            field.refuse(f"is no regular expression: {error}")
        return [], {"subscribePattern": pattern or ""}
    if way == "assign":
        assigned = dict(_assigned(field))
        return list(assigned), {"assign": json.dumps(assigned)}
    topics = [
        topic
        for item in field.items("the name of a topic, or a list of them")
        if (topic := item.text("the name of a topic")) is not None and item.topic(topic)
    ]
    return list(dict.fromkeys(topics)), {"subscribe": ",".join(topics)}


def _assigned(field: Field) -> Iterator[tuple[str, list[int]]]:
    for topic, value in field.pairs("topics with lists of partitions, as in orders: [0, 1]"):
        numbers = [number for item in value.items("a list of partitions") if (number := item.whole(0)) is not None]
        if value.topic(topic):
            yield topic, numbers


def _view(section: Section, field: Field, topics: list[str]) -> str | None:
    named = section.get("as")
    if named is not None:
        name = named.text("a name for SQL")
        if name is not None and not _IDENTIFIER.fullmatch(name):
            named.wrong(f"is a name for SQL, made of letters, digits and _: {named.raw}")
        return name
    if len(topics) == 1:
        name = re.sub("[^A-Za-z0-9_]", "_", topics[0])
        return name if _IDENTIFIER.fullmatch(name) else f"_{name}"
    if topics or section.get("pattern") is not None:
        field.wrong("as is missing: several topics need one name for SQL, as in as: orders")
    return None


def _starting(field: Field | None, options: dict[str, str]) -> bool:
    """Whether it starts at the end."""
    if field is None:
        options["startingOffsets"] = "earliest"
        return False
    if field.is_section:
        offsets = {
            topic: {
                number: at
                for number, each in by_number.pairs("offsets by partition")
                if (at := each.whole(0)) is not None
            }
            for topic, by_number in field.pairs("offsets by topic and partition, as in orders: {0: 23, 1: 0}")
        }
        options["startingOffsets"] = json.dumps(offsets)
        return False
    text = field.text("earliest, latest, a time, or offsets")
    if text in ("earliest", "latest"):
        options["startingOffsets"] = text
        return text == "latest"
    try:
        time_us(text or "1970-01-01T00:00:00Z")
    except InvalidInput as error:
        field.refuse(f"is earliest, latest, offsets by topic and partition, or a time: {error.message}")
    options["startingTimestamp"] = text or ""
    # Nothing that late yet is no mistake of a query that waits for it.
    options["startingOffsetsByTimestampStrategy"] = "latest"
    return False


def _options(field: Field | None) -> dict[str, str]:
    found = {}
    for name, value in field.pairs("options of the source, as in failOnDataLoss: false") if field is not None else ():
        if name.lower() in _OURS or name.lower().startswith("tls."):
            value.wrong("is not for options: url, key, topics, starting and the like are fields of their own")
        elif (text := value.plain()) is not None:
            found[name] = text
    return found


def _schema(section: Section, decode: str | None, directory: Path) -> tuple[str, list[str]]:
    if decode == "json":
        section.refuse(("schema_file",), "is for decode: avro; the schema of JSON is a field schema")
        field = section.required("schema", "id BIGINT, total DOUBLE")
        return ("", []) if field is None else read_ddl(field)
    if decode == "avro":
        section.refuse(("schema",), "the schema of Avro is in a file: schema_file")
        field = section.required("schema_file", "order.avsc")
        return ("", []) if field is None else read_avro(field, directory)
    if decode is not None:
        section.refuse(("schema", "schema_file"), f"is for decode: json or avro, not {decode}")
    return "", ["value"]


def _columns(field: Field) -> list[str]:
    found = []
    for item in field.items("names of columns"):
        column = item.word(MESSAGE_COLUMNS)
        if column is not None and column in found:
            item.wrong(f"{column} is there twice")
        elif column is not None:
            found.append(column)
    return found


def _on_bad_row(field: Field | None, decode: str | None) -> str:
    text = None if field is None else field.text("fail, skip, or the topic for rows that can't be decoded")
    if field is None or text is None:
        return FAIL
    if decode == "bytes":
        field.wrong("bytes are not decoded: there are no bad rows")
    if text not in (FAIL, SKIP):
        field.topic(text)
    return text


def _watermark(field: Field | None, columns: list[str]) -> Watermark | None:
    section = None if field is None else field.section(("column", "delay"), "column: … and delay: …")
    if section is None:
        return None
    column_field, delay_field = section.required("column", "_timestamp"), section.required("delay", "10m")
    column = None if column_field is None else column_field.text("the name of a column")
    delay_us = None if delay_field is None else delay_field.duration_us()
    if column_field is not None and column is not None and column.lower() not in (each.lower() for each in columns):
        more = "; list it in columns" if column.lstrip("_") in MESSAGE_COLUMNS and column.startswith("_") else ""
        column_field.wrong(f"there is no column {column_field.raw}{more}; there are {', '.join(columns)}")
        return None
    return None if column is None or delay_us is None else Watermark(column, delay_us)
