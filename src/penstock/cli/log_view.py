"""How an inspected log looks on a terminal."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from penstock.cli.output import Column, print_fields, print_table
from penstock.cli.shown import counted, shown_bytes, shown_size, text_of
from penstock.message import Priority
from penstock.storage.report import FrameReport, Kind, MessageReport, Report, Role, SegmentReport, State, shown_time
from penstock.storage.segment import log_name

Row = list[Text | str]

_KINDS = {
    Kind.DAMAGE: ("red", "refused at the next open, or when it is read; nothing repairs it by itself"),
    Kind.TORN_TAIL: ("yellow", "the next open cuts it off; nothing that had been synced is lost"),
    Kind.REBUILT: ("yellow", "the next open makes it anew"),
    Kind.LEFTOVER: ("yellow", "of no use any more; the next open removes it"),
}
_STATES = {State.OK: "", State.MISSING: "yellow", State.STALE: "yellow", State.DAMAGED: "red"}
_JSON_BYTES_MAX = 1_000

_SEGMENT_COLUMNS = (
    Column("base offset", is_number=True),
    Column("end offset", is_number=True),
    Column("messages", is_number=True),
    Column("frames", rank=1, is_number=True),
    Column("bytes", is_number=True),
    Column("state"),
    Column("index"),
    Column("codecs", rank=2),
    Column("gen", rank=3, is_number=True),
    Column("first appended", rank=5),
    Column("last appended", rank=4),
    Column("min timestamp", rank=6),
    Column("max timestamp", rank=6),
)
_FRAME_COLUMNS = (
    Column("position", is_number=True),
    Column("bytes", is_number=True),
    Column("base offset", is_number=True),
    Column("count", is_number=True),
    Column("span", rank=1, is_number=True),
    Column("checksum"),
    Column("codec", rank=1),
    Column("flags", rank=2),
    Column("append time", rank=3),
    Column("epoch", rank=4, is_number=True),
    Column("producer", rank=5),
    Column("min timestamp", rank=6),
    Column("max timestamp", rank=6),
)
_MESSAGE_COLUMNS = (
    Column("offset", is_number=True),
    Column("key"),
    Column("value"),
    Column("append time", rank=1),
    Column("timestamp", rank=3),
    Column("priority", rank=4),
    Column("deliver at", rank=5),
    Column("expires at", rank=5),
    Column("headers", rank=2),
)


def print_report(out: Console, path: Path, report: Report) -> None:
    damaged = sum(finding.kind is Kind.DAMAGE for finding in report.findings)
    verdict = (f"damaged, {counted(damaged, 'place')}", "bold red") if damaged else ("healthy", "bold green")
    others = sorted({_words(finding.kind) for finding in report.findings} - {Kind.DAMAGE})
    note = f" (see below: {', '.join(others)})" if others else ""
    out.print(Text.assemble((_shown_path(path), "bold"), ": ", verdict, note))
    print_fields(out, _facts(report), label_width=8)
    if report.segments:
        out.print()
        print_table(out, _SEGMENT_COLUMNS, [_segment_row(segment) for segment in report.segments])
    order = list(Kind)
    for kind, findings in groupby(sorted(report.findings, key=lambda f: order.index(f.kind)), lambda f: f.kind):
        style, meaning = _KINDS[kind]
        out.print()
        out.print(Text.assemble((_words(kind), f"bold {style}"), f": {meaning}"))
        for finding in findings:
            out.print(Padding(Text(finding.sentence), (0, 0, 0, 2), expand=False))
    out.print()


def print_summary(out: Console, healthy: int, count: int) -> None:
    damaged = count - healthy
    out.print(f"{counted(count, 'log')}: {healthy} healthy, {damaged} damaged", style="bold red" if damaged else "bold")


def _facts(report: Report) -> list[tuple[str, str]]:
    chain = report.chain
    messages, frames = sum(s.messages for s in chain), sum(s.frames for s in chain)
    checked = "every checksum" if report.is_verified else "headers only, not the bodies"
    synced = report.synced
    mark = f"mark {report.mark}"
    if synced is not None:
        mark = f"to offset {synced.next_offset}, byte {synced.position} of {log_name(synced.base_offset)}"
        if synced.base_offset < 0:
            mark = "nothing"
    start = f"? (manifest {report.manifest})" if report.start_offset is None else str(report.start_offset)
    return [
        ("log id", report.log_id.hex() if report.log_id else f"? (manifest {report.manifest})"),
        ("offsets", f"{start} to {'?' if report.end_offset is None else report.end_offset}"),
        ("synced", mark),
        (
            "holds",
            f"{counted(messages, 'message')} in {counted(frames, 'frame')} and {counted(len(chain), 'segment')}, "
            f"{shown_size(sum(s.size for s in chain))}",
        ),
        ("checked", checked),
    ]


def _segment_row(segment: SegmentReport) -> Row:
    value = segment.as_dict()
    state = f"{segment.role}, compacted" if segment.is_compacted else str(segment.role)
    return [
        _shown(value["base_offset"]),
        _shown(value["end_offset"]),
        _shown(value["messages"]),
        _shown(value["frames"]),
        _shown(value["bytes"]),
        Text(state, "red" if segment.role is Role.FOREIGN else ""),
        Text(segment.index, _index_style(segment)),
        ", ".join(value["codecs"]) or "-",
        _shown(value["generation"]),
        _to_seconds(value["first_append_time"]),
        _to_seconds(value["last_append_time"]),
        _to_seconds(value["min_timestamp"]),
        _to_seconds(value["max_timestamp"]),
    ]


def _index_style(segment: SegmentReport) -> str:
    # An active segment has its index from when the log was last closed, if ever.
    is_usual = segment.role is Role.ACTIVE and segment.index in (State.MISSING, State.STALE)
    return "" if is_usual else _STATES[segment.index]


# --- frames and messages ------------------------------------------------------------------------------------


def print_frames(out: Console, rows: Sequence[Row], go_on_at: int | None) -> None:
    for file, group in groupby(rows, lambda row: row[0]):
        out.print(Text(f"frames of {file}", "bold"))
        print_table(out, _FRAME_COLUMNS, [row[1:] for row in group])
        out.print()
    _print_end(out, "frame", len(rows), go_on_at)


def frame_row(report: FrameReport) -> Row:
    """The file, then the columns."""
    value = report.as_dict()
    checksum = Text(report.checksum, "" if report.piece.is_whole else "red")
    if report.piece.frame is None:
        return [report.file, _shown(value["position"]), _shown(value["bytes"]), "?", "?", "?", checksum, *["-"] * 7]
    producer = report.piece.frame.producer
    return [
        report.file,
        _shown(value["position"]),
        _shown(value["bytes"]),
        _shown(value["base_offset"]),
        _shown(value["count"]),
        _shown(value["span"]),
        checksum,
        value["codec"],
        ", ".join(value["flags"]) or "-",
        value["append_time"],
        _shown(value["leader_epoch"]),
        f"{producer.id}, epoch {producer.epoch}, sequence {producer.sequence}" if producer.id else "-",
        value["min_timestamp"],
        value["max_timestamp"],
    ]


def print_messages(out: Console, rows: Sequence[Row], go_on_at: int | None) -> None:
    out.print(Text("messages", "bold"))
    if rows:
        print_table(out, _MESSAGE_COLUMNS, rows)
        out.print()
    _print_end(out, "message", len(rows), go_on_at)


def message_row(report: MessageReport | FrameReport) -> Row:
    if isinstance(report, FrameReport):
        return [_shown(report.offset), "?", Text("not readable", "red"), *["-"] * 6]
    message = report.message
    return [
        _shown(report.offset),
        shown_bytes(message.key),
        shown_bytes(message.value, "(null)"),
        _shown(shown_time(report.append_time)),
        _shown(shown_time(message.timestamp)),
        Priority(message.priority).name.lower(),
        _shown(shown_time(message.deliver_at or None)),
        _shown(shown_time(message.expires_at or None)),
        ", ".join(f"{name}={shown_bytes(value, '')}" for name, value in message.headers) or "-",
    ]


def message_as_dict(report: MessageReport | FrameReport) -> dict[str, Any]:
    if isinstance(report, FrameReport):
        return {
            "offset": report.offset,
            "error": "not readable",
            "file": report.file,
            "position": report.piece.position,
        }
    message = report.message
    return {
        "offset": report.offset,
        "append_time": shown_time(report.append_time),
        "timestamp": shown_time(message.timestamp),
        "key": _bytes_as_dict(message.key),
        "value": _bytes_as_dict(message.value),
        "headers": [{"name": name, "value": _bytes_as_dict(value)} for name, value in message.headers],
        "deliver_at": shown_time(message.deliver_at or None),
        "expires_at": shown_time(message.expires_at or None),
        "priority": Priority(message.priority).name.lower(),
    }


def _print_end(out: Console, noun: str, count: int, go_on_at: int | None) -> None:
    if go_on_at is not None:
        out.print(f"the first {counted(count, noun)}; go on with --from {go_on_at}", style="dim")
        out.print()


# --- cells --------------------------------------------------------------------------------------------------


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


def _words(kind: Kind) -> str:
    return kind.replace("_", " ")


def _to_seconds(time: str | None) -> str:
    return "-" if time is None else time[:19] + "Z" if time.endswith("Z") else time


def _shown_path(path: Path) -> str:
    return str(path).encode("utf-8", "backslashreplace").decode()


def _bytes_as_dict(data: bytes | None) -> dict[str, Any] | None:
    if data is None:
        return None
    is_shortened = len(data) > _JSON_BYTES_MAX
    text = text_of(data)
    if text is not None:
        content = {"text": text[:_JSON_BYTES_MAX] if is_shortened else text}
    else:
        content = {"base64": base64.b64encode(data[:_JSON_BYTES_MAX]).decode()}
    return {"bytes": len(data), "shortened": is_shortened, **content}
