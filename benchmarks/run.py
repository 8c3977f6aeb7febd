"""All benchmarks, one after the other: `make bench`. Figures go to bench-results/, one file a script."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import harness
from harness import ROOT, Figure

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
    "throughput",
    "latency",
    "doors",
    "neighbours",
    "start",
    "spark_scan",
    "spark_sink",
    "spark_stream",
    "spark_archive",
)


def run_script(name: str, arguments: list[str]) -> tuple[list[Figure], int]:
    """Its figures and its exit code: 1 is also that of a script which broke down, 2 that of one never started."""
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return [Figure(**json.loads(line)) for line in done.stdout.splitlines()], done.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", default=SCRIPTS, help=f"some of: {', '.join(SCRIPTS)}")
    parser.add_argument("--quick", action="store_true", help="the same code on little data")
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="where to write (default: build)")
    parser.add_argument("--results", type=Path, default=ROOT / "bench-results", help="where the figures go")
    options = parser.parse_args()
    arguments = ["--dir", str(options.dir), *(["--quick"] if options.quick else [])]
    options.dir.mkdir(parents=True, exist_ok=True)
    options.results.mkdir(parents=True, exist_ok=True)
    machine = harness.machine(options.dir)
    figures, failed = [], []
    for name in options.scripts:
        print(f"{name} …", file=sys.stderr, flush=True)
        found, code = run_script(name, arguments)
        written = {"script": name, "machine": machine, "figures": [figure._asdict() for figure in found]}
        (options.results / f"{name}.json").write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")
        figures += [figure._replace(name=f"{name}: {figure.name}") for figure in found]
        if code:
            failed.append(name)
    harness.show("Benchmarks", figures, machine)
    if failed:
        print(f"a target does not hold, or the script broke down: {', '.join(failed)}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
