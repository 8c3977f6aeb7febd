"""Schemas in a pipeline's file: DDL for JSON, a file for Avro."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.errors import InvalidInput
from penstock.spark.pipeline.avro_schema import parse
from penstock.spark.pipeline.ddl import check_type, columns_of, quoted
from penstock.spark.pipeline.document import Field
from penstock.spark.pipeline.spec import MESSAGE_COLUMNS


def read_ddl(field: Field) -> tuple[str, list[str]]:
    """The DDL and its columns. A list of `name: type` says the same."""
    if not field.is_list:
        text = field.text("columns, as in id BIGINT, total DOUBLE, or a list of them")
    else:
        text = ", ".join(_columns(field)) or None
    if text is None:
        return "", []
    try:
        columns = columns_of(text)
    except InvalidInput as error:
        field.refuse(error.message)
        return "", []
    _check_names(field, columns)
    return text, columns


def _columns(field: Field) -> list[str]:
    found = []
    for item in field.items("columns"):
        for name, value in item.pairs("name: type"):
            text = value.text("a type, as in BIGINT")
            try:
                check_type(text or "STRING")
            except InvalidInput as error:
                value.refuse(error.message)
            else:
                found.append(f"{quoted(name)} {text}")
    return found


def read_avro(field: Field, directory: Path) -> tuple[str, list[str]]:
    """The schema and its fields."""
    text = field.text("a file, as in order.avsc")
    if text is None:
        return "", []
    file = directory / text
    try:
        schema = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        field.refuse(f"{file} can't be read: {error.strerror}")
        return "", []
    except (ValueError, RecursionError) as error:
        field.refuse(f"{file} is not JSON: {error}")
        return "", []
    if not isinstance(schema, dict) or schema.get("type") != "record":
        field.refuse(f'{file} is no schema of a record: {{"type": "record", "name": …, "fields": [{{"name": …}}, …]}}')
        return "", []
    try:
        columns = [each.name for each in parse(schema).fields]
    except InvalidInput as error:
        field.refuse(f"{file}: {error.message}")
        return "", []
    _check_names(field, columns)
    return json.dumps(schema), columns


def _check_names(field: Field, columns: list[str]) -> None:
    for column in columns:
        if column.lower().startswith("_") and column.lower()[1:] in MESSAGE_COLUMNS:
            field.wrong(f"{column} is what the message's own {column[1:].lower()} is called: it needs another name")
