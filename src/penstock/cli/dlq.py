"""penstock dlq: messages that groups have given up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.broker import Broker
from penstock.cli.bundles import Bundle, bundled
from penstock.cli.given import maybe_past_given
from penstock.cli.options import Limit, MessageId, OutputOption, Topic, Yes
from penstock.cli.output import Column, Output, confirm, print_answer, print_one, print_rows
from penstock.cli.shown import counted, message_json, shown_bytes, shown_headers, shown_text, shown_time, time_json
from penstock.clock import SystemClock

if TYPE_CHECKING:
    from penstock.client.requests import DeadLetter, Failure

app = typer.Typer(
    help="Look at, redrive and discard messages that were given up.", no_args_is_help=True, rich_markup_mode=None
)

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


@dataclass(frozen=True)
class Where(Bundle):
    """Which ones are meant: those that fit every filter."""

    group: Annotated[str | None, typer.Option("--group", "-g", metavar="GROUP", help="Only of this group.")] = None
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="Of the letter or the message; may be repeated.")
    ] = None
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only with this key.")] = None
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Only with this in the reason.")] = None
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Given up then or later: RFC 3339, or how long ago.")
    ] = None
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Given up before then.")] = None

    def given(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "ids": self.ids or None,
            "key": self.key,
            "reason": self.reason,
            "since": maybe_past_given("--since", self.since),
            "until": maybe_past_given("--until", self.until),
        }


@app.command("list")
@bundled
def list_letters(
    broker: Broker,
    topic: Topic,
    where: Where,
    settled: Annotated[bool, typer.Option("--settled", help="With those that were redriven or discarded.")] = False,
    limit: Limit = 1_000,
    output: OutputOption = Output.TABLE,
) -> None:
    """The oldest first, partition by partition."""
    filters = where.given()
    with broker.open() as q:
        found = q.dead_letters.list(topic, with_settled=settled, limit=limit, **filters)
    print_rows(output, found, _as_json, _COLUMNS, _cells, f"no dead letters of {topic}")


@app.command("show")
@bundled
def show(broker: Broker, id: MessageId, output: OutputOption = Output.TABLE) -> None:
    """A dead letter with all its attempts."""
    with broker.open() as q:
        letter = q.dead_letters.get(id)
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
    rows = [_failure_cells(each, now_us) for each in letter.failures]
    print_one(output, _as_json(letter), fields=fields, columns=_FAILURE_COLUMNS, rows=rows)


@app.command("redrive")
@bundled
def redrive(
    broker: Broker,
    topic: Topic,
    where: Where,
    dry_run: DryRun = False,
    rate: Annotated[float | None, typer.Option("--rate", metavar="N", help="No more than so many a second.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Back to the groups that gave them up: all, or those that fit every filter.

    In place where the message is still in the log; otherwise as a copy, which all groups of the topic get.
    """
    filters = where.given()
    with broker.open() as q:
        done = q.dead_letters.redrive(topic, dry_run=dry_run, rate=rate, **filters)
    by_outcome = {"in_place": done.in_place, "copied": done.copied, "refused": done.refused, "already": done.already}
    told = ", ".join(f"{len(those)} {what.replace('_', ' ')}" for what, those in by_outcome.items() if those)
    sentence = f"{'would redrive' if dry_run else 'redriven'}: {told or 'nothing'}"
    is_nothing = not done.in_place and not done.copied
    print_answer(output, {"dry_run": dry_run, **by_outcome}, sentence, is_bad_news=is_nothing)


@app.command("discard")
@bundled
def discard(
    broker: Broker,
    topic: Topic,
    where: Where,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Put them away: all, or those that fit every filter. They are not listed any more, nor redriven."""
    filters = where.given()
    with broker.open() as q:
        if dry_run:
            count = len(q.dead_letters.list(topic, limit=_LIMIT_MAX, **filters))
        else:
            confirm(f"Discard dead letters of {topic}?", yes)
            count = q.dead_letters.discard(topic, **filters)
    told = f"{'would discard' if dry_run else 'discarded'} {counted(count, 'dead letter')}"
    print_answer(output, {"dry_run": dry_run, "discarded": count}, told, is_bad_news=not count)


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
