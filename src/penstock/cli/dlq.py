"""penstock dlq: messages that groups have given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.broker import Broker, with_broker
from penstock.cli.given import maybe_past_given
from penstock.cli.options import Limit, MessageId, OutputOption, Topic, Yes
from penstock.cli.output import (
    EXIT_BAD_NEWS,
    Column,
    Output,
    confirm,
    console,
    print_answer,
    print_fields,
    print_json,
    print_rows,
    print_table,
)
from penstock.cli.shown import counted, message_json, shown_bytes, shown_headers, shown_text, shown_time, time_json
from penstock.clock import SystemClock

if TYPE_CHECKING:
    from penstock.client.requests import DeadLetter, Failure

app = typer.Typer(
    help="Look at, redrive and discard messages that were given up.", no_args_is_help=True, rich_markup_mode=None
)

Group = Annotated[str | None, typer.Option("--group", "-g", metavar="GROUP", help="Only of this group.")]
Ids = Annotated[
    list[str] | None, typer.Option("--id", metavar="ID", help="Of the letter or the message; may be repeated.")
]
OfKey = Annotated[str | None, typer.Option("--key", "-k", help="Only with this key.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Only with this in the reason.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Given up then or later: RFC 3339, or how long ago.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Given up before then.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]

# As many as can be asked for at once.
_LIMIT_MAX = 100_000
_COLUMNS = (
    Column("id"),
    Column("message"),
    Column("group"),
    Column("attempts", rank=2, is_number=True),
    Column("given up", rank=1),
    Column("reason"),
    Column("key", rank=4),
    Column("value", rank=3),
)
_FAILURE_COLUMNS = (
    Column("attempt", is_number=True),
    Column("leased", rank=1),
    Column("failed"),
    Column("consumer"),
    Column("reason"),
)


def _where(
    group: str | None, ids: list[str] | None, key: str | None, reason: str | None, since: str | None, until: str | None
) -> dict[str, Any]:
    return {
        "group": group,
        "ids": ids or None,
        "key": key,
        "reason": reason,
        "since": maybe_past_given("--since", since),
        "until": maybe_past_given("--until", until),
    }


@app.command("list")
@with_broker
def list_letters(
    broker: Broker,
    topic: Topic,
    group: Group = None,
    ids: Ids = None,
    key: OfKey = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    settled: Annotated[bool, typer.Option("--settled", help="With those that were redriven or discarded.")] = False,
    limit: Limit = 1_000,
    output: OutputOption = Output.TABLE,
) -> None:
    """The oldest first, partition by partition."""
    where = _where(group, ids, key, reason, since, until)
    with broker.open() as q:
        found = q.dead_letters.list(topic, with_settled=settled, limit=limit, **where)
    print_rows(output, found, _as_json, _COLUMNS, _cells, f"no dead letters of {topic}")


@app.command("show")
@with_broker
def show(broker: Broker, id: MessageId, output: OutputOption = Output.TABLE) -> None:
    """A dead letter with all its attempts."""
    with broker.open() as q:
        letter = q.dead_letters.get(id)
    out = console()
    if output is Output.JSON:
        print_json(out, _as_json(letter))
        return
    now_us = SystemClock().now_us()
    fields = [
        ("id", letter.id),
        ("message", letter.original),
        ("group", letter.group),
        ("published", shown_time(letter.published_us, now_us)),
        ("given up", shown_time(letter.died_us, now_us)),
        ("reason", letter.reason or "-"),
        ("attempts", str(letter.attempts)),
        ("state", "redriven or discarded" if letter.is_settled else "waiting"),
        ("key", shown_bytes(letter.message.key)),
        ("value", shown_bytes(letter.message.value, "(null)")),
        ("headers", shown_headers(letter.message.headers)),
    ]
    print_fields(out, fields, label_width=9)
    if letter.failures:
        out.print()
        print_table(out, _FAILURE_COLUMNS, [_failure_cells(each, now_us) for each in letter.failures])


@app.command("redrive")
@with_broker
def redrive(
    broker: Broker,
    topic: Topic,
    group: Group = None,
    ids: Ids = None,
    key: OfKey = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    dry_run: DryRun = False,
    rate: Annotated[float | None, typer.Option("--rate", metavar="N", help="No more than so many a second.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Back to the groups that gave them up: all, or those that fit every filter.

    In place where the message is still in the log; otherwise as a copy, which all groups of the topic get.
    """
    where = _where(group, ids, key, reason, since, until)
    with broker.open() as q:
        done = q.dead_letters.redrive(topic, dry_run=dry_run, rate=rate, **where)
    by_outcome = {"in_place": done.in_place, "copied": done.copied, "refused": done.refused, "already": done.already}
    told = ", ".join(f"{len(those)} {what.replace('_', ' ')}" for what, those in by_outcome.items() if those)
    sentence = f"{'would redrive' if dry_run else 'redriven'}: {told or 'nothing'}"
    print_answer(output, {"dry_run": dry_run, **by_outcome}, sentence)
    if not done.in_place and not done.copied:
        raise typer.Exit(EXIT_BAD_NEWS)


@app.command("discard")
@with_broker
def discard(
    broker: Broker,
    topic: Topic,
    group: Group = None,
    ids: Ids = None,
    key: OfKey = None,
    reason: Reason = None,
    since: Since = None,
    until: Until = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put them away: all, or those that fit every filter. They are not listed any more, nor redriven."""
    where = _where(group, ids, key, reason, since, until)
    with broker.open() as q:
        if dry_run:
            count = len(q.dead_letters.list(topic, limit=_LIMIT_MAX, **where))
        else:
            confirm(f"Discard dead letters of {topic}?", yes)
            count = q.dead_letters.discard(topic, **where)
    told = f"{'would discard' if dry_run else 'discarded'} {counted(count, 'dead letter')}"
    print_answer(output, {"dry_run": dry_run, "discarded": count}, told)
    if not count:
        raise typer.Exit(EXIT_BAD_NEWS)


# --- how they look ------------------------------------------------------------------------------------------


def _as_json(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "original": letter.original,
        "group": letter.group,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "round": letter.round,
        "published": time_json(letter.published_us),
        "died": time_json(letter.died_us),
        "settled": letter.is_settled,
        "failures": [
            {
                "attempt": each.attempt,
                "leased": time_json(each.leased_us),
                "failed": time_json(each.failed_us),
                "consumer": each.consumer,
                "reason": each.reason,
            }
            for each in letter.failures
        ],
        **message_json(letter.message),
    }


def _cells(letter: DeadLetter) -> list[str]:
    return [
        letter.id,
        letter.original,
        letter.group,
        str(letter.attempts),
        shown_time(letter.died_us, SystemClock().now_us()),
        shown_text(letter.reason),
        shown_bytes(letter.message.key),
        shown_bytes(letter.message.value, "(null)"),
    ]


def _failure_cells(failure: Failure, now_us: int) -> list[str]:
    return [
        str(failure.attempt),
        shown_time(failure.leased_us, now_us),
        shown_time(failure.failed_us, now_us),
        failure.consumer or "-",
        shown_text(failure.reason),
    ]
