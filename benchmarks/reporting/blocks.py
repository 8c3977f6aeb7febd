"""What a page is made of. In texts, `code`, **bold** and nothing else is marked up, as in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reporting.plots import Plot
from reporting.series import Panel


@dataclass(frozen=True)
class Heading:
    level: int
    text: str


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Bullets:
    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    text: str


@dataclass(frozen=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    # Of columns with numbers.
    right: Sequence[int] = ()


@dataclass(frozen=True)
class Picture:
    plot: Plot
    panels: Sequence[Panel]


Block = Heading | Text | Bullets | Code | Table | Picture
