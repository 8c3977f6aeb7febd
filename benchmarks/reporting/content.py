"""The page as blocks, from results and prose. A figure that misses its target is told at the top, and in its table."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from harness import Figure, tidy
from reporting import results as kept
from reporting.blocks import Block, Bullets, Code, Heading, Picture, Table, Text
from reporting.plots import PLOTS, Kind, Plot
from reporting.prose import INTRO, METHOD, OTHERS, PEERS, SECTIONS, Section
from reporting.results import Result, Setting
from reporting.series import Panel, Point, names_taken, number, panels_of, short

MISSES = "**NO**"
# How a script tells what its names are made of. The rest of its head is about that.
NOT_FOR_READERS = "Names of figures"


def page(results: Sequence[Result], scripts: Sequence[str], *, can_draw: bool) -> list[Block]:
    """Of these scripts; those without a result are named."""
    blocks: list[Block] = [Heading(1, "Benchmarks"), Text(INTRO)]
    blocks += _quick(results)
    blocks += _in_short(results)
    blocks += _left_out(results, scripts, can_draw)
    blocks += _settings(results)
    blocks += METHOD
    blocks += PEERS
    for section in _sections(scripts):
        blocks += _section(section, results, can_draw)
    return blocks


# --- the top ------------------------------------------------------------------------------------------------


def _quick(results: Iterable[Result]) -> Iterator[Block]:
    quick = [result.script for result in results if result.is_quick]
    if quick:
        yield Text(
            f"**These are of a quick run, on little data: the figures mean nothing.** That is so for {_list(quick)}."
        )


def _in_short(results: Sequence[Result]) -> Iterator[Block]:
    yield Heading(2, "What holds, and what does not")
    barred = [figure for result in results for figure in result.figures if figure.holds is not None]
    misses = [(result.script, figure) for result in results for figure in result.misses]
    figures = sum(len(result.figures) for result in results)
    yield Text(
        f"{figures} figures by {len(results)} scripts. {len(barred)} of them have a target: "
        f"{len(barred) - len(misses)} hold, **{len(misses)} {'does' if len(misses) == 1 else 'do'} not**."
    )
    if misses:
        rows = [(f"`{script}`", *_row(figure)) for script, figure in misses]
        yield Table(("script", "what misses its target", "measured", "target", "holds"), rows, right=(2,))


def _left_out(results: Sequence[Result], scripts: Sequence[str], can_draw: bool) -> Iterator[Block]:
    lines = []
    if absent := kept.missing(results, scripts):
        lines.append(f"No results yet, and so no table and no plot: {_list(absent)}.")
    if broken := [result.script for result in results if result.is_broken]:
        lines.append(f"**Broke down** before the end; what they had found until then is shown: {_list(broken)}.")
    measured = {result.script for result in results}
    for plot in PLOTS:
        if measured & set(plot.scripts) and not panels_of(plot, results):
            lines.append(f"No figures for the plot “{plot.title}” from {_list(plot.scripts)}.")
    skipped = dict.fromkeys(line for result in results for line in result.said if _is_skipped(line))
    lines += [f"Not measured: {line}" for line in skipped]
    if not can_draw:
        lines.append("No plots: matplotlib is not installed (`pip install 'penstock[bench]'`).")
    if lines:
        yield Text("What is not here:")
        yield Bullets(lines)


def _settings(results: Sequence[Result]) -> Iterator[Block]:
    yield Heading(2, "Machine, versions, commands")
    places: dict[str, list[Result]] = {}
    for result in results:
        places.setdefault(_described(result.setting), []).append(result)
    if len(places) == 1:
        yield Text(next(iter(places)))
    else:
        yield Bullets([f"{told} ({_list([result.script for result in those])})" for told, those in places.items()])
    yield Text("All of it again, first the figures and then this page:")
    yield Code("make bench\nmake bench-report")
    yield Text(
        "One script alone shows its own table: the command stands beside each question. `--quick` only tries "
        "whether it runs. Peers that are not installed are skipped, and a line says so."
    )


def _described(setting: Setting) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in setting.versions.items())
    return f"{setting.hardware}; {setting.machine}. {versions}."


# --- questions ----------------------------------------------------------------------------------------------


def _sections(scripts: Sequence[str]) -> Iterator[Section]:
    placed = {script for section in SECTIONS for script in section.scripts}
    others = tuple(script for script in scripts if script not in placed)
    yield from SECTIONS
    if others:
        yield Section(OTHERS, "", others)


def _section(section: Section, results: Sequence[Result], can_draw: bool) -> Iterator[Block]:
    here = [result for script in section.scripts for result in results if result.script == script]
    if not here:
        return
    yield Heading(2, section.title)
    if section.intro:
        yield Text(section.intro)
    drawn: set[str] = set()
    for result in here:
        pictures = [plot for plot in PLOTS if result.script in plot.scripts and plot.slug not in drawn]
        drawn |= {plot.slug for plot in pictures}
        yield from _question(result, pictures, results, can_draw)


def _question(result: Result, plots: Sequence[Plot], results: Sequence[Result], can_draw: bool) -> Iterator[Block]:
    question, _, rest = result.question.partition("\n")
    yield Heading(3, question)
    for paragraph in rest.strip("\n").split("\n\n"):
        if paragraph.startswith(NOT_FOR_READERS):
            break
        if paragraph.startswith("    "):
            yield Code(textwrap.dedent(paragraph))
        elif paragraph:
            yield Text(" ".join(paragraph.split()))
    yield Code(f".venv/bin/python benchmarks/{result.script}.py")
    if result.is_broken:
        yield Text(f"**The script broke down** (exit code {result.exit_code}). This is what it had found until then.")
    in_columns: set[str] = set()
    for plot in plots:
        panels = panels_of(plot, results)
        if panels and can_draw:
            yield Picture(plot, panels)
        if plot.kind is Kind.LINES:
            yield from _columns(plot, panels)
            in_columns |= names_taken(plot, result)
    if rows := [_row(figure) for figure in result.figures if figure.name not in in_columns]:
        yield Table(("figure", "measured", "target", "holds"), rows, right=(1,))
    if result.said:
        yield Bullets(result.said)


def _columns(plot: Plot, panels: Iterable[Panel]) -> Iterator[Table]:
    """A table for each panel with a column for each x: what are lines on the plot are rows here."""
    for panel in panels:
        xs = sorted({point.x for point in panel.points}, key=number)
        rows = []
        for name, points in panel.series.items():
            cells = {point.x: _cell(point, panel.unit) for point in points}
            rows.append((name, *(cells.get(x, "") for x in xs)))
        head = f"{panel.title}: {panel.unit}, by {plot.x_label}"
        yield Table((head, *xs), rows, right=range(1, len(xs) + 1))


def _cell(point: Point, unit: str) -> str:
    told = short(point.value, unit)
    return f"**{told}, misses {short(point.bar or 0, unit)}**" if point.holds is False else told


def _row(figure: Figure) -> tuple[str, str, str, str]:
    holds = "" if figure.holds is None else "yes" if figure.holds else MISSES
    target = (figure.target or "").replace(">=", "≥").replace("<=", "≤")
    return figure.name, f"{tidy(figure.value)} {figure.unit}".strip(), target, holds


def _is_skipped(line: str) -> bool:
    return ": skipped" in line


def _list(scripts: Iterable[str]) -> str:
    return ", ".join(f"`{script}`" for script in scripts)
