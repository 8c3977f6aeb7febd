"""Real Spark on this machine, one session for all tests, and real brokers. Without Java these tests are skipped."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import penstock
from broker_process import BrokerProcess, broker_process
from penstock.client.blocking import Client
from penstock.spark import background
from penstock.spark.pipeline.failures import cause_of
from penstock.spark.pipeline.progress import Meter
from penstock.spark.pipeline.queries import start
from penstock.spark.pipeline.reading import read
from penstock.spark.pipeline.running import WORKER_LATE
from penstock.spark.pipeline.spec import Pipeline, Trigger
from spark.pipeline_runs import Parse, Ran, Run

# pytest adds its handlers to loggers that do not propagate; PySpark's would give them another format, for good.
PySparkLogger.addHandler = logging.Logger.addHandler  # type: ignore[method-assign]

QUIET = Path(__file__).with_name("log4j2.properties")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("java") is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="Spark needs Java 17: install openjdk-17-jre-headless"))


def new_session(master: str, warehouse: Path, **conf: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("penstock tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-Dlog4j.configurationFile="
        + str(Path(__file__).with_name("log4j2.properties")),
        "spark.sql.warehouse.dir": str(warehouse),
        **conf,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = tmp_path_factory.mktemp("warehouse")
    try:
        session = new_session("local[2]", warehouse)
    except Exception as error:
        # On a busy machine it did not start, once in many times. Why is told here, in the test that needs it.
        print(f"Spark did not start, and is started again: {cause_of(error)}", file=sys.stderr)
        session = new_session("local[2]", warehouse)
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture(autouse=True)
def priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays: the session is that of all tests, and only root can give back what it had."""
    monkeypatch.setattr(background, "_lower", lambda pid: None)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """For tests that leave it running. Topics are told apart by their names."""
    with broker_process(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture
def q(broker: BrokerProcess) -> Iterator[Client]:
    with penstock.connect(broker.address) as client:
        yield client


@pytest.fixture
def parse(tmp_path: Path, broker: BrokerProcess) -> Parse:
    def from_text(text: str) -> Pipeline:
        file = tmp_path / "pipeline.yaml"
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        pipeline = read(file, {"PENSTOCK_SERVER": broker.address})
        return replace(pipeline, trigger=Trigger(available_now=True))

    return from_text


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, parse: Parse) -> Run:
    """With what is there now, and going on where it was when it ran last in the same test."""

    def run_text(text: str) -> Ran:
        ran = run_once(text)
        return run_once(text) if ran.error in WORKER_LATE else ran

    def run_once(text: str) -> Ran:
        queries = start(spark, parse(text), str(tmp_path / "checkpoint"))
        error = None
        for query in queries:
            try:
                query.awaitTermination()
            except Exception as failed:
                error = cause_of(failed)
        meter = Meter()
        for each in queries[0].recentProgress:
            meter.take(json.loads(each.json))
        return Ran(meter.progress, error)

    return run_text
