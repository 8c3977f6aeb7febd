"""Waiting until a cluster is as it was asked to be, with a bar for those who look on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.cli.cluster_site import Call
from penstock.cli.cluster_view import place, progress_of
from penstock.cli.output import note
from penstock.errors import ClusterError, ConnectionLost

if TYPE_CHECKING:
    from penstock.client.cluster_requests import ClusterReport, Elected, Move

_LOOK_S = 0.25
_TOLD_EVERY_S = 3.0


class Step(NamedTuple):
    """How much of it is done, from 0 to 1, and what it waits for."""

    done: float
    told: str = ""


def wait_for(call: Call, what: str, step: Callable[[ClusterReport], Step], timeout_s: float | None) -> str:
    """Empty when it is done; when the time is over, what it waited for. A node that goes is no reason to give up."""
    from penstock.client.cluster_requests import SurveyCluster

    until = None if timeout_s is None else time.monotonic() + timeout_s
    with _bar(what) as draw:
        while True:
            try:
                now = step(call(SurveyCluster()))
            except (ConnectionLost, ClusterError) as error:
                now = Step(0, error.message)
            draw(now)
            if now.done >= 1:
                return ""
            if until is not None and time.monotonic() >= until:
                return now.told or what
            time.sleep(_LOOK_S)


class Lines:
    """Into a log or a pipe: what it waits for, if that takes long, and whenever it is something else."""

    def __init__(self, what: str, tell: Callable[[str], None], now: Callable[[], float]) -> None:
        self._what = what
        self._tell = tell
        self._now = now
        self._told = ""
        self._next = now() + _TOLD_EVERY_S

    def draw(self, step: Step) -> None:
        if step.told != self._told and step.done < 1 and self._now() >= self._next:
            self._told, self._next = step.told, self._now() + _TOLD_EVERY_S
            self._tell(f"{self._what}, {step.done:.0%}: {step.told}")


@contextmanager
def _bar(what: str) -> Iterator[Callable[[Step], None]]:
    if not sys.stderr.isatty():
        yield Lines(what, note, time.monotonic).draw
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %  {task.fields[told]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0, told="")
        yield lambda step: bar.update(task, completed=step.done, told=step.told)


def moved(moves: list[Move], report: ClusterReport) -> Step:
    """A partition whose topic was deleted meanwhile is moved, too."""
    wanted = {(move.topic, move.number): move.target for move in moves}
    if not wanted:
        return Step(1)
    gone = {node.id for node in report.nodes if not node.is_alive}
    done, told = float(len(wanted)), ""
    for each in report.partitions:
        target = wanted.get((each.topic, each.number))
        if target is None or each.target != target:
            # Moved, or meant to go elsewhere by now.
            continue
        done -= 1 - min(0.99, progress_of(each))
        missing = [node for node in target if node not in each.in_sync]
        told = told or f"{place(each)} waits for {', '.join(missing) or 'its leader'}"
        if any(node in gone for node in missing):
            told = f"{place(each)} waits for {', '.join(node for node in missing if node in gone)}, which is gone"
    return Step(done / len(wanted), told)


def led(elected: list[Elected], report: ClusterReport) -> Step:
    wanted = {(each.topic, each.number): each.leader for each in elected}
    left = [each for each in report.partitions if wanted.get((each.topic, each.number), each.leader) != each.leader]
    told = f"{place(left[0])} is led by {left[0].leader or 'nobody'}" if left else ""
    return Step(1 - len(left) / max(1, len(wanted)), told)


def emptied(node: str, moves: list[Move], leaders: int, report: ClusterReport) -> Step:
    """It leads nothing, and what was to be moved is."""
    left = [each for each in report.partitions if each.leader == node]
    step = moved(moves, report)
    if not left:
        return step
    alone = [each for each in left if set(each.in_sync) <= {node}]
    told = f"it still leads {len(left)}"
    if alone:
        told = f"no other replica of {place(alone[0])} is in sync"
    share = 1 - len(left) / max(leaders, len(left), 1)
    return Step(min(0.99, (share + step.done) / 2), told)
