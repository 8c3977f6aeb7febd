"""penstock archive: what an archive holds, and how it is kept tidy. No broker is involved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import OutputOption
from penstock.cli.output import Column, Output, print_answer, print_rows
from penstock.cli.shown import counted, shown_size, shown_time, time_json
from penstock.clock import SystemClock

if TYPE_CHECKING:
    from penstock.archive import FileEntry

app = typer.Typer(help="Look at an archive, and keep it tidy.", no_args_is_help=True, rich_markup_mode=None)

Directory = Annotated[str, typer.Argument(metavar="DIR", help="The archive, or its URI.")]

_COLUMNS = (
    Column("topic"),
    Column("partition", is_number=True),
    Column("first offset", is_number=True),
    Column("end offset", is_number=True),
    Column("messages", is_number=True),
    Column("files", rank=1, is_number=True),
    Column("size", is_number=True),
    Column("from", rank=2),
    Column("to", rank=2),
    Column("topic id", rank=3),
)


@app.command("show")
def show(directory: Directory, output: OutputOption = Output.TABLE) -> None:
    """What is archived of each partition. A gap between offsets is a line of its own."""
    # Here and not at the top: other commands need none of it.
    from penstock.archive import Archive

    stretches: list[list[FileEntry]] = []
    for entry in Archive.open(directory).files():
        if stretches and _follows(stretches[-1][-1], entry):
            stretches[-1].append(entry)
        else:
            stretches.append([entry])
    print_rows(output, stretches, _json, _COLUMNS, _cells, "the archive is empty")


@app.command("compact")
def compact_command(directory: Directory, output: OutputOption = Output.TABLE) -> None:
    """Make one file of small ones that follow each other in a partition and a day."""
    from penstock.archive import Archive, compact

    archive = Archive.open(directory)
    before = len(archive.files())
    gone = compact(archive)
    after = {"files": before - gone, "files_before": before}
    print_answer(output, after, f"{counted(before - gone, 'file')} instead of {before}")


@app.command("vacuum")
def vacuum_command(
    directory: Directory,
    grace: Annotated[
        str, typer.Option(metavar="DURATION", help="Only what has not been needed for so long. Default: 1d.")
    ] = "1d",
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove files that are not part of the archive any more, or never were.

    A writer that takes longer than --grace from its first file to its commit would lose its files.
    """
    from penstock.archive import Archive, vacuum

    gone = vacuum(Archive.open(directory), grace=grace)
    print_answer(output, {"removed": gone}, f"removed {counted(len(gone), 'file')}")


def _follows(one: FileEntry, other: FileEntry) -> bool:
    is_same = (one.topic_id, one.partition) == (other.topic_id, other.partition)
    return is_same and one.end_offset == other.first_offset


def _json(stretch: list[FileEntry]) -> dict[str, Any]:
    with_rows = [entry for entry in stretch if entry.rows]
    return {
        "topic": stretch[0].topic,
        "topic_id": stretch[0].topic_id,
        "partition": stretch[0].partition,
        "first_offset": stretch[0].first_offset,
        "end_offset": stretch[-1].end_offset,
        "messages": sum(entry.rows for entry in stretch),
        "files": len(with_rows),
        "bytes": sum(entry.bytes for entry in stretch),
        "from": time_json(with_rows[0].min_append_time if with_rows else None),
        "to": time_json(with_rows[-1].max_append_time if with_rows else None),
    }


def _cells(stretch: list[FileEntry]) -> list[str]:
    shown = _json(stretch)
    now_us = SystemClock().now_us()
    with_rows = [entry for entry in stretch if entry.rows]
    return [
        shown["topic"],
        *(str(shown[name]) for name in ("partition", "first_offset", "end_offset", "messages", "files")),
        shown_size(shown["bytes"]),
        shown_time(with_rows[0].min_append_time if with_rows else None, now_us),
        shown_time(with_rows[-1].max_append_time if with_rows else None, now_us),
        shown["topic_id"],
    ]
