"""Options and fixtures every test may use."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from penstock.cluster.etcd import process as etcd_process

# How long an example takes is no test: the machine may have other work, and a clean checkout has tables to make first.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Each Java that runs Spark here lives for seconds: compiling for speed, and threads that collect, are a third of all
# it needs. A worker of Spark's has to answer within 10 s, whatever else the machine does.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ |= {"SPARK_SUBMIT_OPTS": SHORT_LIVED, "SPARK_LAUNCHER_OPTS": SHORT_LIVED}

# One of four workers has its own: nobody takes a port while its process is started anew.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
etcd_process._PORTS = range(20_000 + 3_000 * _WORKER, 23_000 + 3_000 * _WORKER)

TESTS = Path(__file__).parent
# Begun first, so that no worker is left with one of them when the others have nothing more to do. `--fast` leaves them
# out: what is not named here takes a few minutes.
LONG = (
    "chaos",
    "benchmarks",
    "broker/test_model.py",
    "spark",
    "test_readme.py",
    "test_examples.py",
    "test_demo.py",
    "simulation",
    "dashboard",
    "docs",
    "integration",
    "security",
    "cluster/nodes",
    "cluster/operations",
    "cluster/doors",
    "cli/test_cluster_dev.py",
    "ring/test_power_loss.py",
)
assert all((TESTS / name).exists() for name in LONG)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.path))


@cache
def _rank(file: Path) -> int:
    return next((rank for rank, begin in enumerate(LONG) if file.is_relative_to(TESTS / begin)), len(LONG))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """None leaves the decision to other hooks, such as that of `--ignore`."""
    return True if config.getoption("--fast") and _rank(collection_path) < len(LONG) else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out the tests that take long")
    parser.addoption("--scale", type=float, default=1.0, help="multiply the number of simulated states and examples")
    parser.addoption("--seed", type=int, default=None, help="replay one seed of a simulation")


@pytest.fixture
def scale(request: pytest.FixtureRequest) -> float:
    return float(request.config.getoption("--scale"))
