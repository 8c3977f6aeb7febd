"""penstock schedule: messages that come again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.broker import Broker
from penstock.cli.bundles import bundled
from penstock.cli.given import pairs_given
from penstock.cli.options import Headers, Key, OutputOption, Priority, Topic
from penstock.cli.output import Column, Output, print_answer, print_rows
from penstock.cli.shown import message_json, shown_bytes, shown_time, time_json
from penstock.clock import SystemClock, rfc3339

if TYPE_CHECKING:
    from penstock.client.requests import Schedule

app = typer.Typer(
    help="Messages that come again and again, as cron has it.", no_args_is_help=True, rich_markup_mode=None
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the schedule.")]

_COLUMNS = (
    Column("schedule"),
    Column("topic"),
    Column("cron"),
    Column("time zone", rank=2),
    Column("next"),
    Column("value", rank=1),
)


@app.command("create")
@bundled
def create(
    broker: Broker,
    name: Name,
    topic: Topic,
    cron: Annotated[
        str, typer.Argument(metavar="CRON", help='As in "*/5 9-17 * * mon-fri", "@hourly" or "every 90s".')
    ],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="The value of each message.")],
    timezone: Annotated[str, typer.Option("--timezone", metavar="ZONE", help="As in Europe/Berlin.")] = "UTC",
    key: Key = None,
    header: Headers = None,
    priority: Priority = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a schedule."""
    with broker.open() as q:
        made = q.schedules.create(
            name,
            topic,
            cron,
            value,
            timezone=timezone,
            key=key,
            headers=pairs_given("--header", header),
            priority=priority or "normal",
        )
    print_answer(output, _as_json(made), f"{name} comes to {topic} first at {rfc3339(made.due_us)}")


@app.command("list")
@bundled
def list_schedules(broker: Broker, output: OutputOption = Output.TABLE) -> None:
    """What schedules there are."""
    with broker.open() as q:
        found = q.schedules.list()
    print_rows(output, found, _as_json, _COLUMNS, _cells, "there are no schedules")


@app.command("delete")
@bundled
def delete(broker: Broker, name: Name, output: OutputOption = Output.TABLE) -> None:
    """Delete a schedule, with the message that was to come next."""
    with broker.open() as q:
        q.schedules.delete(name)
    print_answer(output, {"deleted": name}, f"deleted {name}")


def _as_json(schedule: Schedule) -> dict[str, Any]:
    message = message_json(schedule.message)
    return {
        "name": schedule.name,
        "topic": schedule.topic,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "created": time_json(schedule.created_us),
        "next": time_json(schedule.due_us),
        "pending": schedule.pending,
        **{name: message[name] for name in ("key", "value", "headers", "priority")},
    }


def _cells(schedule: Schedule) -> list[str]:
    return [
        schedule.name,
        schedule.topic,
        schedule.cron,
        schedule.timezone,
        shown_time(schedule.due_us, SystemClock().now_us()),
        shown_bytes(schedule.message.value, "(null)"),
    ]
