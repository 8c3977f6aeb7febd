"""Spark behind everything else on the same machine: what is being published does not wait for a scan.

    spark = in_background(SparkSession.builder.master("local[*]").getOrCreate)

A pipeline keeps all cores busy for as long as it runs, and a broker beside it needs one for a moment, often. The kernel
sees to that if it knows which is which: Spark gets what nobody else wants, which on an idle machine is everything.

Java, and the Python workers that it starts, have the priority of the thread that started Java: that one is lowered, and
this process keeps its own. Java that runs already is as it was.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from threading import Thread, get_native_id
from typing import TypeVar

T = TypeVar("T")

# Of 19. The scheduler gives it about a tenth of what one of the usual priority gets, if both want the same core.
NICENESS = 10


def in_background(start: Callable[[], T]) -> T:
    """What `start` returns or raises. Where threads have no priorities of their own, it is merely called."""
    if sys.platform != "linux":
        return start()
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        me = get_native_id()
        os.setpriority(os.PRIO_PROCESS, me, max(os.getpriority(os.PRIO_PROCESS, me), NICENESS))
        try:
            outcome.append(start())
        except BaseException as error:
            failure.append(error)

    thread = Thread(target=run, name="penstock-spark")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
