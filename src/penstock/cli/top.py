"""penstock top: topics and groups, live."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from penstock.cli.broker import Broker
from penstock.cli.bundles import bundled
from penstock.cli.hot import hot_of
from penstock.cli.options import OutputOption
from penstock.cli.output import Output, console, flush, write_row
from penstock.cli.shown import known, shown_size
from penstock.clock import rfc3339

if TYPE_CHECKING:
    from penstock.client.blocking import Client
    from penstock.client.requests import GroupInfo, TopicInfo

# Of a frame: the line at the top, two heads of tables, and two blank lines.
_ROWS_OF_HEADS = 5
# A row or how many there are, of topics and of groups.
_ROWS_MIN = 4


class Snapshot(NamedTuple):
    """`at` is for rates; `time_us` for people."""

    at: float
    time_us: int
    topics: list[TopicInfo]
    groups: list[GroupInfo]


@bundled
def top(
    broker: Broker,
    interval: Annotated[float, typer.Option("--interval", metavar="SECONDS", min=0.1, max=3600, help="How often.")] = 1,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Topics with rates and sizes, groups with lag and members, live.

    Drawn anew each second; q or Ctrl-C ends it. Groups with the most lag come first. Partitions that get three times
    their topic's average or more are named as hot. Into a pipe it prints one frame after the other.
    """
    with broker.open() as q:
        if once or output is Output.JSON or not sys.stdout.isatty():
            _print_frames(q, interval, once, output)
        else:
            _live(q, broker, interval)


def _print_frames(q: Client, interval: float, once: bool, output: Output) -> None:
    before = None
    while True:
        now = _look(q)
        if output is Output.JSON:
            write_row(_as_json(now, before))
        else:
            console().print(_frame(now, before))
        flush()
        if once:
            return
        before = now
        time.sleep(interval)


def _live(q: Client, broker: Broker, interval: float) -> None:
    from rich.live import Live

    before, now = None, _look(q)
    title, screen = broker.data or broker.address, console()
    with _keys(), Live(_fitting(screen, now, before, title), console=screen, screen=True, auto_refresh=False) as live:
        while not _is_over(interval):
            before, now = now, _look(q)
            live.update(_fitting(screen, now, before, title), refresh=True)


def _look(q: Client) -> Snapshot:
    return Snapshot(time.monotonic(), time.time_ns() // 1_000, q.topics(partial=True), q.groups(partial=True))


# --- keys ---------------------------------------------------------------------------------------------------


@contextmanager
def _keys() -> Iterator[None]:
    """Single keys, without waiting for the end of a line."""
    import termios
    import tty

    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _is_over(interval: float) -> bool:
    """Whether somebody pressed q meanwhile."""
    until = time.monotonic() + interval
    while (left := until - time.monotonic()) > 0:
        if sys.stdin is None or not sys.stdin.isatty():
            time.sleep(left)
        elif select.select([sys.stdin], [], [], left)[0] and sys.stdin.read(1) in ("q", "Q", ""):
            return True
    return False


# --- a frame ------------------------------------------------------------------------------------------------


def _published(info: TopicInfo) -> int:
    return sum(each.end_offset for each in info.partitions)


def _lag(info: GroupInfo) -> int:
    return sum(sum(each) for each in info.lag.values())


def _topic_rate(info: TopicInfo, now: Snapshot, before: Snapshot | None) -> float | None:
    """Messages published each second; None as long as there is nothing to compare with."""
    for earlier in before.topics if before is not None else ():
        if earlier.name == info.name and earlier.unknown == info.unknown:
            assert before is not None
            return max(0.0, (_published(info) - _published(earlier)) / (now.at - before.at))
    return None


def _hot(info: TopicInfo, before: Snapshot | None) -> list[int] | None:
    """The partitions that get most of what is published; None as long as there is nothing to compare with."""
    for earlier in before.topics if before is not None else ():
        if earlier.name == info.name:
            ends = {each.number: each.end_offset for each in earlier.partitions}
            parts = [each for each in info.partitions if each.number in ends]
            return hot_of({each.number: max(0, each.end_offset - ends[each.number]) for each in parts})
    return None


def _lag_rate(info: GroupInfo, now: Snapshot, before: Snapshot | None) -> float | None:
    """How fast its lag grows, or shrinks."""
    for earlier in before.groups if before is not None else ():
        if earlier.name == info.name and earlier.unknown == info.unknown:
            assert before is not None
            return (_lag(info) - _lag(earlier)) / (now.at - before.at)
    return None


def _as_json(now: Snapshot, before: Snapshot | None) -> dict[str, Any]:
    return {
        "time": rfc3339(now.time_us),
        "topics": [
            {
                "name": info.name,
                "partitions": len(info.partitions) + len(info.unknown),
                "unknown_partitions": list(info.unknown),
                "messages": sum(each.messages for each in info.partitions),
                "bytes": sum(each.bytes for each in info.partitions),
                "scheduled": info.scheduled,
                "rate": _topic_rate(info, now, before),
                "hot_partitions": _hot(info, before),
            }
            for info in now.topics
        ],
        "groups": [
            {
                "name": info.name,
                "topics": list(info.lag),
                "lag": _lag(info),
                "unknown_partitions": info.unknown,
                "lag_rate": _lag_rate(info, now, before),
                "members": sorted(info.members),
            }
            for info in now.groups
        ],
    }


def _fitting(screen: Console, now: Snapshot, before: Snapshot | None, title: str) -> Group:
    """With as many topics and groups as there is room for."""
    rows = screen.size.height - _ROWS_OF_HEADS
    while True:
        frame = _frame(now, before, title, rows)
        # Where it is narrow, a row takes more than one line.
        over = len(screen.render_lines(frame, pad=False)) - screen.size.height
        if over <= 0 or rows <= _ROWS_MIN:
            return frame
        rows = max(rows - over, _ROWS_MIN)


def _frame(now: Snapshot, before: Snapshot | None, title: str = "", rows_max: int | None = None) -> Group:
    """With at most so many rows of topics and groups together; each gets half, and what the other does not need."""
    shown = _as_json(now, before)
    topics_max = groups_max = None
    if rows_max is not None:
        topics_max = max(rows_max // 2, rows_max - len(shown["groups"]))
        groups_max = rows_max - min(topics_max, len(shown["topics"]))
    topics = _table("topic", "partitions", "messages", "size", "scheduled", "published/s", "hot", texts=("hot",))
    shown_topics, more_topics = _cut(shown["topics"], topics_max)
    for each in shown_topics:
        is_part = bool(each["unknown_partitions"])
        held = (known(str(each["messages"]), is_part), known(shown_size(each["bytes"]), is_part))
        numbers = (each["partitions"], *held, known(str(each["scheduled"]), is_part))
        hot = Text(", ".join(map(str, each["hot_partitions"] or ())), "yellow")
        topics.add_row(each["name"], *map(str, numbers), _shown_rate(each["rate"]), hot)
    groups = _table("group", "lag", "lag/s", "topics", "members", texts=("topics", "members"))
    shown_groups, more_groups = _cut(sorted(shown["groups"], key=lambda each: -each["lag"]), groups_max)
    for each in shown_groups:
        members = f"{len(each['members'])}: {', '.join(each['members'])}" if each["members"] else "-"
        shown_lag = known(str(each["lag"]), bool(each["unknown_partitions"]))
        lag = Text(shown_lag, "yellow" if each["lag"] else "")
        groups.add_row(each["name"], lag, _shown_rate(each["lag_rate"]), ", ".join(each["topics"]) or "-", members)
    head = Text(f"{title}  {shown['time'][:19]}Z".strip(), "bold")
    return Group(head, Text(), topics, *more_topics, Text(), groups, *more_groups)


def _cut(rows: list[Any], rows_max: int | None) -> tuple[list[Any], list[Text]]:
    """Those that fit, and a line that says how many do not."""
    if rows_max is None or len(rows) <= rows_max:
        return rows, []
    kept = max(rows_max - 1, 0)
    return rows[:kept], [Text(f"… and {len(rows) - kept} more")]


def _table(first: str, *others: str, texts: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    # Names are folded where it is narrow; a number that is cut is a wrong one.
    for name in (first, *others):
        is_text = name == first or name in texts
        table.add_column(name, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    return table


def _shown_rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}"
