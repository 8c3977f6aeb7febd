"""Spark behind everything else on the same machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import get_native_id

import pytest
from pyspark.sql import SparkSession

from penstock.spark import in_background

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such a policy for each thread")


def of_java(spark: SparkSession) -> set[int]:
    pid = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found.add(os.sched_getscheduler(int(task.name)))
        except ProcessLookupError:
            continue
    return found


def of_workers(spark: SparkSession) -> set[int]:
    def told(_: object) -> list[int]:
        return [os.sched_getscheduler(0)]

    return set(spark.sparkContext.parallelize(range(4), 4).mapPartitions(told).collect())


def test_java_gets_what_nobody_else_wants_and_we_stay_as_we_are(spark: SparkSession) -> None:
    before = os.sched_getscheduler(get_native_id())
    assert in_background(spark) is spark
    assert of_java(spark) == {os.SCHED_IDLE}
    assert os.sched_getscheduler(get_native_id()) == before != os.SCHED_IDLE


def test_so_do_its_workers_whether_they_ran_before_or_start_now(spark: SparkSession) -> None:
    assert of_workers(spark)
    in_background(spark)
    assert of_workers(spark) == {os.SCHED_IDLE}


def test_a_session_of_another_process_is_left_as_it_is() -> None:
    class Connected:
        """As Spark Connect's: no context of its own."""

    session = Connected()
    assert in_background(session) is session  # type: ignore[arg-type, comparison-overlap]
