"""Figures sorted by the rules of a plot into panels, and there into series: what is drawn, without how."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness import Figure
from reporting.plots import Plot, Rule
from reporting.results import Result

# Rates are drawn in one unit: 500 k and 2 M are 500,000 and 2,000,000.
_SCALED = re.compile(r"(k|M|thousand|million) (.+/s)")
_SCALES = {"k": 1e3, "thousand": 1e3, "M": 1e6, "million": 1e6}


@dataclass(frozen=True)
class Point:
    x: str
    value: float
    # The bar in the unit of the value, if there is one, and whether it holds.
    bar: float | None
    holds: bool | None


@dataclass
class Panel:
    title: str
    unit: str
    series: dict[str, list[Point]] = field(default_factory=dict)

    @property
    def points(self) -> list[Point]:
        return [point for points in self.series.values() for point in points]


def panels_of(plot: Plot, results: Iterable[Result]) -> list[Panel]:
    """Empty if no figure fits."""
    panels: dict[tuple[str, str], Panel] = {}
    for result in results:
        if result.script not in plot.scripts:
            continue
        for figure in result.figures:
            if (taken := _taken(plot.rules, figure)) is None:
                continue
            rule, match = taken
            scale, unit = scaled(figure.unit)
            title = match.expand(rule.panel)
            panel = panels.setdefault((title, unit), Panel(title, unit))
            point = Point(match.expand(rule.x), figure.value * scale, _bar(figure, scale), figure.holds)
            panel.series.setdefault(match.expand(rule.series), []).append(point)
    return list(panels.values())


def names_taken(plot: Plot, result: Result) -> set[str]:
    return {figure.name for figure in result.figures if _taken(plot.rules, figure) is not None}


def number(text: str) -> float:
    """Of `1,000`, `p99.9` or `100 a batch`."""
    digits = re.search(r"[\d.]+", text.replace(",", ""))
    return float(digits[0]) if digits else 0.0


def short(value: float, unit: str) -> str:
    """Three digits; of rates with k or M behind them, if they do not count bytes."""
    value = float(f"{value:.3g}")
    if unit.endswith("/s") and not unit.endswith("B/s"):
        for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:g} {letter}"
    return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:g}"


def scaled(unit: str) -> tuple[float, str]:
    """What a value is to be multiplied by, and its unit then."""
    match = _SCALED.fullmatch(unit)
    scale, plain = (_SCALES[match[1]], match[2]) if match else (1.0, unit)
    return scale, plain.replace("msg/s", "messages/s")


def _taken(rules: Iterable[Rule], figure: Figure) -> tuple[Rule, re.Match[str]] | None:
    for rule in rules:
        if match := rule.match(figure.name, figure.unit):
            return rule, match
    return None


def _bar(figure: Figure, scale: float) -> float | None:
    """Targets are `>= 5` and `<= 1.25`."""
    return None if figure.target is None else float(figure.target.split()[1]) * scale
