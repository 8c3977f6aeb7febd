"""docs/benchmarks.md and its plots, from what `make bench` left in bench-results/: `make bench-report`.

Nothing is measured, unless --run-missing asks for the scripts that have no results. Results of a quick run are no
results: their figures mean nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import run
from harness import ROOT
from reporting import html, markdown, results
from run import SCRIPTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "bench-results", help="where the figures are")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where the page goes (default: docs)")
    parser.add_argument("--run-missing", action="store_true", help="run those scripts first that have no results")
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="where those write (default: build)")
    options = parser.parse_args()
    absent = results.missing(_measured(options.results), SCRIPTS)
    if absent and options.run_missing:
        run.run_all(absent, options.dir, options.results)
    measured = _measured(options.results)
    if not measured:
        told = f"there are no results of a full run in {options.results}, or only of an older form"
        print(f"{told}: run `make bench` first; nothing is written", file=sys.stderr)
        sys.exit(1)
    for script in results.missing(measured, SCRIPTS):
        print(f"{script}: no results yet, its tables and plots are left out; {_why(options.results, script)}")
    run.tell_failures(measured)
    print(f"written: {markdown.write(options.docs, measured, SCRIPTS)}")
    print(f"written: {html.write(options.results, SCRIPTS)}")


def _measured(directory: Path) -> list[results.Result]:
    return [result for result in results.read_all(directory, SCRIPTS) if not result.is_quick]


def _why(directory: Path, script: str) -> str:
    if not (directory / f"{script}.json").exists():
        return f"run .venv/bin/python benchmarks/run.py {script}, or this with --run-missing"
    if results.read(directory, script) is None:
        return "its file is of an older form, run it again"
    return "there is only a quick run of it, run it again without --quick"


if __name__ == "__main__":
    main()
