"""penstock pipeline report: how messages fared, as tables, as a page, or for programs."""

from __future__ import annotations

import os
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from penstock.cli.broker import ADDRESS, key_given
from penstock.cli.given import maybe_past_given, names_given, pairs_given
from penstock.cli.options import FromTime, OutputOption, ToTime
from penstock.cli.output import Column, Output, console, note, print_json, print_table
from penstock.cli.pipeline import LOCAL, Conf, Master
from penstock.cli.shown import bytes_json, shown_bytes
from penstock.durations import time_us
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.spark.builtin.report_tables import Report, Row

_PARTITIONS_SHOWN = 10

_GROUPS = (
    Column("group"),
    Column("topic"),
    Column("messages", is_number=True),
    Column("acked", is_number=True),
    Column("p50", is_number=True),
    Column("p90", rank=3, is_number=True),
    Column("p99", is_number=True),
    Column("p99.9", rank=3, is_number=True),
    Column("max", rank=1, is_number=True),
    Column("processing p50", rank=4, is_number=True),
    Column("processing p99", rank=4, is_number=True),
    Column("redelivered", rank=1, is_number=True),
    Column("nacked", rank=2, is_number=True),
    Column("timed out", rank=2, is_number=True),
    Column("dead letters", rank=1, is_number=True),
    Column("open", rank=1, is_number=True),
    Column("gone", rank=5, is_number=True),
    Column("lag", rank=2, is_number=True),
)
_TOPICS = (
    Column("topic"),
    Column("messages", is_number=True),
    Column("rate", is_number=True),
    Column("partitions", rank=1, is_number=True),
    Column("keys", is_number=True),
    Column("high", rank=2, is_number=True),
    Column("normal", rank=2, is_number=True),
    Column("low", rank=2, is_number=True),
    Column("delayed", rank=1, is_number=True),
    Column("on disk", rank=1, is_number=True),
)
_PARTITIONS = (
    Column("topic"),
    Column("partition", is_number=True),
    Column("messages", is_number=True),
    Column("share", is_number=True),
    Column("of even", is_number=True),
    Column(""),
)
_KEYS = (
    Column("topic"),
    Column("key"),
    Column("partition", rank=1, is_number=True),
    Column("messages", is_number=True),
    Column("share", is_number=True),
    Column("of a partition", is_number=True),
    Column(""),
)


def report(
    topics: Annotated[
        str | None, typer.Option("--topics", metavar="NAMES", help="Topics, with commas between them.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--pattern", metavar="REGEX", help="Instead: all topics whose whole name matches.")
    ] = None,
    from_time: FromTime = None,
    to_time: ToTime = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots.")] = None,
    parquet: Annotated[
        str | None, typer.Option("--parquet", metavar="DIR", help="Write the tables, each to a directory; or to a URI.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the tables in --parquet.")] = False,
    keys: Annotated[
        int, typer.Option("--keys", metavar="N", min=1, max=1_000, help="How many keys of each topic. Default: 10.")
    ] = 10,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", "--server", metavar="ADDRESS", help=f"The broker. Default: $PENSTOCK_SERVER, or {ADDRESS}."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", "--server-key", metavar="KEY", help="The key to the broker. Default: $PENSTOCK_KEY."),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """How messages fared. Latencies, retries and dead letters of each group; hot keys and partitions of each topic.

    The times bound when messages were appended; what became of those is told up to now.
    """
    from penstock.spark.builtin.report import check_parquet, make_report, spark_for_report, write_parquet
    from penstock.spark.builtin.report_scope import Asked, scope_of
    from penstock.spark.connecting import Connecting

    settings = dict(pairs_given("--conf", conf))
    asked = Asked(
        Connecting(url or os.environ.get("PENSTOCK_SERVER") or ADDRESS, key_given(key)),
        names_given("--topics", topics),
        pattern,
        _time_us("--from-time", from_time),
        _time_us("--to-time", to_time),
        keys,
    )
    asked.check()
    _check_files(html, parquet, overwrite)
    # A broker or a topic that is not there is told without Spark.
    scope_of(asked.connecting.client(), asked)
    with spark_for_report(master or settings.get("spark.master") or LOCAL, settings) as spark:
        if parquet is not None and not overwrite:
            check_parquet(spark, parquet)
        made = make_report(spark, asked)
        if parquet is not None:
            write_parquet(spark, made, parquet, overwrite=overwrite)
    if html is not None:
        _write_page(made, html)
    if output is Output.JSON:
        print_json(console(), _json(made))
    else:
        print_report(made)
    for written in filter(None, (html, parquet)):
        note(f"written: {written}")


def _time_us(option: str, text: str | None) -> int | None:
    given = maybe_past_given(option, text)
    try:
        return None if given is None else time_us(given)
    except InvalidInput as error:
        raise InvalidInput(f"{option}: {error.message}", argument=option) from error


def _check_files(html: Path | None, parquet: str | None, overwrite: bool) -> None:
    if overwrite and parquet is None:
        raise InvalidInput("--overwrite is for --parquet, which is not given")
    if html is not None and (html.is_dir() or not os.access(html.parent, os.W_OK)):
        raise InvalidInput(f"--html: {html} can't be written: it needs to be a file in a directory that is there")


def _write_page(made: Report, html: Path) -> None:
    """All of it or nothing: somebody may look at the last one meanwhile."""
    from penstock.spark.builtin.report_page import page_of

    with tempfile.NamedTemporaryFile("w", dir=html.parent, prefix=".report-", encoding="utf-8", delete=False) as file:
        file.write(page_of(made))
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(file.name, 0o666 & ~mask)
    os.replace(file.name, html)


# --- how it looks -------------------------------------------------------------------------------------------


def _json(made: Report) -> dict[str, Any]:
    about = {"url": made.url, "made": made.made, "from": made.since, "to": made.until, "bucket_s": made.bucket_s}
    tables = {name: [_plain(row) for row in rows] for name, rows in made.tables.items()}
    return {**_plain(about), **tables}


def _plain(row: Row) -> Row:
    return {name: _plain_value(value) for name, value in row.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return bytes_json(value)
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if isinstance(value, datetime) else value


def print_report(made: Report) -> None:
    from penstock.spark.builtin.report_findings import findings_in

    _section("topics", _TOPICS, [_topic_cells(row) for row in made.tables["topics"]], "")
    groups = [_group_cells(row) for row in made.tables["groups"]]
    _section("groups: from publishing to acknowledgement", _GROUPS, groups, "no group has read these topics")
    heaviest = sorted(made.tables["partitions"], key=lambda row: (not row["is_hot"], -row["messages"]))
    partitions = [_weight_cells(row, str(row["partition"])) for row in heaviest if row["messages"]]
    _section("partitions with the most messages", _PARTITIONS, partitions[:_PARTITIONS_SHOWN], "no messages")
    keys = [
        [row["topic"], shown_bytes(row["key"]), *_weight_cells(row, str(row["partition"]))[1:]]
        for row in made.tables["keys"]
    ]
    _section("most frequent keys", _KEYS, keys, "no message has a key")
    found = findings_in(made)
    console().print(Text("what stands out", "bold underline"))
    for finding in found:
        console().print(Text(f"- {finding.text}", "red" if finding.weight == "grave" else "yellow"), soft_wrap=True)
    if not found:
        console().print("nothing")


def _section(title: str, columns: tuple[Column, ...], rows: list[list[str]], nothing: str) -> None:
    out = console()
    out.print(Text(title, "bold underline"))
    if rows:
        print_table(out, columns, rows)
    else:
        out.print(nothing)
    out.print()


def _topic_cells(row: Row) -> list[str]:
    from penstock.spark.builtin import report_words as words

    numbers = (words.count(row[name]) for name in ("partitions", "keys", "high", "normal", "low", "delayed"))
    rate = words.rate(row["messages_per_s"])
    return [row["topic"], words.count(row["messages"]), rate, *numbers, words.size(row["stored_bytes"])]


def _group_cells(row: Row) -> list[str]:
    from penstock.spark.builtin import report_words as words

    spans = (
        *(f"latency_{name}_us" for name in ("p50", "p90", "p99", "p999", "max")),
        *(f"processing_{name}_us" for name in ("p50", "p99")),
    )
    return [
        row["group"],
        row["topic"],
        words.count(row["messages"]),
        words.count(row["acknowledged"]),
        *(words.span(row[name]) for name in spans),
        *(words.percent(row[name]) for name in ("redelivery_rate", "nack_rate", "lease_expiry_rate")),
        *(words.count(row[name]) for name in ("dead_letters", "unacknowledged", "gone", "lag")),
    ]


def _weight_cells(row: Row, partition: str) -> list[str]:
    from penstock.spark.builtin import report_words as words

    times = f"{words.digits(row['times_even'])} ×"
    return [
        row["topic"],
        partition,
        words.count(row["messages"]),
        words.percent(row["share"]),
        times,
        "hot" * row["is_hot"],
    ]
