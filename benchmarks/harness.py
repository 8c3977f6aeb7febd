"""What the benchmarks share: rounds and medians, baselines, logs to measure, and how figures are shown.

A machine is never quiet, so nothing is compared with a number from yesterday. What has a bar in relation to
something is measured beside it: every round runs each contender once, in an order that turns from round to round;
the ratio is taken within a round, and the median over the rounds is the figure. The first round is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

from rich.console import Console
from rich.table import Table

from penstock.batch import Batch
from penstock.clock import SystemClock
from penstock.codec import NONE
from penstock.frame import Frame
from penstock.limits import MIB
from penstock.storage.files import DiskFiles
from penstock.storage.log import Log, LogSettings

ROOT = Path(__file__).resolve().parent.parent
GIB = 1024 * MIB
SYNC_BYTES = 8 * MIB
VALUE_BYTES = 100
SEED = 20
# The exit code of a script that came to its end with a target that does not hold. 1 is that of one that broke down.
MISSED = 3
# Names a file for what is said; run.py keeps it beside the figures.
SAID = "PENSTOCK_BENCH_SAID"


# --- figures ------------------------------------------------------------------------------------------------


class Figure(NamedTuple):
    """One answer. `target` and `holds` are None where there is no bar."""

    name: str
    value: float
    unit: str
    target: str | None = None
    holds: bool | None = None


def info(name: str, value: float, unit: str) -> Figure:
    return Figure(name, float(value), unit)


def at_least(name: str, value: float, unit: str, bar: float) -> Figure:
    return Figure(name, float(value), unit, f">= {bar:g}", bool(value >= bar))


def at_most(name: str, value: float, unit: str, bar: float) -> Figure:
    return Figure(name, float(value), unit, f"<= {bar:g}", bool(value <= bar))


# --- running ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """How this run was asked for. `directory` is on the filesystem to be measured and is removed at the end."""

    directory: Path
    rounds: int
    quick: bool

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        path = Path(tempfile.mkdtemp(dir=self.directory))
        try:
            yield path
        finally:
            shutil.rmtree(path)


Measure = Callable[[Run], Iterable[Figure]]
# Runs once and returns the seconds that count, so that what it prepares and clears away does not.
Contender = Callable[[], float]
Found = TypeVar("Found")


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def interleave(rounds: int, contenders: Mapping[str, Callable[[], Found]]) -> dict[str, list[Found]]:
    """What each contender found in each round: the seconds it took, for most."""
    names = list(contenders)
    taken: dict[str, list[Found]] = {name: [] for name in names}
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            gc.collect()
            found = contenders[name]()
            if number:
                taken[name].append(found)
    return taken


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Median of the per-round ratios."""
    return median(a / b for a, b in zip(over, under, strict=True))


def unrest(baseline: Sequence[float]) -> float:
    """Slowest round over fastest, of something that should always take the same: far from 1, others were at work.

    A disk that others use slows a baseline of many small syncs more than what it is compared with, so a good ratio
    from an uneasy run proves nothing.
    """
    return max(baseline) / min(baseline)


def percentile(sorted_values: Sequence[float], share: float) -> float:
    return sorted_values[min(int(len(sorted_values) * share), len(sorted_values) - 1)]


def main(question: str, measure: Measure, *, rounds: int) -> None:
    parser = argparse.ArgumentParser(description=question.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line for each figure")
    parser.add_argument(
        "--quick", action="store_true", help="the same code on little data; the figures mean nothing, always exits 0"
    )
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="where to write (default: build)")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"default {rounds}")
    options = parser.parse_args()
    # A default SIGTERM would leave gigabytes behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.dir.mkdir(parents=True, exist_ok=True)
    figures = []
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="bench-") as directory:
        run = Run(Path(directory), 1 if options.quick else options.rounds, options.quick)
        described = machine(run.directory)
        for figure in measure(run):
            figures.append(figure)
            if options.json:
                print(json.dumps(figure._asdict()), flush=True)
    if not options.json:
        show(question.splitlines()[0], figures, f"{described}; {run.rounds} rounds")
    if not run.quick and any(figure.holds is False for figure in figures):
        sys.exit(MISSED)


# --- showing ------------------------------------------------------------------------------------------------


def say(line: str) -> None:
    """What is no figure, and should be known beside them: what ran, and what did not."""
    print(line, file=sys.stderr, flush=True)
    if path := os.environ.get(SAID):
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")


def show(title: str, figures: Iterable[Figure], caption: str) -> None:
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("target")
    table.add_column("holds")
    for figure in figures:
        holds = "" if figure.holds is None else "yes" if figure.holds else "[bold red]NO[/]"
        table.add_row(figure.name, tidy(figure.value), figure.unit, figure.target or "", holds)
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def tidy(value: float) -> str:
    """Three significant digits, and no fewer digits before the point than there are."""
    if value == 0:
        return "0"
    digits = 3
    for power in (1, 10, 100):
        if abs(value) >= power:
            digits -= 1
    return f"{value:,.{digits}f}" if abs(value) >= 0.01 else f"{value:.2g}"


def machine(directory: Path) -> str:
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"Linux {platform.release()}, {filesystem(directory)}"
    )


def filesystem(path: Path) -> str:
    """The type of the filesystem that holds `path`: a tmpfs would make every fsync free."""
    longest, kind = "", "unknown filesystem"
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return kind
    resolved = str(path.resolve())
    for line in lines:
        _, mounted, found, *_ = line.split()
        inside = mounted == "/" or resolved == mounted or resolved.startswith(mounted + "/")
        if inside and len(mounted) >= len(longest):
            longest, kind = mounted, found
    return kind


# --- what is measured ---------------------------------------------------------------------------------------


class HandClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.time_us = SystemClock().now_us()

    def now_us(self) -> int:
        return self.time_us

    def monotonic_us(self) -> int:
        return self.time_us


def values(count: int) -> list[bytes]:
    """Each starts with its row number; the rest are hexadecimal numbers drawn at random, hard to compress."""
    words = random.Random(SEED)
    return [
        (b"%08d " % row + b" ".join(b"%x" % words.randrange(1 << 20) for _ in range(20)))[:VALUE_BYTES]
        for row in range(count)
    ]


def keys(count: int) -> list[bytes]:
    return [b"customer-%06d" % (row * 7919 % 1_000_000) for row in range(count)]


def make_frame(count: int, codec: int = NONE) -> Frame:
    batch = Batch.from_columns(values(count), keys=keys(count), now_us=SystemClock().now_us())
    return Frame.of(batch, codec=codec)


def groups_of(frame: Frame, bytes_total: int) -> list[list[Frame]]:
    """Groups of frames, each of at most what one sync covers.

    Within a group every frame has memory of its own: the same one again and again would be copied out of the
    processor's cache, which no baseline of 8 MiB buffers could match.
    """
    in_group = max(SYNC_BYTES // len(frame.data), 1)
    group = [Frame(memoryview(bytes(frame.data))) for _ in range(in_group)]
    return [group] * max(bytes_total // (in_group * len(frame.data)), 1)


def open_log(path: Path, settings: LogSettings | None = None) -> Log:
    return Log.open(DiskFiles(path), clock=SystemClock(), settings=settings)


def build_log(
    path: Path, frame: Frame, bytes_total: int, segment_bytes_max: int = LogSettings().segment_bytes_max
) -> None:
    """A closed log of about that size; a frame a millisecond, one sync a segment."""
    clock = HandClock()
    log = Log.open(DiskFiles(path), clock=clock, settings=LogSettings(segment_bytes_max=segment_bytes_max))
    for _ in range(bytes_total // len(frame.data)):
        clock.time_us += 1_000
        log.append([frame])
    log.close()


def drop_from_page_cache(path: Path) -> None:
    """So that the next read of these files comes from the disk."""
    for name in os.listdir(path):
        fd = os.open(path / name, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def write_raw(path: Path, groups: Iterable[Sequence[bytes | memoryview]]) -> float:
    """The least that can be done: os.write of each buffer, os.fdatasync after each group. In seconds."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        started = time.perf_counter()
        for group in groups:
            for buffer in group:
                written = os.write(fd, buffer)
                assert written == len(buffer)
            os.fdatasync(fd)
        return time.perf_counter() - started
    finally:
        os.close(fd)
        os.unlink(path)
