"""penstock scheduled: delayed messages that are not due yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.broker import Broker
from penstock.cli.bundles import bundled
from penstock.cli.options import Limit, MessageId, MessageIds, OutputOption, Topic
from penstock.cli.output import Column, Output, print_answer, print_one, print_rows
from penstock.cli.shown import counted, message_json, shown_bytes, shown_headers, shown_time, time_json
from penstock.clock import SystemClock
from penstock.message import Priority

if TYPE_CHECKING:
    from penstock.client.requests import Scheduled

app = typer.Typer(
    help="Look at, move and cancel delayed messages that are not due yet.", no_args_is_help=True, rich_markup_mode=None
)

_COLUMNS = (Column("id"), Column("due"), Column("key", rank=1), Column("value"), Column("priority", rank=2))


@app.command("list")
@bundled
def list_scheduled(broker: Broker, topic: Topic, limit: Limit = 1_000, output: OutputOption = Output.TABLE) -> None:
    """The next one due first."""
    with broker.open() as q:
        found = q.scheduled.list(topic, limit)
    print_rows(output, found, _as_json, _COLUMNS, _cells, f"nothing is scheduled in {topic}")


@app.command("show")
@bundled
def show(broker: Broker, id: MessageId, output: OutputOption = Output.TABLE) -> None:
    """One of them."""
    with broker.open() as q:
        found = q.scheduled.get(id)
    fields = [
        ("id", found.id),
        ("due", shown_time(found.deliver_at, SystemClock().now_us())),
        ("key", shown_bytes(found.message.key)),
        ("value", shown_bytes(found.message.value, "(null)")),
        ("headers", shown_headers(found.message.headers)),
        ("priority", Priority(found.message.priority).name.lower()),
    ]
    print_one(output, _as_json(found), fields=fields)


@app.command("cancel")
@bundled
def cancel(broker: Broker, ids: MessageIds, output: OutputOption = Output.TABLE) -> None:
    """They never appear to any group. Readers of the log still see them."""
    with broker.open() as q:
        for id in ids:
            q.scheduled.cancel(id)
    print_answer(output, {"cancelled": ids}, f"cancelled {counted(len(ids), 'message')}")


@app.command("reschedule")
@bundled
def reschedule(
    broker: Broker,
    id: MessageId,
    delay: Annotated[str | None, typer.Option("--delay", metavar="DURATION", help="So long from now on.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help="Then, as RFC 3339.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """To another time. One that has come already means at once."""
    with broker.open() as q:
        q.scheduled.reschedule(id, delay=delay, deliver_at=at)
    print_answer(output, {"rescheduled": id, "delay": delay, "at": at}, f"{id} comes {at or f'in {delay}'}")


@app.command("now")
@bundled
def now(broker: Broker, ids: MessageIds, output: OutputOption = Output.TABLE) -> None:
    """Without waiting for their time."""
    with broker.open() as q:
        for id in ids:
            q.scheduled.deliver_now(id)
    print_answer(output, {"delivered": ids}, f"{counted(len(ids), 'message')} can be delivered now")


def _as_json(scheduled: Scheduled) -> dict[str, Any]:
    # The time it has now: it may have been moved since it was published.
    return {"id": scheduled.id, **message_json(scheduled.message), "deliver_at": time_json(scheduled.deliver_at)}


def _cells(scheduled: Scheduled) -> list[str]:
    return [
        scheduled.id,
        shown_time(scheduled.deliver_at, SystemClock().now_us()),
        shown_bytes(scheduled.message.key),
        shown_bytes(scheduled.message.value, "(null)"),
        Priority(scheduled.message.priority).name.lower(),
    ]
