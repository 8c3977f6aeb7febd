"""Spark behind everything else on the same machine: what is being published does not wait for a scan.

    spark = in_background(SparkSession.builder.master("local[*]").getOrCreate())

A pipeline keeps all cores busy for as long as it runs, and a broker beside it needs one for a moment, often. The kernel
sees to that if it knows which is which: Spark gets what nobody else wants (SCHED_IDLE), which on an idle machine is
everything. A lower priority alone (nice) would make it get less, but the others would still wait for their turn.

Java was started by this process and is another one; each of its threads has a policy, and what a thread starts (more
threads, the Python workers) has that of the thread. So all that run now are changed, and nothing of this process is.
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


def in_background(spark: SparkSession) -> SparkSession:
    """The same session. One whose Java this process did not start (Spark Connect, a shell), or of another master than
    a local one, or on another system than Linux, is left as it is."""
    if sys.platform == "linux" and (pid := _java(spark)) is not None:
        _step_back(pid)
    return spark


def _java(spark: SparkSession) -> int | None:
    context = getattr(spark, "_sc", None)
    if context is None or not context.master.startswith("local"):
        return None
    process = getattr(context._gateway, "proc", None)
    return None if process is None else process.pid


def _step_back(pid: int) -> None:
    """Twice: a thread that was started while the first round went on may have come from one not yet changed."""
    for _ in range(2):
        for thread in _threads(pid):
            with suppress(ProcessLookupError):
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def _threads(pid: int) -> Iterator[int]:
    """Of the process, and of those that it has started."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            yield int(task.name)
            with suppress(FileNotFoundError, ProcessLookupError):
                for child in (task / "children").read_text().split():
                    yield from _threads(int(child))
