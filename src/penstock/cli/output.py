"""What every command does with its results: tables for people, JSON for programs, errors in one line on stderr.

A table is never squeezed. It is as wide as its contents; what does not fit into the terminal loses its least
important columns, and says so; if even the important ones do not fit, each row becomes a block of lines. Into a pipe
goes the whole width, one line a row.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple, NoReturn, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from penstock.errors import PenstockError
from penstock.limits import MIB

EXIT_BAD_NEWS = 1

Item = TypeVar("Item")

_PIPE_WIDTH = 100_000
_EXIT_SIGPIPE = 141
# What takes less than about half a second needs no progress bar.
_PROGRESS_BYTES_MIN = 64 * MIB
_GAP = 2


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"


class Column(NamedTuple):
    """`rank` 0 is always shown; the highest rank is the first to go."""

    name: str
    rank: int = 0
    is_number: bool = False


class _Console(Console):
    def on_broken_pipe(self) -> None:
        _leave()


def _leave() -> NoReturn:
    """Whoever read our output has stopped: end as other programs do, silently."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(_EXIT_SIGPIPE)


def console() -> Console:
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return _Console(width=None if has_width else _PIPE_WIDTH, highlight=False, markup=False, emoji=False)


def print_json(out: Console, value: dict[str, Any]) -> None:
    """One document."""
    out.out(json.dumps(value, indent=2), highlight=False)


def write_row(value: dict[str, Any]) -> None:
    """One of many: an object in a line of its own."""
    write_bytes(json.dumps(value, ensure_ascii=False).encode() + b"\n")


def write_bytes(data: bytes) -> None:
    """As they are, past the console: a stream of messages may be long, and may be no text."""
    try:
        sys.stdout.buffer.write(data)
    except BrokenPipeError:
        _leave()


def flush() -> None:
    """Until whoever reads our output has it, as far as that can be known."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _leave()


def print_rows(
    output: Output,
    items: Sequence[Item],
    as_json: Callable[[Item], dict[str, Any]],
    columns: Sequence[Column],
    as_cells: Callable[[Item], Sequence[Text | str]],
    nothing: str,
) -> None:
    """A table, or an object a line. An empty list is an answer like any other: `nothing` says so on stderr."""
    if not items:
        note(nothing)
        return
    if output is Output.JSON:
        for item in items:
            write_row(as_json(item))
        flush()
    else:
        print_table(console(), columns, [as_cells(item) for item in items])


def print_one(
    output: Output,
    as_json: dict[str, Any],
    *,
    fields: Sequence[tuple[str, Text | str]] = (),
    columns: Sequence[Column] = (),
    rows: Sequence[Sequence[Text | str]] = (),
) -> None:
    """One document; or its fields, a line each, and below them a table of what it has several of."""
    out = console()
    if output is Output.JSON:
        print_json(out, as_json)
        return
    if fields:
        print_fields(out, fields, max(len(name) for name, _ in fields))
    if fields and rows:
        out.print()
    if rows:
        print_table(out, columns, rows)


def print_answer(output: Output, as_json: dict[str, Any], sentence: str, *, is_bad_news: bool = False) -> None:
    """What was done, in a line."""
    if output is Output.JSON:
        print_json(console(), as_json)
    else:
        console().print(Text(_visible_lines(sentence)), soft_wrap=True)
    if is_bad_news:
        raise typer.Exit(EXIT_BAD_NEWS)


def confirm(question: str, yes: bool) -> None:
    """Somebody at a terminal is asked; a script means what it says."""
    if not yes and sys.stdin is not None and sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)


def note(text: str) -> None:
    """For people only, and so not in the way of what goes into a pipe."""
    print(_visible_lines(text), file=sys.stderr)


def print_error(error: PenstockError) -> None:
    print(f"error: {_visible(error.message)} [{error.code}]", file=sys.stderr)


def _visible(text: str) -> str:
    """What would move the cursor or hide something is shown, not done: it may be another's text."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _visible_lines(text: str) -> str:
    return "\n".join(map(_visible, text.split("\n")))


def _visible_cell(cell: Text | str) -> Text | str:
    return _visible(cell) if isinstance(cell, str) else cell


# --- tables -------------------------------------------------------------------------------------------------


def print_table(out: Console, columns: Sequence[Column], rows: Sequence[Sequence[Text | str]]) -> None:
    """Cells are one line each."""
    rows = [[_visible_cell(cell) for cell in row] for row in rows]
    widths = [
        max([cell_len(column.name), *(cell_len(str(row[i])) for row in rows)]) for i, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    while _width(widths, shown) > out.width:
        least = max(shown, key=lambda i: (columns[i].rank, i))
        if columns[least].rank == 0:
            _print_blocks(out, columns, rows)
            return
        shown.remove(least)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for i in shown:
        table.add_column(columns[i].name, justify="right" if columns[i].is_number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(row[i] for i in shown))
    out.print(table)
    hidden = [column.name for i, column in enumerate(columns) if i not in shown]
    if hidden:
        out.print(f"(too narrow for: {', '.join(hidden)})", style="dim")


def _width(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[i] + _GAP for i in shown)


def _print_blocks(out: Console, columns: Sequence[Column], rows: Sequence[Sequence[Text | str]]) -> None:
    label_width = max(cell_len(column.name) for column in columns)
    for number, row in enumerate(rows):
        if number:
            out.print()
        print_fields(out, zip((column.name for column in columns), row, strict=True), label_width)


def print_fields(out: Console, fields: Iterable[tuple[str, Text | str]], label_width: int) -> None:
    """Name and value, a line each."""
    for name, value in fields:
        out.print(Text.assemble((f"{name:<{label_width}}  ", "bold"), _visible_cell(value)))


# --- progress -----------------------------------------------------------------------------------------------


@contextmanager
def progress_of_bytes(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields what is to be told of bytes done; draws on stderr if that is a terminal and there is much to do."""
    if not sys.stderr.isatty() or total < _PROGRESS_BYTES_MIN:
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        waiting = 0

        def advance(size: int) -> None:
            nonlocal waiting
            waiting += size
            if waiting >= MIB:
                bar.advance(task, waiting)
                waiting = 0

        yield advance


@contextmanager
def progress_of_messages(what: str) -> Iterator[Callable[[int], None]]:
    """Yields what is to be told of messages done; draws on stderr if that is a terminal, and stdout is not."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.completed:,} messages"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda count: bar.advance(task, count)
