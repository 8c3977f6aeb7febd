"""python -m tests.chaos SEED [SEED_AFTER_THE_LAST] [--fault KIND …] [--keep]: replay runs, and say what came of them.

What was recorded, and what the processes said, stays in the directory that is named if something was wrong, or if it is
to be kept. From seed 1,000 on, runs are longer, with many faults.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.faults import FAULTS, impossible
from chaos.runs import run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("seed", type=int)
    parser.add_argument("end", type=int, nargs="?")
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), help="instead of those of the seed")
    parser.add_argument("--keep", action="store_true", help="the histories and logs of runs that went well, too")
    given = parser.parse_args()
    # Nothing that was started stays behind, whoever ends this.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    left_out = impossible()
    for kind, why in left_out.items():
        print(f"without {kind}: {why}")
    bad = 0
    for seed in range(given.seed, given.end or given.seed + 1):
        directory = Path(tempfile.mkdtemp(prefix=f"penstock-chaos-{seed}-"))
        began = time.monotonic()
        try:
            outcome = run_seed(seed, directory, left_out=left_out, faults=given.fault)
        except Exception as error:
            bad += 1
            print(f"seed {seed}: {error!r}; {directory}", flush=True)
            continue
        is_kept = bool(given.keep or outcome.violations)
        where = f", {directory}" if is_kept else ""
        print(f"{outcome}, {time.monotonic() - began:.1f} s{where}", flush=True)
        if not is_kept:
            shutil.rmtree(directory)
        for violation in outcome.violations[:20]:
            print(f"    {violation}", flush=True)
        bad += bool(outcome.violations)
    return bad


if __name__ == "__main__":
    sys.exit(main())
