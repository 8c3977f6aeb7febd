"""Spark behind everything else on the same machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import get_native_id

import pytest
from pyspark.sql import SparkSession

from penstock.spark import in_background
from penstock.spark.background import NICENESS, _threads

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only there has each thread a priority of its own"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root could give the session of all tests its priority back"),
]


@pytest.fixture(autouse=True)
def priority(spark: SparkSession) -> Iterator[None]:
    """Lowered for real, and as before afterwards."""
    yield
    # Twice: as it is lowered.
    for _ in range(2):
        for thread in _threads(spark.sparkContext._gateway.proc.pid):  # type: ignore[union-attr]
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, thread, 0)


def of_java(spark: SparkSession) -> set[int]:
    pid = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found.add(os.getpriority(os.PRIO_PROCESS, int(task.name)))
        except ProcessLookupError:
            continue
    return found


def of_workers(spark: SparkSession) -> set[int]:
    def told(_: object) -> list[int]:
        return [os.getpriority(os.PRIO_PROCESS, 0)]

    return set(spark.sparkContext.parallelize(range(4), 4).mapPartitions(told).collect())


def test_java_has_a_lower_priority_and_we_keep_ours(spark: SparkSession) -> None:
    before = os.getpriority(os.PRIO_PROCESS, get_native_id())
    assert in_background(spark) is spark
    assert of_java(spark) == {NICENESS}
    assert os.getpriority(os.PRIO_PROCESS, get_native_id()) == before < NICENESS


def test_so_have_its_workers_whether_they_ran_before_or_start_now(spark: SparkSession) -> None:
    assert of_workers(spark)
    in_background(spark)
    assert of_workers(spark) == {NICENESS}


def test_a_session_of_another_process_is_left_as_it_is() -> None:
    class Connected:
        """As Spark Connect's: no context of its own."""

    session = Connected()
    assert in_background(session) is session  # type: ignore[arg-type, comparison-overlap]
