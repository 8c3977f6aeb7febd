"""All benchmarks, one after the other: `make bench`.

In bench-results/ are then one JSON file a script (figures, what it said, machine, versions), the plots, and all of it
as one page, report.html. `make bench-report` makes docs/benchmarks.md of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import harness
from harness import ROOT, Figure
from reporting import html, results
from reporting.results import Result, Setting

HERE = Path(__file__).resolve().parent
SCRIPTS = (
    "append",
    "read",
    "commit",
    "point_read",
    "open",
    "groups",
    "leases",
    "delays",
    "backlog",
    "encode",
    "ring",
    "publish",
    "throughput",
    "latency",
    "doors",
    "neighbours",
    "hostile",
    "stalls",
    "scan_beside",
    "start",
    "scaling",
    "lanes",
    "key_order",
    "fan_out",
    "restart",
    "memory",
    "cluster_publish",
    "cluster_catchup",
    "cluster_failover",
    "cluster_rebalance",
    "cluster_idle",
    "spark_scan",
    "spark_sink",
    "spark_stream",
    "spark_archive",
)


def run_script(name: str, directory: Path, setting: Setting, *, is_quick: bool = False) -> Result:
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", "--dir", str(directory)]
    if is_quick:
        command.append("--quick")
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as said:
        environment = {**os.environ, harness.SAID: said.name}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
        lines = said.read().splitlines()
    return Result(
        script=name,
        question=results.question_of(HERE / f"{name}.py"),
        setting=setting,
        is_quick=is_quick,
        exit_code=done.returncode,
        said=tuple(dict.fromkeys(lines)),
        figures=tuple(Figure(**json.loads(line)) for line in done.stdout.splitlines()),
    )


def run_all(scripts: Sequence[str], directory: Path, kept: Path, *, is_quick: bool = False) -> list[Result]:
    """Each is kept as soon as it is there."""
    directory.mkdir(parents=True, exist_ok=True)
    kept.mkdir(parents=True, exist_ok=True)
    setting = results.setting(directory)
    found = []
    for name in scripts:
        print(f"{name} …", file=sys.stderr, flush=True)
        found.append(run_script(name, directory, setting, is_quick=is_quick))
        results.write(found[-1], kept)
    return found


def tell_failures(found: list[Result]) -> bool:
    """To stderr, if there are any. A quick run has no misses: its figures mean nothing."""
    broken = [result.script for result in found if result.is_broken]
    missed = [result.script for result in found if result.misses and not result.is_quick]
    for names, told in ((missed, "a target does not hold"), (broken, "the script broke down")):
        if names:
            print(f"{told}: {', '.join(names)}", file=sys.stderr)
    return bool(broken or missed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scripts", nargs="*", default=SCRIPTS, help=f"some of: {', '.join(SCRIPTS)}")
    parser.add_argument("--quick", action="store_true", help="the same code on little data")
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="where to write (default: build)")
    parser.add_argument("--results", type=Path, default=ROOT / "bench-results", help="where the figures go")
    options = parser.parse_args()
    if unknown := [name for name in options.scripts if name not in SCRIPTS]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(SCRIPTS)}")
    found = run_all(options.scripts, options.dir, options.results, is_quick=options.quick)
    figures = [figure._replace(name=f"{result.script}: {figure.name}") for result in found for figure in result.figures]
    harness.show("Benchmarks", figures, found[0].setting.machine)
    page = html.write(options.results, SCRIPTS)
    print(f"plots and tables: {page}", file=sys.stderr)
    if tell_failures(found):
        sys.exit(1)


if __name__ == "__main__":
    main()
