"""Every block of the README is run, and prints what the README shows below it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from broker_process import broker_process

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()

# What differs from run to run: ids and times.
_VARIABLE = re.compile(r"\b[0-9a-f]{32}\b|\b\d{4}-\d\d-\d\dT[0-9:.]+Z")
_CUT_SHORT = "…"
# What a pipeline says to people only.
_LOG_OF_SPARK = re.compile(r"^\S+ starts on local\[\*\]; Spark's log: \S+\n|^Spark: .*\n", re.M)


class Block(NamedTuple):
    language: str
    text: str


BLOCKS = [Block(*match) for match in re.findall(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)]


def shown_below(block: Block) -> str | None:
    """The output block that follows, if the next block is one."""
    for this, following in pairwise(BLOCKS):
        if this is block and following.language == "text":
            return following.text
    return None


def assert_shown(printed: str, shown: str) -> None:
    """Line by line; a line that ends in … shows only how the printed one starts."""
    printed_lines = [_VARIABLE.sub("#", line.rstrip()) for line in printed.rstrip().splitlines()]
    shown_lines = [_VARIABLE.sub("#", line.rstrip()) for line in shown.rstrip().splitlines()]
    assert len(printed_lines) == len(shown_lines), printed
    for printed_line, shown_line in zip(printed_lines, shown_lines, strict=True):
        if shown_line.endswith(_CUT_SHORT):
            assert printed_line.startswith(shown_line.removesuffix(_CUT_SHORT).rstrip())
        else:
            assert printed_line == shown_line


def run(command: list[str], directory: Path) -> str:
    wide = {**os.environ, "COLUMNS": "200"}
    result = subprocess.run(command, cwd=directory, env=wide, capture_output=True, text=True, timeout=560, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert _LOG_OF_SPARK.sub("", result.stderr) == ""
    return result.stdout


def needs_spark(block: Block) -> bool:
    return "penstock pipeline" in block.text


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the blocks run, one after the other as a reader would; with the clone's .venv in it."""
    path = tmp_path_factory.mktemp("readme")
    (path / ".venv").mkdir()
    (path / ".venv/bin").symlink_to(Path(sys.executable).parent)
    for block in BLOCKS:
        if block.language == "python":
            (path / "block.py").write_text(block.text)
            shown = shown_below(block)
            assert shown is not None, "a python block without the output it prints"
            assert_shown(run([sys.executable, "-W", "error", "block.py"], path), shown)
    return path


def test_the_readme_and_start_do_not_share_a_directory_and_leave_nothing_for_git() -> None:
    start = (ROOT / "docs/start.md").read_text(encoding="utf-8")
    ours = re.findall(r'penstock\.(?:open\(|Ring\(journal=)"(.*?)"\) as', README)
    its = re.findall(r"serve --data (\S+)", start)
    assert set(ours).isdisjoint(its)
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {f"/{directory}/" for directory in [*ours, *its]} <= set(ignored)
    assert ours
    assert its


def commands() -> list[str]:
    return [line for block in BLOCKS if block.language == "sh" for line in block.text.splitlines() if line.strip()]


def test_the_python_blocks_print_what_is_shown(directory: Path) -> None:
    assert any(block.language == "python" for block in BLOCKS)
    assert (directory / "data/catalog").exists()


def test_the_penstock_commands_print_what_is_shown(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker_process(tmp_path / "data") as broker:
        monkeypatch.setenv("PENSTOCK_SERVER", broker.address)
        monkeypatch.setenv("PENSTOCK_PIPELINES", str(tmp_path / "pipelines"))
        for block in BLOCKS:
            if needs_spark(block) and shutil.which("java") is None:
                continue
            if block.language == "sh" and block.text.startswith(".venv/bin/penstock "):
                shown = shown_below(block)
                assert shown is not None, "commands without the output they print"
                printed = [run(shlex.split(command), directory) for command in block.text.splitlines()]
                assert_shown("".join(printed), shown)


@pytest.mark.parametrize("command", [line for line in commands() if line.startswith("make ")])
def test_a_make_command_names_a_target(command: str) -> None:
    for target in command.split()[1:]:
        assert re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE), target


def test_what_needs_spark_is_shown_by_commands_that_are_run() -> None:
    assert any(needs_spark(block) and block.text.startswith(".venv/bin/penstock ") for block in BLOCKS)


def test_every_command_is_of_a_kind_that_is_checked() -> None:
    assert {line.split()[0] for line in commands()} <= {"make", ".venv/bin/penstock"}
    assert {block.language for block in BLOCKS} <= {"sh", "python", "text"}
