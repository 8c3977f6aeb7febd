"""Runs seeds, and says how to run one again."""

from __future__ import annotations

from collections import Counter

from simulation.cluster.checker import Violation
from simulation.cluster.world import World


def run_seed(seed: int, *, is_strict: bool = True) -> Counter[str]:
    try:
        return World(seed, is_strict=is_strict).run()
    except Exception as error:
        said = str(error) or repr(error)
        raise Violation(f"seed {seed}: {said}\nreplay: python -m tests.simulation.cluster {seed}") from error
