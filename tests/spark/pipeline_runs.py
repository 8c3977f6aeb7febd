"""What a pipeline's run comes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from penstock.spark.pipeline.failures import cause_of
from penstock.spark.pipeline.progress import Progress
from penstock.spark.pipeline.running import WORKER_LATE
from penstock.spark.pipeline.spec import Pipeline

T = TypeVar("T")
_TRIES = 3


class Ran(NamedTuple):
    progress: Progress
    error: str | None


Parse = Callable[[str], Pipeline]
Run = Callable[[str], Ran]


def until_in_time(work: Callable[[], T]) -> T:
    """Again, if a worker of Spark's was late."""
    for _ in range(_TRIES - 1):
        try:
            return work()
        except Exception as error:
            if cause_of(error) not in WORKER_LATE:
                raise
    return work()
