"""Spark behind everything else on the same machine: what is being published does not wait for a scan.

    spark = in_background(SparkSession.builder.master("local[*]").getOrCreate())

A pipeline keeps all cores busy for as long as it runs, and a broker beside it needs one for a moment, often. The kernel
sees to that if it knows which is which: Spark gets what nobody else wants, which on an idle machine is everything, and
on a busy one still enough to get on.

Java was started by this process and is another one; each of its threads has a priority, and what a thread starts (more
threads, the Python workers) has that of the thread. So all that run now are lowered, and nothing of this process is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of 19. The scheduler gives it about a tenth of what one of the usual priority gets, if both want the same core. With
# SCHED_IDLE others would wait even less, and a pipeline beside busy processes would stand still.
NICENESS = 10


def in_background(spark: SparkSession) -> SparkSession:
    """The same session. One whose Java this process did not start (Spark Connect, a shell), or of another master than
    a local one, or on another system than Linux, is left as it is."""
    if sys.platform == "linux" and (pid := _java(spark)) is not None:
        _lower(pid)
    return spark


def _java(spark: SparkSession) -> int | None:
    context = getattr(spark, "_sc", None)
    if context is None or not context.master.startswith("local"):
        return None
    process = getattr(context._gateway, "proc", None)
    return None if process is None else process.pid


def _lower(pid: int) -> None:
    """Twice: a thread that was started while the first round went on may have come from one not yet lowered."""
    for _ in range(2):
        for thread in _threads(pid):
            with suppress(ProcessLookupError):
                if os.getpriority(os.PRIO_PROCESS, thread) < NICENESS:
                    os.setpriority(os.PRIO_PROCESS, thread, NICENESS)


def _threads(pid: int) -> Iterator[int]:
    """Of the process, and of those that it has started."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            yield int(task.name)
            with suppress(FileNotFoundError, ProcessLookupError):
                for child in (task / "children").read_text().split():
                    yield from _threads(int(child))
