"""penstock log: looking at the files of a log, without a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import OutputOption
from penstock.cli.output import EXIT_BAD_NEWS, Output
from penstock.errors import InvalidInput

app = typer.Typer(help="Look at the files of a log, without a broker.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass


@app.command("inspect")
def inspect_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A log, or a directory with logs below it.")],
    list_frames: Annotated[bool, typer.Option("--frames", help="List the frames.")] = False,
    list_messages: Annotated[bool, typer.Option("--messages", help="List the messages, decoded.")] = False,
    segment: Annotated[
        int | None, typer.Option(metavar="BASE_OFFSET", min=0, help="Only the segment that starts at this offset.")
    ] = None,
    from_offset: Annotated[
        int | None, typer.Option("--from", metavar="OFFSET", min=0, help="List from this offset on.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="List at most so many, for each log.")] = 1_000,
    output: OutputOption = Output.TABLE,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Check bodies against their checksums, or headers only.")
    ] = True,
) -> None:
    """Show what is in a log, and where it is damaged.

    Changes nothing and takes no lock: the log may be in use. Exit code 0: healthy (a torn tail is, too); 1: damage
    found; 2: there is no log.
    """
    if from_offset is not None and not (list_frames or list_messages):
        raise InvalidInput("--from says where a list starts: it needs --frames or --messages")
    # Here and not at the top: other commands need none of it.
    from penstock.cli.log_inspect import Wanted, print_logs

    wanted = Wanted(list_frames, list_messages, segment, from_offset or 0, limit, verify)
    if not print_logs(directory, wanted, output):
        raise typer.Exit(EXIT_BAD_NEWS)
