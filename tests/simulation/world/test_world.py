"""The real program in simulation: three nodes and their clients, with mixed faults."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.world import __main__ as runner
from simulation.world.faults import FAULTS
from simulation.world.runs import Plan

# A fault that was tried so often must have fired at least once.
TRIED_MIN = 6
ROOT = Path(__file__).parents[3]
# At most two minutes on two cores that have nothing else to do.
SEEDS, SECONDS = 150, 5


def simulate(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation.world", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_same_seed_gives_the_same_run_wherever_objects_lie_in_memory() -> None:
    first, second = (simulate(1, 4, "--seconds", SECONDS, "--digests", "--salt", salt) for salt in (1, 2))
    digests = [[line for line in ended.stdout.splitlines() if "digest" in line] for ended in (first, second)]
    assert len(digests[0]) == 3, first.stdout + first.stderr
    assert digests[0] == digests[1]


# On a busy machine it takes some minutes; a run that hangs is ended by itself.
@pytest.mark.timeout(1_800)
def test_no_promise_is_broken_by_mixed_faults(scale: float, request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--seed")
    seeds = (seed, seed + 1) if seed is not None else (0, int(SEEDS * scale))
    ended = simulate(*seeds, "--seconds", SECONDS, "--jobs", 2)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counts = {what: int(count) for count, what in re.findall(r"^ *(\d+) (.+)$", ended.stdout.replace(",", ""), re.M)}
    idle = [kind for kind in FAULTS if counts.get(f"fault {kind}", 0) >= TRIED_MIN and f"fired {kind}" not in counts]
    assert not idle, f"faults that never fired: {idle}"


@pytest.mark.parametrize(("ending", "how"), [(signal.SIGKILL, "exit code -9"), (signal.SIGALRM, "took more than")])
def test_a_run_whose_process_dies_fails_and_the_next_one_is_run(
    ending: signal.Signals, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "run_plan", lambda plan, tell: os.kill(os.getpid(), ending))
    runs = list(runner.in_processes([Plan.of(seed, 1) for seed in (1, 2)], 1))
    assert [run.outcome.plan.seed for run in runs] == [1, 2]
    for run in runs:
        [violation] = run.outcome.violations
        assert violation.kind == runner.DIED
        assert violation.what.startswith(how)
