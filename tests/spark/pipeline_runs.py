"""What a pipeline's run comes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.spark.pipeline.progress import Progress
from penstock.spark.pipeline.spec import Pipeline


class Ran(NamedTuple):
    progress: Progress
    error: str | None


Parse = Callable[[str], Pipeline]
Run = Callable[[str], Ran]
