"""penstock read: the log of a topic as it was written. No group is involved."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.broker import Broker
from penstock.cli.bundles import bundled
from penstock.cli.given import offset_given
from penstock.cli.options import Archive, FromTime, IncludeDeleted, Topic, ToTime
from penstock.cli.output import flush, note, write_bytes
from penstock.cli.shown import counted
from penstock.cli.stream import (
    CSV_COLUMNS,
    Format,
    csv_line,
    print_messages,
    recall_given,
    stretch_given,
    write_message,
)
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.client.blocking import Client, Reader

FOLLOW_S = 0.25


@bundled
def read(
    broker: Broker,
    topic: Topic,
    from_time: FromTime = None,
    to_time: ToTime = None,
    from_offset: Annotated[
        str | None, typer.Option("--from-offset", metavar="OFFSET", help="A number, earliest or latest.")
    ] = None,
    to_offset: Annotated[
        str | None, typer.Option("--to-offset", metavar="OFFSET", help="Until there, and without it.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", metavar="N", min=0, help="Only this one; may be repeated.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="At most so many.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is published later.")] = False,
    output: Annotated[
        Format, typer.Option("--output", "-o", "--format", help="Values, or all that is known of each message.")
    ] = Format.VALUE,
    include_deleted: IncludeDeleted = False,
    archive: Archive = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Where Parquet goes, which is for files only.")
    ] = None,
) -> None:
    """Print the messages of a topic, without consuming them.

    Partition by partition, delayed ones like all others.
    """
    if (output is Format.PARQUET) != (file is not None):
        raise InvalidInput("--file goes with --output parquet, and that with --file; the others are for stdout")
    if follow and (to_time or to_offset or file):
        raise InvalidInput("--follow has no end: it goes without --to-time, --to-offset and --file")
    stretch = stretch_given(from_time, to_time)
    stretch |= {
        "from_offset": None if from_offset is None else offset_given(from_offset),
        "to_offset": None if to_offset is None else offset_given(to_offset),
        "partitions": partition or None,
        **recall_given(include_deleted, archive),
    }
    with broker.open() as q:
        if output is Format.CSV:
            write_bytes(csv_line(CSV_COLUMNS))
        if follow:
            _follow(q, topic, stretch, output, limit)
            return
        reader = q.reader(topic, **stretch)
        if file is None:
            print_messages(reader, output, limit)
        else:
            _write_parquet(reader, file, limit)


def _follow(q: Client, topic: str, stretch: dict[str, Any], shape: Format, limit: int | None) -> None:
    """What there is, and then what has come since, until somebody stops it or there were `limit`."""
    left = limit
    while True:
        reader = q.reader(topic, **stretch)
        reached = {number: start for number, (start, _) in reader.offsets().items()}
        for message in reader:
            write_message(message, shape)
            reached[message.partition] = message.offset + 1
            left = None if left is None else left - 1
            if left == 0:
                flush()
                return
        flush()
        # One that is open is looked at for what is new; where it is would be opened, and read, every time.
        archive = reader.archive or stretch["archive"]
        stretch = {
            "from_offset": reached,
            "partitions": stretch["partitions"],
            "archive": archive,
            "epochs": reader.epochs(),
        }
        time.sleep(FOLLOW_S)


def _write_parquet(reader: Reader, file: Path, limit: int | None) -> int:
    """In columns all the way, so that a long topic takes no longer than its bytes."""
    import pyarrow.parquet as parquet

    from penstock.client.rows import LOG_SCHEMA

    # What is not there is told before there is a file.
    reader.offsets()
    count = 0
    try:
        with parquet.ParquetWriter(file, LOG_SCHEMA) as writer:
            for batch in reader.batches():
                some = batch if limit is None else batch.slice(0, limit - count)
                writer.write_batch(some)
                count += len(some)
                if count == limit:
                    break
    except OSError as error:
        raise InvalidInput(f"{file} can't be written: {error.strerror or error}") from error
    note(f"{counted(count, 'message')} in {file}")
    return count
