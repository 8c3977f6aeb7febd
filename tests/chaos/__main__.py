"""python -m tests.chaos FIRST [END] [--seconds S] [--fault KIND …] [--keep]: run seeds, and report what came of them.

The history and the logs of a run stay in the directory that is named if it had violations, or with --keep. From seed
1,000 on, runs are storms: many faults of all kinds within S seconds, and ordered groups beside the others.
"""

from __future__ import annotations

import argparse
import math
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.faults import FAULTS, impossible
from chaos.runs import STORM_S, Outcome, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("first", type=int, help="first seed")
    parser.add_argument("end", type=int, nargs="?", help="end of the seeds, exclusive; without it, one seed")
    parser.add_argument("--seconds", type=float, default=STORM_S, help="length of a storm (default: %(default)g)")
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), help="replaces the faults of the seed")
    parser.add_argument("--keep", action="store_true", help="keep the histories and logs of good runs, too")
    given = parser.parse_args()
    # Whatever ends this, no process and no mount stays behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    left_out = impossible()
    for kind, why in left_out.items():
        print(f"without {kind}: {why}")
    outcomes: list[Outcome] = []
    bad = 0
    seeds = range(given.first, given.end or given.first + 1)
    for seed in seeds:
        directory = Path(tempfile.mkdtemp(prefix=f"penstock-chaos-{seed}-"))
        began = time.monotonic()
        try:
            outcome = run_seed(seed, directory, left_out=left_out, faults=given.fault, seconds=given.seconds)
        except Exception as error:
            bad += 1
            print(f"seed {seed}: {error!r}; {directory}", flush=True)
            continue
        outcomes.append(outcome)
        is_kept = bool(given.keep or outcome.violations)
        where = f", {directory}" if is_kept else ""
        print(f"{outcome}, {time.monotonic() - began:.1f} s{where}", flush=True)
        if not is_kept:
            shutil.rmtree(directory)
        for violation in outcome.violations[:20]:
            print(f"    {violation}", flush=True)
        bad += bool(outcome.violations)
    if len(seeds) > 1:
        print(_summary(outcomes, len(seeds), bad))
    return min(bad, 100)


def _summary(outcomes: list[Outcome], runs: int, bad: int) -> str:
    faults = sum((outcome.faults for outcome in outcomes), Counter[str]())
    totals = sum((Counter(outcome.counts) for outcome in outcomes), Counter[str]())
    violations = Counter(violation.kind for outcome in outcomes for violation in outcome.violations)
    lines = [
        f"{runs} runs, {bad} bad; {faults.total()} faults",
        "faults: " + ", ".join(f"{kind} {faults[kind]}" for kind in sorted(faults)),
        "load: " + ", ".join(f"{count} {what}" for what, count in totals.items()),
        f"at the latest, writable after {_longest(outcome.writable_s for outcome in outcomes):.1f} s, "
        f"progress after {_longest(outcome.progress_s for outcome in outcomes):.1f} s",
        *[f"{count} × {kind}" for kind, count in violations.items()],
    ]
    return "\n".join(lines)


def _longest(times: Iterable[float]) -> float:
    return max((each for each in times if not math.isnan(each)), default=math.nan)


if __name__ == "__main__":
    sys.exit(main())
