"""`make docs` builds every page, and reports links that lead nowhere."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from docs.page import ROOT


@pytest.fixture(scope="module")
def docs() -> Any:
    spec = importlib.util.spec_from_file_location("tools_docs", ROOT / "tools" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(root: Path, **pages: str) -> Path:
    (root / "docs").mkdir(parents=True)
    for name, text in pages.items():
        (root / "docs" / f"{name}.md").write_text(text, encoding="utf-8")
    return root


def test_every_link_finds_its_file_and_its_heading(docs: Any) -> None:
    found = docs.pages()
    assert {ROOT / "README.md", ROOT / "docs" / "start.md"} <= found.keys()
    assert docs.broken_links(found) == []


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ("missing.md", "no such file"),
        ("other.md#missing", "no such heading"),
        ("#missing", "no such heading"),
        ("../picture.png#missing", "no such heading"),
    ],
)
def test_a_link_that_leads_nowhere_is_reported(docs: Any, tmp_path: Path, link: str, why: str) -> None:
    written(tmp_path, page=f"# A page\n\n- [a link\n  over two lines]({link})\n", other="# Other\n")
    (tmp_path / "picture.png").touch()
    (said,) = docs.broken_links(docs.pages(tmp_path))
    assert f"page.md: {link}: " in said
    assert why in said


def test_headings_have_the_anchors_that_github_gives_them(docs: Any, tmp_path: Path) -> None:
    written(tmp_path, page='# `durability="interval"`\n\n## What it *does*, and how\n\n## Twice\n\n## Twice\n')
    (page,) = docs.pages(tmp_path).values()
    assert page.anchors == ["durabilityinterval", "what-it-does-and-how", "twice", "twice-1"]


def test_built_pages_link_to_each_other_and_to_files_of_the_repository(docs: Any, tmp_path: Path) -> None:
    root = written(
        tmp_path / "root",
        README="# All <pages>\n\n[one](one.md#first) [out](https://example.org/a.md) ![picture](../picture.png)\n",
        one="# One\n\n## First\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
    )
    (root / "picture.png").touch()
    target = root / "build"

    found = docs.pages(root)
    assert docs.broken_links(found) == []
    docs.build(found, target, root)

    home = (target / "docs" / "README.html").read_text(encoding="utf-8")
    assert 'href="one.html#first"' in home
    assert 'href="https://example.org/a.md"' in home
    assert 'src="../../picture.png"' in home
    one = (target / "docs" / "one.html").read_text(encoding="utf-8")
    assert '<h2 id="first">' in one
    assert "<td>2</td>" in one
    assert 'href="README.html"' in one
