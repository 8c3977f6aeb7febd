"""The examples run, and print what they say they print."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def demo(temporary: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(ROOT / "examples/durable_log.py")]
    # As wide as what is looked for below.
    environment = {**os.environ, "TMPDIR": str(temporary), "COLUMNS": "160"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if not path.stem.startswith("test_"))


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ("durable_log", "all", "spark_notebook")])
def test_an_example_prints_what_it_says_it_prints(name: str, tmp_path: Path) -> None:
    path = ROOT / "examples" / f"{name}.py"
    described = ast.get_docstring(ast.parse(path.read_text()))
    assert described is not None
    expected = textwrap.dedent(described.split("It prints:\n")[1]).strip().splitlines()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0
    # What its handlers raise on purpose is logged.
    assert "the handler failed for" in done.stderr if name == "dead_letters" else done.stderr == ""
    assert done.stdout.splitlines() == expected
    assert list(tmp_path.iterdir()) == []


def test_the_example_of_a_test_passes() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "examples/test_reminders.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    assert match is not None, f"{pattern} not in:\n{text}"
    return int(match[1])


def test_the_demo_ends_well(demo: subprocess.CompletedProcess[str]) -> None:
    assert (demo.returncode, demo.stderr) == (0, ""), demo.stdout


def test_the_demo_finds_every_acknowledged_message_after_the_kill(demo: subprocess.CompletedProcess[str]) -> None:
    acknowledged = number(r"acknowledged before it died: (\d+) messages", demo.stdout)
    assert acknowledged > 3_000
    assert number(r"all (\d+) acknowledged messages are there", demo.stdout) == acknowledged
    # As far as it is not zeros, which nobody can tell from room.
    assert 80 < number(r"recovery: cut a torn tail of (\d+) bytes", demo.stdout) <= 100


def test_the_demo_names_the_damage_where_it_was_done(demo: subprocess.CompletedProcess[str]) -> None:
    damaged = re.search(r"byte \d+ of (\d{20}\.log)", demo.stdout)
    assert damaged is not None
    place = re.escape(f"{damaged[1]} at byte 64, offset {int(damaged[1][:20])}")
    assert re.search(rf"^  {place}: the body does not match its checksum", demo.stdout, re.MULTILINE)
    assert re.search(rf"LogCorrupt, code 'log_corrupt': {place}", demo.stdout)
    assert "ChecksumMismatch, code 'checksum_mismatch'" in demo.stdout
    assert "exit code 1" in demo.stdout


def test_the_demo_leaves_nothing_behind(demo: subprocess.CompletedProcess[str], temporary: Path) -> None:
    assert demo.returncode == 0
    assert list(temporary.iterdir()) == []


def test_all_examples_run_one_after_the_other() -> None:
    command = [sys.executable, "-W", "error", str(ROOT / "examples/all.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=560, check=False)
    assert done.returncode == 0, done.stdout
    assert all(f"(examples/{name}.py)" in done.stdout for name in EXAMPLES if name not in ("all", "spark_notebook"))
