"""python -m tests.simulation.cluster SEED [SEED_AFTER_THE_LAST]: replay seeds, and say what happened in them."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[2]))

from simulation.cluster.seeds import run_seed


def main(first: int, end: int) -> None:
    began = perf_counter()
    counts: Counter[str] = Counter()
    bad = 0
    for seed in range(first, end):
        try:
            counts += run_seed(seed)
        except AssertionError as error:
            bad += 1
            print(error)
    took = perf_counter() - began
    print(f"{end - first} seeds in {took:.1f} s ({(end - first) / took:.0f} a second), {bad} of them bad")
    for kind, count in sorted(counts.items()):
        print(f"{count:10,} {kind}")


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:]]
    main(arguments[0], arguments[1] if len(arguments) > 1 else arguments[0] + 1)
