"""Panels to pictures: PNG for docs/ and for a look, SVG for the page in one file. The only place that knows matplotlib.

A contender has the same colour on every plot; settings that do not sync before they answer are lighter or dashed. A
target is a dashed line across its row; what misses it is told in words and in red. Text in the SVG stays text, and
takes its colours from the page around it, so that it follows light and dark.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from PIL import Image

from reporting.plots import Kind, Plot, contender, is_durable
from reporting.series import Panel, Point, number, short

WIDTH_IN = 8.8
ROW_IN = 0.3
DPI = 140
PNG_COLOURS = 128
LABEL_CHARACTERS_MAX = 46
COLOURS = {
    "penstock": "#0f8fb3",
    "Redis": "#d1495b",
    "NATS": "#7a5cd6",
    "RabbitMQ": "#e8862e",
    "RabbitMQ streams": "#b8651b",
    "Kafka": "#6f8f3a",
    "queue.Queue": "#c25fa3",
    "SimpleQueue": "#8f6fb0",
    "multiprocessing.Queue": "#4e9a6b",
    "janus": "#b8912b",
    "deque": "#9c7a5b",
    "limit": "#8b939c",
}
MARKERS = "oDsv"
LEGEND_COLUMNS = 3
# Of the letters in a row, with some to spare.
LETTER_IN = 0.08
# Of the width, for what is written behind a bar.
ROOM_MAX = 0.65


@dataclass(frozen=True)
class Theme:
    ink: str
    muted: str
    grid: str
    miss: str
    paper: str
    # What hollow marks are filled with.
    face: str


LIGHT = Theme(ink="#1c2430", muted="#5b6673", grid="#e3e7ec", miss="#c0261c", paper="#ffffff", face="#ffffff")
# Colours that nothing else has; they are replaced by what the page defines.
PAGE = Theme(ink="#010203", muted="#010204", grid="#010205", miss="#010206", paper="none", face="#010207")
_VARIABLES = {PAGE.ink: "ink", PAGE.muted: "muted", PAGE.grid: "grid", PAGE.miss: "miss", PAGE.face: "card"}


def png(plot: Plot, panels: Sequence[Panel]) -> bytes:
    """In as few colours as do: a third of the bytes, which stay in a repository for good."""
    with mpl.rc_context(_settings(LIGHT)):
        drawn = _saved(_draw(plot, panels, LIGHT), "png", {"Software": None})
    to = io.BytesIO()
    Image.open(io.BytesIO(drawn)).convert("RGB").quantize(PNG_COLOURS, Image.Quantize.MAXCOVERAGE).save(
        to, "png", optimize=True
    )
    return to.getvalue()


def svg(plot: Plot, panels: Sequence[Panel]) -> str:
    """An element, without what stands around it in a file of its own."""
    with mpl.rc_context({**_settings(PAGE), "svg.hashsalt": plot.slug, "svg.fonttype": "none"}):
        text = _saved(_draw(plot, panels, PAGE), "svg", {"Date": None, "Creator": None}).decode()
    for colour, name in _VARIABLES.items():
        text = text.replace(colour, f"var(--{name})")
    # Clips and markers are referred to by id, and all plots share the page's.
    text = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{plot.slug}-", text)
    text = text[text.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)


def _settings(theme: Theme) -> dict[Any, Any]:
    return {
        "font.family": "DejaVu Sans",
        "font.size": 9.5,
        "text.color": theme.ink,
        "axes.labelcolor": theme.muted,
        "axes.edgecolor": theme.grid,
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": theme.grid,
        "xtick.color": theme.muted,
        "ytick.color": theme.ink,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "figure.facecolor": theme.paper,
        "axes.facecolor": "none",
        "legend.frameon": False,
    }


def _saved(canvas: Canvas, form: str, metadata: dict[str, str | None]) -> bytes:
    to = io.BytesIO()
    canvas.savefig(to, format=form, dpi=DPI, metadata=metadata, facecolor=canvas.get_facecolor())
    return to.getvalue()


# --- kinds --------------------------------------------------------------------------------------------------


def _draw(plot: Plot, panels: Sequence[Panel], theme: Theme) -> Canvas:
    if plot.kind is Kind.LINES:
        return _lines(plot, panels, theme)
    rows = [len(panel.series) for panel in panels]
    # Ratios are all of one kind; other panels may differ in size, and in unit.
    is_shared = plot.kind is Kind.RATIOS
    height = sum(rows) * ROW_IN + (0.45 if is_shared else 0.75) * len(panels) + 0.5
    canvas = _canvas(plot, panels, height, theme)
    grid = canvas.subplots(len(panels), squeeze=False, sharex=is_shared, height_ratios=[count + 0.4 for count in rows])
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        _frame_rows(axes, panel)
        _bound(axes, panels if is_shared else [panel], plot.kind)
        {Kind.BARS: _bars, Kind.RATIOS: _ratios, Kind.MARKS: _marks}[plot.kind](axes, panel, theme)
    return canvas


def _bars(axes: Axes, panel: Panel, theme: Theme) -> None:
    for row, (name, [point, *_]) in enumerate(panel.series.items()):
        axes.barh(row, point.value, height=0.62, color=_colour(name), alpha=1 if is_durable(name) else 0.5)
        _tell(axes, row, point.value, [point], panel, theme)


def _ratios(axes: Axes, panel: Panel, theme: Theme) -> None:
    axes.axvline(1, color=theme.muted, linewidth=1)
    for row, (name, [point, *_]) in enumerate(panel.series.items()):
        # Of `ours / theirs` the other one tells rows apart.
        colour = _colour(name.partition(" / ")[2] or name)
        face = colour if is_durable(name) else theme.face
        axes.plot([1, point.value], [row, row], color=colour, linewidth=2.4, alpha=1 if is_durable(name) else 0.5)
        axes.plot(point.value, row, "o", color=colour, markersize=8, markerfacecolor=face, markeredgewidth=2)
        _tell(axes, row, max(point.value, 1.0), [point], panel, theme)


def _marks(axes: Axes, panel: Panel, theme: Theme) -> None:
    found = sorted({point.x for point in panel.points}, key=number)
    shapes = {x: MARKERS[number % len(MARKERS)] for number, x in enumerate(found)}
    for row, (name, points) in enumerate(panel.series.items()):
        points = sorted(points, key=lambda point: point.value)
        values = [point.value for point in points]
        axes.plot(values, [row] * len(points), color=_colour(name), linewidth=2, alpha=0.4)
        for point in points:
            face = _colour(name) if is_durable(name) else theme.face
            edge = theme.face if is_durable(name) else _colour(name)
            axes.plot(point.value, row, shapes[point.x], markersize=8, markerfacecolor=face, markeredgecolor=edge)
        _tell(axes, row, values[-1], points, panel, theme)


def _lines(plot: Plot, panels: Sequence[Panel], theme: Theme) -> Canvas:
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    canvas = _canvas(plot, panels, 3.1 * rows + 0.5 + 0.24 * -(-len(names) // LEGEND_COLUMNS), theme)
    grid = canvas.subplots(rows, columns, squeeze=False, sharey=True)
    known: dict[str, Line2D] = {}
    for axes, panel in zip(grid.flat, panels, strict=False):
        _frame_lines(axes, panel, plot.x_label, theme)
        for name, points in panel.series.items():
            known[name] = _line(axes, name, sorted(points, key=lambda point: number(point.x)), theme)
        for bar in {point.bar for point in panel.points if point.bar is not None}:
            along = [number(point.x) for point in panel.points if point.bar == bar]
            axes.plot([min(along) / 1.2, max(along) * 1.2], [bar, bar], color=theme.ink, linestyle=(0, (2, 1)))
    top = grid[0][0]
    top.yaxis.set_major_locator(FixedLocator(_log_ticks(*top.get_ylim())))
    for row in grid:
        row[0].set_ylabel("" if panels[0].unit == "×" else panels[0].unit)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    lines = [known[name] for name in names]
    canvas.legend(lines, names, loc="outside lower left", ncols=LEGEND_COLUMNS, fontsize=9)
    return canvas


def _line(axes: Axes, name: str, points: Sequence[Point], theme: Theme) -> Line2D:
    [line] = axes.plot(
        [number(point.x) for point in points],
        [point.value for point in points],
        color=_colour(name),
        linestyle="-" if is_durable(name) else (0, (4, 2)),
        marker="o" if is_durable(name) else "s",
        markersize=5,
        linewidth=2.6 if contender(name) == "penstock" else 1.8,
    )
    for point in points:
        if point.holds is False:
            axes.plot(number(point.x), point.value, "x", color=theme.miss, markersize=11, markeredgewidth=2)
    return line


# --- parts --------------------------------------------------------------------------------------------------


def _canvas(plot: Plot, panels: Sequence[Panel], height: float, theme: Theme) -> Canvas:
    canvas = Canvas(figsize=(WIDTH_IN, height), layout="constrained")
    canvas.suptitle(plot.title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    if any(point.bar is not None for panel in panels for point in panel.points):
        canvas.text(0.99, 1 - 0.1 / height, "┆ target", ha="right", va="top", fontsize=9, color=theme.muted)
    return canvas


def _frame_rows(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title)
    names = ["\n".join(textwrap.wrap(name, LABEL_CHARACTERS_MAX)) for name in panel.series]
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.set_xlabel("" if panel.unit == "×" else panel.unit)


def _bound(axes: Axes, panels: Sequence[Panel], kind: Kind) -> None:
    """Room for everything, targets included, and at the right for what is written there."""
    if kind is Kind.BARS:
        axes.set_xlim(0, max(max(end, 0) / (1 - room) for end, room in _ends(panels)) or 1)
        axes.xaxis.set_major_locator(MaxNLocator(6))
    else:
        points = [point for panel in panels for point in panel.points]
        values = [number for point in points for number in (point.value, point.bar) if number is not None]
        # What is not above zero has no place on a logarithmic axis; its words say what it is.
        values = [number for number in [*values, *([1.0] if kind is Kind.RATIOS else [])] if number > 0] or [1.0]
        low = min(values)
        spread = max(math.log(max(end, low) / low) / (1 - room) for end, room in _ends(panels))
        spread = max(spread, math.log(1.5))
        axes.set_xscale("log")
        axes.set_xlim(low / math.exp(0.06 * spread), low * math.exp(spread))
        axes.xaxis.set_major_locator(FixedLocator(_log_ticks(axes.get_xlim()[0], 1.5 * max(values))))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value, panels[0].unit)))


def _ends(panels: Sequence[Panel]) -> Iterator[tuple[float, float]]:
    """Of each row: the last that is drawn, and which part of the width its words take behind that."""
    for panel in panels:
        for points in panel.series.values():
            end = max(max(point.value, point.bar or 0, 1.0 if panel.unit == "×" else 0) for point in points)
            yield end, min(_room(panels, _words(points, panel.unit)), ROOM_MAX)


def _room(panels: Sequence[Panel], words: str) -> float:
    """Of the width of a panel. Names are at its left, all as wide as the widest; how wide is only known when drawn."""
    names = min(max(len(name) for panel in panels for name in panel.series), LABEL_CHARACTERS_MAX)
    return 0.04 + LETTER_IN * len(words) / (WIDTH_IN - LETTER_IN * names)


def _frame_lines(axes: Axes, panel: Panel, x_label: str, theme: Theme) -> None:
    axes.set_title(panel.title)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(x_label)
    axes.tick_params(axis="y", colors=theme.muted)
    axes.xaxis.set_major_locator(FixedLocator(sorted({number(point.x) for point in panel.points})))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value, panel.unit)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())


def _log_ticks(low: float, high: float) -> list[float]:
    """At 1, 2 and 5 of each power of ten; at the powers alone where that is many, and evenly where it is few."""
    powers = [10.0**power for power in range(-6, 10)]
    ticks = [step * power for power in powers for step in (1, 2, 5) if low <= step * power <= high]
    if len(ticks) > 9:
        return [power for power in powers if low <= power <= high]
    if len(ticks) > 2:
        return ticks
    evenly = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(tick) for tick in evenly if low <= tick <= high]


def _tell(axes: Axes, row: int, at: float, points: Sequence[Point], panel: Panel, theme: Theme) -> None:
    """Targets as lines across the row, and the values in words: right of what is drawn, and clear of the lines."""
    words = _words(points, panel.unit)
    at = max(at, axes.get_xlim()[0])
    is_missed = any(point.holds is False for point in points)
    # From values to parts of the width.
    place = (axes.transData + axes.transAxes.inverted()).transform
    for bar in sorted(point.bar for point in points if point.bar is not None):
        axes.plot([bar, bar], [row - 0.42, row + 0.42], color=theme.ink, linewidth=1.4, linestyle=(0, (2, 1)))
        if 0 < place((bar, row))[0] - place((at, row))[0] < _room([panel], words):
            at = bar
    axes.annotate(
        words,
        (at, row),
        (9, 0),
        textcoords="offset points",
        va="center",
        color=theme.miss if is_missed else theme.ink,
        fontsize=9,
        fontweight="bold" if is_missed else "normal",
    )


def _words(points: Sequence[Point], unit: str) -> str:
    return " · ".join(_told(point, unit) for point in points)


def _told(point: Point, unit: str) -> str:
    value = " ".join(part for part in (point.x, short(point.value, unit)) if part)
    missed = point.holds is False and point.bar is not None
    return f"{value}, misses {short(point.bar or 0, unit)}" if missed else value


def _colour(name: str) -> str:
    return COLOURS[contender(name)]
