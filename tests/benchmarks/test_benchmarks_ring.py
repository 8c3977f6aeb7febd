"""The benchmark of the ring would see a kill that undoes too much, and says what it leaves out."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
A_STEP = 100


def jobs_of(*steps: int) -> set[int]:
    return {number for step in steps for number in range(step * A_STEP, (step + 1) * A_STEP)}


@pytest.fixture(scope="module")
def ring_killed() -> Iterator[ModuleType]:
    """Nothing of it is there any more for other tests."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("ring_killed")
        for name in {"harness", "ring_killed"} - before:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("left", "lost_s", "undone_s"),
    [
        # Put at 1 to 4, the first two acknowledged at 5 and 6; dead at 10.
        (jobs_of(2, 3), 0, 0),
        (jobs_of(2), 6, 0),
        (jobs_of(2, 3) - {2 * A_STEP}, 7, 0),
        (jobs_of(1, 2, 3), 0, 4),
        (jobs_of(0, 2, 3), 0, 5),
        ({A_STEP} | jobs_of(2, 3), 0, 4),
        (set(), 7, 0),
    ],
)
def test_the_oldest_put_that_a_kill_took_and_the_oldest_ack_that_it_undid_are_found(
    ring_killed: ModuleType, left: set[int], lost_s: float, undone_s: float
) -> None:
    times = np.array([[1.0, 2, 3, 4, 0], [5.0, 6, 0, 0, 0]])
    kill = ring_killed.compared(times, 10.0, left)
    assert (kill.lost_s, kill.undone_s) == (lost_s, undone_s)
    assert kill.jobs_per_s == 2 * A_STEP / 5


def test_a_run_in_which_nothing_was_acknowledged_proves_nothing(ring_killed: ModuleType) -> None:
    with pytest.raises(AssertionError, match="nothing was acknowledged"):
        ring_killed.compared(np.array([[1.0, 2], [0.0, 0]]), 10.0, set())


WITHOUT_JANUS = """
import importlib.util, pathlib
import harness, ring
importlib.util.find_spec = lambda name: None
for figure in ring.measure_tasks(harness.Run(pathlib.Path(), 1, True)):
    print(figure.name)
"""


def test_janus_is_left_out_with_a_line_that_says_so() -> None:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_JANUS]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout.splitlines() == [
        "from a thread to a task: Ring",
        "from a thread to a task: Ring, take(1000)",
    ]
    assert done.stderr == "janus: skipped, it is not installed: pip install 'penstock[bench]'\n"
