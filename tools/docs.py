"""Build the documentation as HTML in build/docs and check its links: `make docs`.

A link within the repository must find its file, and a `#fragment` its heading. Links to other sites are not followed.
Pictures and sources are not copied: the built pages link to them where they are.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "build" / "docs"
_FRAME = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ max-width: 50rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif }}
pre {{ overflow-x: auto; padding: .75rem; background: #8881 }}
table {{ border-collapse: collapse; display: block; overflow-x: auto }}
td, th {{ border: 1px solid #8884; padding: .25rem .5rem; text-align: left; vertical-align: top }}
img {{ max-width: 100% }}
</style>
<nav><a href="{home}">Penstock: documentation</a></nav>
{body}</html>
"""


class Page(NamedTuple):
    path: Path
    tokens: list[Token]
    # Of its headings, as GitHub forms them.
    anchors: list[str]


def pages(root: Path = ROOT) -> dict[Path, Page]:
    files = [*root.glob("*.md"), *sorted((root / "docs").rglob("*.md"))]
    return {file: _parsed(file) for file in files}


def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark").enable("table")


def _parsed(file: Path) -> Page:
    tokens = _markdown().parse(file.read_text(encoding="utf-8"))
    seen: Counter[str] = Counter()
    anchors = []
    for heading, text in pairwise(tokens):
        if heading.type == "heading_open":
            plain = "".join(part.content for part in text.children or [])
            slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
            anchors.append(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            heading.attrSet("id", anchors[-1])
            seen[slug] += 1
    return Page(file, tokens, anchors)


def _links(page: Page) -> Iterator[tuple[Token, str, str]]:
    """Each token with a link within the repository, the name of the attribute, and the link."""
    for token in page.tokens:
        for part in token.children or []:
            for name in ("href", "src"):
                link = str(part.attrGet(name) or "")
                if link and not re.match(r"[a-z]+:", link):
                    yield part, name, link


def broken_links(found: dict[Path, Page]) -> list[str]:
    broken = []
    for page in found.values():
        for _, _, link in _links(page):
            path, _, fragment = link.partition("#")
            file = (page.path.parent / path).resolve() if path else page.path
            if not file.exists():
                broken.append(f"{page.path}: {link}: there is no such file")
            elif fragment and (file not in found or fragment not in found[file].anchors):
                broken.append(f"{page.path}: {link}: {file.name} has no such heading")
    return broken


def build(found: dict[Path, Page], target: Path = TARGET, root: Path = ROOT) -> None:
    for page in found.values():
        html = _built(page.path, root, target)
        for part, name, link in _links(page):
            path, hash_, fragment = link.partition("#")
            if path:
                file = (page.path.parent / path).resolve()
                goal = _built(file, root, target) if file in found else file
                part.attrSet(name, os.path.relpath(goal, html.parent) + hash_ + fragment)
        markdown = _markdown()
        home = os.path.relpath(_built(root / "docs" / "README.md", root, target), html.parent)
        body = markdown.renderer.render(page.tokens, markdown.options, {})
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(_FRAME.format(title=escape(_title(page)), home=home, body=body), encoding="utf-8")


def _built(file: Path, root: Path, target: Path) -> Path:
    return (target / file.relative_to(root)).with_suffix(".html")


def _title(page: Page) -> str:
    return next((token.content for token in page.tokens if token.type == "inline"), page.path.name)


def main() -> None:
    found = pages()
    if broken := broken_links(found):
        sys.exit("\n".join(broken))
    build(found)
    print(f"{len(found)} pages: {TARGET / 'docs' / 'README.html'}")


if __name__ == "__main__":
    main()
