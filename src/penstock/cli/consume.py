"""penstock consume: the messages of a group, printed and acknowledged."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.broker import Broker
from penstock.cli.bundles import bundled
from penstock.cli.given import settings_given
from penstock.cli.options import Archive, FromTime, IncludeDeleted, Settings, ToTime
from penstock.cli.output import EXIT_BAD_NEWS, flush, note
from penstock.cli.stream import (
    Format,
    print_messages,
    recall_given,
    snapshot_given,
    stretch_given,
    write_message,
)
from penstock.client.settings import group_settings
from penstock.errors import InvalidInput, LeaseError, MessagesMissing

if TYPE_CHECKING:
    from penstock.client.blocking import Client, Consumer, Received, ReceivedBatch

# Printing takes no time, and each batch costs a trip to the disk.
PREFETCH = 1_000


class Acks(StrEnum):
    AUTO = "auto"
    NONE = "none"


class Rows(StrEnum):
    VALUE = "value"
    JSON = "json"


@bundled
def consume(
    broker: Broker,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC…", help="The names of topics.")],
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="GROUP", help="Made if it is not there.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="What the consumer is called in traces.")] = None,
    ack: Annotated[Acks, typer.Option("--ack", help="When printed; or never: given back at the end.")] = Acks.AUTO,
    max: Annotated[int | None, typer.Option("--max", "-n", metavar="N", min=1, help="End after so many.")] = None,
    until_idle: Annotated[
        str | None, typer.Option("--until-idle", metavar="DURATION", help="End when nothing came for so long.")
    ] = None,
    settings: Settings = None,
    from_time: FromTime = None,
    to_time: ToTime = None,
    from_snapshot: Annotated[
        str | None,
        typer.Option("--from-snapshot", metavar="DATE", help="As --from-time, and nothing of it may be missing."),
    ] = None,
    include_deleted: IncludeDeleted = False,
    archive: Archive = None,
    output: Annotated[Rows, typer.Option("--output", "-o", help="Values, or JSON with everything.")] = Rows.VALUE,
) -> None:
    """Print the messages of a group, and acknowledge them.

    Each is acknowledged when it is printed. Ends with Ctrl-C; what was not printed is given back. Without a group,
    --from-time, --from-snapshot and --to-time read by time, as `penstock read` does. Exit code 1: there was nothing.
    """
    shape = Format(output.value)
    is_by_time = from_time is not None or to_time is not None or from_snapshot is not None
    if (group is None) != is_by_time:
        raise InvalidInput(
            "consume takes either a --group, or --from-time, --from-snapshot and --to-time, and not both: "
            "what is read by time is nobody's work (see `penstock read`)"
        )
    if group is not None and (include_deleted or archive is not None):
        raise InvalidInput("a group gets what the log has: --include-deleted and --archive go without one")
    if from_time is not None and from_snapshot is not None:
        raise InvalidInput("--from-time or --from-snapshot, not both")
    with broker.open() as q:
        if group is None:
            stretch = stretch_given(from_time, to_time) | recall_given(include_deleted, archive)
            if from_snapshot is not None:
                stretch |= {"from_time": snapshot_given(from_snapshot), "whole": True}
            count = sum(_print_log(q, topic, stretch, shape, max) for topic in topics)
        else:
            prefetch = PREFETCH if max is None else min(max, PREFETCH)
            options: dict[str, Any] = {"name": name, "prefetch": prefetch, "until_idle": until_idle}
            with q.consumer(group, topics, **options, **settings_given(settings, {}, group_settings)) as consumer:
                count = _print_all(consumer, shape, max, ack is Acks.AUTO)
    if not count:
        raise typer.Exit(EXIT_BAD_NEWS)


def _print_log(q: Client, topic: str, stretch: dict[str, Any], shape: Format, most: int | None) -> int:
    try:
        return print_messages(q.reader(topic, **stretch), shape, most)
    except MessagesMissing as error:
        if stretch["archive"] is not False:
            raise
        raise MessagesMissing(f"{error.message}; --include-deleted reads them from there", **error.details) from error


def _print_all(consumer: Consumer, shape: Format, most: int | None, acks: bool) -> int:
    count = 0
    kept: list[Received] = []
    try:
        for batch in consumer.batches():
            wanted = len(batch) if most is None else min(most - count, len(batch))
            printed = _print_batch(batch, wanted, shape, acks)
            count += len(printed)
            kept += [] if acks else printed
            if count == most:
                break
    finally:
        _give_back(kept)
    return count


def _print_batch(batch: ReceivedBatch, wanted: int, shape: Format, acks: bool) -> list[Received]:
    """What is printed is acknowledged, and nothing else, also when this ends by Ctrl-C or a reader that has gone."""
    messages = list(batch.messages())
    printed = 0
    try:
        for message in messages[:wanted]:
            write_message(message, shape, attempt=message.attempt)
            printed += 1
        flush()
    except KeyboardInterrupt:
        flush()
        _settle(batch, messages, printed, acks)
        raise
    except BaseException:
        # Nobody knows how much of it arrived.
        _give_back(messages)
        raise
    _settle(batch, messages, printed, acks)
    return messages[:printed]


def _settle(batch: ReceivedBatch, messages: list[Received], printed: int, acks: bool) -> None:
    try:
        if acks and printed == len(messages):
            batch.ack()
        elif acks:
            for message in messages[:printed]:
                message.ack()
    except LeaseError as error:
        # The broker was killed, or we were too slow. There is more to come, and these among it.
        note(f"not acknowledged, and may come again: {error.message}")
    _give_back(messages[printed:])


def _give_back(messages: list[Received]) -> None:
    for message in messages:
        try:
            message.release()
        except LeaseError:
            # Its time was up, or one before it was given back: it comes again by itself.
            continue
