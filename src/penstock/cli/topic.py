"""penstock topic: what topics there are, and how they are set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.broker import Broker
from penstock.cli.bundles import Bundle, bundled
from penstock.cli.given import flags_given, retention_given, settings_given
from penstock.cli.options import OutputOption, Settings, Topic, Yes
from penstock.cli.output import Column, Output, confirm, print_answer, print_one, print_rows
from penstock.cli.shown import counted, flat, known, shown_size, shown_time, time_json
from penstock.client.settings import topic_settings
from penstock.clock import SystemClock

if TYPE_CHECKING:
    from penstock.client.requests import PartitionInfo, TopicInfo

app = typer.Typer(help="Make, list, show, set and delete topics.", no_args_is_help=True, rich_markup_mode=None)

Partitions = Annotated[int | None, typer.Option("--partitions", metavar="N", min=1, help="6 for a new topic.")]

_COLUMNS = (
    Column("topic"),
    Column("partitions", is_number=True),
    Column("messages", is_number=True),
    Column("size", is_number=True),
    Column("scheduled", rank=1, is_number=True),
    Column("created", rank=2),
)
_PARTITION_COLUMNS = (
    Column("partition", is_number=True),
    Column("start offset", is_number=True),
    Column("end offset", is_number=True),
    Column("messages", is_number=True),
    Column("size", is_number=True),
)
# What it means that nobody has set them.
_UNSET = {
    "replicas": "none (in a cluster: 3, or as many as there are nodes)",
    "min_isr": "none (in a cluster: 2 of 3 or more replicas, otherwise 1)",
}


@dataclass(frozen=True)
class Wanted(Bundle):
    """Settings: some have flags of their own."""

    retention: Annotated[
        str | None, typer.Option(metavar="DURATION", help='How long messages are kept, as in 7d, or "none".')
    ] = None
    retention_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help='How much of them is kept, as in 10GiB, or "none".')
    ] = None
    cleanup: Annotated[
        str | None, typer.Option(metavar="delete|compact", help="By age, or all but the newest of each key.")
    ] = None
    max_delay: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Messages with longer delays are refused.")
    ] = None
    dead_letters: Annotated[
        bool | None, typer.Option("--dead-letters/--no-dead-letters", help="Keep messages that a group gives up.")
    ] = None
    archive: Annotated[
        str | None, typer.Option(metavar="none|required", help="Whether messages must be archived to be deleted.")
    ] = None
    durability: Annotated[
        str | None, typer.Option(metavar="fsync|interval", help="Answer when on disk, or sync every sync_interval.")
    ] = None
    replicas: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="In a cluster: on how many nodes each partition is.")
    ] = None
    min_isr: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many replicas must be in sync to publish.")
    ] = None
    settings: Settings = None

    def given(self) -> dict[str, Any]:
        flags = flags_given(
            cleanup=self.cleanup,
            max_delay=self.max_delay,
            dead_letters=self.dead_letters,
            archive=self.archive,
            durability=self.durability,
            replicas=self.replicas,
            min_isr=self.min_isr,
        )
        return settings_given(
            self.settings, flags | retention_given(self.retention, self.retention_bytes), topic_settings
        )


@app.command("create")
@bundled
def create(
    broker: Broker,
    name: Topic,
    *,
    partitions: Partitions = None,
    wanted: Wanted,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="One that is there is left as it is.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a topic."""
    settings = wanted.given()
    with broker.open(create=True) as q:
        info = q.create_topic(name, partitions, exist_ok=exist_ok, **settings)
    print_answer(output, topic_json(info), f"{name} has {counted(info.count, 'partition')}")


@app.command("list")
@bundled
def list_topics(broker: Broker, output: OutputOption = Output.TABLE) -> None:
    """What topics there are."""
    with broker.open() as q:
        topics = q.topics(partial=True)
    print_rows(output, topics, topic_json, _COLUMNS, _cells, "there are no topics")


@app.command("show")
@bundled
def show(broker: Broker, name: Topic, output: OutputOption = Output.TABLE) -> None:
    """A topic with its partitions and settings."""
    with broker.open() as q:
        info = q.topic(name, partial=True)
    _print_topic(info, output)


@app.command("set")
@bundled
def set_topic(
    broker: Broker,
    name: Topic,
    *,
    partitions: Annotated[int | None, typer.Option("--partitions", metavar="N", min=1, help="More of them.")] = None,
    wanted: Wanted,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change those settings that are named. With more partitions, keys spread differently from then on."""
    settings = wanted.given()
    with broker.open() as q:
        info = q.change_topic(name, partitions, **settings)
    _print_topic(info, output)


@app.command("delete")
@bundled
def delete(broker: Broker, name: Topic, yes: Yes = False, output: OutputOption = Output.TABLE) -> None:
    """Delete a topic with all its messages."""
    with broker.open() as q:
        info = q.topic(name, partial=True)
        count = _messages(info)
        more = f" and what is in {counted(len(info.unknown), 'partition')} that nobody leads" if info.unknown else ""
        confirm(f"Delete {name} with {counted(count, 'message')}{more}?", yes)
        q.delete_topic(name)
    answer = {"deleted": name, "messages": count, "unknown_partitions": list(info.unknown)}
    print_answer(output, answer, f"deleted {name} with {counted(count, 'message')}{more}")


# --- how they look ------------------------------------------------------------------------------------------


def topic_json(info: TopicInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "id": info.id,
        "created": time_json(info.created_us),
        "messages": _messages(info),
        "bytes": _size(info),
        "scheduled": info.scheduled,
        "settings": info.settings,
        "partitions": [
            {
                "number": each.number,
                "start_offset": each.start_offset,
                "end_offset": each.end_offset,
                "messages": each.messages,
                "bytes": each.bytes,
                "archived": each.archived,
                "whole_from": each.whole_from,
            }
            for each in info.partitions
        ],
        "unknown_partitions": list(info.unknown),
    }


def _messages(info: TopicInfo) -> int:
    return sum(each.messages for each in info.partitions)


def _size(info: TopicInfo) -> int:
    return sum(each.bytes for each in info.partitions)


def _cells(info: TopicInfo) -> list[str]:
    is_part = bool(info.unknown)
    return [
        info.name,
        str(len(info.partitions) + len(info.unknown)),
        known(str(_messages(info)), is_part),
        known(shown_size(_size(info)), is_part),
        known(str(info.scheduled), is_part),
        shown_time(info.created_us, SystemClock().now_us()),
    ]


def _print_topic(info: TopicInfo, output: Output) -> None:
    is_part = bool(info.unknown)
    fields = [
        ("topic", info.name),
        ("created", shown_time(info.created_us, SystemClock().now_us())),
        ("messages", f"{known(str(_messages(info)), is_part)}, {known(shown_size(_size(info)), is_part)}"),
        ("scheduled", known(str(info.scheduled), is_part)),
        *[(name, _UNSET.get(name, value) if value == "none" else value) for name, value in flat(info.settings)],
    ]
    rows = [_partition_cells(each) for each in info.partitions]
    columns = list(_PARTITION_COLUMNS)
    if info.settings.get("archive") == "required":
        columns.append(Column("not archived", is_number=True))
        rows = [[*row, str(_not_archived(each))] for row, each in zip(rows, info.partitions, strict=True)]
    rows += [[str(number), *["?"] * (len(columns) - 1)] for number in info.unknown]
    rows.sort(key=lambda row: int(row[0]))
    print_one(output, topic_json(info), fields=fields, columns=columns, rows=rows)


def _not_archived(info: PartitionInfo) -> int:
    return info.end_offset - max(info.start_offset, info.archived)


def _partition_cells(info: PartitionInfo) -> list[str]:
    numbers = (info.number, info.start_offset, info.end_offset, info.messages)
    return [*map(str, numbers), shown_size(info.bytes)]
