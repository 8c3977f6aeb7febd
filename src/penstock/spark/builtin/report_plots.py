"""Plots as inline SVG: bars, lines, columns. Colours are classes, so that the page's style decides by day and night.

A plot is as wide as its card; its text keeps its size because the drawing does: `WIDTH` units, or half of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import ceil, floor, log10
from typing import NamedTuple

from penstock.spark.builtin.report_markup import Markup, joined, tag

WIDTH, HALF = 1_000.0, 480.0
_BAR, _GAP, _BETWEEN = 11.0, 3.0, 16.0
_LABELS, _VALUES = 210.0, 80.0
_TOP, _BOTTOM, _LEFT, _RIGHT, _HEIGHT = 10.0, 24.0, 62.0, 10.0, 150.0
_LABEL_MAX = 30
_COLUMNS_MAX = 64

Shown = Callable[[float], str]


class Line(NamedTuple):
    """None is a gap. `kind` is the class that colours it."""

    name: str
    kind: str
    values: Sequence[float | None]


class Bars(NamedTuple):
    """Of one label, below each other."""

    label: str
    values: Sequence[float | None]


def _svg(width: float, height: float, title: str, desc: str, parts: Sequence[str]) -> Markup:
    box = f"0 0 {width:g} {height:g}"
    return tag(
        "svg",
        tag("title", title),
        tag("desc", desc),
        *parts,
        viewBox=box,
        role="img",
        style=f"min-width:{width * 0.6:g}px",
    )


def _text(x: float, y: float, text: str, kind: str = "tick", anchor: str = "start") -> Markup:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", class_=kind, text_anchor=anchor)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return tag("line", x1=f"{x1:.1f}", y1=f"{y1:.1f}", x2=f"{x2:.1f}", y2=f"{y2:.1f}", class_=kind)


def _rect(x: float, y: float, width: float, height: float, kind: str, told: str) -> Markup:
    return tag(
        "rect",
        tag("title", told),
        x=f"{x:.1f}",
        y=f"{y:.1f}",
        width=f"{max(width, 1):.1f}",
        height=f"{max(height, 0):.1f}",
        rx="1.5",
        class_=kind,
    )


def cut(text: str, most: int = _LABEL_MAX) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


# --- bars on a logarithmic scale --------------------------------------------------------------------------------


def log_bars(title: str, names: Sequence[str], kinds: Sequence[str], rows: Sequence[Bars], shown: Shown) -> Markup:
    """Each row has a bar for each name. The axis has powers of ten."""
    known = [value for row in rows for value in row.values if value]
    low = floor(log10(min(known, default=1)))
    high = max(ceil(log10(max(known, default=10))), low + 1)
    room = WIDTH - _LABELS - _VALUES

    def along(value: float) -> float:
        return _LABELS + (log10(max(value, 10**low)) - low) / (high - low) * room

    block = len(names) * (_BAR + _GAP) + _BETWEEN
    bottom = _TOP + len(rows) * block
    parts: list[str] = []
    for power in range(low, high + 1):
        at = along(10**power)
        parts += [_line(at, _TOP, at, bottom, "grid"), _text(at, bottom + 16, shown(10**power), anchor="middle")]
    for number, row in enumerate(rows):
        top = _TOP + number * block
        middle = top + (block - _BETWEEN) / 2
        parts.append(tag("g", tag("title", row.label), _text(_LABELS - 12, middle + 4, cut(row.label), "label", "end")))
        for index, (name, kind, value) in enumerate(zip(names, kinds, row.values, strict=True)):
            y = top + index * (_BAR + _GAP)
            if value is None:
                continue
            parts.append(_rect(_LABELS, y, along(value) - _LABELS, _BAR, kind, f"{row.label}, {name}: {shown(value)}"))
            parts.append(_text(along(value) + 5, y + _BAR - 2, f"{shown(value)}", "value"))
    desc = "Bars on a logarithmic scale, for each group one for each percentile. The table has the same figures."
    return _svg(WIDTH, bottom + _BOTTOM, title, desc, parts)


# --- over time ----------------------------------------------------------------------------------------------------


def _scale(most: float) -> tuple[float, float]:
    """A round step, and the round number of them that `most` fits below."""
    if most <= 0:
        return 1, 1
    step = 10 ** floor(log10(most / 3))
    step = next((step * each for each in (1, 2, 5, 10) if most / (step * each) <= 4), step * 10)
    return step, ceil(most / step) * step


def lines(title: str, times: Sequence[datetime], series: Sequence[Line], shown: Shown) -> Markup:
    step, most = _scale(max((value for line in series for value in line.values if value is not None), default=0))
    right, bottom = HALF - _RIGHT, _TOP + _HEIGHT
    room = right - _LEFT

    def across(index: int) -> float:
        return _LEFT + (index / (len(times) - 1) if len(times) > 1 else 0.5) * room

    def up(value: float) -> float:
        return bottom - value / most * _HEIGHT

    parts: list[str] = []
    for number in range(round(most / step) + 1):
        at = up(number * step)
        kind = "axis" if number == 0 else "grid"
        parts += [_line(_LEFT, at, right, at, kind), _text(_LEFT - 8, at + 4, shown(number * step), anchor="end")]
    parts += _time_ticks(times, across, bottom + 16)
    for line in series:
        parts += _drawn(line, times, across, up, shown, is_alone=len(series) == 1, bottom=bottom)
    desc = f"Lines over time: {', '.join(line.name for line in series)}. The table has the same figures."
    return _svg(HALF, bottom + _BOTTOM, title, desc, parts)


def _time_ticks(times: Sequence[datetime], across: Callable[[int], float], y: float) -> list[str]:
    if not times:
        return []
    days = (times[-1] - times[0]).total_seconds() / 86_400
    pattern = "%H:%M:%S" if days < 0.02 else "%H:%M" if days < 1 else "%b %d %H:%M" if days < 4 else "%b %d"
    last = len(times) - 1
    chosen = sorted({round(last * part / 4) for part in range(5)})
    anchors = {0: "start", last: "end"} if last else {}
    return [
        _text(across(index), y, times[index].astimezone(UTC).strftime(pattern), anchor=anchors.get(index, "middle"))
        for index in chosen
    ]


def _drawn(
    line: Line,
    times: Sequence[datetime],
    across: Callable[[int], float],
    up: Callable[[float], float],
    shown: Shown,
    *,
    is_alone: bool,
    bottom: float,
) -> list[str]:
    parts: list[str] = []
    for run in _runs(line.values):
        points = [f"{across(index):.1f},{up(value):.1f}" for index, value in run]
        if len(run) == 1:
            continue
        if is_alone:
            area = [f"{across(run[0][0]):.1f},{bottom:.1f}", *points, f"{across(run[-1][0]):.1f},{bottom:.1f}"]
            parts.append(tag("polygon", points=" ".join(area), class_=f"area {line.kind}"))
        parts.append(tag("polyline", points=" ".join(points), class_=f"line {line.kind}"))
    for index, value in enumerate(line.values):
        if value is not None:
            told = f"{times[index].astimezone(UTC):%Y-%m-%d %H:%M:%S} {line.name}: {shown(value)}"
            is_lone = _is_lone(line.values, index)
            kind = f"dot {line.kind}" if is_lone else "spot"
            radius = "3" if is_lone else "6"
            parts.append(
                tag(
                    "circle",
                    tag("title", told),
                    cx=f"{across(index):.1f}",
                    cy=f"{up(value):.1f}",
                    r=radius,
                    class_=kind,
                )
            )
    return parts


def _is_lone(values: Sequence[float | None], index: int) -> bool:
    """Without neighbours there is no line to it."""
    beside = [values[other] for other in (index - 1, index + 1) if 0 <= other < len(values)]
    return all(value is None for value in beside)


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Between gaps."""
    found: list[list[tuple[int, float]]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            found.append([])
        else:
            found[-1].append((index, value))
    return [run for run in found if run]


# --- columns ------------------------------------------------------------------------------------------------------


class Bar(NamedTuple):
    label: str
    value: float
    is_marked: bool


def columns(title: str, bars: Sequence[Bar], even: float, shown: Shown) -> Markup:
    """With a line where all would be if they were even. Of very many, the highest."""
    drawn = sorted(bars, key=lambda bar: -bar.value)[:_COLUMNS_MAX] if len(bars) > _COLUMNS_MAX else list(bars)
    step, most = _scale(max([even, *(bar.value for bar in drawn)]))
    right, bottom = HALF - _RIGHT, _TOP + _HEIGHT
    each = (right - _LEFT) / max(len(drawn), 1)
    thick = min(each * 0.7, 44)

    def up(value: float) -> float:
        return bottom - value / most * _HEIGHT

    parts: list[str] = []
    for number in range(round(most / step) + 1):
        at = up(number * step)
        kind = "axis" if number == 0 else "grid"
        parts += [_line(_LEFT, at, right, at, kind), _text(_LEFT - 8, at + 4, shown(number * step), anchor="end")]
    every = ceil(len(drawn) / 16)
    for index, bar in enumerate(drawn):
        middle = _LEFT + (index + 0.5) * each
        told = f"partition {bar.label}: {shown(bar.value)}" + (", hot" if bar.is_marked else "")
        kind = "hot" if bar.is_marked else "bar"
        parts.append(_rect(middle - thick / 2, up(bar.value), thick, bottom - up(bar.value), kind, told))
        if index % every == 0:
            parts.append(_text(middle, bottom + 16, bar.label, anchor="middle"))
    if even > 0:
        parts += [
            _line(_LEFT, up(even), right, up(even), "even"),
            _text(right, up(even) - 5, "even", "even-text", "end"),
        ]
    desc = "Columns, one for each partition, and a line at the even share. The table has the same figures."
    return _svg(HALF, bottom + _BOTTOM, title, desc, parts)


def legend(names: Sequence[str], kinds: Sequence[str]) -> Markup:
    items = (tag("li", tag("span", class_=f"swatch {kind}"), name) for name, kind in zip(names, kinds, strict=True))
    return tag("ul", joined(items), class_="legend")
