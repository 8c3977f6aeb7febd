"""The work of `penstock log inspect`: which logs there are, what is to be listed of them, and if they are sound."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rich.console import Console

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

Shown = TypeVar("Shown")


class Wanted(NamedTuple):
    """What is to be shown of each log. `segment` is the base offset of the only one, or None for all."""

    frames: bool
    messages: bool
    segment: int | None
    from_offset: int
    limit: int
    verify: bool


def print_logs(directory: Path, wanted: Wanted, output: Output) -> bool:
    """Whether all are healthy."""
    logs = list(_logs(directory, wanted.segment))
    if not logs:
        what = "no log here or below" if wanted.segment is None else f"no segment starts at offset {wanted.segment}"
        raise InvalidInput(f"{directory}: {what}")
    out = console()
    healthy = 0
    objects: list[dict[str, Any]] = []
    for path in logs:
        files = DiskFiles(path, create=False)
        with progress_of_bytes(str(path), _size(path, wanted.segment)) as progress:
            report = inspect(files, verify=wanted.verify, only=wanted.segment, progress=progress)
        if report is None:
            raise InvalidInput(f"{path}: the log has been removed meanwhile")
        healthy += report.is_healthy
        listing = _Listing(files, wanted)
        if output is Output.JSON:
            objects.append(_as_dict(path, report, listing, wanted))
        else:
            _print_log(out, path, report, listing, wanted)
        files.close()
    if output is Output.JSON:
        print_json(out, {"healthy": healthy == len(logs), "logs": objects})
    elif len(logs) > 1:
        print_summary(out, healthy, len(logs))
    return healthy == len(logs)


def _print_log(out: Console, path: Path, report: Report, listing: _Listing, wanted: Wanted) -> None:
    print_report(out, path, report)
    if wanted.frames:
        print_frames(out, *listing.frames(frame_row))
    if wanted.messages:
        print_messages(out, *listing.messages(message_row))


class _Listing:
    """Which frames or messages are to be listed; each list comes with the offset to go on at, None at the end.

    Each is turned into what is `shown` of it at once: a list of a thousand must not hold a thousand bodies.
    """

    def __init__(self, files: DiskFiles, wanted: Wanted) -> None:
        self._files = files
        self._only = wanted.segment
        self._from_offset = wanted.from_offset
        self._limit = wanted.limit
        self._verify = wanted.verify

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


def _as_dict(path: Path, report: Report, listing: _Listing, wanted: Wanted) -> dict[str, Any]:
    value: dict[str, Any] = {"directory": str(path), **report.as_dict()}
    if wanted.frames:
        value["frames"], value["frames_go_on_at"] = listing.frames(FrameReport.as_dict)
    if wanted.messages:
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
