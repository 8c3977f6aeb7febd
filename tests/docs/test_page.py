"""Whoever follows a page notices when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.page import as_told, blocks_of, commands_of, follow

PYTHON = "```python\nprint(1 + 1)\n```\n\n"


def followed(text: str, directory: Path) -> None:
    (directory / "page.md").write_text(text, encoding="utf-8")
    follow(directory / "page.md", directory)


@pytest.mark.parametrize(
    "text",
    [
        PYTHON + "```text\n2\n```",
        "```sh\n$ A=1\n$ echo $A\n1\n```\n\n```sh\n$ echo still $A\nstill …\n```",
        "```python\na = 1\n```\n\n```python\nprint(a)\n```\n\n```text\n1\n```",
        "```python given.py\nprint('given')\n```\n\n```sh\n$ python given.py\ngiven\n```",
        "```sh\n$ cat &\n$ echo two \\\n  words\ntwo words\n```",
        "```python before\nimport nothing_of_that_name\n```",
        "```sh\nmake setup\n. .venv/bin/activate\n```",
    ],
)
def test_a_page_that_is_right_passes(text: str, tmp_path: Path) -> None:
    followed(text, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        PYTHON + "```text\n3\n```",
        PYTHON,
        "```python\nraise ValueError\n```",
        "```python\nimport warnings\nwarnings.warn('old')\n```",
        "```python before\nthis is no Python at all\n```",
        "```sh\n$ echo 1\n2\n```",
        "```sh\n$ false\n```",
        "```sh\n$ false | cat\n```",
        "```sh\nrm nothing\n```",
        "```sh\nmake nothing-of-that-name\n```",
        "```text\nnobody prints this\n```",
        "```perl\nprint 1\n```",
    ],
)
def test_a_page_that_is_wrong_fails(text: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, SyntaxError)):
        followed(text, tmp_path)


def test_what_is_set_for_these_tests_is_not_set_for_those_of_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    given = "```python test_given.py\ndef test_it() -> None:\n    pass\n```\n\n"
    followed(given + "```sh\n$ pytest -q test_given.py\n…1 passed…\n```", tmp_path)


def test_an_ellipsis_stands_for_anything_and_blanks_do_not_matter() -> None:
    assert as_told("a  … c\n", "a b b\nb  c")
    assert not as_told("a … c", "a b d")


def test_commands_and_blocks_are_told_apart() -> None:
    (block,) = blocks_of("text\n```sh\n$ one \\\n  more\nprinted\n$ two\n```\n")
    assert block.line == 3
    assert [tuple(command) for command in commands_of(block)] == [("one \\\n  more", "printed\n"), ("two", "")]
