"""The page as docs/benchmarks.md, with its plots as PNG in docs/benchmarks/."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from reporting import content
from reporting.blocks import Block, Bullets, Code, Heading, Picture, Table, Text
from reporting.results import Result

NAME = "benchmarks"
_WHY = "Where the time goes, and what was tried: [performance](internals/performance.md).\n"
_NOTE = (
    "<!-- Made by `make bench-report` from bench-results/. What is changed here by hand is gone with the next. -->\n\n"
)


def write(docs: Path, results: Sequence[Result], scripts: Sequence[str]) -> Path:
    """Plots of scripts that are gone are removed; other files in there are left alone."""
    can_draw = importlib.util.find_spec("matplotlib") is not None
    blocks = content.page(results, scripts, can_draw=can_draw)
    pictures = docs / NAME
    pictures.mkdir(parents=True, exist_ok=True)
    for old in pictures.glob("*.png"):
        old.unlink()
    draw(blocks, pictures)
    path = docs / f"{NAME}.md"
    path.write_text(f"{_NOTE}{render(blocks, NAME)}\n{_WHY}", encoding="utf-8")
    return path


def draw(blocks: Sequence[Block], directory: Path) -> None:
    for block in blocks:
        if isinstance(block, Picture):
            from reporting.draw import png

            (directory / f"{block.plot.slug}.png").write_bytes(png(block.plot, block.panels))


def render(blocks: Sequence[Block], pictures: str) -> str:
    return "\n\n".join(_rendered(block, pictures) for block in blocks) + "\n"


def _rendered(block: Block, pictures: str) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {text}"
        case Text(text):
            return text
        case Bullets(items):
            return "\n".join(f"- {item}" for item in items)
        case Code(text):
            return f"```text\n{text.rstrip()}\n```" if not _is_command(text) else f"```sh\n{text}\n```"
        case Table():
            return _table(block)
        case Picture(plot, _):
            return f"![{plot.title}]({pictures}/{plot.slug}.png)"


def _is_command(text: str) -> bool:
    return text.startswith(("make ", ".venv/"))


def _table(table: Table) -> str:
    rules = ["--:" if column in table.right else "---" for column in range(len(table.head))]
    lines = [table.head, rules, *([cell.replace("|", "\\|") for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
