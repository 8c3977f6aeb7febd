"""Runs seeds, and says how to run one again."""

from __future__ import annotations

from collections import Counter

from simulation.cluster.checker import Violation
from simulation.cluster.world import World


class Broke(AssertionError):
    """No promise, but the code itself: an assertion of its own, or an error that nobody expected."""


def run_seed(seed: int, *, is_strict: bool = True) -> Counter[str]:
    try:
        return World(seed, is_strict=is_strict).run()
    except Exception as error:
        kind = Violation if isinstance(error, Violation) else Broke
        said = str(error) or repr(error)
        raise kind(f"seed {seed}: {said}\nreplay: python -m tests.simulation.cluster {seed}") from error
