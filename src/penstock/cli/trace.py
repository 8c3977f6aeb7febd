"""penstock trace, penstock why: what became of a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.broker import Broker
from penstock.cli.bundles import bundled
from penstock.cli.options import MessageId, OutputOption
from penstock.cli.output import Column, Output, print_answer, print_one
from penstock.cli.shown import shown_span, shown_text, time_json
from penstock.clock import rfc3339

if TYPE_CHECKING:
    from penstock.client.requests import Step

_ABSENT = ("not_published", "deleted")
_COLUMNS = (
    Column("time", rank=1),
    Column("since publish", is_number=True),
    Column("what"),
    Column("group"),
    Column("consumer"),
    Column("attempt", is_number=True),
    Column("details"),
)


@bundled
def trace(broker: Broker, id: MessageId, output: OutputOption = Output.TABLE) -> None:
    """Everything that happened to a message, in all groups."""
    with broker.open() as q:
        found = q.trace(id)
    start_us = found.steps[0].time_us
    steps = [_as_json(step, start_us) for step in found.steps]
    rows = [_cells(step, start_us) for step in found.steps]
    print_one(output, {"id": found.id, "steps": steps}, columns=_COLUMNS, rows=rows)


@bundled
def why(
    broker: Broker,
    id: MessageId,
    group: Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="The group that is asked about.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Why a group has not got a message, or what became of it there.

    Exit code 1: there is no such message, or not any more.
    """
    with broker.open() as q:
        found = q.why(id, group)
    answer = {"id": id, "group": group, "code": found.code, "answer": found.answer}
    print_answer(output, answer, f"{found.code}: {found.answer}", is_bad_news=found.code in _ABSENT)


def _as_json(step: Step, start_us: int) -> dict[str, Any]:
    return {
        "time": time_json(step.time_us),
        "since_publish_us": step.time_us - start_us,
        "what": step.what,
        "group": step.group,
        "consumer": step.consumer,
        "attempt": step.attempt,
        "reason": step.reason,
        "until": time_json(step.until_us),
        "place": step.place,
    }


def _cells(step: Step, start_us: int) -> list[str]:
    details = [shown_text(step.reason)] if step.reason else []
    details += [f"until {rfc3339(step.until_us)[:19]}Z"] if step.until_us else []
    details += [f"{'on' if step.what == 'REPLICATED' else 'as'} {step.place}"] if step.place else []
    return [
        rfc3339(step.time_us),
        "+" + shown_span(step.time_us - start_us),
        step.what,
        step.group or "-",
        step.consumer or "-",
        "-" if step.attempt is None else str(step.attempt),
        ", ".join(details) or "-",
    ]
