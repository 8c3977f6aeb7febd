"""penstock log: looking at the files of a log, without a broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from penstock.cli.log_view import (
    frame_row,
    message_as_dict,
    message_row,
    print_frames,
    print_messages,
    print_report,
    print_summary,
)
from penstock.cli.output import Output, console, print_json, progress_of_bytes
from penstock.errors import InvalidFrame, InvalidInput
from penstock.storage.files import DiskFiles
from penstock.storage.inspect import frames, inspect, messages
from penstock.storage.manifest import NAME as MANIFEST
from penstock.storage.recovery import segment_bases
from penstock.storage.report import FrameReport, MessageReport, Report
from penstock.storage.segment import log_name

EXIT_DAMAGED = 1

Shown = TypeVar("Shown")

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
    output: Annotated[Output, typer.Option(help="For people or for programs.")] = Output.TABLE,
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
    logs = list(_logs(directory, segment))
    if not logs:
        what = "no log here or below" if segment is None else f"no segment starts at offset {segment}"
        raise InvalidInput(f"{directory}: {what}")
    out = console()
    healthy = 0
    objects: list[dict[str, Any]] = []
    for path in logs:
        files = DiskFiles(path, create=False)
        with progress_of_bytes(str(path), _size(path, segment)) as progress:
            report = inspect(files, verify=verify, only=segment, progress=progress)
        if report is None:
            raise InvalidInput(f"{path}: the log has been removed meanwhile")
        healthy += report.is_healthy
        listing = _Listing(files, segment, from_offset or 0, limit, verify)
        if output is Output.JSON:
            objects.append(_as_dict(path, report, listing, list_frames, list_messages))
        else:
            print_report(out, path, report)
            if list_frames:
                print_frames(out, *listing.frames(frame_row))
            if list_messages:
                print_messages(out, *listing.messages(message_row))
        files.close()
    if output is Output.JSON:
        print_json(out, {"healthy": healthy == len(logs), "logs": objects})
    elif len(logs) > 1:
        print_summary(out, healthy, len(logs))
    if healthy < len(logs):
        raise typer.Exit(EXIT_DAMAGED)


class _Listing:
    """Which frames or messages are to be listed; each list comes with the offset to go on at, None at the end.

    Each is turned into what is `shown` of it at once: a list of a thousand must not hold a thousand bodies.
    """

    def __init__(self, files: DiskFiles, only: int | None, from_offset: int, limit: int, verify: bool) -> None:
        self._files = files
        self._only = only
        self._from_offset = from_offset
        self._limit = limit
        self._verify = verify

    def frames(self, shown: Callable[[FrameReport], Shown]) -> tuple[list[Shown], int | None]:
        found = frames(self._files, only=self._only, from_offset=self._from_offset, verify=self._verify)
        listed = [shown(report) for report in islice(found, self._limit)]
        after = next(found, None)
        return listed, None if after is None else after.offset

    def messages(self, shown: Callable[[MessageReport | FrameReport], Shown]) -> tuple[list[Shown], int | None]:
        """A frame stands for messages that can't be read."""
        found = self._messages()
        listed = [shown(report) for report in islice(found, self._limit)]
        after = next(found, None)
        return listed, None if after is None else after.offset

    def _messages(self) -> Iterator[MessageReport | FrameReport]:
        for report in frames(self._files, only=self._only, from_offset=self._from_offset):
            frame = report.piece.frame
            if frame is None or not report.piece.is_whole:
                yield report
                continue
            try:
                for message in messages(frame):
                    if message.offset >= self._from_offset:
                        yield message
            except InvalidFrame:
                yield report


def _as_dict(path: Path, report: Report, listing: _Listing, list_frames: bool, list_messages: bool) -> dict[str, Any]:
    value: dict[str, Any] = {"directory": str(path), **report.as_dict()}
    if list_frames:
        value["frames"], value["frames_go_on_at"] = listing.frames(FrameReport.as_dict)
    if list_messages:
        value["messages"], value["messages_go_on_at"] = listing.messages(message_as_dict)
    return value


# --- which directories are logs -----------------------------------------------------------------------------


def _logs(directory: Path, segment: int | None) -> Iterator[Path]:
    """The directory itself if it is a log, and those below it, in order."""
    if not directory.exists():
        raise InvalidInput(f"{directory}: no such directory")
    if not directory.is_dir():
        raise InvalidInput(f"{directory}: not a directory")
    for path, below, names in os.walk(directory, onerror=partial(_skip, directory)):
        below.sort()
        files = DiskFiles(path, create=False)
        bases = segment_bases(files)
        if (bases or MANIFEST in names) if segment is None else segment in bases:
            yield Path(path)


def _skip(top: Path, error: OSError) -> None:
    """One directory that can't be looked into does not end the look at the others; the one asked for does."""
    if Path(error.filename) == top:
        raise InvalidInput(f"{error.filename}: {error.strerror}") from error
    print(f"skipped {error.filename}: {error.strerror}", file=sys.stderr)


def _size(path: Path, segment: int | None) -> int:
    """For the progress bar; a log in use may lose files under us."""
    size = 0
    for base in segment_bases(DiskFiles(path, create=False)) if segment is None else [segment]:
        with suppress(OSError):
            size += (path / log_name(base)).stat().st_size
    return size
