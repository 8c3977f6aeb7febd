"""The page as one file, bench-results/report.html: plots inside it, light and dark, nothing from anywhere else."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from reporting import content, markdown
from reporting import results as kept
from reporting.blocks import Block, Bullets, Code, Heading, Picture, Table, Text
from reporting.content import MISSES

_STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --card: #f6f8fa; --ink: #1c2430; --muted: #5b6673; --grid: #e3e7ec;
  --miss: #c0261c; --good: #1d7a46; --accent: #0f8fb3 }
@media (prefers-color-scheme: dark) { :root { --paper: #12161c; --card: #1a2029; --ink: #e6eaf0; --muted: #9aa6b4;
  --grid: #2c3542; --miss: #ff7b6e; --good: #5fd08f; --accent: #4fc3e0 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2rem 1.25rem 6rem; max-width: 60rem; background: var(--paper); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
h1 { font-size: 2rem; margin: 0 0 .5rem }
h2 { margin: 3rem 0 .75rem; padding-top: 1rem; border-top: 1px solid var(--grid) }
h3 { margin: 2.25rem 0 .5rem } p, li { max-width: 48rem }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1rem; margin: 1rem 0 } a { color: var(--accent) }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .87em }
code, pre { background: var(--card); border-radius: 4px } code { padding: .1em .3em }
pre { padding: .7rem .9rem; overflow-x: auto } pre code { padding: 0 }
.wide { overflow-x: auto; margin: 1rem 0 } table { border-collapse: collapse; width: 100%; font-size: .93em }
th, td { padding: .35rem .7rem .35rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--grid) }
th { color: var(--muted); font-weight: 600 }
th.n, td.n { padding-right: 1.4rem; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
tr.miss td { color: var(--miss); font-weight: 600 } td.yes { color: var(--good) } td.bad { color: var(--miss) }
figure { margin: 1.25rem 0; padding: 1rem; background: var(--card); border-radius: 8px; overflow-x: auto }
figure svg { display: block; width: 100%; min-width: 36rem; height: auto }
"""
_MARKS = ((r"`([^`]+)`", r"<code>\1</code>"), (r"\*\*([^*]+)\*\*", r"<strong>\1</strong>"))


def write(directory: Path, scripts: Sequence[str]) -> Path:
    """From all results in there, with the plots as PNG beside it."""
    can_draw = importlib.util.find_spec("matplotlib") is not None
    blocks = content.page(kept.read_all(directory, scripts), scripts, can_draw=can_draw)
    markdown.draw(blocks, directory)
    path = directory / "report.html"
    path.write_text(render(blocks), encoding="utf-8")
    return path


def render(blocks: Sequence[Block]) -> str:
    chapters = [block.text for block in blocks if isinstance(block, Heading) and block.level == 2]
    links = "".join(f'<a href="#{_anchor(text)}">{_inline(text)}</a>' for text in chapters)
    body = "\n".join(_rendered(block) + (f"<nav>{links}</nav>" if _is_title(block) else "") for block in blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Penstock: benchmarks</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _rendered(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f'<h{level} id="{_anchor(text)}">{_inline(text)}</h{level}>'
        case Text(text):
            return f"<p>{_inline(text)}</p>"
        case Bullets(items):
            return f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</ul>"
        case Code(text):
            return f"<pre><code>{escape(text)}</code></pre>"
        case Table():
            return _table(block)
        case Picture(plot, panels):
            from reporting.draw import svg

            return f'<figure role="img" aria-label="{escape(plot.title)}">{svg(plot, panels)}</figure>'


def _table(table: Table) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{_class(table, at, text)}>{_inline(text)}</{tag}>" for at, text in enumerate(row))

    opening = {True: '<tr class="miss">', False: "<tr>"}
    rows = "".join(f"{opening[MISSES in row]}{cells(row, 'td')}</tr>" for row in table.rows)
    return (
        f'<div class="wide"><table><thead><tr>{cells(table.head, "th")}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _class(table: Table, column: int, text: str) -> str:
    if column in table.right:
        return ' class="n bad"' if text.startswith("**") else ' class="n"'
    return ' class="yes"' if text == "yes" else ""


def _inline(text: str) -> str:
    marked = escape(text, quote=False)
    for pattern, tag in _MARKS:
        marked = re.sub(pattern, tag, marked)
    return marked


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _is_title(block: Block) -> bool:
    return isinstance(block, Heading) and block.level == 1
