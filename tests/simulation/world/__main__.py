"""python -m tests.simulation.world SEED [SEED_AFTER_THE_LAST]: run seeds, each in a process of its own, and say what
happened in them. What fails is made smaller before it is reported, with the command that runs it again."""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import signal
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random
from shlex import quote
from time import perf_counter, process_time
from typing import NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from history.violation import Violation
from simulation.world.coverage import Covered, Lines
from simulation.world.coverage import report as coverage_of
from simulation.world.guards import salt
from simulation.world.mutants import broken
from simulation.world.runs import Outcome, Plan, run_plan
from simulation.world.shrinking import shrink

_PROGRESS_S = 30.0
# Real seconds, on however busy a machine. A run that takes longer hangs.
_LIMIT_S = 300
DIED = "the process of the run died"
_SHOWN = 5
# By all runs that have ended.
_COVERED: Lines = {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("end", type=int, nargs="?")
    parser.add_argument("--seconds", type=float, default=20, help="simulated, of faults")
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time")
    parser.add_argument("--plan", help="run this one, whatever the seed says")
    parser.add_argument("--show", action="store_true", help="print a transcript")
    parser.add_argument("--salt", type=int, default=0, help="of the hashes of objects that are hashed by address")
    parser.add_argument("--digests", action="store_true", help="print the digest of each run")
    parser.add_argument("--no-shrink", action="store_true", help="report failures as they are")
    parser.add_argument("--mutant", help="a build that is broken in this way")
    parser.add_argument("--until-failure", action="store_true", help="run no further seed after the first that fails")
    parser.add_argument("--operations", help="of each seed: these, and not those that it says; separated by commas")
    parser.add_argument("--faults", help="of each seed: only of these kinds")
    parser.add_argument("--coverage", action="store_true", help="report which part of the program was executed")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of strings have the order of their hashes.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    if given.salt:
        salt(given.salt)
    with broken(given.mutant) if given.mutant else nullcontext():
        return _run(given)


def _run(given: argparse.Namespace) -> int:
    # What is compiled at first use is so before the first seed.
    run_plan(Plan.of(0, 1))
    gc.freeze()
    if given.plan:
        plans = [msgspec.json.decode(given.plan, type=Plan)]
    else:
        plans = [_plan(seed, given) for seed in range(given.first, given.end or given.first + 1)]
    report = Report(len(plans))
    for run in in_processes(plans, given.jobs, is_shown=given.show, is_covered=given.coverage):
        report.add(run)
        if given.digests:
            print(f"seed {run.outcome.plan.seed}: digest {run.outcome.digest}", flush=True)
        if run.outcome.violations and given.until_failure:
            tell_failure(run.outcome)
            print(f"failed after {report.done} seeds", flush=True)
            return 1
        if run.outcome.violations:
            is_as_is = given.no_shrink or given.plan or run.outcome.violations[0].kind == DIED
            smaller = run.outcome if is_as_is else shrink(run.outcome, _again)
            tell_failure(smaller)
    for line in coverage_of(_COVERED) if given.coverage else ():
        print(line)
    return report.end()


def _plan(seed: int, given: argparse.Namespace) -> Plan:
    plan = Plan.of(seed, given.seconds)
    if given.operations is not None:
        plan = plan._replace(operations=tuple(name for name in given.operations.split(",") if name))
    if given.faults:
        kinds = given.faults.split(",")
        plan = plan._replace(faults=tuple(Random(f"faults {seed}").choices(kinds, k=len(plan.faults))))
    return plan


class Run(NamedTuple):
    outcome: Outcome
    # Of a processor.
    took_s: float
    covered: Lines


class Report:
    def __init__(self, count: int) -> None:
        self._count = count
        self._began = self._told = perf_counter()
        self._counts: Counter[str] = Counter()
        self.done = self._bad = 0
        self._simulated_s = self._took_s = 0.0

    def add(self, run: Run) -> None:
        self.done += 1
        self._bad += bool(run.outcome.violations)
        self._counts += run.outcome.counts
        self._simulated_s += run.outcome.simulated_s
        self._took_s += run.took_s
        if perf_counter() - self._told > _PROGRESS_S:
            self._told = perf_counter()
            print(self._line(), flush=True)

    def _line(self) -> str:
        took_s = perf_counter() - self._began
        speed = self._simulated_s / max(self._took_s, 1e-9)
        return (
            f"{self.done} of {self._count} seeds in {took_s:.0f} s ({self.done / took_s:.2f} a second), {self._bad} "
            f"failed; {self._simulated_s:.0f} simulated seconds, {speed:.1f} for each "
            "second of a processor"
        )

    def end(self) -> int:
        for kind, count in sorted(self._counts.items()):
            print(f"{count:10,} {kind}")
        print(self._line())
        return 1 if self._bad else 0


def tell_failure(outcome: Outcome) -> None:
    plan = outcome.plan
    print(f"seed {plan.seed}: {len(outcome.violations)} violations; {', '.join(plan.faults) or 'no faults'}")
    for violation in outcome.violations[:_SHOWN]:
        print(f"  {str(violation)[:300]}")
    encoded = quote(msgspec.json.encode(plan).decode())
    print(f"  replay: python -m tests.simulation.world --show --plan {encoded}", flush=True)


def _again(plan: Plan) -> Outcome:
    return next(in_processes([plan], 1)).outcome


def in_processes(
    plans: Iterable[Plan], jobs: int, *, is_shown: bool = False, is_covered: bool = False
) -> Iterator[Run]:
    """In the order of the plans. Processes end without running a finalizer."""
    begun: deque[tuple[Plan, int, int]] = deque()
    for plan in plans:
        if len(begun) >= jobs:
            yield _ended(*begun.popleft())
        begun.append((plan, *_begin(plan, is_shown, is_covered)))
    while begun:
        yield _ended(*begun.popleft())


def _begin(plan: Plan, is_shown: bool, is_covered: bool) -> tuple[int, int]:
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LIMIT_S)
        began, covered = process_time(), Covered(_COVERED)
        with covered.tracing() if is_covered else nullcontext():
            outcome = run_plan(plan, print if is_shown else None)
        signal.alarm(0)
        with os.fdopen(writing, "wb") as file:
            pickle.dump(Run(outcome, process_time() - began, covered.lines), file)
        sys.stdout.flush()
        os._exit(0)
    except BaseException as error:
        print(f"seed {plan.seed}: {error!r}", flush=True)
    finally:
        sys.stdout.flush()
        os._exit(1)


def _ended(plan: Plan, child: int, reading: int) -> Run:
    with os.fdopen(reading, "rb") as file:
        told = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        how = f"took more than {_LIMIT_S} s" if code == -signal.SIGALRM else f"exit code {code}"
        return Run(Outcome(plan, [Violation(DIED, how)], Counter(), "", 0.0), 0.0, {})
    run: Run = pickle.loads(told)
    for place, lines in run.covered.items():
        _COVERED.setdefault(place, set()).update(lines)
    return run


if __name__ == "__main__":
    sys.exit(main())
