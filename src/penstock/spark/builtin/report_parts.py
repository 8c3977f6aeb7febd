"""What pages of reports are put together from: tables and notes."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.spark.builtin import report_words as words
from penstock.spark.builtin.report_markup import Markup, joined, tag
from penstock.spark.builtin.report_tables import Row

SPANS = {"p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9", "max": "max"}


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], *, names: int = 1) -> Markup:
    """The first `names` columns are text, the others numbers."""
    kinds = ["name" if index < names else "number" for index in range(len(heads))]
    head = tag("tr", *(tag("th", text, scope="col", class_=kind) for text, kind in zip(heads, kinds, strict=True)))
    body = (
        tag("tr", *(tag("th" if i == 0 else "td", cell, class_=kinds[i], scope="row" if i == 0 else None)
                    for i, cell in enumerate(row)))
        for row in rows
    )  # fmt: skip
    table = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", joined(body)))
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def folded(table: Markup) -> Markup:
    return tag("details", tag("summary", "Figures"), table)


def span_cells(row: Row, of: str) -> list[str]:
    return [words.span(row[f"{of}_{name}_us"]) for name in SPANS]


def mark(text: str, is_bad: bool) -> Markup:
    return tag("span", text, class_="bad") if is_bad else joined([text])


def note(text: str) -> Markup:
    return tag("p", text, class_="note")


def span(us: float) -> str:
    return words.span(round(us)) if us else "0"
