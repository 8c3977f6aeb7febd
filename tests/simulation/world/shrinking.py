"""A failing plan made smaller, as long as it fails in one of the same ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulation.world.runs import Outcome, Plan

_RUNS_MAX = 30


def shrink(failed: Outcome, run: Callable[[Plan], Outcome]) -> Outcome:
    kinds = {violation.kind for violation in failed.violations}
    runs = 0
    is_smaller = True
    while is_smaller and runs < _RUNS_MAX:
        is_smaller = False
        for plan in _smaller(failed.plan):
            runs += 1
            outcome = run(plan)
            if kinds & {violation.kind for violation in outcome.violations}:
                failed, is_smaller = outcome, True
                break
            if runs == _RUNS_MAX:
                break
    return failed


def _smaller(plan: Plan) -> Iterator[Plan]:
    faults, shape, operations = plan.faults, plan.shape, plan.operations
    if operations:
        yield plan._replace(operations=())
    for name in operations if len(operations) > 1 else ():
        yield plan._replace(operations=(name,))
    for name in operations if len(operations) > 2 else ():
        yield plan._replace(operations=tuple(each for each in operations if each != name))
    if len(faults) > 2:
        yield plan._replace(faults=faults[: len(faults) // 2])
        yield plan._replace(faults=faults[len(faults) // 2 :])
    if len(faults) > 1:
        for number in range(len(faults)):
            yield plan._replace(faults=faults[:number] + faults[number + 1 :])
    usual = {"nodes": 3, "replicas": 3, "min_isr": 2}
    if any(getattr(shape, name) != value for name, value in usual.items()):
        yield plan._replace(shape=shape._replace(**usual))
    if shape.nodes > max(3, shape.replicas):
        yield plan._replace(shape=shape._replace(nodes=max(3, shape.replicas)))
    smallest = {"partitions": 1, "producers": 1, "raw_producers": 0, "consumers": 1, "delayed": 0.0}
    for name, value in smallest.items():
        if getattr(shape, name) != value:
            yield plan._replace(shape=shape._replace(**{name: value}))
