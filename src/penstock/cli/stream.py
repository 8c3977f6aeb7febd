"""Messages one after the other on stdout, as `consume` and `read` print them."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterable
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.cli.given import maybe_past_given
from penstock.cli.output import flush, write_bytes, write_row
from penstock.cli.shown import for_terminal, stored_json
from penstock.durations import time_us
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.client.rows import StoredMessage

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
CSV_COLUMNS = (
    "topic",
    "partition",
    "offset",
    "append_time",
    "timestamp",
    "key",
    "value",
    "headers",
    "priority",
    "deliver_at",
    "expires_at",
)


class Format(StrEnum):
    VALUE = "value"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


def stretch_given(from_time: str | None, to_time: str | None) -> dict[str, Any]:
    return {"from_time": maybe_past_given("--from-time", from_time), "to_time": maybe_past_given("--to-time", to_time)}


def recall_given(include_deleted: bool, archive: str | None) -> dict[str, Any]:
    """Which archive a reader is to use: whoever names one means it."""
    return {"archive": archive if archive is not None else include_deleted}


def snapshot_given(text: str) -> str:
    """A date is its beginning, in UTC."""
    given = f"{text}T00:00:00Z" if _DATE.fullmatch(text) else text
    try:
        time_us(given)
    except InvalidInput:
        told = f'--from-snapshot is a date, as 2026-01-14, or a time, as "2026-01-14T15:00:00Z", not {text!r}'
        raise InvalidInput(told, argument="--from-snapshot") from None
    return given


def print_messages(messages: Iterable[StoredMessage], shape: Format, most: int | None) -> int:
    """How many."""
    count = 0
    for message in messages if most is None else islice(messages, min(most, sys.maxsize)):
        write_message(message, shape)
        count += 1
    flush()
    return count


def write_message(message: StoredMessage, shape: Format, **more: object) -> None:
    match shape:
        case Format.VALUE:
            write_bytes(_shown(message.value) + b"\n")
        case Format.JSON:
            write_row({**stored_json(message), **more})
        case Format.CSV:
            row = stored_json(message)
            write_bytes(csv_line([_cell(row[name]) for name in CSV_COLUMNS]))
        case Format.PARQUET:
            raise AssertionError("Parquet has columns, and no rows to write")


def csv_line(cells: Iterable[object]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue().encode()


def _cell(value: object) -> object:
    """Headers, and what is no text, as JSON."""
    return json.dumps(value) if isinstance(value, dict) else value


def _shown(value: bytes | None) -> bytes:
    """A pipe gets it as it is; a terminal gets nothing that it would take for a command."""
    if value is None:
        return b""
    return for_terminal(value).encode() if sys.stdout.isatty() else value
